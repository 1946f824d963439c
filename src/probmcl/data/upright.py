"""Conversion of Pillow images of any mode and orientation to upright RGB images."""

from collections.abc import Iterator

import numpy as np
from PIL import ExifTags, Image

from probmcl.data.intensity import IntensityRange

# The transpositions that undo the EXIF orientations 2 to 8; 1 is upright.
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")

PIXELS_PER_STRIP = 2**20


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a loaded image, 1 (upright) to 8."""
    value = image.getexif().get(ExifTags.Base.Orientation, 1)
    return int(value) if value in range(1, 9) else 1


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Return an image upright, given its EXIF orientation."""
    return image if orientation == 1 else image.transpose(Image.Transpose[TURNS[orientation - 2]])


def to_rgb(image: Image.Image, intensity: IntensityRange | None) -> Image.Image:
    """Return a loaded image as RGB; the result is the same object if there is nothing to change."""
    return image if image.mode == "RGB" and not image.has_transparency_data else _rgb(image, intensity)


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


def _strip_rgb(image: Image.Image, intensity: IntensityRange | None) -> Image.Image:
    if is_deep(image):
        values = np.asarray(image)
        # Pillow's conversion clips at 255, which makes most 16-bit images white.
        gray = (values >> 8).astype(np.uint8) if intensity is None else intensity.gray(values)
        return Image.fromarray(gray).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("LA") if image.mode == "La" else image  # Pillow has no direct conversion to RGBA
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def _refuse_beyond_16_bits(image: Image.Image) -> None:
    remedy = "convert it to 8 bits, or set the option range in training, as in LOW,HIGH"
    if image.mode == "F":
        raise ValueError(f"has floating-point pixels without a fixed range; {remedy}")
    ends = [(values.min(), values.max()) for values in (np.asarray(strip) for _, strip in _strips(image))]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low < 0 or high > 0xFFFF:
        raise ValueError(f"has gray levels from {low} to {high}, which exceed 16 bits; {remedy}")
