"""Images as data URIs, so that a page needs no other file. Only pixels are copied, never metadata such as EXIF."""

import base64
import io
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from PIL import Image

from probmcl.data.images import read_image
from probmcl.data.intensity import IntensityRange
from probmcl.errors import ImageError

LARGE, SMALL = 256, 112
"""Longest side of an image in the gallery and of a training image next to it, in pixels."""

QUALITY = 80
HEAT_SIZE = 28
"""Heat maps are stored at this size; coarser maps would show blocks when they are stretched or printed."""

HEAT_COLOR, MAX_ALPHA = (255, 100, 0), 165


def thumbnail(path: Path, side: int, intensity: IntensityRange | None) -> tuple[str, int, int] | None:
    """Return a reduced image as a data URI with its width and height, or None if it cannot be read."""
    try:
        image = read_image(path, side, intensity=intensity)
    except ImageError:
        return None
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    Image.fromarray(np.asarray(image.convert("RGB"))).save(file, "JPEG", quality=QUALITY, optimize=True)
    return _data_uri("image/jpeg", file.getvalue()), image.width, image.height


def heat_map_image(heat: Float32[ndarray, "h w"]) -> str:
    """Return a heat map between 0 and 1 as a transparent image; the opacity grows with the square of the heat."""
    size = (HEAT_SIZE, HEAT_SIZE)
    smooth = Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    alpha = MAX_ALPHA * np.clip(np.asarray(smooth), 0, 1) ** 2  # weak regions stay clear
    pixels = np.zeros((*size, 4), dtype=np.uint8)
    pixels[..., :3] = HEAT_COLOR
    pixels[..., 3] = alpha.round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(file, "PNG", optimize=True)
    return _data_uri("image/png", file.getvalue())


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
