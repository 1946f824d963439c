"""PLA: a recurrent decoder that emits a set of labels, trained in the order of its own predictions."""

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
from probmcl.methods.base import (
    Classifier,
    Known,
    Labels,
    Logits,
    Origin,
    Step,
    Views,
    repeat_for_views,
    rescale_for_ddp,
)


@dataclass(frozen=True)
class Config:
    """Settings of `pla`; the defaults are the published ones, but for the last two.

    Attributes:
        alignment: the order of labels; `predicted` keeps the emitted ones in place, `minimal` has the least loss.
        steps: the longest sequence, the end included; one of all classes and the end is never longer.
        hidden: size of the LSTM.
        embedding: size of the vector of the label that was emitted last.
        attention: width of the attention over positions.
        dropout: of the positions.
        normalize: whether the maps of an image are divided by their root mean square.
        repeats: whether a label may be emitted twice.
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
"""The published decoder, which takes maps as they are and learns by itself not to say a label twice."""


@final
class PLA(Classifier):
    """Encoder and a recurrent decoder on its maps, trained with cross-entropy in the order of its own predictions.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020.
    """

    n_views = 1
    presets = {"default": Config(), "paper": PAPER}  # noqa: RUF012  # read, never written
    origin = Origin("authors' code", "yazici2020orderless", ("paper",))
    note = "pla emits a set of labels; its mAP ranks them by a score made for it (docs/methods/pla.md)"
    emits_set = True
    needs_maps = True
    encoder: Encoder

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = c = config or Config()
        self.encoder = with_maps(encoder, "pla")
        self.steps = min(c.steps, len(label_space) + 1)
        self.decoder = LabelDecoder(
            self.encoder.channels,
            len(label_space),
            hidden=c.hidden,
            embedding=c.embedding,
            attention=c.attention,
            dropout=c.dropout,
            normalize=c.normalize,
            repeats=c.repeats,
        )

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Cross-entropy over the steps up to each image's end; a class that is not known cannot be emitted."""
        labels, known = repeat_for_views(len(views), labels, known)
        present = labels > 0 if known is None else (labels > 0) & known
        steps = min(self.steps, int(present.sum(1).max()) + 1)  # what comes later has no target
        log_probabilities = self.decoder(self.encoder.maps(views.flatten(0, 1)), steps, known)
        targets = aligned_targets(log_probabilities, labels, known, alignment=self.config.alignment)
        loss = sequence_cross_entropy(log_probabilities, targets)
        return Step(rescale_for_ddp(loss, "mean", targets != IGNORED), {})

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """High for the labels that are emitted, low for all others; see `set_logits`."""
        return set_logits(self.decoder(self.encoder.maps(images), self.steps))
