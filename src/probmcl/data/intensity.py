"""Gray levels: which values of a 16-bit or floating-point image become black and white.

An 8-bit image says it itself. Of a deeper one nobody can know: a 12-bit camera writes 0 to 4095 into 16 bits, a
thermometer -40 to 120. So the rule is stated (the option `range`), found once, and kept with the run.
"""

from __future__ import annotations

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
from probmcl.runtime.workers import map_in_order

Kind = Literal["16-bit", "float", "DICOM"]
"""What holds deep pixels: whole numbers, real numbers, or a DICOM file that says no window."""

PERCENTILES = (0.5, 99.5)  # a dead pixel or a burnt-in mark must not decide
PIXELS_AN_IMAGE = 10_000
NEVER_DEEP = (".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".avif")
"""Suffixes of formats that hold 8 bits here; any other, or none at all, may stand for more."""

NONE_DEEP = "none of the images looked at is deep"
FULL: Mapping[Kind, tuple[float, float]] = {"16-bit": (0.0, 65535.0), "float": (0.0, 1.0)}


@dataclass(frozen=True)
class IntensityRange:
    """The gray values that become black and white: x -> 255 · clip((x - low) / (high - low), 0, 1).

    `source` says in words where they come from, and takes part in no comparison.

    >>> print(IntensityRange(102.0, 3911.0, "0.5 and 99.5 percentiles of 200 images"))
    gray levels 102 to 3,911 of 16-bit and float images become black to white (0.5 and 99.5 percentiles of 200 images)
    """

    low: float
    high: float
    source: str = field(default="as given", compare=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"gray levels {self.low:g} to {self.high:g}: the first must be below the second")

    def __str__(self) -> str:
        reach = f"gray levels {_shown(self.low)} to {_shown(self.high)}"
        return f"{reach} of 16-bit and float images become black to white ({self.source})"

    def gray(self, values: Shaped[ndarray, "*shape"]) -> UInt8[ndarray, "*shape"]:
        """Values as 8-bit gray; what is no number becomes black.

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
"""How gray levels are decided: robust percentiles of a sample, all that the type of pixel can hold, or as given."""


def parse_range(text: str) -> Range:
    """Parse the option `range`.

    >>> parse_range("auto"), parse_range("-1024,3071")
    ('auto', IntensityRange(low=-1024.0, high=3071.0, source='as given'))
    >>> parse_range("4095")
    Traceback (most recent call last):
    ...
    probmcl.errors.OptionError: `range=4095` must be auto, full, or LOW,HIGH as in 0,4095, the lower number first
    """
    if text == "auto":
        return "auto"
    if text == "full":
        return "full"
    try:
        low, high = map(float, text.split(","))
        return IntensityRange(low, high)
    except ValueError as error:
        problem = "must be auto, full, or LOW,HIGH as in 0,4095, the lower number first"
        raise OptionError("range", text, problem) from error


def find_intensity_range(
    paths: Sequence[Path], rule: Range, *, seed: int = 0, sample: int = 200, workers: int = 0
) -> IntensityRange | None:
    """The gray levels that a rule gives for these images; None for `auto` and `full` where none is deep.

    A seeded sample of the files is looked at, by its headers; those of 16 bits and more are read. Files whose suffix
    allows deep pixels come first, so that a few among many JPEGs are not missed. A file that cannot be read takes no
    part: whoever reads it later says so. DICOM files take part only where they say no window themselves; `full` is for
    them the range of their stored bits, which each says itself.

    Args:
        paths: the images, of which some are looked at.
        rule: `auto` takes the 0.5 and 99.5 percentiles of the pixels; `full` takes 0 to 65535 for whole numbers and 0
            to 1 for floats, and refuses values beyond. Both refuse images of two kinds. Levels are taken as they are,
            and say so in their source where no image of the sample needs them.
        seed: draws the sample, and in each image the pixels.
        sample: how many files are looked at.
        workers: processes that read; 0 does it in this one.
    """
    some = _sample(paths, seed, sample)
    with closing(map_in_order(partial(_pixels_of, seed), some, workers)) as looks:
        deep = (seen for seen in looks if seen is not None)
        if isinstance(rule, IntensityRange):
            return rule if any(True for _ in deep) else replace(rule, source=f"{rule.source}; {NONE_DEEP}")
        found = list(deep)
    if not found:
        return None
    _refuse_two_kinds(found, rule)
    return _percentiles(found) if rule == "auto" else _full(found)


def _sample(paths: Sequence[Path], seed: int, size: int) -> list[Path]:
    """So many files drawn at random, in their order; those that may be deep first, then others up to the size."""
    generator = np.random.default_rng(seed)
    may_be_deep = np.array([path.suffix.lower() not in NEVER_DEEP for path in paths], dtype=np.bool_)
    order = generator.permutation(len(paths))
    drawn = order[np.argsort(~may_be_deep[order], kind="stable")][:size]
    return [paths[row] for row in np.sort(drawn)]


class Seen(NamedTuple):
    """Some pixels of a deep image, and the reach of all of them."""

    path: Path
    kind: Kind
    low: float
    high: float
    pixels: Float[ndarray, "K"]


def _pixels_of(seed: int, path: Path) -> Seen | None:
    from probmcl.data.images import gray_values  # which needs this module for its own levels

    try:
        found = gray_values(path)
    except ImageError:
        return None
    if found is None:
        return None
    kind, values = found
    numbers = values[np.isfinite(values)].astype(np.float64)
    if len(numbers) == 0:
        return None
    some = np.random.default_rng(seed).integers(len(numbers), size=PIXELS_AN_IMAGE)
    few = numbers if len(numbers) <= PIXELS_AN_IMAGE else numbers[some]
    return Seen(path, kind, float(numbers.min()), float(numbers.max()), few)


def _refuse_two_kinds(deep: Sequence[Seen], rule: Literal["auto", "full"]) -> None:
    """What is white as a float is black as a whole number."""
    first = {seen.kind: seen.path for seen in reversed(deep)}
    if len(first) > 1:
        kinds = sorted(first)
        examples = ", ".join(f"{first[kind]} is {kind}" for kind in kinds)
        raise DataError(
            f"`range={rule}`: there are {' and '.join(kinds)} images, which have no range in common ({examples}); "
            "say `range=LOW,HIGH`"
        )


def _percentiles(deep: Sequence[Seen]) -> IntensityRange:
    pixels = np.concatenate([seen.pixels for seen in deep])
    low = float(np.percentile(pixels, PERCENTILES[0], method="lower"))  # a value that occurs, not one between two
    high = float(np.percentile(pixels, PERCENTILES[1], method="higher"))
    if low == high:
        where = f"{deep[0].path} and {len(deep) - 1} more" if len(deep) > 1 else str(deep[0].path)
        raise DataError(f"`range=auto`: {where}: nearly all pixels are {_shown(low)}; say `range=LOW,HIGH`")
    first, last = PERCENTILES
    return IntensityRange(
        low, high, f"{first:g} and {last:g} percentiles of {len(deep):,} image{'s' * (len(deep) > 1)}"
    )


def _full(deep: Sequence[Seen]) -> IntensityRange | None:
    if deep[0].kind == "DICOM":
        return None
    low, high = FULL[deep[0].kind]
    for seen in deep:
        if seen.low < low or seen.high > high:
            reach = f"its gray values reach from {_shown(seen.low)} to {_shown(seen.high)}"
            remedy = "say `range=auto`, or `range=LOW,HIGH`"
            raise DataError(f"{seen.path}: {reach}, beyond {_shown(low)} to {_shown(high)} of `range=full`; {remedy}")
    return IntensityRange(low, high, "the full range")


def _shown(value: float) -> str:
    """A level as a message shows it.

    >>> _shown(65535.0), _shown(0.0123456)
    ('65,535', '0.01235')
    """
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
