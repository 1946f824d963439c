"""The intensity range of a dataset, found in a sample of its deep images."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from probmcl.data.images import gray_values
from probmcl.data.pixels import IntensityRange, Kind, Range, format_level
from probmcl.data.records import Paths
from probmcl.errors import DataError, ImageError, counted, keyword
from probmcl.runtime.workers import map_in_order

PERCENTILES = (0.5, 99.5)  # robust against dead pixels and burnt-in marks
PIXELS_PER_IMAGE = 10_000
NEVER_DEEP = (".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".avif")  # 8-bit formats
FULL: Mapping[Kind, tuple[float, float]] = {"16-bit": (0.0, 65535.0), "float": (0.0, 1.0)}


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
        deep_images = (image for image in results if image is not None)
        if isinstance(rule, IntensityRange):
            first = next(deep_images, None)  # the other files need not be read
            if first is not None:
                return rule
            return replace(rule, source=f"{rule.source}; not needed by any of the sampled images")
        samples = list(deep_images)
    if not samples:
        return None
    _refuse_two_kinds(samples, rule)
    return _percentiles(samples) if rule == "auto" else _full(samples)


def _sample(paths: Sequence[Path], seed: int, size: int) -> list[Path]:
    """Return `size` random files in their order; files in 8-bit formats are drawn only if there are no others left."""
    suffixes = (os.path.splitext(text)[1].lower() for text in Paths(paths).texts)  # noqa: PTH122
    never_deep = np.fromiter((suffix in NEVER_DEEP for suffix in suffixes), dtype=np.bool_, count=len(paths))
    shuffled = np.random.default_rng(seed).permutation(len(paths))
    preferred_first = shuffled[np.argsort(never_deep[shuffled], kind="stable")]
    return [paths[row] for row in np.sort(preferred_first[:size])]


class DeepPixels(NamedTuple):
    """A sample of the pixels of a deep image, and the minimum and maximum of all its pixels."""

    path: Path
    kind: Kind
    low: float
    high: float
    pixels: Float[ndarray, "K"]


def _pixels_of(seed: int, path: Path) -> DeepPixels | None:
    """Return a random sample of the finite pixels of a deep image, or None if the image is not deep or unreadable."""
    try:
        kind_and_values = gray_values(path)
    except ImageError:
        return None
    if kind_and_values is None:
        return None
    kind, values = kind_and_values
    is_finite = np.isfinite(values)
    numbers = values.ravel() if is_finite.all() else values[is_finite]  # `ravel` copies nothing
    if len(numbers) == 0:
        return None
    pixels = numbers
    if len(numbers) > PIXELS_PER_IMAGE:
        drawn = np.random.default_rng(seed).integers(len(numbers), size=PIXELS_PER_IMAGE)
        pixels = numbers[drawn]
    return DeepPixels(path, kind, float(numbers.min()), float(numbers.max()), pixels.astype(np.float64))


def _refuse_two_kinds(deep: Sequence[DeepPixels], rule: Literal["auto", "full"]) -> None:
    """Raise `DataError` if the sampled images are of several kinds, which have no range in common."""
    # The path of the first image of each kind: in reverse order, it replaces those of later images.
    first = {image.kind: image.path for image in reversed(deep)}
    if len(first) > 1:
        examples = ", ".join(f"{first[kind]} is {kind}" for kind in sorted(first))
        problem = f"{' and '.join(sorted(first))} images need different ranges ({examples})"
        raise DataError(f'{keyword("range", rule)}: {problem}; set `range="LOW,HIGH"`')


def _percentiles(deep: Sequence[DeepPixels]) -> IntensityRange:
    """Return the range between two percentiles of the sampled pixels of all images."""
    pixels = np.concatenate([image.pixels for image in deep])
    first, last = PERCENTILES
    low = float(np.percentile(pixels, first, method="lower"))  # a value that occurs, not an interpolated one
    high = float(np.percentile(pixels, last, method="higher"))
    if low == high:
        files = str(deep[0].path)
        if len(deep) > 1:
            files = f"{files} and {len(deep) - 1} more"
        raise DataError(f'`range="auto"`: {files}: nearly all pixels are {format_level(low)}; set `range="LOW,HIGH"`')
    images = counted(len(deep), "image")
    return IntensityRange(low, high, f"{first:g} and {last:g} percentiles of {images}")


def _full(deep: Sequence[DeepPixels]) -> IntensityRange | None:
    """Return the full range of the kind of the images, or None for DICOM; pixels outside the range are an error."""
    kind = deep[0].kind  # of all images
    if kind == "DICOM":
        return None
    low, high = FULL[kind]
    for image in deep:
        if image.low < low or image.high > high:
            problem = f"has gray levels from {format_level(image.low)} to {format_level(image.high)}"
            limits = f'outside {format_level(low)} to {format_level(high)} (`range="full"`)'
            raise DataError(f'{image.path}: {problem}, {limits}; set `range="auto"` or `range="LOW,HIGH"`')
    return IntensityRange(low, high, "full range")
