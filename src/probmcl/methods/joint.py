"""A classifier and a contrast trained together, in one stage."""

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
    Origin,
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
        classification: loss of the linear layer, binary cross-entropy or the asymmetric loss with its published values.
        contrast: method whose contrast is added, with its default settings.
        contrast_weight: of the contrast, relative to the classification loss, a sum over the classes of an image.
    """

    classification: Literal["asl", "bce"] = "bce"
    contrast: Literal["supcon", "probmcl"] = "supcon"
    contrast_weight: float = 0.3

    def __post_init__(self) -> None:
        check_range(at_least=0, contrast_weight=self.contrast_weight)


@final
class Joint(LinearClassifier):
    """Encoder and linear layer, trained with a classification loss and a contrast between two views at once.

    L = C · mean over known entries of the classification loss + weight · contrast. Both are sums over what an image
    has, per image and in nats: a class that is easy, as one that no image has, adds next to nothing to the first term,
    whereas it would thin out a mean over classes. So the weight means the same on any number of classes. The encoder
    runs once: the contrast is a method of its own, whose images are the features.
    """

    n_views = 2
    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = Origin("standard")
    config: Config

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__(encoder, label_space, config)
        kind = SupCon if self.config.contrast == "supcon" else ProbMCL
        self.contrast: Method = kind(PrecomputedFeatures(encoder.features), label_space)

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Both losses over all views, and the contrast's signs of collapse."""
        n_views = len(views)
        features = self.encoder(views.flatten(0, 1))  # (M, D)
        all_labels, all_known = repeat_for_views(n_views, labels, known)
        loss = self.loss(self.linear(features), all_labels, all_known)
        classification = rescale_for_ddp(loss, self.reduction, all_known)
        contrast, terms = self.contrast(features.unflatten(0, (n_views, -1)), labels, known)
        watched = {name: value for name, value in terms.items() if name in STATISTICS}
        total = classification + self.config.contrast_weight * contrast
        return Step(total, {"classification": classification, "contrastive": contrast, **watched})

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Mean over the known entries, times the number of classes."""
        loss = asymmetric if self.config.classification == "asl" else binary_cross_entropy
        return loss(logits, labels, known, reduction=self.reduction) * logits.shape[1]
