"""Pixels of a Pillow image: its orientation, the range of its gray values, and its conversion to RGB.

Such "deep" images do not store their range: a 12-bit camera writes 0 to 4095 into 16 bits, a thermal camera -40 to 120.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Shaped, UInt8
from numpy import ndarray
from PIL import ExifTags, Image

from probmcl.errors import OptionError

Kind = Literal["16-bit", "float", "DICOM"]  # of a deep image; DICOM only without a window

# The transpositions that undo the EXIF orientations 2 to 8; 1 is upright.
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")

PIXELS_PER_STRIP = 2**20


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
        is_finite = math.isfinite(self.low) and math.isfinite(self.high)
        if not is_finite or self.low >= self.high:
            raise ValueError(f"low={self.low:g} must be less than high={self.high:g}, and both must be finite")

    def __str__(self) -> str:
        levels = f"gray levels {format_level(self.low)} to {format_level(self.high)}"
        return f"16-bit and float images: {levels} are mapped to 0-255 ({self.source})"

    def gray(self, values: Shaped[ndarray, "*shape"]) -> UInt8[ndarray, "*shape"]:
        """Scale values to 8-bit gray levels; NaN becomes black.

        >>> IntensityRange(100.0, 300.0).gray(np.array([0.0, 100.0, 200.0, 900.0, math.nan])).tolist()
        [0, 0, 128, 255, 0]
        """
        fits_float32 = values.dtype.itemsize <= 2 or values.dtype == np.float32
        precision = np.float32 if fits_float32 else np.float64
        scaled: ndarray = values.astype(precision)  # a copy, modified in place below
        np.subtract(scaled, self.low, out=scaled)
        np.divide(scaled, self.high - self.low, out=scaled)
        np.multiply(scaled, 255, out=scaled)
        np.nan_to_num(scaled, copy=False, nan=0.0, posinf=255.0, neginf=0.0)
        np.clip(scaled, 0, 255, out=scaled)
        gray: ndarray = np.rint(scaled).astype(np.uint8)
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
    if text == "auto":
        return "auto"
    if text == "full":
        return "full"
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
    if value.is_integer() and abs(value) < 1e15:  # larger numbers would be too long
        return f"{value:,.0f}"
    return f"{value:.4g}"


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a loaded image, 1 (upright) to 8."""
    value = image.getexif().get(ExifTags.Base.Orientation, 1)
    is_valid = value in range(1, 9)  # other values are reserved
    return int(value) if is_valid else 1


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Return an image upright, given its EXIF orientation."""
    if orientation == 1:
        return image
    turn = TURNS[orientation - 2]
    return image.transpose(Image.Transpose[turn])


def to_rgb(image: Image.Image, intensity: IntensityRange | None) -> Image.Image:
    """Return a loaded image as RGB; the result is the same object if there is nothing to change."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    return _rgb(image, intensity)


def is_deep(image: Image.Image) -> bool:
    """Return whether a gray image has more than 8 bits, or floats."""
    return image.mode == "F" or image.mode.startswith("I")


def _rgb(image: Image.Image, intensity: IntensityRange | None) -> Image.Image:
    """Convert an image in strips, so that the memory of intermediate results does not depend on its size."""
    if is_deep(image) and intensity is None:
        _refuse_beyond_16_bits(image)
    rgb = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        rgb.paste(_strip_rgb(strip, intensity), (0, top))
    return rgb


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield the position of the first row of each strip, and the strip."""
    rows = max(1, PIXELS_PER_STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _strip_rgb(strip: Image.Image, intensity: IntensityRange | None) -> Image.Image:
    """Return a strip of an image as RGB; without an intensity range, 16-bit values are reduced to their high byte."""
    if is_deep(strip):
        values = np.asarray(strip)
        # Pillow's conversion clips at 255, which makes most 16-bit images white.
        gray = (values >> 8).astype(np.uint8) if intensity is None else intensity.gray(values)
        return Image.fromarray(gray).convert("RGB")
    if not strip.has_transparency_data:
        return strip.convert("RGB")
    if strip.mode == "La":  # Pillow has no direct conversion to RGBA
        strip = strip.convert("LA")
    white = Image.new("RGBA", strip.size, "white")
    return Image.alpha_composite(white, strip.convert("RGBA")).convert("RGB")


def _refuse_beyond_16_bits(image: Image.Image) -> None:
    """Raise `ValueError` if a deep image cannot be reduced to the high byte of 16 bits."""
    remedy = "convert it to 8 bits, or set the option range in training, as in LOW,HIGH"
    if image.mode == "F":
        raise ValueError(f"has floating-point pixels without a fixed range; {remedy}")
    lows, highs = [], []
    for _, strip in _strips(image):
        values = np.asarray(strip)
        lows.append(values.min())
        highs.append(values.max())
    low, high = min(lows), max(highs)
    if low < 0 or high > 0xFFFF:
        raise ValueError(f"has gray levels from {low} to {high}, which exceed 16 bits; {remedy}")
