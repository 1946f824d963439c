"""Fingerprints of image files: digests, perceptual hashes, small images, and their cache."""

import itertools
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import PIL
from jaxtyping import Float, Int
from numpy import ndarray
from PIL import Image

from probmcl.data.image_files import file_digest
from probmcl.data.images import read_image, stored_image
from probmcl.data.pixels import IntensityRange
from probmcl.errors import ImageError
from probmcl.runtime.files import user_cache_folder
from probmcl.runtime.tensor_files import block_checksum, content_digest
from probmcl.runtime.workers import map_in_order

Result = TypeVar("Result")

VERSION = 3
"""Increase it if the same file would get another fingerprint, or the same pair another correlation."""

MAX_BYTES = 2**30
"""Size of the file at which old results are deleted. An image takes 4.4 kB and a pair of images 110 bytes."""

DELETED_AT_ONCE = 10_000
MIN_AGE = 24 * 3600
"""Results of the last day, in seconds, are not deleted; if only these are left, new results are not stored. Otherwise a
dataset that exceeds the cache would delete its own results before they are used."""

SECONDS_TO_WAIT = 5.0  # for another process that writes
TABLE = "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, stored REAL, checksum INT, value BLOB)"
OLDEST = "SELECT rowid FROM results WHERE stored < ? ORDER BY rowid LIMIT ?"

SIZE, TILE = 32, 64
"""Side in pixels of the images that are hashed and of those that are compared. Large JPEGs are decoded at 1/8 of their
size, which still reads every byte."""

IMAGES_AT_ONCE = 8  # small, so an interrupt does not have to wait long
STORED_AT_ONCE = 1024
PACKED = struct.Struct("<II8sdQQ80p")  # size, mode, spread, hashes and damage of a cached image; the tile follows
NEARLY_CONSTANT = 2.0
"""Standard deviation of gray levels below which an image counts as empty, such as a black frame or an empty slide."""

BITS = 64
FREQUENCIES = 12  # per axis; enough for the 64 lowest two-dimensional frequencies
MARGIN = 0.04
"""Share of the image that `inner_phash` omits on each side: half of the largest crop that is detected (8 %)."""


@dataclass(frozen=True)
class ResultCache:
    """Results in an SQLite file, which several processes can use at the same time; without a file, nothing is stored.

    It never raises an error: results that cannot be read are missing, and results that cannot be written are lost.
    """

    file: Path | None = None
    context: bytes = b""  # everything apart from the contents that a result depends on

    def key(self, *contents: bytes) -> bytes:
        """Return the key of the result for these contents."""
        return content_digest([self.context, *contents])

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the stored results of these keys; missing and damaged ones are left out."""

        def select(connection: sqlite3.Connection) -> dict[bytes, bytes]:
            query = "SELECT checksum, value FROM results WHERE key = ? AND typeof(value) = 'blob'"
            rows = ((key, connection.execute(query, (key,)).fetchone()) for key in keys)
            return {key: row[1] for key, row in rows if row is not None and row[0] == block_checksum(key + row[1])}

        return self._use(select, {})

    def put(self, results: Mapping[bytes, bytes]) -> bool:
        """Store results unless the cache is full, and return whether the file is writable."""
        now = time.time()
        rows = [(key, now, block_checksum(key + value), value) for key, value in results.items()]

        def insert(connection: sqlite3.Connection) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            if _is_full(connection):
                connection.execute(f"DELETE FROM results WHERE rowid IN ({OLDEST})", (now - MIN_AGE, DELETED_AT_ONCE))
            if not _is_full(connection):
                connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", rows)
            return True

        return self._use(insert, False)

    def _use(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """Return the result of one transaction, or `otherwise` if it fails; a damaged file is deleted."""
        if self.file is None:
            return otherwise
        try:
            with closing(sqlite3.connect(self.file, timeout=SECONDS_TO_WAIT)) as connection, connection:
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute(TABLE)
                return work(connection)
        except sqlite3.OperationalError:  # not writable, locked for too long, or the disk is full
            return otherwise
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self.file.with_name(f"{self.file.name}-journal").unlink(missing_ok=True)
                self.file.unlink()
                self.file.touch(mode=0o600)
            return otherwise


NO_CACHE = ResultCache()


@contextmanager
def open_results(intensity: IntensityRange | None) -> Iterator[ResultCache]:
    """Open the cache in the user's cache folder, or a temporary one if that folder is not writable."""
    levels = None if intensity is None else (intensity.low, intensity.high)
    context = repr((VERSION, PIL.__version__, levels)).encode()
    with tempfile.TemporaryDirectory() as temporary:
        cache = ResultCache(Path(temporary) / "duplicates.sqlite", context)
        with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
            file = user_cache_folder() / "duplicates.sqlite"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # it has thumbnails, so only the user may read it
            users = ResultCache(file, context)
            cache = users if users.put({}) or users.put({}) else cache  # the first attempt deletes a damaged file
        yield cache


def _is_full(connection: sqlite3.Connection) -> bool:
    size, pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    return bool(size * (pages - free) >= MAX_BYTES)


class Fingerprint(NamedTuple):
    """Properties of an image file, computed while decoding it once.

    Attributes:
        reason: why the file cannot be decoded, or None; if it is set, the other fields are empty.
        size: stored width and height of the upright image; `mode` is the stored mode, as named by Pillow.
        spread: standard deviation of the gray levels (0 to 255) of the reduced image.
        content: digest of the file's bytes.
        phash: perceptual hash, the signs of the 64 lowest cosine frequencies.
        inner_phash: perceptual hash without the margins, which is close to the hash of a cropped copy.
        damage: the decoder's warning if the file is damaged although it can be decoded, or None.
    """

    reason: str | None
    size: tuple[int, int] = (0, 0)
    mode: str = ""
    spread: float = 0.0
    content: bytes = b""
    phash: int = 0
    inner_phash: int = 0
    damage: str | None = None

    @property
    def nearly_constant(self) -> bool:
        """True if the image is almost a single color."""
        return self.reason is None and self.spread < NEARLY_CONSTANT


def image_fingerprint(path: Path, intensity: IntensityRange | None = None) -> Fingerprint:
    """Decode a file at a small size and return its fingerprint.

    >>> image_fingerprint(Path("nowhere.jpg")).reason
    'does not exist'
    """
    return _decode(path, intensity)[0]


def fingerprints(
    paths: Sequence[Path],
    *,
    intensity: IntensityRange | None = None,
    workers: int = 0,
    advance: Callable[[int], None] | None = None,
    cache: ResultCache = NO_CACHE,
) -> list[Fingerprint]:
    """Return the fingerprints of many files, in order. `workers` processes decode them; 0 uses this process.

    `advance` is called with the number of images decoded since the last call. Files whose content is in the cache are
    not decoded. The fingerprints and tiles of the others are stored there.
    """
    batches = (paths[start : start + IMAGES_AT_ONCE] for start in range(0, len(paths), IMAGES_AT_ONCE))
    prints: list[Fingerprint] = []
    new: dict[bytes, bytes] = {}
    with closing(map_in_order(partial(_batch, intensity, cache), batches, workers, files=list)) as results:
        for batch in results:
            prints += (image for image, _ in batch)
            new |= {cache.key(image.content): _packed(image, tile) for image, tile in batch if tile}
            if len(new) >= STORED_AT_ONCE:
                cache.put(new)
                new = {}
            if advance is not None:
                advance(len(batch))
    cache.put(new)
    return prints


def read_tile(path: Path, intensity: IntensityRange | None) -> bytes:
    """Decode a file and return its tile: the gray levels of the image that is compared, or raise `ImageError`."""
    return _tile(read_image(path, TILE, intensity=intensity))


def cached_tile(value: bytes) -> bytes:
    """Return the tile of a cached image."""
    return value[PACKED.size :]


def small_gray(image: Image.Image, size: int) -> Float[ndarray, "S S"]:
    """Return the gray levels (0 to 255) of an image resized to a small square."""
    resized = image.convert("L").resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(resized, dtype=np.float32)


def _batch(
    intensity: IntensityRange | None, cache: ResultCache, paths: Sequence[Path]
) -> list[tuple[Fingerprint, bytes]]:
    """Return the fingerprints, with the tiles of the images that were decoded, not read from the cache."""
    contents = [file_digest(path) if cache.file else b"" for path in paths]
    cached = cache.get([cache.key(content) for content in contents if content])
    values = [cached.get(cache.key(content)) for content in contents]
    return [
        _decode(path, intensity, content) if value is None else (_unpacked(content, value), b"")
        for path, content, value in zip(paths, contents, values, strict=True)
    ]


def _decode(path: Path, intensity: IntensityRange | None, content: bytes = b"") -> tuple[Fingerprint, bytes]:
    """Return the fingerprint and the tile, which is empty if the file cannot be decoded."""
    try:
        image = read_image(path, TILE, intensity=intensity)
        stored = stored_image(path, image)
    except ImageError as error:
        return Fingerprint(error.reason), b""
    gray = image.convert("L")
    pixels = small_gray(gray, SIZE)
    content = content or file_digest(path)
    spread, hashes = float(pixels.std()), _hashes(pixels)
    return Fingerprint(None, stored.size, stored.mode, spread, content, *hashes, stored.damage), _tile(gray)


def _tile(image: Image.Image) -> bytes:
    return small_gray(image, TILE).astype(np.uint8).tobytes()


def _packed(image: Fingerprint, tile: bytes) -> bytes:
    damage = (image.damage or "").encode()
    return PACKED.pack(*image.size, image.mode.encode(), image.spread, image.phash, image.inner_phash, damage) + tile


def _unpacked(content: bytes, value: bytes) -> Fingerprint:
    width, height, mode, spread, phash, inner_phash, damage = PACKED.unpack_from(value)
    size, mode = (width, height), mode.rstrip(b"\0").decode()
    return Fingerprint(None, size, mode, spread, content, phash, inner_phash, damage.decode() or None)


def _hashes(pixels: Float[ndarray, "S S"]) -> tuple[int, int]:
    cosines = np.concatenate([_cosines(0.0), _cosines(MARGIN)])
    signs = (cosines @ pixels @ cosines.T).take(_lowest()) > 0
    bits = np.packbits(signs).tobytes()
    return int.from_bytes(bits[: BITS // 8], "big"), int.from_bytes(bits[BITS // 8 :], "big")


@lru_cache
def _cosines(margin: float) -> Float[ndarray, "F S"]:
    """Return the cosine basis. All rows but the first sum to zero, so the hash ignores brightness."""
    edges = np.arange(SIZE + 1) / SIZE
    share = np.clip(np.minimum(edges[1:], 1 - margin) - np.maximum(edges[:-1], margin), 0, None) * SIZE
    position = ((np.arange(SIZE) + 0.5) / SIZE - margin) / (1 - 2 * margin)
    waves = np.cos(np.pi * np.arange(FREQUENCIES)[:, None] * position) * share
    waves[1:] -= waves[1:].sum(axis=1, keepdims=True) * share / share.sum()
    cosines: ndarray = waves.astype(np.float32)
    return cosines


@lru_cache
def _lowest() -> Int[ndarray, "B"]:
    """Return, for each bit of both hashes, a flat index into the matrix of vertical and horizontal frequencies."""
    grid = itertools.product(range(FREQUENCIES), repeat=2)
    order = sorted(grid, key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))[1 : BITS + 1]  # without the mean
    vertical, horizontal = np.array(order).T
    return np.concatenate([(vertical + start) * 2 * FREQUENCIES + horizontal + start for start in (0, FREQUENCIES)])


FLIP_MASK = int.from_bytes(np.packbits(_lowest()[:BITS] % 2 == 1).tobytes(), "big")
"""The bits of odd horizontal frequencies, which a left-right flip inverts."""
