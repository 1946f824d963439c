"""The interface between a method and the trainer: call it with images and labels, and minimize the loss it returns."""

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
"""V views of N images, in whatever form the encoder takes them."""

Logits = Float[Tensor, "N C"]
Labels = Float[Tensor, "N C"]

Known = Bool[Tensor, "N C"] | None
"""Mask of the labels that take part in a loss; None means all."""


class Step(NamedTuple):
    """One training step: `loss` is minimized, `terms` are logged under their names."""

    loss: Float[Tensor, ""]
    terms: dict[str, Tensor]


Fidelity = Literal["authors' code", "paper", "partly reconstructed", "standard"]


class Origin(NamedTuple):
    """Whose method it is, and how far its row in a table may be quoted as theirs.

    `fidelity` is the source that every formula and constant was checked against: the authors' code, their paper alone,
    or neither for some part, which was then reconstructed; `standard` is common property. `reference` is a key of
    references.bib, empty if there is nothing to cite. `published` are the presets with the published settings; the
    settings of any other preset are ours.
    """

    fidelity: Fidelity
    reference: str = ""
    published: tuple[str, ...] = ()

    def of(self, preset: str) -> str:
        """Describe the fidelity of a preset.

        >>> Origin("authors' code", "zhu2021csra", ("paper",)).of("default")
        "authors' code, our settings"
        """
        ours = self.fidelity != "standard" and preset not in self.published
        return f"{self.fidelity}, our settings" if ours else self.fidelity


class Method(nn.Module, ABC):
    """Something that can be trained: an encoder, a head or projection on it, and a loss.

    Attributes:
        n_views: views of each image in a training step.
        needs_maps: whether it works on feature maps, so that it cannot train on precomputed features.
        presets: named settings, frozen dataclasses; `default` is what works best by our own evidence.
        files: the settings that name files. Only training reads them; their content is part of the state.
        origin: None for a method from outside this package.
        probe_note: printed with every mAP of a probe on its encoder; empty if the probe sees what was trained.
        encoder: its image encoder.
    """

    n_views: ClassVar[int]
    needs_maps: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Any]]
    files: ClassVar[tuple[str, ...]] = ()
    origin: ClassVar[Origin | None] = None
    probe_note: ClassVar[str] = ""
    encoder: AnyEncoder

    @classmethod
    def has_own_head(cls, config: Any) -> bool:
        """True if it predicts by itself with these settings; otherwise a probe on its encoder predicts."""
        return issubclass(cls, Classifier)

    @abstractmethod
    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the loss of a batch. Labels that are not known do not affect it.

        If the batch is spread over several processes, the mean over processes is the loss of the whole batch.
        """


class Classifier(Method, ABC):
    """A method that predicts by itself.

    Attributes:
        note: printed with every mAP of its own head.
        emits_set: whether it predicts a set of labels without probabilities: its decisions have no threshold, and its
            ranking is derived from the set.
    """

    note: ClassVar[str] = ""
    emits_set: ClassVar[bool] = False

    @abstractmethod
    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Return one number for each class, whose sigmoid is its probability."""


class LogitClassifier(Classifier, ABC):
    """A classifier whose loss is a function of its logits, by default binary cross-entropy."""

    n_views = 1
    reduction: ClassVar[Reduction] = "mean"

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the loss over all views of all images."""
        labels, known = repeat_for_views(len(views), labels, known)
        loss = self.loss(self.logits(views.flatten(0, 1)), labels, known)
        return Step(rescale_for_ddp(loss, self.reduction, known), {})

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the loss of the known entries, reduced by `reduction`."""
        return binary_cross_entropy(logits, labels, known, reduction=self.reduction)


class LinearClassifier(LogitClassifier, ABC):
    """An encoder and one linear layer; subclasses differ in the loss and in its reduction."""

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
    """Repeat the labels of the images, and the mask of known ones, for each view."""
    return labels.repeat(n_views, 1), None if known is None else known.repeat(n_views, 1)


def cross_entropies(
    logits: Mapping[str, Float[Tensor, "M C"]], n_views: int, labels: Labels, known: Known
) -> dict[str, Float[Tensor, ""]]:
    """Return the binary cross-entropy of each of several logits for the same views, under the same names."""
    labels, known = repeat_for_views(n_views, labels, known)
    return {
        name: rescale_for_ddp(binary_cross_entropy(each, labels, known), "mean", known) for name, each in logits.items()
    }


def rescale_for_ddp(
    loss: Float[Tensor, ""], reduction: Reduction, known: Bool[Tensor, "M C"] | None = None
) -> Float[Tensor, ""]:
    """Scale the loss of one process so that its mean over processes, which DDP computes, is the loss of all images.

    A mean over rows needs no scaling, since every process has the same number of rows. A sum is multiplied by the world
    size, and a mean over known entries is weighted by their number. A single process changes nothing.

    Args:
        loss: of the images of this process.
        reduction: how it was reduced.
        known: the entries it was reduced over; None means all.
    """
    if distributed.world_size() == 1:
        return loss
    if reduction == "sum":
        return loss * distributed.world_size()
    if known is None:
        return loss
    entries = known.sum().to(loss.dtype)
    return loss * entries / distributed.all_reduce_mean(entries).clamp(min=1 / distributed.world_size())
