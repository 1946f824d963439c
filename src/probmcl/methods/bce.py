"""Binary cross-entropy, trained end to end: the baseline of all comparisons."""

from dataclasses import dataclass
from typing import final

from probmcl.methods.base import LinearClassifier, MethodOrigin


@dataclass(frozen=True)
class Config:
    """Settings of `bce`, which has none."""


@final
class BCE(LinearClassifier):
    """Encoder and linear layer, trained end to end with binary cross-entropy."""

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("standard")
