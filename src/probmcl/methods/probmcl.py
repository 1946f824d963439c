"""ProbMCL, stage 1: contrastive learning on the Gaussian mixtures of two views (ProbMCL, Fig. 1a and Eq. 4)."""

import warnings
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder
from probmcl.errors import check_range, counted
from probmcl.losses import balanced_weight, contrastive, negative_log_likelihood, objective, positives
from probmcl.losses.binary import Reduction
from probmcl.losses.contrastive import norm_ratio
from probmcl.losses.per_label import present
from probmcl.methods.base import Classifier, Known, Labels, Logits, MethodOrigin, Step, Views, rescale_for_ddp
from probmcl.methods.contrast import (
    Overlap,
    collapse_statistics,
    gather_mixture,
    gather_rows,
    label_overlap,
    self_columns,
)
from probmcl.mixture import IsotropicMixture, MixtureDensityNetwork, aligned_correlation, correlation
from probmcl.mixture.aligned import ComponentWeight
from probmcl.mixture.anchors import LabelAnchors, class_logits, label_set_correlation
from probmcl.mixture.density import Activation, Floor, Initialization
from probmcl.runtime import distributed
from probmcl.runtime.precision import at_least_float32

Target = Literal["feature", "detached", "hidden", "none"]


@dataclass(frozen=True)
class Config:
    """Settings of `probmcl`. Decision 0001 lists the alternatives; decision 0002 explains the defaults.

    Attributes:
        similarity: `aligned` compares component k only with component k; `all_pairs` is the paper's correlation
            coefficient and requires scalar means.
        mean_size: size of the mean vector of each component; `none` uses the paper's scalar mean μ·1.
        component_weight: with `aligned`, weight of a component: its mixture weight (`l2`) or the norm of its `density`.
        feature_norm: norm that features are scaled to, 1 (`unit`, as in the paper) or √D (`root`).
        hidden: sizes of the mixture network's hidden layers; without hidden layers, its heads are linear.
        activation: activation after each hidden layer.
        floor: whether the lower bound of one applies to the `variance` or to the standard `deviation`.
        initialization: initial weights of the mean and variance heads, as in the `paper` or as in PyTorch (`torch`).
        target: the z in the likelihood: the `feature`, the feature `detached` from the graph, the last `hidden` layer,
            or `none` to train without the likelihood.
        dim: dimension n of the mixture; `none` uses `mean_size`, or the size of the target if means are scalar.
        likelihood_per_dimension: whether to divide the likelihood by n.
        overlap: overlap measure for two label sets (D); `cosine_literal` is the cosine as printed in the paper.
        threshold: smallest overlap at which two images are positives (α).
        temperature: temperature of the contrastive softmax (τ).
        contrastive_weight: weight of the contrastive loss relative to the likelihood (λ); `balanced` sets it in every
            step so that both terms have gradients of equal norm at the features.
        reduction: reduction of both terms over the rows of a batch.
        anchors: `labels` also compares images with the mixtures of label sets, which have one learned Gaussian per
            class; the model then predicts with its mixture instead of a probe. Requires `aligned`.
    """

    similarity: Literal["aligned", "all_pairs"] = "aligned"
    mean_size: int | None = 16
    component_weight: ComponentWeight = "l2"
    feature_norm: Literal["unit", "root"] = "root"
    hidden: tuple[int, ...] = ()
    activation: Activation = "relu"
    floor: Floor = "variance"
    initialization: Initialization = "torch"
    target: Target = "none"
    dim: int | None = None
    likelihood_per_dimension: bool = False
    overlap: Overlap = "jaccard"
    threshold: float = 0.5
    temperature: float = 0.1
    contrastive_weight: float | Literal["balanced"] = 1.0
    reduction: Reduction = "mean"
    anchors: Literal["none", "labels"] = "none"

    def __post_init__(self) -> None:
        if self.similarity == "all_pairs" and self.mean_size is not None:
            raise ValueError("similarity 'all_pairs' requires scalar means; set mean_size to none, or use 'aligned'")
        if self.target == "none" and self.contrastive_weight == "balanced":
            raise ValueError(
                "contrastive_weight 'balanced' cannot be combined with target 'none', which has no likelihood"
            )
        check_range(above=0, temperature=self.temperature)
        check_range(at_least=0, at_most=1, threshold=self.threshold)
        if self.target == "hidden" and not self.hidden:
            raise ValueError("target 'hidden' requires hidden layers; set hidden, for example to [2048, 128]")
        if self.anchors == "labels" and self.similarity != "aligned":
            raise ValueError(f"anchors 'labels' cannot be combined with similarity {self.similarity!r}; use 'aligned'")


PAPER = Config(
    similarity="all_pairs",
    mean_size=None,
    component_weight="density",
    feature_norm="unit",
    hidden=(2048, 128),
    initialization="paper",
    target="feature",
    threshold=0.6,
    temperature=0.2,
    contrastive_weight=0.3,
    reduction="sum",
)
"""The published values, with α for MS-COCO (0.5 for ADP)."""


@final
class ProbMCL(Classifier):
    """Contrastive loss on Gaussian mixtures; the positives of an image are weighted by label overlap.

    L = L_NLL + λ L_PCL over two views of each image. The mixture network is only used in training; predictions come
    from a linear probe on the encoder. If the batch is split across several processes (P rows in total), each process
    compares its M rows with the rows of all processes.

    With label anchors, L_PCL is also computed on Sim(p_x, q_y), whose columns are the label sets y of all images that
    are known to have a label. The score of a class is then the correlation between the mixture and the class's anchor.

    Reference: ProbMCL, section 2; the anchors are ours (decision 0002, "Label anchors").
    """

    n_views = 2
    presets = {"default": Config(), "paper": PAPER, "anchors": Config(anchors="labels")}  # noqa: RUF012  # read only
    origin = MethodOrigin("partly reconstructed", "sajedi2024probmcl", ("paper",))

    @classmethod
    def has_own_head(cls, config: Config) -> bool:
        """Return whether label anchors are used; the mixture then predicts without a probe."""
        return config.anchors == "labels"

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.encoder = encoder
        classes = len(label_space)
        self.network = _network(encoder.features, classes, self.config)
        self.anchors: LabelAnchors | None = None
        if self.config.anchors == "labels":
            self.anchors = LabelAnchors(
                classes, dim=self.network.dim, mean_size=self.config.mean_size, floor=self.config.floor
            )
        if self.config.target == "feature":
            warnings.warn(
                "probmcl with target 'feature' (the paper's z = h) collapsed in all of our trials: the gradient of the "
                "likelihood is thousands of times larger than that of the contrastive loss; the default settings avoid "
                "this",
                stacklevel=2,
            )

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Return the logit of the correlation between each image's mixture and each class's anchor."""
        if self.anchors is None:
            raise ValueError("probmcl without label anchors has no head; use a probe, or train with anchors 'labels'")
        mixture = self.network(self._features(images))
        return class_logits(mixture, self.anchors(), component_weight=self.config.component_weight)

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return Eq. 4 over all views, with the collapse statistics of the rows of this process."""
        n_views = len(views)
        features = self._features(views.flatten(0, 1))  # (M, D)
        hidden = self.network.hidden(features)
        mixture = self.network.mixture(hidden)
        similarity = self._similarity(mixture)  # (M, P)
        overlaps = label_overlap(labels, known, n_views=n_views, kind=self.config.overlap)  # (M, P)
        contrast = self._contrast(similarity, overlaps, self_columns(similarity))
        anchor_terms = {}
        if self.anchors is not None:
            anchored = self._anchored(mixture, overlaps, labels, known)
            contrast = contrast + anchored
            anchor_terms["anchored"] = anchored
        statistics = self._statistics(features, mixture, similarity, overlaps, n_views)
        likelihood = self._likelihood(mixture, features, hidden)
        weight = self._contrastive_weight(likelihood, contrast, features)
        loss = objective(likelihood, contrast, contrastive_weight=weight)
        terms = {"likelihood": likelihood, "contrastive": contrast, "contrastive_weight": weight}
        return Step(loss, terms | anchor_terms | statistics)

    def _features(self, images: Float[Tensor, "M *image"]) -> Float[Tensor, "M D"]:
        """Return the encoder's features, scaled to norm 1 or √D."""
        h: Tensor = normalize(at_least_float32(self.encoder(images)), dim=1)
        if self.config.feature_norm == "unit":
            return h
        scaled: Tensor = h * h.shape[1] ** 0.5
        return scaled

    def _similarity(self, mixture: IsotropicMixture) -> Float[Tensor, "M P"]:
        """Return the similarity of the mixtures of the local rows to the mixtures of all processes."""
        # None compares the rows with themselves, which halves the cost.
        all_mixtures = None if distributed.world_size() == 1 else gather_mixture(mixture)
        if self.config.similarity == "all_pairs":
            return correlation(mixture, all_mixtures)
        return aligned_correlation(mixture, all_mixtures, component_weight=self.config.component_weight)

    def _contrast(
        self, similarity: Float[Tensor, "M P"], overlaps: Float[Tensor, "M P"], self_column: Int[Tensor, "M"]
    ) -> Float[Tensor, ""]:
        """Return L_PCL of the local rows, scaled for the mean over processes.

        `self_column` is the column of each row that is the row itself, and is excluded; -1 excludes none.
        """
        loss = contrastive(
            similarity,
            overlaps,
            threshold=self.config.threshold,
            temperature=self.config.temperature,
            self_column=self_column,
            reduction=self.config.reduction,
        )
        return rescale_for_ddp(loss, self.config.reduction)

    def _anchored(
        self, mixture: IsotropicMixture, overlaps: Float[Tensor, "M P"], labels: Labels, known: Known
    ) -> Float[Tensor, ""]:
        """Return the contrastive loss L_PCL of the rows, where the columns are label sets instead of images.

        The anchors are one learned Gaussian per class. A label set is compared with the mixture of the anchors of its
        classes. The label sets are those of the P rows of all processes; a row without a known label has none. A label
        set is a positive of the M local rows whose labels overlap with it enough.

        Args:
            mixture: mixtures of the M local rows, which are the views of the local images.
            overlaps: label overlap of the local rows with the rows of all processes.
            labels: labels of the local images.
            known: mask of the known labels; None means all.
        """
        assert self.anchors is not None
        n_rows = len(overlaps)
        n_views = n_rows // len(labels)
        label_sets = gather_rows(present(labels, known), n_views=n_views)  # (P, C)
        has_label = label_sets.any(1)  # (P)
        similarity = label_set_correlation(
            mixture, self.anchors(), label_sets[has_label], component_weight=self.config.component_weight
        )
        # `_contrast` excludes one column per row: the row itself. No label set is a row, and no column has index -1.
        excluded_column = torch.full((n_rows,), -1, device=overlaps.device)
        return self._contrast(similarity, overlaps[:, has_label], excluded_column)

    def _likelihood(
        self, mixture: IsotropicMixture, features: Float[Tensor, "M D"], hidden: Float[Tensor, "M K"]
    ) -> Float[Tensor, ""]:
        """Return L_NLL of the local rows, scaled for the mean over processes; 0 without a target."""
        if self.config.target == "none":
            return features.new_zeros(())
        targets = {"feature": features, "detached": features.detach(), "hidden": hidden}
        z = targets[self.config.target]  # (M, n)
        loss = negative_log_likelihood(
            mixture, z, reduction=self.config.reduction, per_dimension=self.config.likelihood_per_dimension
        )
        return rescale_for_ddp(loss, self.config.reduction)

    def _contrastive_weight(
        self, likelihood: Float[Tensor, ""], contrast: Float[Tensor, ""], features: Float[Tensor, "M D"]
    ) -> Float[Tensor, ""]:
        """Return λ: the weight in the settings, or the weight that balances the gradients of this step."""
        if self.config.contrastive_weight == "balanced":
            return _balanced_weight(likelihood, contrast, features)
        return contrast.new_tensor(self.config.contrastive_weight)

    def _statistics(
        self,
        features: Float[Tensor, "M D"],
        mixture: IsotropicMixture,
        similarity: Float[Tensor, "M P"],
        overlaps: Float[Tensor, "M P"],
        n_views: int,
    ) -> dict[str, Tensor]:
        """Return the collapse statistics. Each process compares only its own rows."""
        own_rows = distributed.local_rows(len(features))
        own_positives = positives(overlaps[:, own_rows], threshold=self.config.threshold)
        return collapse_statistics(features, mixture, similarity[:, own_rows], own_positives, n_views=n_views)


def _balanced_weight(
    likelihood: Float[Tensor, ""], contrast: Float[Tensor, ""], features: Float[Tensor, "M D"]
) -> Float[Tensor, ""]:
    """Return λ = ‖∂L_NLL/∂h‖ / ‖∂L_PCL/∂h‖, where h are the features of the rows of all processes.

    With several processes, each one has only the gradient of its own M rows. The norm over all rows is the norm of the
    vector that has one norm per process.
    """
    if distributed.world_size() == 1:
        return balanced_weight(likelihood, contrast, features)
    norms = []
    for term in (likelihood, contrast):
        (gradient,) = torch.autograd.grad(term, features, retain_graph=True)
        norms.append(gradient.norm())
    norms_of_processes = distributed.gather(torch.stack(norms)[None])  # (processes, 2)
    likelihood_norms, contrast_norms = norms_of_processes.T.contiguous()  # (processes,) each
    return norm_ratio(likelihood_norms.norm(), contrast_norms.norm())


def _network(features: int, classes: int, config: Config) -> MixtureDensityNetwork:
    """Return the mixture network of these settings; its dimension must be the size of the target of the likelihood."""
    last_hidden_size = config.hidden[-1] if config.hidden else 0
    target_sizes = {"feature": features, "detached": features, "hidden": last_hidden_size, "none": None}
    target_size = target_sizes[config.target]
    dim = config.dim or config.mean_size or target_size or features
    if target_size is not None and dim != target_size:
        option = "mean_size" if config.mean_size else "dim"
        raise ValueError(
            f"target {config.target!r} has {counted(target_size, 'dimension')}, but the mixture has {dim}; "
            f"set {option} to {target_size}, or target to 'none'"
        )
    return MixtureDensityNetwork(
        features,
        classes,
        dim=dim,
        mean_size=config.mean_size,
        hidden=config.hidden,
        activation=config.activation,
        floor=config.floor,
        initialization=config.initialization,
    )
