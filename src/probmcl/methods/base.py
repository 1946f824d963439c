"""Base classes for methods. The trainer passes images and labels to a method and minimizes the loss it returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor, nn

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder
from probmcl.losses import binary_cross_entropy
from probmcl.losses.binary import Reduction
from probmcl.runtime import distributed

Views = Float[Tensor, "V N *image"]
"""V views of N images, in the input format of the encoder."""

Logits = Float[Tensor, "N C"]
Labels = Float[Tensor, "N C"]

Known = Bool[Tensor, "N C"] | None
"""Mask of the labels that are known and count in the loss; None means all."""


class Step(NamedTuple):
    """The result of a training step: the loss to minimize and the named terms to log."""

    loss: Float[Tensor, ""]
    terms: dict[str, Tensor]


Fidelity = Literal["authors' code", "paper", "partly reconstructed", "standard"]


class MethodOrigin(NamedTuple):
    """The publication that describes a method, and how closely this implementation follows it.

    Attributes:
        fidelity: the source that formulas and constants were checked against: the authors' code or only their paper.
            `partly reconstructed` if neither covers everything; `standard` for textbook methods.
        reference: key in references.bib; empty if there is nothing to cite.
        published: presets with the published settings. Other presets use our own settings.
    """

    fidelity: Fidelity
    reference: str = ""
    published: tuple[str, ...] = ()

    def of(self, preset: str) -> str:
        """Describe the fidelity of a preset.

        >>> MethodOrigin("authors' code", "zhu2021csra", ("paper",)).of("default")
        "authors' code, our settings"
        """
        if self.fidelity == "standard":  # a textbook method has no published settings
            return self.fidelity
        if preset in self.published:
            return self.fidelity
        return f"{self.fidelity}, our settings"


class Method(nn.Module, ABC):
    """A trainable model: an image encoder, a head or projection, and a loss.

    Attributes:
        n_views: number of views of each image in a training step.
        needs_maps: whether the method uses feature maps and therefore cannot train on precomputed features.
        presets: named settings (frozen dataclasses). `default` has the settings that worked best in our trials.
        files: settings that are file paths. The files are only read in training; the state dict stores their content.
        origin: publication and fidelity; None for methods from outside this package.
        probe_note: note printed next to the mAP of a probe on the encoder; may be empty.
        encoder: the image encoder.
    """

    n_views: ClassVar[int]
    needs_maps: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Any]]
    files: ClassVar[tuple[str, ...]] = ()
    origin: ClassVar[MethodOrigin | None] = None
    probe_note: ClassVar[str] = ""
    encoder: AnyEncoder

    @classmethod
    def has_own_head(cls, config: Any) -> bool:
        """Return whether, under these settings, the method predicts with its own head instead of a probe."""
        return issubclass(cls, Classifier)

    @abstractmethod
    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the loss of a batch. Unknown labels do not affect it.

        If the batch is split across several processes, the mean of their losses is the loss of the whole batch.
        """


class Classifier(Method, ABC):
    """A method with its own head for predictions.

    Attributes:
        note: note printed next to the mAP of its head; may be empty.
        emits_set: whether it predicts a set of labels instead of probabilities. Its decisions then do not depend on a
            threshold, and its scores are derived from the set.
    """

    note: ClassVar[str] = ""
    emits_set: ClassVar[bool] = False

    @abstractmethod
    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Return the logit of each class; the sigmoid of a logit is the probability of the class."""


class LogitClassifier(Classifier, ABC):
    """A classifier whose loss is a function of its logits, by default binary cross-entropy."""

    n_views = 1
    reduction: ClassVar[Reduction] = "mean"

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the loss over all views of all images."""
        row_labels, row_known = repeat_for_views(len(views), labels, known)
        logits = self.logits(views.flatten(0, 1))  # (M, C)
        loss = self.loss(logits, row_labels, row_known)
        return Step(rescale_for_ddp(loss, self.reduction, row_known), {})

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the loss of the known entries, reduced by `reduction`."""
        return binary_cross_entropy(logits, labels, known, reduction=self.reduction)


class LinearClassifier(LogitClassifier, ABC):
    """An encoder and one linear layer; subclasses differ in the loss and its reduction."""

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Any = None) -> None:
        super().__init__()
        self.config = config or self.presets["default"]
        self.encoder = encoder
        self.linear = nn.Linear(encoder.features, len(label_space))

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Apply the linear layer to the encoder's features."""
        logits: Tensor = self.linear(self.encoder(images))
        return logits


def repeat_for_views(
    n_views: int, labels: Labels, known: Known
) -> tuple[Float[Tensor, "M C"], Bool[Tensor, "M C"] | None]:
    """Repeat the labels of N images and their mask once per view, for the M = V·N rows in the order v·N + i."""
    row_labels = labels.repeat(n_views, 1)
    if known is None:
        return row_labels, None
    return row_labels, known.repeat(n_views, 1)


def cross_entropies(
    logits: Mapping[str, Float[Tensor, "M C"]], n_views: int, labels: Labels, known: Known
) -> dict[str, Float[Tensor, ""]]:
    """Return the binary cross-entropy of each named prediction for the same views."""
    row_labels, row_known = repeat_for_views(n_views, labels, known)
    losses = {}
    for name, row_logits in logits.items():
        loss = binary_cross_entropy(row_logits, row_labels, row_known)
        losses[name] = rescale_for_ddp(loss, "mean", row_known)
    return losses


def rescale_for_ddp(
    loss: Float[Tensor, ""], reduction: Reduction, known: Bool[Tensor, "M C"] | None = None
) -> Float[Tensor, ""]:
    """Scale the loss of this process so that the mean over processes, which DDP computes, is the loss of all images.

    A mean over rows needs no scaling, since every process has the same number of rows. A sum is multiplied by the world
    size, and a mean over known entries is weighted by their number. With one process, the loss is unchanged.

    Args:
        loss: loss on this process's images.
        reduction: reduction used to compute the loss.
        known: mask of the entries that the loss was reduced over; None means all.
    """
    processes = distributed.world_size()
    if processes == 1:
        return loss
    if reduction == "sum":
        return loss * processes
    if known is None:
        return loss
    known_here = known.sum().to(loss.dtype)
    known_per_process = distributed.all_reduce_mean(known_here)
    # One known entry in all processes together. Without any known entry, the loss is then 0 instead of NaN.
    smallest = 1 / processes
    return loss * known_here / known_per_process.clamp(min=smallest)
