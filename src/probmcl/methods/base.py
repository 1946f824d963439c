"""What the trainer knows of a method: call it with images and labels, and minimize the loss it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor, nn

from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.losses import binary_cross_entropy
from probmcl.losses.reduction import Reduction
from probmcl.runtime import distributed


class Step(NamedTuple):
    """One training step: `loss` is minimized, `terms` are logged under their names."""

    loss: Float[Tensor, ""]
    terms: dict[str, Tensor]


Fidelity = Literal["authors' code", "paper", "partly reconstructed", "standard"]


class Origin(NamedTuple):
    """Whose method it is, and how far its row in a table may be quoted as theirs.

    `fidelity` says what every formula and constant was checked against: the authors' code, their paper alone, or
    neither for some part, which was then reconstructed; `standard` is common property. `reference` is a key of
    references.bib, empty where there is nothing to cite. `published` are the presets that are as they published it;
    with any other the settings are ours.
    """

    fidelity: Fidelity
    reference: str = ""
    published: tuple[str, ...] = ()

    def of(self, preset: str) -> str:
        """The fidelity of a preset in words.

        >>> Origin("authors' code", "zhu2021csra", ("paper",)).of("default")
        "authors' code, our settings"
        """
        ours = self.fidelity != "standard" and preset not in self.published
        return f"{self.fidelity}, our settings" if ours else self.fidelity


class Method(nn.Module, ABC):
    """Something that can be trained: an encoder, what sits on it, and a loss.

    `presets` are named settings, frozen dataclasses; the one called `default` is what works best by our own evidence.
    `files` are those settings that name files: only training reads them, and what they held is part of the state.
    `origin` is None for a method from outside this package. `probe_note` is what has to be said wherever an mAP of a
    probe on its encoder is printed: for most methods nothing, since a probe sees what they were trained with.
    `needs_maps` is true for a method that works on feature maps, so that it cannot train on precomputed features.
    """

    n_views: ClassVar[int]
    needs_maps: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Any]]
    files: ClassVar[tuple[str, ...]] = ()
    origin: ClassVar[Origin | None] = None
    probe_note: ClassVar[str] = ""
    encoder: Encoder | PrecomputedFeatures

    @classmethod
    def has_own_head(cls, config: Any) -> bool:
        """Whether it predicts by itself with these settings; without a head of its own, a probe on it does."""
        return issubclass(cls, Classifier)

    @abstractmethod
    def forward(
        self,
        views: Float[Tensor, "V N *image"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"] | None = None,
    ) -> Step:
        """The loss of a batch: V views of N images; a label that is not known takes no part.

        Where several processes have a part of the batch each, its mean over them is the loss of the whole batch.
        """


class Classifier(Method, ABC):
    """A method that predicts by itself.

    `note` is what has to be said wherever an mAP of its own head is printed. `emits_set` is whether it says which
    labels there are and no more: its decisions know no threshold, and its ranking was made for it.
    """

    note: ClassVar[str] = ""
    emits_set: ClassVar[bool] = False

    @abstractmethod
    def logits(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N C"]:
        """One number for each class, whose sigmoid is its probability."""


class LogitClassifier(Classifier, ABC):
    """A classifier that learns from its logits alone, by default with binary cross-entropy."""

    n_views = 1
    reduction: ClassVar[Reduction] = "mean"

    def forward(
        self,
        views: Float[Tensor, "V N *image"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"] | None = None,
    ) -> Step:
        """The loss over all views of all images."""
        labels, known = of_all_views(len(views), labels, known)
        loss = self.loss(self.logits(views.flatten(0, 1)), labels, known)
        return Step(over_processes(loss, self.reduction, known), {})

    def loss(
        self, logits: Float[Tensor, "M C"], labels: Float[Tensor, "M C"], known: Bool[Tensor, "M C"] | None
    ) -> Float[Tensor, ""]:
        """What is minimized: the `reduction` of the known entries."""
        return binary_cross_entropy(logits, labels, known, reduction=self.reduction)


class LinearClassifier(LogitClassifier, ABC):
    """An encoder and one linear layer; its kinds differ in the loss, and in its reduction."""

    def __init__(self, encoder: Encoder | PrecomputedFeatures, label_space: LabelSpace, config: Any = None) -> None:
        super().__init__()
        self.config = config or self.presets["default"]
        self.encoder = encoder
        self.linear = nn.Linear(encoder.features, len(label_space))

    def logits(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N C"]:
        """The linear layer on the encoder's features."""
        logits: Tensor = self.linear(self.encoder(images))
        return logits


def of_all_views(
    n_views: int, labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"] | None
) -> tuple[Float[Tensor, "M C"], Bool[Tensor, "M C"] | None]:
    """The labels of all views and which of them are known: those of the images, once for each view."""
    return labels.repeat(n_views, 1), None if known is None else known.repeat(n_views, 1)


def cross_entropies(
    logits: Mapping[str, Float[Tensor, "M C"]], labels: Float[Tensor, "M C"], known: Bool[Tensor, "M C"] | None
) -> dict[str, Float[Tensor, ""]]:
    """The terms of a method that has several logits for the same images: the binary cross-entropy of each."""
    return {
        name: over_processes(binary_cross_entropy(each, labels, known), "mean", known) for name, each in logits.items()
    }


def over_processes(
    loss: Float[Tensor, ""], reduction: Reduction, known: Bool[Tensor, "M C"] | None = None
) -> Float[Tensor, ""]:
    """The loss of this process's images, scaled so that its mean over all processes is the loss of all images.

    A mean over rows is that already, since every process has as many. A sum is too small by the number of processes,
    and a mean over known entries has to count more where more is known. In one process nothing changes.

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
