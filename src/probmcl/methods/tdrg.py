"""TDRG: a transformer over three scales of an image, and a graph of the classes for each image."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, stages, two_maps, with_stages
from probmcl.errors import check_range
from probmcl.heads.dual_relation import DualRelation, Relations
from probmcl.methods.base import Classifier, Known, Labels, Logits, Origin, Step, Views, cross_entropies


@dataclass(frozen=True)
class Config:
    """Settings of `tdrg`; the defaults have a quarter of the published width, and scales that are normalized.

    Attributes:
        width: channels of the three scales, half of a class's node, a multiple of the heads.
        layers: of the transformer that all scales share.
        heads: of its attention.
        feed_forward: units between the two linear layers that follow the attention.
        normalize: whether every position of the three scales has mean 0 and deviation 1 before they are multiplied.
        structural_share: of the structural logits in a prediction; the rest is that of the semantic ones.
        top_share: of the positions, how many the constraint takes, and at least one.
        batch_attention: whether a position sees the same position of the other images in the batch, as in the first
            release of the authors' code, instead of the other positions. Then a prediction depends on which images it
            is made together with; of several processes each sees its own images.
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
        check_range(at_least=1, heads=self.heads, width=self.width, layers=self.layers, feed_forward=self.feed_forward)
        check_range(at_least=0, at_most=1, structural_share=self.structural_share)
        check_range(above=0, at_most=1, top_share=self.top_share)
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")


PAPER = Config(width=512, feed_forward=2048, normalize=False)
"""The published sizes, with attention over positions, as in the corrected code of the authors."""


@final
class TDRG(Classifier):
    """Encoder and a dual relation head on the maps before and after its last stage.

    L = Σ BCE(z) over z = fused, structural, semantic and constraint, with fused = a structural + (1−a) semantic, the
    logits of a prediction, where a is `structural_share`.

    Reference: Zhao et al., Transformer-based Dual Relation Graph for Multi-label Image Recognition, ICCV 2021.
    """

    n_views = 1
    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = Origin("authors' code", "zhao2021tdrg")  # no preset starts from their random numbers
    needs_maps = True
    encoder: Encoder

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = c = config or Config()
        self.encoder = with_stages(encoder, "tdrg")
        self.relation = DualRelation(
            stages(self.encoder)[-1].channels,
            self.encoder.channels,
            len(label_space),
            width=c.width,
            layers=c.layers,
            heads=c.heads,
            feed_forward=c.feed_forward,
            normalize=c.normalize,
            top_share=c.top_share,
            batch_attention=c.batch_attention,
        )

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the sum of four cross-entropies over all views, each of them a term."""
        relations = self.relations(views.flatten(0, 1))
        logits = {"fused": self.fused(relations), **relations._asdict()}
        terms = cross_entropies(logits, len(views), labels, known)
        return Step(sum(terms.values(), start=labels.new_zeros(())), terms)

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Return the fused logits."""
        return self.fused(self.relations(images))

    def relations(self, images: Float[Tensor, "N *image"]) -> Relations:
        """Apply the head to the encoder's maps."""
        relations: Relations = self.relation(*two_maps(self.encoder, images))
        return relations

    def fused(self, relations: Relations) -> Float[Tensor, "N C"]:
        """Return the weighted mean of structural and semantic logits."""
        share = self.config.structural_share
        fused: Tensor = share * relations.structural + (1 - share) * relations.semantic
        return fused
