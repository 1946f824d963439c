"""Intensity ranges: which gray values of a 16-bit or floating-point image become black and white.

The range of a deep image is not stored in it: a 12-bit camera writes 0 to 4095 into 16 bits, a thermal one -40 to 120.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped, UInt8
from numpy import ndarray

from probmcl.errors import DataError, ImageError, OptionError
from probmcl.runtime.machine import map_in_order

Kind = Literal["16-bit", "float", "DICOM"]  # of deep images: integers, floats, or a DICOM file without a window
PERCENTILES = (0.5, 99.5)  # a dead pixel or a burnt-in mark must not decide
PIXELS_AN_IMAGE = 10_000
NEVER_DEEP = (".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".avif")  # formats of 8 bits
FULL: Mapping[Kind, tuple[float, float]] = {"16-bit": (0.0, 65535.0), "float": (0.0, 1.0)}


@dataclass(frozen=True)
class IntensityRange:
    """The gray values that become black and white: x -> 255 · clip((x - low) / (high - low), 0, 1).

    >>> print(IntensityRange(102.0, 3911.0, "0.5 and 99.5 percentiles of 200 images"))
    gray levels 102 to 3,911 of 16-bit and float images become black to white (0.5 and 99.5 percentiles of 200 images)
    """

    low: float
    high: float
    source: str = field(default="as given", compare=False)  # where they come from

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"gray levels {self.low:g} to {self.high:g}: the first must be below the second")

    def __str__(self) -> str:
        reach = f"gray levels {_shown(self.low)} to {_shown(self.high)}"
        return f"{reach} of 16-bit and float images become black to white ({self.source})"

    def gray(self, values: Shaped[ndarray, "*shape"]) -> UInt8[ndarray, "*shape"]:
        """Return values as 8-bit gray; NaN becomes black.

        >>> IntensityRange(100.0, 300.0).gray(np.array([0.0, 100.0, 200.0, 900.0, math.nan])).tolist()
        [0, 0, 128, 255, 0]
        """
        wide = values.dtype.itemsize > 2 and values.dtype != np.float32
        scaled: ndarray = values.astype(np.float64 if wide else np.float32)  # a copy, which is then changed in place
        np.subtract(scaled, self.low, out=scaled)
        np.divide(scaled, self.high - self.low, out=scaled)
        np.multiply(scaled, 255, out=scaled)
        np.nan_to_num(scaled, copy=False, nan=0.0, posinf=255.0, neginf=0.0)
        gray: ndarray = np.rint(np.clip(scaled, 0, 255, out=scaled)).astype(np.uint8)
        return gray


Range = Literal["auto", "full"] | IntensityRange
"""Rule for the range: percentiles of a sample, all values of the pixel type, or a given range."""


def parse_range(text: str) -> Range:
    """Parse the option `range`.

    >>> parse_range("auto"), parse_range("-1024,3071")
    ('auto', IntensityRange(low=-1024.0, high=3071.0, source='as given'))
    >>> parse_range("4095")
    Traceback (most recent call last):
    ...
    probmcl.errors.OptionError: `range=4095` must be auto, full, or LOW,HIGH as in 0,4095, the lower number first
    """
    if text in ("auto", "full"):
        return "auto" if text == "auto" else "full"
    try:
        low, high = map(float, text.split(","))
        return IntensityRange(low, high)
    except ValueError as error:
        problem = "must be auto, full, or LOW,HIGH as in 0,4095, the lower number first"
        raise OptionError("range", text, problem) from error


def find_intensity_range(
    paths: Sequence[Path], rule: Range, *, seed: int = 0, sample: int = 200, workers: int = 0
) -> IntensityRange | None:
    """Return the range that a rule gives for these images; None for `auto` and `full` if no image is deep.

    A random sample of readable files is looked at, first those whose suffix allows deep pixels. DICOM files count only
    if they have no window; for them `full` is the range of their stored bits. The rule `auto` takes the 0.5 and 99.5
    percentiles of the pixels; `full` takes 0 to 65535 for integers and 0 to 1 for floats, and refuses other values.
    Both refuse images of two kinds. A given range is returned, with a remark in its source if no image needs it.
    """
    files = _sample(paths, seed, sample)
    with closing(map_in_order(partial(_pixels_of, seed), files, workers)) as looks:
        deep = (seen for seen in looks if seen is not None)
        if isinstance(rule, IntensityRange):
            unused = replace(rule, source=f"{rule.source}; none of the images looked at is deep")
            return unused if next(deep, None) is None else rule
        samples = list(deep)
    if not samples:
        return None
    _refuse_two_kinds(samples, rule)
    return _percentiles(samples) if rule == "auto" else _full(samples)


def _sample(paths: Sequence[Path], seed: int, size: int) -> list[Path]:
    never_deep = np.array([path.suffix.lower() in NEVER_DEEP for path in paths], dtype=np.bool_)
    order = np.random.default_rng(seed).permutation(len(paths))
    drawn = order[np.argsort(never_deep[order], kind="stable")][:size]
    return [paths[row] for row in np.sort(drawn)]


class DeepPixels(NamedTuple):
    """A sample of the pixels of a deep image, and the lowest and highest of all."""

    path: Path
    kind: Kind
    low: float
    high: float
    pixels: Float[ndarray, "K"]


def _pixels_of(seed: int, path: Path) -> DeepPixels | None:
    from probmcl.data.images import gray_values  # which needs this module for its own levels

    try:
        kind, values = gray_values(path) or ("16-bit", np.empty(0))
    except ImageError:
        return None
    numbers = values[np.isfinite(values)].astype(np.float64)
    if len(numbers) == 0:
        return None
    some = np.random.default_rng(seed).integers(len(numbers), size=PIXELS_AN_IMAGE)
    few = numbers if len(numbers) <= PIXELS_AN_IMAGE else numbers[some]
    return DeepPixels(path, kind, float(numbers.min()), float(numbers.max()), few)


def _refuse_two_kinds(deep: Sequence[DeepPixels], rule: Literal["auto", "full"]) -> None:
    first = {seen.kind: seen.path for seen in reversed(deep)}
    if len(first) > 1:
        examples = ", ".join(f"{first[kind]} is {kind}" for kind in sorted(first))
        problem = f"there are {' and '.join(sorted(first))} images, which have no range in common ({examples})"
        raise DataError(f"`range={rule}`: {problem}; give `range=LOW,HIGH`")


def _percentiles(deep: Sequence[DeepPixels]) -> IntensityRange:
    pixels = np.concatenate([seen.pixels for seen in deep])
    first, last = PERCENTILES
    low = float(np.percentile(pixels, first, method="lower"))  # a value that occurs, not one between two
    high = float(np.percentile(pixels, last, method="higher"))
    if low == high:
        where = f"{deep[0].path} and {len(deep) - 1} more" if len(deep) > 1 else str(deep[0].path)
        raise DataError(f"`range=auto`: {where}: nearly all pixels are {_shown(low)}; give `range=LOW,HIGH`")
    images = f"{len(deep):,} image{'s' * (len(deep) > 1)}"
    return IntensityRange(low, high, f"{first:g} and {last:g} percentiles of {images}")


def _full(deep: Sequence[DeepPixels]) -> IntensityRange | None:
    if deep[0].kind == "DICOM":
        return None
    low, high = FULL[deep[0].kind]
    for seen in deep:
        if seen.low < low or seen.high > high:
            reach = f"its gray values reach from {_shown(seen.low)} to {_shown(seen.high)}"
            remedy = "give `range=auto`, or `range=LOW,HIGH`"
            raise DataError(f"{seen.path}: {reach}, beyond {_shown(low)} to {_shown(high)} of `range=full`; {remedy}")
    return IntensityRange(low, high, "the full range")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
