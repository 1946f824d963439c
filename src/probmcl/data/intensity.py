"""Intensity ranges: the gray values of a 16-bit or floating-point image that become black and white.

Such "deep" images do not store their range: a 12-bit camera writes 0 to 4095 into 16 bits, a thermal camera -40 to 120.
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

from probmcl.errors import DataError, ImageError, OptionError, counted, keyword
from probmcl.runtime.workers import map_in_order

Kind = Literal["16-bit", "float", "DICOM"]  # of a deep image; DICOM only without a window
PERCENTILES = (0.5, 99.5)  # robust against dead pixels and burnt-in marks
PIXELS_PER_IMAGE = 10_000
NEVER_DEEP = (".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".avif")  # 8-bit formats
FULL: Mapping[Kind, tuple[float, float]] = {"16-bit": (0.0, 65535.0), "float": (0.0, 1.0)}


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
        levels = f"gray levels {_format(self.low)} to {_format(self.high)}"
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


def find_intensity_range(
    paths: Sequence[Path], rule: Range, *, seed: int = 0, sample: int = 200, workers: int = 0
) -> IntensityRange | None:
    """Return the intensity range of a dataset, or None for `auto` and `full` if no image is deep.

    A random sample of the files is read, preferring formats that allow deep pixels; DICOM files with a window are
    ignored. `auto` returns the 0.5 and 99.5 percentiles of the pixels. `full` returns 0 to 65535 for integers, 0 to 1
    for floats (values outside are an error), and None for DICOM, whose files define their range. Both require all
    deep images to be of one kind. A fixed range is returned; its source notes if no sampled image needs it.
    """
    files = _sample(paths, seed, sample)
    with closing(map_in_order(partial(_pixels_of, seed), files, workers, files=lambda file: [file])) as results:
        deep = (image for image in results if image is not None)
        if isinstance(rule, IntensityRange):
            unused = replace(rule, source=f"{rule.source}; not needed by any of the sampled images")
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
    """A sample of the pixels of a deep image, and the minimum and maximum of all its pixels."""

    path: Path
    kind: Kind
    low: float
    high: float
    pixels: Float[ndarray, "K"]


def _pixels_of(seed: int, path: Path) -> DeepPixels | None:
    from probmcl.data.images import gray_values  # circular import

    try:
        kind, values = gray_values(path) or ("16-bit", np.empty(0))
    except ImageError:
        return None
    finite = np.isfinite(values)
    numbers = values.ravel() if finite.all() else values[finite]
    if len(numbers) == 0:
        return None
    indices = np.random.default_rng(seed).integers(len(numbers), size=PIXELS_PER_IMAGE)
    pixels = numbers if len(numbers) <= PIXELS_PER_IMAGE else numbers[indices]
    return DeepPixels(path, kind, float(numbers.min()), float(numbers.max()), pixels.astype(np.float64))


def _refuse_two_kinds(deep: Sequence[DeepPixels], rule: Literal["auto", "full"]) -> None:
    first = {image.kind: image.path for image in reversed(deep)}
    if len(first) > 1:
        examples = ", ".join(f"{first[kind]} is {kind}" for kind in sorted(first))
        problem = f"{' and '.join(sorted(first))} images need different ranges ({examples})"
        raise DataError(f'{keyword("range", rule)}: {problem}; set `range="LOW,HIGH"`')


def _percentiles(deep: Sequence[DeepPixels]) -> IntensityRange:
    pixels = np.concatenate([image.pixels for image in deep])
    first, last = PERCENTILES
    low = float(np.percentile(pixels, first, method="lower"))  # a value that occurs, not an interpolated one
    high = float(np.percentile(pixels, last, method="higher"))
    if low == high:
        files = f"{deep[0].path} and {len(deep) - 1} more" if len(deep) > 1 else str(deep[0].path)
        raise DataError(f'`range="auto"`: {files}: nearly all pixels are {_format(low)}; set `range="LOW,HIGH"`')
    images = counted(len(deep), "image")
    return IntensityRange(low, high, f"{first:g} and {last:g} percentiles of {images}")


def _full(deep: Sequence[DeepPixels]) -> IntensityRange | None:
    if deep[0].kind == "DICOM":
        return None
    low, high = FULL[deep[0].kind]
    for image in deep:
        if image.low < low or image.high > high:
            problem = f"has gray levels from {_format(image.low)} to {_format(image.high)}"
            limits = f'outside {_format(low)} to {_format(high)} (`range="full"`)'
            raise DataError(f'{image.path}: {problem}, {limits}; set `range="auto"` or `range="LOW,HIGH"`')
    return IntensityRange(low, high, "full range")


def _format(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
