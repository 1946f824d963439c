"""PLA: a recurrent decoder that emits labels one by one, with targets in the order of its predictions."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, with_maps
from probmcl.errors import check_range
from probmcl.heads.sequence import LabelDecoder, set_logits
from probmcl.losses import aligned_targets, sequence_cross_entropy
from probmcl.losses.alignment import IGNORED, Alignment
from probmcl.losses.per_label import present
from probmcl.methods.base import (
    Classifier,
    Known,
    Labels,
    Logits,
    MethodOrigin,
    Step,
    Views,
    repeat_for_views,
    rescale_for_ddp,
)


@dataclass(frozen=True)
class Config:
    """Settings of `pla`; the defaults are the published values, except for `normalize` and `repeats`.

    Attributes:
        alignment: order of the target labels: `predicted` keeps correctly emitted labels at their step; `minimal` uses
            the order with the smallest loss.
        steps: maximum length of the sequence, including the end token; never more than the number of classes plus one.
        hidden: size of the LSTM state.
        embedding: size of the embedding of the previous label.
        attention: hidden size of the attention over positions.
        dropout: dropout on the feature maps.
        normalize: whether the feature maps of an image are divided by their root mean square.
        repeats: whether a label may be emitted more than once.
    """

    alignment: Alignment = "predicted"
    steps: int = 20
    hidden: int = 512
    embedding: int = 256
    attention: int = 512
    dropout: float = 0.5
    normalize: bool = True
    repeats: bool = False

    def __post_init__(self) -> None:
        check_range(
            at_least=1, steps=self.steps, hidden=self.hidden, embedding=self.embedding, attention=self.attention
        )
        check_range(at_least=0, below=1, dropout=self.dropout)


PAPER = Config(normalize=False, repeats=True)
"""The published decoder, which does not normalize the maps and may repeat labels."""


@final
class PLA(Classifier):
    """Recurrent decoder (LSTM) on the feature maps, trained with label targets in the order of its predictions.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020.
    """

    n_views = 1
    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("authors' code", "yazici2020orderless", ("paper",))
    note = "pla emits a set of labels; its mAP (our definition) ranks emitted labels above all others, by probability"
    emits_set = True
    needs_maps = True
    encoder: Encoder

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.encoder = with_maps(encoder, "pla")
        classes = len(label_space)
        self.steps = min(self.config.steps, classes + 1)  # every label and the end token
        self.decoder = LabelDecoder(
            self.encoder.channels,
            classes,
            hidden=self.config.hidden,
            embedding=self.config.embedding,
            attention=self.config.attention,
            dropout=self.config.dropout,
            normalize=self.config.normalize,
            repeats=self.config.repeats,
        )

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the cross-entropy over the steps up to the end of each sequence. Unknown classes cannot be emitted."""
        row_labels, row_known = repeat_for_views(len(views), labels, known)
        longest_set = int(present(row_labels, row_known).sum(1).max())
        steps = min(self.steps, longest_set + 1)  # the steps after the end token have no target
        maps = self.encoder.maps(views.flatten(0, 1))
        log_probabilities = self.decoder(maps, steps, row_known)
        targets = aligned_targets(log_probabilities, row_labels, row_known, alignment=self.config.alignment)
        loss = sequence_cross_entropy(log_probabilities, targets)
        has_target = targets != IGNORED
        return Step(rescale_for_ddp(loss, "mean", has_target), {})

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Return high logits for the emitted labels and low logits for all others; see `set_logits`."""
        log_probabilities = self.decoder(self.encoder.maps(images), self.steps)
        return set_logits(log_probabilities)
