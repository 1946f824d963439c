"""Binary cross-entropy end to end: the baseline that every other method has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Bool, Float
from torch import Tensor

from probmcl.losses import binary_cross_entropy
from probmcl.methods.base import LinearClassifier


@dataclass(frozen=True)
class Config:
    """Settings of `bce`: there are none."""


@final
class BCE(LinearClassifier):
    """Encoder and linear layer, trained together with binary cross-entropy."""

    presets = {"default": Config()}  # noqa: RUF012  # read, never written

    def loss(
        self, logits: Float[Tensor, "M C"], labels: Float[Tensor, "M C"], known: Bool[Tensor, "M C"] | None
    ) -> Float[Tensor, ""]:
        """Mean over the known entries."""
        return binary_cross_entropy(logits, labels, known, reduction=self.reduction)
