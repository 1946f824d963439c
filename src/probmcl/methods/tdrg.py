"""TDRG: a transformer over three scales of the feature map, and a class graph for each image."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, stages, two_maps, with_stages
from probmcl.errors import check_range
from probmcl.heads.dual_relation import DualRelation, Relations
from probmcl.methods.base import Classifier, Known, Labels, Logits, MethodOrigin, Step, Views, cross_entropies


@dataclass(frozen=True)
class Config:
    """Settings of `tdrg`; the defaults use a quarter of the published width and normalize the scales.

    Attributes:
        width: channels of each of the three scales, and half the size of a class node; a multiple of `heads`.
        layers: number of transformer layers, shared by all scales.
        heads: number of attention heads.
        feed_forward: hidden units of the feed-forward block after the attention.
        normalize: whether each position of the three scales is normalized to mean 0 and standard deviation 1 before
            the scales are multiplied.
        structural_share: weight of the structural logits in the prediction; the semantic logits get the rest.
        top_share: fraction of positions that the constraint branch averages over; at least one position is used.
        batch_attention: whether positions attend to the same position in the other images of the batch, as in the
            first release of the authors' code, instead of the other positions of the same image. A prediction then
            depends on the other images in its batch; each process only uses its own images.
    """

    width: int = 128
    layers: int = 3
    heads: int = 4
    feed_forward: int = 512
    normalize: bool = True
    structural_share: float = 0.7
    top_share: float = 0.05
    batch_attention: bool = False

    def __post_init__(self) -> None:
        check_range(at_least=1, heads=self.heads, width=self.width, feed_forward=self.feed_forward)
        check_range(at_least=1, at_most=100, layers=self.layers)
        check_range(at_least=0, at_most=1, structural_share=self.structural_share)
        check_range(above=0, at_most=1, top_share=self.top_share)
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")


PAPER = Config(width=512, feed_forward=2048, normalize=False)
"""The published sizes, with attention over positions as in the authors' corrected code."""


@final
class TDRG(Classifier):
    """Transformer and class graph (dual relation head) on the feature maps before and after the last stage.

    L = Σ BCE(z) over z = fused, structural, semantic and constraint, where fused = a structural + (1−a) semantic are
    the logits of the prediction and a is `structural_share`.

    Reference: Zhao et al., Transformer-based Dual Relation Graph for Multi-label Image Recognition, ICCV 2021.
    """

    n_views = 1
    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("authors' code", "zhao2021tdrg")  # no preset uses their initialization
    needs_maps = True
    encoder: Encoder

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.encoder = with_stages(encoder, "tdrg")
        last_stage = stages(self.encoder)[-1]
        self.relation = DualRelation(
            last_stage.channels,
            self.encoder.channels,
            len(label_space),
            width=self.config.width,
            layers=self.config.layers,
            heads=self.config.heads,
            feed_forward=self.config.feed_forward,
            normalize=self.config.normalize,
            top_share=self.config.top_share,
            batch_attention=self.config.batch_attention,
        )

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the sum of four binary cross-entropies over all views, with each of them as a term."""
        relations = self.relations(views.flatten(0, 1))
        logits = {"fused": self.fused(relations), **relations._asdict()}
        terms = cross_entropies(logits, len(views), labels, known)
        loss = sum(terms.values(), start=labels.new_zeros(()))
        return Step(loss, terms)

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Return the fused logits."""
        return self.fused(self.relations(images))

    def relations(self, images: Float[Tensor, "N *image"]) -> Relations:
        """Apply the head to the encoder's maps."""
        entering, last = two_maps(self.encoder, images)
        relations: Relations = self.relation(entering, last)
        return relations

    def fused(self, relations: Relations) -> Float[Tensor, "N C"]:
        """Return the weighted mean of structural and semantic logits."""
        share = self.config.structural_share
        fused: Tensor = share * relations.structural + (1 - share) * relations.semantic
        return fused
