"""SRN: a classifier with additional logits from the attention maps of all classes."""

from dataclasses import dataclass
from typing import NamedTuple, final

from jaxtyping import Float
from torch import Tensor, nn

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, hook_stage_inputs, stages, with_stages
from probmcl.errors import check_range
from probmcl.heads.spatial import ClassAttention, SpatialRegularization, attended_confidence, weighted_attention
from probmcl.methods.base import Classifier, Known, Labels, Logits, MethodOrigin, Step, Views, cross_entropies


@dataclass(frozen=True)
class Config:
    """Settings of `srn`; `width`, `filters` and `regularized_share` are the published values.

    Attributes:
        width: channels of the hidden layers of the attention and regularization branches.
        filters: number of map-sized filters per channel in the regularization branch.
        regularized_share: weight of the regularized logits in the prediction; the plain logits get the rest.
        branch_weight: weight of the losses on the plain and attention logits, relative to the loss on the prediction.
    """

    width: int = 512
    filters: int = 4
    regularized_share: float = 0.5
    branch_weight: float = 1.0

    def __post_init__(self) -> None:
        check_range(at_least=1, width=self.width, filters=self.filters)
        check_range(at_least=0, at_most=1, regularized_share=self.regularized_share)
        check_range(at_least=0, branch_weight=self.branch_weight)


class Branches(NamedTuple):
    """Logits from the pooled feature, from the attention maps, and from the spatial regularization."""

    plain: Float[Tensor, "M C"]
    attended: Float[Tensor, "M C"]
    regularized: Float[Tensor, "M C"]


@final
class SRN(Classifier):
    """Linear classifier combined with a spatial regularization network on the input of the last stage.

    logits = (1−α) plain + α regularized. The loss is the binary cross-entropy of these logits plus
    `branch_weight` times the sum of the cross-entropies of the plain and attention logits.

    Reference: Zhu et al., Learning Spatial Regularization with Image-level Supervisions for Multi-label Image
    Classification, CVPR 2017.
    """

    n_views = 1
    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("partly reconstructed", "zhu2017srn")
    needs_maps = True
    encoder: Encoder

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.encoder = with_stages(encoder, "srn")
        self.stage = stages(self.encoder)[-1]
        classes = len(label_space)
        self.linear = nn.Linear(self.encoder.features, classes)
        self.attention = ClassAttention(self.stage.channels, classes, width=self.config.width)
        self.regularization = SpatialRegularization(
            classes, side=self.stage.side, width=self.config.width, filters=self.config.filters
        )

    def branches(self, images: Float[Tensor, "M *image"]) -> Branches:
        """Return the logits of all branches from one pass through the encoder.

        The plain logits are those of a linear classifier. The attended ones are the confidences of each class, weighted
        by its attention over the maps, and the regularized ones are computed from these weighted attention maps.
        """
        stage_inputs: list[Tensor] = []
        with hook_stage_inputs(self.encoder, {self.stage: stage_inputs.append}):
            plain = self.linear(self.encoder(images))
        (maps,) = stage_inputs  # the input of the last stage
        attention, confidence = self.attention(maps)
        regularized = self.regularization(weighted_attention(attention, confidence))
        attended = attended_confidence(attention, confidence)
        return Branches(plain, attended, regularized)

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Return the weighted mean of the plain and regularized logits."""
        return self._mixed(self.branches(images))

    def _mixed(self, branches: Branches) -> Float[Tensor, "M C"]:
        """Return the logits of the prediction, (1−α) plain + α regularized."""
        share = self.config.regularized_share
        return (1 - share) * branches.plain + share * branches.regularized

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the weighted sum of the losses on the predicted, plain and attention logits."""
        branches = self.branches(views.flatten(0, 1))
        logits = {"classification": self._mixed(branches), "plain": branches.plain, "attended": branches.attended}
        terms = cross_entropies(logits, len(views), labels, known)
        loss = terms["classification"] + self.config.branch_weight * (terms["plain"] + terms["attended"])
        return Step(loss, terms)
