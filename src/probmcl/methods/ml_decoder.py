"""ML-Decoder: queries attend to the feature map, and each query predicts a group of classes."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, with_maps
from probmcl.errors import check_range
from probmcl.heads.decoder import GroupDecoder
from probmcl.losses import asymmetric
from probmcl.methods.base import Known, Labels, LogitClassifier, Logits, MethodOrigin


@dataclass(frozen=True)
class Config:
    """Settings of `ml_decoder`; the default decoder is smaller than the published one (`paper` preset).

    Attributes:
        groups: number of class groups, each with one query; `none` means one per class, up to 100.
        width: size of queries and tokens; a multiple of `heads`.
        heads: number of attention heads.
        feed_forward: hidden units of the feed-forward block after the attention.
        dropout: dropout in the decoder.
        learned_queries: whether the queries are learned or stay at their random initial values.
        gamma_negative: focusing exponent of negatives in the asymmetric loss.
        gamma_positive: focusing exponent of positives in the asymmetric loss.
        clip: negatives with a probability up to this value have no loss.
    """

    groups: int | None = None
    width: int = 256
    heads: int = 8
    feed_forward: int = 512
    dropout: float = 0.1
    learned_queries: bool = False
    gamma_negative: float = 4.0
    gamma_positive: float = 0.0
    clip: float = 0.05

    def __post_init__(self) -> None:
        check_range(at_least=1, groups=self.groups, heads=self.heads, width=self.width, feed_forward=self.feed_forward)
        check_range(at_least=0, gamma_negative=self.gamma_negative, gamma_positive=self.gamma_positive)
        check_range(at_least=0, below=1, dropout=self.dropout, clip=self.clip)
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")


PAPER = Config(width=768, feed_forward=2048)
"""The values in the published training script."""


@final
class MLDecoder(LogitClassifier):
    """Transformer decoder with class queries on the feature maps, trained with the asymmetric loss.

    Reference: Ridnik et al., ML-Decoder: Scalable and Versatile Classification Head, WACV 2023.
    """

    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("authors' code", "ridnik2023mldecoder", ("paper",))
    needs_maps = True
    encoder: Encoder
    reduction = "sum"

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.encoder = with_maps(encoder, "ml_decoder")
        self.decoder = GroupDecoder(
            self.encoder.channels,
            len(label_space),
            groups=self.config.groups,
            width=self.config.width,
            heads=self.config.heads,
            feed_forward=self.config.feed_forward,
            dropout=self.config.dropout,
            learned_queries=self.config.learned_queries,
        )

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Apply the decoder to the encoder's maps."""
        logits: Tensor = self.decoder(self.encoder.maps(images))
        return logits

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the asymmetric loss, summed over the known entries."""
        return asymmetric(
            logits,
            labels,
            known,
            gamma_negative=self.config.gamma_negative,
            gamma_positive=self.config.gamma_positive,
            clip=self.config.clip,
        )
