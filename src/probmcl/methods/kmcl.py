"""KMCL: a classifier whose probabilities are also the weights of a kernel mixture, trained with three losses."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder
from probmcl.errors import check_range
from probmcl.losses import asymmetric, kernel_contrastive, reconstruction
from probmcl.losses.per_label import present
from probmcl.methods.base import (
    Classifier,
    Known,
    Labels,
    Logits,
    MethodOrigin,
    Step,
    Views,
    repeat_for_views,
    rescale_for_ddp,
)
from probmcl.methods.contrast import gather_mixture, gather_rows, label_overlap, self_columns
from probmcl.mixture import KernelHeads, KernelMixture, kernel_bhattacharyya
from probmcl.mixture.density import Initialization
from probmcl.mixture.kernels import Covariance
from probmcl.runtime.precision import at_least_float32

KERNEL_FLOOR, SHARE_FLOOR = 1.17549e-38, 1e-7
"""Lower bounds in the published code, for a kernel and for the ratios inside logarithms."""


@dataclass(frozen=True)
class Config:
    """Settings of `kmcl`; docs/methods/kmcl.md lists their sources.

    Attributes:
        covariance: whether the kernel of a class has a single mean and variance (`isotropic`), or one of each per
            dimension of a reduced feature (`anisotropic`).
        reduced_size: size of the reduced feature with `anisotropic`.
        initialization: initial weights of the mean and variance heads, as in the `paper` or as in PyTorch (`torch`).
        classification_weight: weight of the asymmetric loss, which is summed over images and classes.
        reconstruction_weight: weight of the reconstruction loss, which is averaged over images.
        contrastive_weight: weight of the contrastive loss, which is averaged over images.
        temperature: temperature of the contrastive softmax.
        gamma_negative: focusing exponent of negatives in the asymmetric loss.
        gamma_positive: focusing exponent of positives in the asymmetric loss.
        clip: negatives with a probability up to this value have no loss.
        repeated_dimensions: with `anisotropic`, whether distances, which are sums over dimensions, are also multiplied
            by the number of dimensions, as in the published code.
        clamps: whether to apply the lower bounds of the published code to kernels and ratios.
    """

    covariance: Covariance = "isotropic"
    reduced_size: int = 128
    initialization: Initialization = "torch"
    classification_weight: float = 1.0
    reconstruction_weight: float = 1.0
    contrastive_weight: float = 1.0
    temperature: float = 0.17
    gamma_negative: float = 4.0
    gamma_positive: float = 0.0
    clip: float = 0.05
    repeated_dimensions: bool = False
    clamps: bool = False

    def __post_init__(self) -> None:
        check_range(above=0, temperature=self.temperature)
        check_range(at_least=1, reduced_size=self.reduced_size)
        check_range(at_least=0, classification_weight=self.classification_weight)
        check_range(at_least=0, reconstruction_weight=self.reconstruction_weight)
        check_range(at_least=0, contrastive_weight=self.contrastive_weight)
        check_range(at_least=0, gamma_negative=self.gamma_negative, gamma_positive=self.gamma_positive)
        check_range(at_least=0, below=1, clip=self.clip)
        if self.repeated_dimensions and self.covariance == "isotropic":
            raise ValueError("repeated_dimensions cannot be combined with covariance 'isotropic'; use 'anisotropic'")


PAPER = Config(covariance="anisotropic", initialization="paper", repeated_dimensions=True, clamps=True)
"""The defaults of the published training scripts."""


@final
class KMCL(Classifier):
    """Linear classifier and kernel mixture, trained with asymmetric, reconstruction and contrastive losses.

    L = L_ASL + L_REC + L_KMCL, each with a weight. Only the logit head is used for predictions. If the batch is split
    across several processes (P rows in total), each process compares its M rows with the rows of all processes.

    Reference: Sajedi et al., End-to-End Supervised Multilabel Contrastive Learning, 2023.
    """

    n_views = 1
    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("authors' code", "sajedi2023kmcl", ("paper",))

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.encoder = encoder
        self.heads = KernelHeads(
            encoder.features,
            len(label_space),
            covariance=self.config.covariance,
            reduced_size=self.config.reduced_size,
            initialization=self.config.initialization,
        )

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Apply the logit head to the encoder's features, which are reduced first if kernels are anisotropic."""
        return self.heads.logits(self.encoder(images))

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the weighted sum of the three losses over all views."""
        n_views = len(views)
        features = self.encoder(views.flatten(0, 1))  # (M, D)
        z = at_least_float32(self.heads.reduction(features))  # (M, n)
        mixture = self.heads.mixture(z)
        row_labels, row_known = repeat_for_views(n_views, labels, known)
        terms = {
            "classification": self._classification(mixture, row_labels, row_known),
            "reconstruction": self._reconstruction(mixture, z, row_labels, row_known),
            "contrast": self._contrast(mixture, labels, known, n_views),
        }
        weighted_terms = [
            self.config.classification_weight * terms["classification"],
            self.config.reconstruction_weight * terms["reconstruction"],
            self.config.contrastive_weight * terms["contrast"],
        ]
        return Step(torch.stack(weighted_terms).sum(), terms)

    def _classification(
        self, mixture: KernelMixture, row_labels: Float[Tensor, "M C"], row_known: Bool[Tensor, "M C"] | None
    ) -> Float[Tensor, ""]:
        """Return L_ASL, the asymmetric loss of the logits, summed over the known entries."""
        loss = asymmetric(
            mixture.logit,
            row_labels,
            row_known,
            gamma_negative=self.config.gamma_negative,
            gamma_positive=self.config.gamma_positive,
            clip=self.config.clip,
        )
        return rescale_for_ddp(loss, "sum")

    def _reconstruction(
        self,
        mixture: KernelMixture,
        z: Float[Tensor, "M n"],
        row_labels: Float[Tensor, "M C"],
        row_known: Bool[Tensor, "M C"] | None,
    ) -> Float[Tensor, ""]:
        """Return L_REC, the reconstruction loss of the reduced features `z`, averaged over rows.

        The setting `clamps` applies the lower bounds of the published code to kernels and to ratios inside logarithms.
        """
        kernel_floor = 0.0
        ratio_floor = 0.0
        if self.config.clamps:
            kernel_floor = KERNEL_FLOOR
            ratio_floor = SHARE_FLOOR
        return reconstruction(
            mixture.log_weight,
            mixture.log_kernels(z),
            present(row_labels, row_known),
            row_known,
            kernel_floor=kernel_floor,
            ratio_floor=ratio_floor,
        )

    def _contrast(self, mixture: KernelMixture, labels: Labels, known: Known, n_views: int) -> Float[Tensor, ""]:
        """Return L_KMCL between the local rows and the rows of all processes, averaged over the local rows.

        The M rows of this process are the views of its images. They are compared with the P columns: the rows of all
        processes, among which are the M rows themselves. No row is compared with itself. The setting
        `repeated_dimensions` multiplies distances by the number of dimensions, and `clamps` adds a small constant
        inside the logarithm of the loss, both as in the published code.
        """
        distance_scale = 1.0
        if self.config.repeated_dimensions:
            distance_scale = float(mixture.dim)
        share_offset = 0.0
        if self.config.clamps:
            share_offset = SHARE_FLOOR
        present_in_images = present(labels, known)  # (N, C)
        present_in_rows = present_in_images.repeat(n_views, 1)  # (M, C)
        present_in_columns = gather_rows(present_in_images, n_views=n_views)  # (P, C)
        known_in_columns = None if known is None else gather_rows(known, n_views=n_views)  # (P, C)
        similarity = kernel_bhattacharyya(
            mixture,
            gather_mixture(mixture),
            present=present_in_rows,
            distance_scale=distance_scale,
        )  # (T, P): one row per label that is present in a row
        overlaps = label_overlap(labels, known, n_views=n_views)  # (M, P)
        column_of_row_itself = self_columns(overlaps)  # (M,)
        return kernel_contrastive(
            similarity,
            overlaps.to(similarity.dtype),
            present_in_rows,
            present_in_columns,
            known_in_columns=known_in_columns,
            temperature=self.config.temperature,
            self_column=column_of_row_itself,
            share_offset=share_offset,
        )
