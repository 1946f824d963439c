"""KMCL: a classifier whose logits are also the weights of a kernel mixture, trained with three losses at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.losses import asymmetric, kernel_contrastive, reconstruction
from probmcl.losses.per_label import present
from probmcl.methods.base import Classifier, Origin, Step, of_all_views, over_processes
from probmcl.methods.contrast import check_ranges, of_all_rows, own_columns, shared_labels
from probmcl.mixture import KernelHeads, KernelMixture, kernel_bhattacharyya
from probmcl.mixture.kernels import Covariance
from probmcl.mixture.network import Initialization
from probmcl.runtime import distributed
from probmcl.runtime.precision import at_least_float32

KERNEL_FLOOR, SHARE_FLOOR = 1.17549e-38, 1e-7
"""Where the published code stops: the smallest kernel, and the smallest share inside either logarithm."""


@dataclass(frozen=True)
class Config:
    """Settings of `kmcl`; docs/methods/kmcl.md says where they come from.

    Attributes:
        covariance: whether the kernel of a class has one mean and one variance, or one of each for every dimension of a
            reduced feature.
        reduced_size: dimensions of that reduced feature, with `anisotropic`.
        initialization: of the mean and variance heads.
        classification_weight: of the asymmetric loss, which is summed over images and classes.
        reconstruction_weight: of the reconstruction, a mean over images.
        contrastive_weight: of the contrast between kernels, a mean over images.
        temperature: of the contrast.
        gamma_negative: of the asymmetric loss, how strongly easy negatives are passed over.
        gamma_positive: the same for positives.
        clip: probability below which a negative is worth nothing at all.
        repeated_dimensions: with `anisotropic`, multiply distances that are summed over dimensions by their number
            again, as the published code does.
        clamps: bound kernels and shares from below, as the published code does.
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
        check_ranges(temperature=self.temperature)
        if self.reduced_size < 1:
            raise ValueError(f"reduced_size={self.reduced_size}; give 1 or more")
        weights = (self.classification_weight, self.reconstruction_weight, self.contrastive_weight)
        if min(*weights, self.gamma_negative, self.gamma_positive) < 0 or not 0 <= self.clip < 1:
            raise ValueError(
                f"weights {weights}, gammas and clip={self.clip}: none is below 0, and the clip is below 1"
            )
        if self.repeated_dimensions and self.covariance == "isotropic":
            raise ValueError("repeated_dimensions is for covariance 'anisotropic'; isotropic kernels count them once")


PAPER = Config(covariance="anisotropic", initialization="paper", repeated_dimensions=True, clamps=True)
"""What the published training scripts do where nothing is said."""


@final
class KMCL(Classifier):
    """Asymmetric loss, and kernels of classes that explain the feature and agree between images.

    L = L_ASL + L_REC + L_KMCL, each with its weight. Of the heads, only the one for the logits predicts. Where several
    processes have a part of the batch each, P rows in all, each of them compares its own M rows with those of all.

    Reference: Sajedi et al., End-to-End Supervised Multilabel Contrastive Learning, 2023.
    """

    n_views = 1
    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = Origin("authors' code", "sajedi2023kmcl", ("paper",))

    def __init__(
        self, encoder: Encoder | PrecomputedFeatures, label_space: LabelSpace, config: Config | None = None
    ) -> None:
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

    def logits(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N C"]:
        """The logit head on the encoder's features, reduced where kernels are anisotropic."""
        return self.heads.logits(self.encoder(images))

    def forward(
        self,
        views: Float[Tensor, "V N *image"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"] | None = None,
    ) -> Step:
        """The three losses over all views of all images."""
        c, n_views = self.config, len(views)
        z = at_least_float32(self.heads.reduction(self.encoder(views.flatten(0, 1))))  # (M, n)
        mixture = self.heads.mixture(z)
        all_labels, all_known = of_all_views(n_views, labels, known)
        terms = {
            "classification": over_processes(self._classification(mixture, all_labels, all_known), "sum"),
            "reconstruction": self._reconstruction(mixture, z, present(all_labels, all_known), all_known),
            "contrast": self._contrast(mixture, labels, known, n_views),
        }
        weights = (c.classification_weight, c.reconstruction_weight, c.contrastive_weight)
        loss = torch.stack([weight * term for weight, term in zip(weights, terms.values(), strict=True)]).sum()
        return Step(loss, terms)

    def _classification(self, mixture: KernelMixture, labels: Tensor, known: Tensor | None) -> Float[Tensor, ""]:
        c = self.config
        return asymmetric(
            mixture.logit,
            labels,
            known,
            gamma_negative=c.gamma_negative,
            gamma_positive=c.gamma_positive,
            clip=c.clip,
        )

    def _reconstruction(
        self, mixture: KernelMixture, z: Tensor, there: Tensor, known: Tensor | None
    ) -> Float[Tensor, ""]:
        return reconstruction(
            mixture.log_weight,
            mixture.log_kernels(z),
            there,
            known,
            kernel_floor=KERNEL_FLOOR if self.config.clamps else 0.0,
            ratio_floor=SHARE_FLOOR if self.config.clamps else 0.0,
        )

    def _contrast(
        self, mixture: KernelMixture, labels: Tensor, known: Tensor | None, n_views: int
    ) -> Float[Tensor, ""]:
        there = present(labels, known)
        rows = there.repeat(n_views, 1)
        scale = float(mixture.dim) if self.config.repeated_dimensions else 1.0
        similarity = kernel_bhattacharyya(mixture, _everybodys(mixture), present=rows, distance_scale=scale)
        shared = shared_labels(labels, known, n_views=n_views)  # (M, P)
        return kernel_contrastive(
            similarity,
            shared.to(similarity.dtype),
            rows,
            of_all_rows(there, n_views=n_views),
            known_in_columns=None if known is None else of_all_rows(known, n_views=n_views),
            temperature=self.config.temperature,
            self_column=own_columns(shared),
            share_offset=SHARE_FLOOR if self.config.clamps else 0.0,
        )


def _everybodys(mixture: KernelMixture) -> KernelMixture:
    """The kernels of all processes, in one exchange forward and one backward."""
    if distributed.world_size() == 1:
        return mixture
    parts = (mixture.logit, mixture.mean.flatten(1), mixture.variance.flatten(1))
    gathered = distributed.gather(torch.cat(parts, dim=1))
    logit, mean, variance = torch.split(gathered, [part.shape[1] for part in parts], dim=1)
    return replace(
        mixture,
        logit=logit,
        mean=mean.reshape(-1, *mixture.mean.shape[1:]),
        variance=variance.reshape(-1, *mixture.variance.shape[1:]),
    )
