"""Joint training of a classification loss and a contrastive loss, in one stage."""

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, PrecomputedFeatures
from probmcl.errors import check_range
from probmcl.losses import asymmetric, binary_cross_entropy
from probmcl.methods.base import (
    Known,
    Labels,
    LinearClassifier,
    Logits,
    Method,
    MethodOrigin,
    Step,
    Views,
    repeat_for_views,
    rescale_for_ddp,
)
from probmcl.methods.contrast import STATISTICS
from probmcl.methods.probmcl import ProbMCL
from probmcl.methods.supcon import SupCon


@dataclass(frozen=True)
class Config:
    """Settings of `joint`.

    Attributes:
        classification: loss of the linear layer: `bce`, or `asl` with its published values.
        contrast: method whose contrastive loss is added, with its default settings.
        contrast_weight: weight of the contrastive loss relative to the classification loss, summed over classes.
    """

    classification: Literal["asl", "bce"] = "bce"
    contrast: Literal["supcon", "probmcl"] = "supcon"
    contrast_weight: float = 0.3

    def __post_init__(self) -> None:
        check_range(at_least=0, contrast_weight=self.contrast_weight)


@final
class Joint(LinearClassifier):
    """Encoder and linear layer, trained with the sum of a classification loss and a contrastive loss.

    L = C · (mean classification loss of the known entries) + contrast_weight · (contrastive loss). The factor C makes
    the first term a sum over classes. Easy classes add almost nothing to a sum but would lower a mean, so the same
    weight suits any number of classes. The encoder runs once; the contrastive method receives its features.
    """

    n_views = 2
    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("standard")
    config: Config

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__(encoder, label_space, config)
        contrastive_method = SupCon if self.config.contrast == "supcon" else ProbMCL
        features_only = PrecomputedFeatures(encoder.features)  # `forward` passes features instead of images
        self.contrast: Method = contrastive_method(features_only, label_space)

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the weighted sum of both losses over all views, with the collapse statistics."""
        n_views = len(views)
        features = self.encoder(views.flatten(0, 1))  # (M, D)
        row_labels, row_known = repeat_for_views(n_views, labels, known)
        row_loss = self.loss(self.linear(features), row_labels, row_known)
        classification = rescale_for_ddp(row_loss, self.reduction, row_known)

        feature_views = features.unflatten(0, (n_views, -1))  # (V, N, D)
        contrastive, contrastive_terms = self.contrast(feature_views, labels, known)
        statistics = {name: value for name, value in contrastive_terms.items() if name in STATISTICS}
        loss = classification + self.config.contrast_weight * contrastive
        return Step(loss, {"classification": classification, "contrastive": contrastive, **statistics})

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the mean over the known entries, times the number of classes."""
        loss_function = asymmetric if self.config.classification == "asl" else binary_cross_entropy
        classes = logits.shape[1]
        return loss_function(logits, labels, known, reduction=self.reduction) * classes
