"""Fingerprints of images: whether a file can be decoded, a digest of its bytes, and perceptual hashes."""

import io
import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from PIL import ExifTags, Image, UnidentifiedImageError

from probmcl.data.images import read_image
from probmcl.data.intensity import IntensityRange
from probmcl.errors import ImageError
from probmcl.runtime.machine import map_in_order

SIZE = 32
"""A JPEG is decoded at an eighth of its size: most of the time is saved, and still every byte is read."""

IMAGES_AT_ONCE = 8  # few, so that an interrupt need not wait for many
NEARLY_CONSTANT = 2.0
"""Standard deviation of gray levels below which an image shows next to nothing: a black frame, an empty slide."""

BITS = 64
FREQUENCIES = 12  # a side; the 64 lowest of these without the mean lie within them
MARGIN = 0.04
"""Share that `inner_phash` leaves out on each side: half of the largest crop (8 %) under which a copy is found."""


class Fingerprint(NamedTuple):
    """Properties of a file from one decode.

    Attributes:
        reason: why it cannot be decoded, None if it can; everything else is empty if it cannot.
        size: width and height of the upright image, as stored; `mode` is Pillow's.
        spread: standard deviation of the gray levels, 0 to 255, of the small image.
        content: digest of the file's bytes.
        phash: perceptual hash, the signs of the 64 lowest cosine frequencies.
        inner_phash: the same of the image without a margin, which is near the hash of a cropped copy.
    """

    reason: str | None
    size: tuple[int, int] = (0, 0)
    mode: str = ""
    spread: float = 0.0
    content: bytes = b""
    phash: int = 0
    inner_phash: int = 0

    @property
    def nearly_constant(self) -> bool:
        """Whether the image shows next to nothing."""
        return self.reason is None and self.spread < NEARLY_CONSTANT


def fingerprint(path: Path, intensity: IntensityRange | None = None) -> Fingerprint:
    """Decode a file once, small, and return its fingerprint.

    >>> fingerprint(Path("nowhere.jpg")).reason
    'does not exist'
    """
    try:
        image = read_image(path, SIZE, intensity=intensity)
    except ImageError as error:
        return Fingerprint(error.reason)
    stored, pixels = path.read_bytes(), small_gray(image, SIZE)
    content = blake2b(stored, digest_size=16).digest()
    return Fingerprint(None, *_header(stored, image), float(pixels.std()), content, *_hashes(pixels))


def fingerprints(
    paths: Sequence[Path],
    *,
    intensity: IntensityRange | None = None,
    workers: int = 0,
    advance: Callable[[int], None] | None = None,
) -> list[Fingerprint]:
    """Return the fingerprints of many files, in their order, decoded by `workers` processes (0: by this one).

    `advance` is called with the number of images decoded since the last call.
    """
    parts = [paths[start : start + IMAGES_AT_ONCE] for start in range(0, len(paths), IMAGES_AT_ONCE)]
    taken: list[Fingerprint] = []
    with closing(map_in_order(partial(_part, intensity=intensity), parts, workers)) as results:
        for part in results:
            taken += part
            if advance is not None:
                advance(len(part))
    return taken


def small_gray(image: Image.Image, size: int) -> Float[ndarray, "S S"]:
    """Return an image squashed to a small square of gray levels from 0 to 255."""
    squashed = image.convert("L").resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(squashed, dtype=np.float32)


def _part(paths: Sequence[Path], intensity: IntensityRange | None) -> list[Fingerprint]:
    return [fingerprint(path, intensity) for path in paths]


def _header(stored: bytes, decoded: Image.Image) -> tuple[tuple[int, int], str]:
    """Return size and mode as stored: a JPEG was decoded at a part of its size, and everything became RGB."""
    try:
        with Image.open(io.BytesIO(stored)) as image:
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) in range(5, 9)
            return (image.size[::-1] if turned else image.size), image.mode
    except UnidentifiedImageError:  # a format that Pillow does not know, as DICOM, is always read at full size
        return decoded.size, decoded.mode


def _hashes(pixels: Float[ndarray, "S S"]) -> tuple[int, int]:
    """Return the signs of the lowest frequencies of the whole image and of the part within the margins."""
    cosines = np.concatenate([_cosines(0.0), _cosines(MARGIN)])  # of the whole rows, and within the margins
    signs = (cosines @ pixels @ cosines.T).take(_lowest()) > 0
    bits = np.packbits(signs).tobytes()
    return int.from_bytes(bits[: BITS // 8], "big"), int.from_bytes(bits[BITS // 8 :], "big")


@lru_cache
def _cosines(margin: float) -> Float[ndarray, "F S"]:
    """Return cosines of which each but the first sums to zero, so that brightness does not count."""
    edges = np.arange(SIZE + 1) / SIZE
    share = np.clip(np.minimum(edges[1:], 1 - margin) - np.maximum(edges[:-1], margin), 0, None) * SIZE
    position = ((np.arange(SIZE) + 0.5) / SIZE - margin) / (1 - 2 * margin)
    waves = np.cos(np.pi * np.arange(FREQUENCIES)[:, None] * position) * share
    waves[1:] -= waves[1:].sum(axis=1, keepdims=True) * share / share.sum()
    cosines: ndarray = waves.astype(np.float32)
    return cosines


@lru_cache
def _lowest() -> Int[ndarray, "B"]:
    """Return the indices of the bits of both hashes among the products of all cosines down and along."""
    grid = itertools.product(range(FREQUENCIES), repeat=2)
    order = sorted(grid, key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))[1 : BITS + 1]  # without the mean
    down, along = np.array(order).T
    return np.concatenate([(down + start) * 2 * FREQUENCIES + along + start for start in (0, FREQUENCIES)])


FLIP_MASK = int.from_bytes(np.packbits(_lowest()[:BITS] % 2 == 1).tobytes(), "big")
"""The bits of odd frequencies along a row, which a left-right flip inverts."""
