"""Conversion of Pillow images of any mode and orientation to upright RGB images."""

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import ExifTags, Image

from probmcl.data.intensity import IntensityRange

# The transpositions that undo the EXIF orientations 2 to 8; 1 is upright.
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")


def upright_rgb(image: Image.Image, intensity: IntensityRange | None) -> Image.Image:
    """Load an image and return it upright and as RGB; the result is the same object if there is nothing to change."""
    image.load()
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    rotated = orientation in range(2, 9)
    upright = image.transpose(Image.Transpose[TURNS[orientation - 2]]) if rotated else image
    return upright if upright.mode == "RGB" and not upright.has_transparency_data else _rgb(upright, intensity)


def is_deep(image: Image.Image) -> bool:
    """Return whether a gray image has more than 8 bits, or floats."""
    return image.mode == "F" or image.mode.startswith("I")


def _rgb(image: Image.Image, intensity: IntensityRange | None) -> Image.Image:
    if is_deep(image):
        gray = _high_byte(image) if intensity is None else intensity.gray(np.asarray(image))
        return Image.fromarray(gray).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("LA") if image.mode == "La" else image  # Pillow has no direct conversion to RGBA
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def _high_byte(image: Image.Image) -> UInt8[ndarray, "H W"]:
    """Return the high byte. Pillow's conversion clips at 255, which makes most 16-bit images white."""
    remedy = "convert it to 8 bits, or set the option range in training, as in LOW,HIGH"
    if image.mode == "F":
        raise ValueError(f"has floating-point pixels without a fixed range; {remedy}")
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ValueError(f"has gray levels from {values.min()} to {values.max()}, which exceed 16 bits; {remedy}")
    return (values >> 8).astype(np.uint8)
