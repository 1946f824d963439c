"""Intensity ranges: the gray values of a 16-bit or floating-point image that become black and white.

Such "deep" images do not store their range: a 12-bit camera writes 0 to 4095 into 16 bits, a thermal camera -40 to 120.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Shaped, UInt8
from numpy import ndarray

from probmcl.errors import OptionError

Kind = Literal["16-bit", "float", "DICOM"]  # of a deep image; DICOM only without a window


@dataclass(frozen=True)
class IntensityRange:
    """The gray values that become black and white: x -> 255 · clip((x - low) / (high - low), 0, 1).

    >>> print(IntensityRange(102.0, 3911.0, "0.5 and 99.5 percentiles of 200 images"))
    16-bit and float images: gray levels 102 to 3,911 are mapped to 0-255 (0.5 and 99.5 percentiles of 200 images)
    """

    low: float
    high: float
    source: str = field(default="as given", compare=False)  # how the range was chosen, for messages

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low={self.low:g} must be less than high={self.high:g}, and both must be finite")

    def __str__(self) -> str:
        levels = f"gray levels {format_level(self.low)} to {format_level(self.high)}"
        return f"16-bit and float images: {levels} are mapped to 0-255 ({self.source})"

    def gray(self, values: Shaped[ndarray, "*shape"]) -> UInt8[ndarray, "*shape"]:
        """Scale values to 8-bit gray levels; NaN becomes black.

        >>> IntensityRange(100.0, 300.0).gray(np.array([0.0, 100.0, 200.0, 900.0, math.nan])).tolist()
        [0, 0, 128, 255, 0]
        """
        wide = values.dtype.itemsize > 2 and values.dtype != np.float32
        scaled: ndarray = values.astype(np.float64 if wide else np.float32)  # a copy, modified in place below
        np.subtract(scaled, self.low, out=scaled)
        np.divide(scaled, self.high - self.low, out=scaled)
        np.multiply(scaled, 255, out=scaled)
        np.nan_to_num(scaled, copy=False, nan=0.0, posinf=255.0, neginf=0.0)
        gray: ndarray = np.rint(np.clip(scaled, 0, 255, out=scaled)).astype(np.uint8)
        return gray


Range = Literal["auto", "full"] | IntensityRange
"""How to choose the range: percentiles of a sample, the full range of the pixel type, or a fixed range."""


def parse_range(text: str) -> Range:
    """Parse the value of the `range` option.

    >>> parse_range("auto"), parse_range("-1024,3071")
    ('auto', IntensityRange(low=-1024.0, high=3071.0, source='as given'))
    >>> parse_range("4095")
    Traceback (most recent call last):
    ...
    probmcl.errors.OptionError: `range="4095"` must be auto, full or LOW,HIGH with LOW < HIGH, for example 0,4095
    """
    if text in ("auto", "full"):
        return "auto" if text == "auto" else "full"
    try:
        low, high = map(float, text.split(","))
        return IntensityRange(low, high)
    except ValueError as error:
        problem = "must be auto, full or LOW,HIGH with LOW < HIGH, for example 0,4095"
        raise OptionError("range", text, problem) from error


def format_level(value: float) -> str:
    """Return a gray level for a message.

    >>> format_level(4095.0), format_level(0.25)
    ('4,095', '0.25')
    """
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
