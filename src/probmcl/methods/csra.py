"""CSRA: class-specific residual attention over the positions of the feature map."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, with_maps
from probmcl.errors import check_range
from probmcl.heads.pooling import Heads, ResidualAttention
from probmcl.methods.base import LogitClassifier, Logits, MethodOrigin


@dataclass(frozen=True)
class Config:
    """Settings of `csra`; the defaults are the published values for VOC2007.

    Attributes:
        heads: number of attention heads, each with a separate classifier and temperature.
        attention_weight: weight of the attended score relative to the mean score over positions (λ).
        normalize: whether scores are divided by the norm of the classifier's weight vector.
    """

    heads: Heads = 1
    attention_weight: float = 0.1
    normalize: bool = True

    def __post_init__(self) -> None:
        check_range(at_least=0, attention_weight=self.attention_weight)


PAPER = Config(heads=6, attention_weight=0.4)
"""The published values for MS-COCO, which has more and smaller objects per image."""


@final
class CSRA(LogitClassifier):
    """Class-specific residual attention on the feature maps, trained with binary cross-entropy.

    Reference: Zhu and Wu, Residual Attention: A Simple but Effective Method for Multi-Label Recognition, ICCV 2021.
    """

    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("authors' code", "zhu2021csra", ("default", "paper"))
    needs_maps = True
    encoder: Encoder

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.encoder = with_maps(encoder, "csra")
        self.attention = ResidualAttention(
            self.encoder.channels,
            len(label_space),
            heads=self.config.heads,
            attention_weight=self.config.attention_weight,
            normalize=self.config.normalize,
        )

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Apply residual attention to the encoder's maps."""
        logits: Tensor = self.attention(self.encoder.maps(images))
        return logits
