"""What the trainer knows of a method: call it with images and labels, and minimise the loss it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor, nn

from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, Extracted


class Step(NamedTuple):
    """One training step: `loss` is minimised, `terms` are logged under their names."""

    loss: Float[Tensor, ""]
    terms: dict[str, Tensor]


class Method(nn.Module, ABC):
    """Something that can be trained: an encoder, what sits on it, and a loss.

    `presets` are named settings, frozen dataclasses; the one called `default` is what works best by our own evidence.
    """

    n_views: ClassVar[int]
    presets: ClassVar[Mapping[str, Any]]
    encoder: Encoder | Extracted

    @abstractmethod
    def forward(
        self,
        views: Float[Tensor, "V N *image"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"] | None = None,
    ) -> Step:
        """The loss of a batch: V views of N images; a label that is not known takes no part."""


class Classifier(Method, ABC):
    """A method that predicts by itself."""

    @abstractmethod
    def logits(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N C"]:
        """One number for each class, whose sigmoid is its probability."""


class LinearClassifier(Classifier, ABC):
    """An encoder and one linear layer; what differs between its kinds is the loss."""

    n_views = 1

    def __init__(self, encoder: Encoder | Extracted, label_space: LabelSpace, config: Any = None) -> None:
        super().__init__()
        self.config = config or self.presets["default"]
        self.encoder = encoder
        self.linear = nn.Linear(encoder.features, len(label_space))

    def logits(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N C"]:
        """The linear layer on the encoder's features."""
        logits: Tensor = self.linear(self.encoder(images))
        return logits

    def forward(
        self,
        views: Float[Tensor, "V N *image"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"] | None = None,
    ) -> Step:
        """The loss over all views of all images."""
        n_views = len(views)
        all_known = None if known is None else known.repeat(n_views, 1)
        loss = self.loss(self.logits(views.flatten(0, 1)), labels.repeat(n_views, 1), all_known)
        return Step(loss, {})

    @abstractmethod
    def loss(
        self, logits: Float[Tensor, "M C"], labels: Float[Tensor, "M C"], known: Bool[Tensor, "M C"] | None
    ) -> Float[Tensor, ""]:
        """What is minimised."""
