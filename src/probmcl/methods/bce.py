"""Binary cross-entropy end to end: the baseline that every other method has to beat."""

from dataclasses import dataclass
from typing import final

from probmcl.methods.base import LinearClassifier, Origin


@dataclass(frozen=True)
class Config:
    """Settings of `bce`: there are none."""


@final
class BCE(LinearClassifier):
    """Encoder and linear layer, trained together with binary cross-entropy."""

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = Origin("standard")
