"""ProbMCL, stage 1: two views, a mixture for each, and the contrast between them (ProbMCL, Fig. 1a and Eq. 4)."""

import warnings
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder
from probmcl.errors import check_range
from probmcl.losses import balanced_weight, contrastive, negative_log_likelihood, objective, positives
from probmcl.losses.binary import Reduction
from probmcl.losses.per_label import present
from probmcl.methods.base import Classifier, Known, Labels, Logits, Origin, Step, Views, rescale_for_ddp
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
    """Settings of `probmcl`; each default has its reason in docs/decisions/0002, each switch its row in 0001.

    Attributes:
        similarity: `aligned` compares component k with component k only; `all_pairs` is the paper's correlation
            coefficient, for scalar means.
        mean_size: size of each component's mean vector; None is the paper's scalar mean μ·1.
        component_weight: with `aligned`, whether a component counts by its weight (`l2`) or by the norm of its density.
        feature_norm: length that features are scaled to: `unit` (the paper's sphere) or `root`, √D.
        hidden: sizes of the mixture network's hidden layers; () makes its heads linear.
        activation: what follows each hidden layer.
        floor: whether the variance or the standard deviation is at least one.
        initialization: of the mixture network's heads.
        target: the z whose likelihood is maximised: the `feature`, the feature `detached`, the last `hidden` layer, or
            `none`, which leaves the likelihood out.
        dim: dimensions n of the mixture; None means the size of the target, or of the means.
        likelihood_per_dimension: divide the likelihood by n.
        overlap: how label sets are compared; `cosine_literal` is the formula as printed.
        threshold: smallest overlap of positives (α).
        temperature: of the contrast (τ).
        contrastive_weight: of the contrast, relative to the likelihood (λ); `balanced` sets it in each step so that
            both have gradients of equal norm at the features.
        reduction: over the rows of a batch, for both terms.
        anchors: `labels` also contrasts images with mixtures of the batch's label sets, whose Gaussians are learned for
            each class; the mixture then predicts by itself. With `aligned` only.
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
            raise ValueError("similarity 'all_pairs' is for scalar means: set mean_size to None, or take 'aligned'")
        if self.target == "none" and self.contrastive_weight == "balanced":
            raise ValueError(
                "contrastive_weight 'balanced' balances against the likelihood, which target 'none' leaves out"
            )
        check_range(above=0, temperature=self.temperature)
        check_range(at_least=0, at_most=1, threshold=self.threshold)
        if self.target == "hidden" and not self.hidden:
            raise ValueError("target 'hidden' needs hidden layers: set hidden, for example to [2048, 128]")
        if self.anchors == "labels" and self.similarity != "aligned":
            raise ValueError(f"anchors 'labels' need similarity 'aligned', not {self.similarity!r}")


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
"""The published values (α for MS-COCO; ADP has 0.5)."""


@final
class ProbMCL(Classifier):
    """Contrast between Gaussian mixtures of images, weighted by the labels they share.

    L = L_NLL + λ L_PCL over two views of each image. The mixture network is needed for training only: what predicts is
    the encoder with a linear probe. Where several processes have a part of the batch each, P rows in all, each of them
    compares its own M rows with those of all processes.

    With label anchors, L_PCL also runs over Sim(p_x, q_y), where the columns are the label sets y of all images that
    are known to have a label. The mixture then predicts too, by its correlation with the anchor of each class.

    Reference: ProbMCL, section 2; the anchors are ours (decision 0002, "Label anchors").
    """

    n_views = 2
    presets = {"default": Config(), "paper": PAPER, "anchors": Config(anchors="labels")}  # noqa: RUF012  # read only
    origin = Origin("partly reconstructed", "sajedi2024probmcl", ("paper",))

    @classmethod
    def has_own_head(cls, config: Config) -> bool:
        """With label anchors, by which the mixture predicts."""
        return config.anchors == "labels"

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = c = config or Config()
        self.encoder = encoder
        self.network = _network(encoder.features, len(label_space), c)
        self.anchors: LabelAnchors | None = None
        if c.anchors == "labels":
            self.anchors = LabelAnchors(len(label_space), dim=self.network.dim, mean_size=c.mean_size, floor=c.floor)
        if c.target == "feature":
            warnings.warn(
                "probmcl with target 'feature' (the paper's z = h) collapsed in every trial of ours: its likelihood "
                "outweighs the contrast by thousands. Watch the alarm; see docs/decisions/0002",
                stacklevel=2,
            )

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Logit of the correlation of an image's mixture with the anchor of each class."""
        if self.anchors is None:
            raise ValueError("probmcl predicts through a probe, unless it was trained with anchors 'labels'")
        mixture = self.network(self._features(images))
        return class_logits(mixture, self.anchors(), component_weight=self.config.component_weight)

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Eq. 4 over all views, and the signs of collapse."""
        c, parts = self.config, {}
        features = self._features(views.flatten(0, 1))  # (M, D)
        hidden = self.network.hidden(features)
        mixture = self.network.mixture(hidden)
        similarity = self._similarity(mixture)  # (M, P)
        shared = label_overlap(labels, known, n_views=len(views), kind=c.overlap)  # (M, P)
        contrast = rescale_for_ddp(self._contrast(similarity, shared, self_columns(similarity)), c.reduction)
        if self.anchors is not None:
            parts["anchored"] = rescale_for_ddp(self._anchored(mixture, shared, labels, known), c.reduction)
            contrast = contrast + parts["anchored"]
        own = distributed.local_rows(len(features))  # each process watches its own rows
        positive = positives(shared[:, own], threshold=c.threshold)
        watched = collapse_statistics(features, mixture, similarity[:, own], positive, n_views=len(views))
        likelihood = rescale_for_ddp(self._likelihood(mixture, features, hidden), c.reduction)
        balanced = c.contrastive_weight == "balanced"
        weight = (
            _balanced_weight(likelihood, contrast, features) if balanced else contrast.new_tensor(c.contrastive_weight)
        )
        loss = objective(likelihood, contrast, contrastive_weight=weight)
        terms = {"likelihood": likelihood, "contrastive": contrast, "contrastive_weight": weight}
        return Step(loss, terms | parts | watched)

    def _features(self, images: Float[Tensor, "M *image"]) -> Float[Tensor, "M D"]:
        h = normalize(at_least_float32(self.encoder(images)), dim=1)
        return h if self.config.feature_norm == "unit" else h * h.shape[1] ** 0.5

    def _similarity(self, mixture: IsotropicMixture) -> Float[Tensor, "M P"]:
        columns = None if distributed.world_size() == 1 else gather_mixture(mixture)  # None: half the cost
        if self.config.similarity == "all_pairs":
            return correlation(mixture, columns)
        return aligned_correlation(mixture, columns, component_weight=self.config.component_weight)

    def _contrast(
        self, similarity: Float[Tensor, "M P"], shared: Float[Tensor, "M P"], self_column: Int[Tensor, "M"]
    ) -> Float[Tensor, ""]:
        c = self.config
        return contrastive(
            similarity,
            shared,
            threshold=c.threshold,
            temperature=c.temperature,
            self_column=self_column,
            reduction=c.reduction,
        )

    def _anchored(
        self, mixture: IsotropicMixture, shared: Float[Tensor, "M P"], labels: Tensor, known: Tensor | None
    ) -> Float[Tensor, ""]:
        """L_PCL with the label set of every row as a column, where the row is known to have a label."""
        assert self.anchors is not None
        sets = gather_rows(present(labels, known), n_views=len(shared) // len(labels))  # (P, C)
        there = sets.any(1)
        similarity = label_set_correlation(
            mixture, self.anchors(), sets[there], component_weight=self.config.component_weight
        )
        no_column = torch.full((len(shared),), -1, device=shared.device)  # no column is the row itself
        return self._contrast(similarity, shared[:, there], no_column)

    def _likelihood(self, mixture: IsotropicMixture, features: Tensor, hidden: Tensor) -> Float[Tensor, ""]:
        if self.config.target == "none":
            return features.new_zeros(())
        z = {"feature": features, "detached": features.detach(), "hidden": hidden}[self.config.target]
        return negative_log_likelihood(
            mixture, z, reduction=self.config.reduction, per_dimension=self.config.likelihood_per_dimension
        )


def _balanced_weight(likelihood: Tensor, contrast: Tensor, features: Tensor) -> Float[Tensor, ""]:
    if distributed.world_size() == 1:
        return balanced_weight(likelihood, contrast, features)
    norms = [torch.autograd.grad(loss, features, retain_graph=True)[0].norm() for loss in (likelihood, contrast)]
    # A gradient is as long as the list of the lengths of its parts: two linear terms stand in, which pull that hard.
    pulls = distributed.gather(torch.stack(norms)[None])  # (processes, 2)
    place = torch.zeros_like(pulls[:, :1], requires_grad=True)
    return balanced_weight((place * pulls[:, :1]).sum(), (place * pulls[:, 1:]).sum(), place)


def _network(features: int, classes: int, c: Config) -> MixtureDensityNetwork:
    target_size = {"feature": features, "detached": features, "hidden": c.hidden[-1] if c.hidden else 0, "none": None}[
        c.target
    ]
    dim = c.dim or c.mean_size or target_size or features
    if target_size is not None and dim != target_size:
        raise ValueError(
            f"target {c.target!r} has {target_size} dimensions, the mixture {dim}; "
            f"set {'mean_size' if c.mean_size else 'dim'} to {target_size}, or the target to 'none'"
        )
    return MixtureDensityNetwork(
        features,
        classes,
        dim=dim,
        mean_size=c.mean_size,
        hidden=c.hidden,
        activation=c.activation,
        floor=c.floor,
        initialization=c.initialization,
    )
