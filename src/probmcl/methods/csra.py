"""CSRA: class-specific residual attention over the positions of the feature map."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, with_maps
from probmcl.errors import check_range
from probmcl.heads.pooling import Heads, ResidualAttention
from probmcl.methods.base import LogitClassifier, Logits, Origin


@dataclass(frozen=True)
class Config:
    """Settings of `csra`; the defaults are the published ones for VOC2007, the smaller of its data sets.

    Attributes:
        heads: how many, each with its own classifier and its own temperature.
        attention_weight: of the attended mean, relative to the plain one (λ).
        normalize: whether scores are divided by the length of the class's vector.
    """

    heads: Heads = 1
    attention_weight: float = 0.1
    normalize: bool = True

    def __post_init__(self) -> None:
        check_range(at_least=0, attention_weight=self.attention_weight)


PAPER = Config(heads=6, attention_weight=0.4)
"""The published values for MS-COCO, whose objects are smaller and more."""


@final
class CSRA(LogitClassifier):
    """Encoder and class-specific residual attention on its maps, trained with binary cross-entropy.

    Reference: Zhu and Wu, Residual Attention: A Simple but Effective Method for Multi-Label Recognition, ICCV 2021.
    """

    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = Origin("authors' code", "zhu2021csra", ("default", "paper"))
    needs_maps = True
    encoder: Encoder

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = c = config or Config()
        self.encoder = with_maps(encoder, "csra")
        self.attention = ResidualAttention(
            self.encoder.channels,
            len(label_space),
            heads=c.heads,
            attention_weight=c.attention_weight,
            normalize=c.normalize,
        )

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Apply residual attention to the encoder's maps."""
        logits: Tensor = self.attention(self.encoder.maps(images))
        return logits
