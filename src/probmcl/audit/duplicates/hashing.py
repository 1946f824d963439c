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
SELECT = "SELECT checksum, value FROM results WHERE key = ? AND typeof(value) = 'blob'"
INSERT = "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)"
OLDEST = "SELECT rowid FROM results WHERE stored < ? ORDER BY rowid LIMIT ?"
DELETE_OLDEST = f"DELETE FROM results WHERE rowid IN ({OLDEST})"
CACHE_NAME = "duplicates.sqlite"

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
    context: bytes = b""  # everything apart from the image files that a result depends on

    def key(self, *inputs: bytes) -> bytes:
        """Return the key of the result for these inputs, such as the digests of two image files."""
        return content_digest([self.context, *inputs])

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the stored results of these keys; missing and damaged ones are left out."""

        def select(connection: sqlite3.Connection) -> dict[bytes, bytes]:
            found: dict[bytes, bytes] = {}
            for key in keys:
                row = connection.execute(SELECT, (key,)).fetchone()
                if row is None:
                    continue
                checksum, value = row
                if checksum == block_checksum(key + value):
                    found[key] = value
            return found

        return self._transaction(select, otherwise={})

    def put(self, results: Mapping[bytes, bytes]) -> bool:
        """Store results unless the cache is full, and return whether the file is writable."""
        now = time.time()
        rows = [(key, now, block_checksum(key + value), value) for key, value in results.items()]

        def insert(connection: sqlite3.Connection) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            if _is_full(connection):
                connection.execute(DELETE_OLDEST, (now - MIN_AGE, DELETED_AT_ONCE))
            if not _is_full(connection):  # still full if all results are from the last day
                connection.executemany(INSERT, rows)
            return True

        return self._transaction(insert, otherwise=False)

    def _transaction(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """Return the result of one transaction, or `otherwise` if it fails; a damaged file is deleted."""
        if self.file is None:
            return otherwise
        try:
            # The connection as a context manager only commits or rolls back; `closing` closes it.
            with closing(sqlite3.connect(self.file, timeout=SECONDS_TO_WAIT)) as connection, connection:
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute(TABLE)
                return work(connection)
        except sqlite3.OperationalError:  # not writable, locked for too long, or the disk is full
            return otherwise
        except sqlite3.DatabaseError:  # the file is damaged
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
        cache = _user_cache(context)
        if cache is None:
            cache = ResultCache(Path(temporary) / CACHE_NAME, context)
        yield cache


def _user_cache(context: bytes) -> ResultCache | None:
    """Return the cache in the user's cache folder, or None if that folder is not writable."""
    try:
        file = user_cache_folder() / CACHE_NAME
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)  # it has thumbnails, so only the user may read it
        cache = ResultCache(file, context)
        # Storing nothing shows whether the file is writable. The first attempt deletes a damaged file.
        is_writable = cache.put({}) or cache.put({})
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    return cache if is_writable else None


def _is_full(connection: sqlite3.Connection) -> bool:
    """Return whether the pages in use have reached the size at which old results are deleted."""
    page_size = _pragma(connection, "page_size")
    pages = _pragma(connection, "page_count")
    free_pages = _pragma(connection, "freelist_count")
    return page_size * (pages - free_pages) >= MAX_BYTES


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the value of a numeric setting of an SQLite file."""
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


@dataclass(frozen=True)
class SearchSettings:
    """How a search for duplicates reads and compares images.

    Attributes:
        intensity: the intensity range of 16-bit and float images; None if there are none.
        workers: number of processes; 0 uses this process.
        cache: the results of earlier searches with the same intensity range.
    """

    intensity: IntensityRange | None = None
    workers: int = 0
    cache: ResultCache = NO_CACHE


DEFAULT_SEARCH = SearchSettings()


class Fingerprint(NamedTuple):
    """Properties of an image file, computed while decoding it once.

    Attributes:
        reason: why the file cannot be decoded, or None; if it is set, the other fields are empty.
        size: stored width and height of the upright image.
        mode: stored mode, as named by Pillow.
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
    return _decode(path, intensity).fingerprint


def fingerprints(
    paths: Sequence[Path],
    settings: SearchSettings = DEFAULT_SEARCH,
    *,
    advance: Callable[[int], None] | None = None,
) -> list[Fingerprint]:
    """Return the fingerprints of many files, in order.

    `advance` is called with the number of images decoded since the last call. Files whose content is in the cache are
    not decoded. The fingerprints and tiles of the others are stored there.
    """
    cache = settings.cache
    batches = (paths[start : start + IMAGES_AT_ONCE] for start in range(0, len(paths), IMAGES_AT_ONCE))
    prints: list[Fingerprint] = []
    not_stored: dict[bytes, bytes] = {}
    read_batch = partial(_read_batch, settings)
    with closing(map_in_order(read_batch, batches, settings.workers, files=list)) as results:
        for batch in results:
            for image, tile in batch:
                prints.append(image)
                if tile is not None:
                    not_stored[cache.key(image.content)] = _packed(image, tile)
            if len(not_stored) >= STORED_AT_ONCE:
                cache.put(not_stored)
                not_stored = {}
            if advance is not None:
                advance(len(batch))
    cache.put(not_stored)
    return prints


def read_tile(path: Path, intensity: IntensityRange | None) -> bytes:
    """Decode a file and return its tile: the gray levels of the image that is compared, or raise `ImageError`."""
    return _tile(read_image(path, TILE, intensity=intensity))


def cached_tile(value: bytes) -> bytes:
    """Return the tile of a cached image."""
    return value[PACKED.size :]


def small_gray(image: Image.Image, size: int) -> Float[ndarray, "S S"]:
    """Return the gray levels (0 to 255) of an image resized to a small square."""
    gray = image.convert("L")
    # With a `reducing_gap` of 3, Pillow reduces large images in two steps, which is faster and looks almost the same.
    resized = gray.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(resized, dtype=np.float32)


class _FingerprintAndTile(NamedTuple):
    """The fingerprint of a file, and its tile: the gray levels of the small image, if the file was decoded.

    The tile is None if the fingerprint comes from the cache, which already has the tile, or if decoding failed.
    """

    fingerprint: Fingerprint
    tile: bytes | None


def _read_batch(settings: SearchSettings, paths: Sequence[Path]) -> list[_FingerprintAndTile]:
    """Return the fingerprints of a few files, from the cache or by decoding them.

    With each decoded image, its tile is returned, which the caller stores in the cache. The tile of other images is
    None.
    """
    cache = settings.cache
    if cache.file is None:
        return [_decode(path, settings.intensity) for path in paths]
    digests = [file_digest(path) for path in paths]  # b"" if a file cannot be read
    keys = [cache.key(digest) for digest in digests]
    values_by_key = cache.get([key for key, digest in zip(keys, digests, strict=True) if digest])
    results = []
    for path, digest, key in zip(paths, digests, keys, strict=True):
        if key in values_by_key:
            fingerprint = _unpacked(digest, values_by_key[key])
            results.append(_FingerprintAndTile(fingerprint, tile=None))  # the cache already has the tile
        else:
            results.append(_decode(path, settings.intensity, digest))  # also finds out why a file cannot be read
    return results


def _decode(path: Path, intensity: IntensityRange | None, digest: bytes = b"") -> _FingerprintAndTile:
    """Decode a file and return its fingerprint and tile; if that fails, the fingerprint has only the reason.

    `digest` is the digest of the file's bytes; it is computed if it is empty.
    """
    try:
        image = read_image(path, TILE, intensity=intensity)
        stored = stored_image(path, image)
    except ImageError as error:
        return _FingerprintAndTile(Fingerprint(error.reason), None)
    gray = image.convert("L")
    pixels = small_gray(gray, SIZE)
    phash, inner_phash = _hashes(pixels)
    fingerprint = Fingerprint(
        reason=None,
        size=stored.size,
        mode=stored.mode,
        spread=float(pixels.std()),
        content=digest or file_digest(path),
        phash=phash,
        inner_phash=inner_phash,
        damage=stored.damage,
    )
    return _FingerprintAndTile(fingerprint, _tile(gray))


def _tile(image: Image.Image) -> bytes:
    """Return the gray levels of an image at the size at which images are compared, one byte per pixel."""
    return small_gray(image, TILE).astype(np.uint8).tobytes()


def _packed(image: Fingerprint, tile: bytes) -> bytes:
    """Return the cached value of a decoded image: its fingerprint without the content, and its tile."""
    mode = image.mode.encode()
    damage = (image.damage or "").encode()
    return PACKED.pack(*image.size, mode, image.spread, image.phash, image.inner_phash, damage) + tile


def _unpacked(digest: bytes, value: bytes) -> Fingerprint:
    """Return the fingerprint in a cached value, for a file whose bytes have this digest."""
    width, height, mode, spread, phash, inner_phash, damage = PACKED.unpack_from(value)
    return Fingerprint(
        reason=None,
        size=(width, height),
        mode=mode.rstrip(b"\0").decode(),
        spread=spread,
        content=digest,
        phash=phash,
        inner_phash=inner_phash,
        damage=damage.decode() or None,
    )


def _hashes(pixels: Float[ndarray, "S S"]) -> tuple[int, int]:
    """Return two perceptual hashes of an image: of the whole image, and of its inner part without the margins.

    Each bit is the sign of a two-dimensional cosine frequency.
    """
    cosines = np.concatenate([_cosines(0.0), _cosines(MARGIN)])  # (2 F, S)
    frequencies = cosines @ pixels @ cosines.T  # (2 F, 2 F): the whole image above left, the inner part below right
    signs = frequencies.take(_lowest()) > 0
    packed = np.packbits(signs).tobytes()
    whole, inner = packed[: BITS // 8], packed[BITS // 8 :]
    return int.from_bytes(whole, "big"), int.from_bytes(inner, "big")


@lru_cache
def _cosines(margin: float) -> Float[ndarray, "F S"]:
    """Return the cosine basis of an image without a margin on each side, which is a share of the image.

    All rows but the first sum to zero, so the hash ignores brightness.
    """
    edges = np.arange(SIZE + 1) / SIZE
    left = np.maximum(edges[:-1], margin)
    right = np.minimum(edges[1:], 1 - margin)
    inside = np.clip(right - left, 0, None) * SIZE  # (S,): the share of each pixel that is between the margins
    centers = (np.arange(SIZE) + 0.5) / SIZE
    position = (centers - margin) / (1 - 2 * margin)  # from 0 to 1 between the margins
    frequency = np.arange(FREQUENCIES)[:, None]
    waves = np.cos(np.pi * frequency * position) * inside
    # Each row but the first is shifted to the sum 0, without changing the pixels outside the margins.
    surplus = waves[1:].sum(axis=1, keepdims=True)
    waves[1:] -= surplus * inside / inside.sum()
    cosines: ndarray = waves.astype(np.float32)
    return cosines


@lru_cache
def _lowest() -> Int[ndarray, "B"]:
    """Return, for each bit of both hashes, a flat index into the matrix of vertical and horizontal frequencies.

    The matrix has 2 `FREQUENCIES` rows and columns, and two blocks on its diagonal: the frequencies of the whole image,
    then those of its inner part. The flat index of an element is its row times the width, plus its column.
    """

    def from_low_to_high(frequency: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        vertical, horizontal = frequency
        return vertical**2 + horizontal**2, frequency

    grid = itertools.product(range(FREQUENCIES), range(FREQUENCIES))
    lowest = sorted(grid, key=from_low_to_high)[1 : BITS + 1]  # the first is the mean, which is only the brightness
    vertical, horizontal = np.array(lowest).T
    width = 2 * FREQUENCIES
    whole = vertical * width + horizontal
    inner = (vertical + FREQUENCIES) * width + horizontal + FREQUENCIES
    return np.concatenate([whole, inner])


# The matrix of frequencies has an even width, so an index is odd if its horizontal frequency is odd.
FLIP_MASK = int.from_bytes(np.packbits(_lowest()[:BITS] % 2 == 1).tobytes(), "big")
"""The bits of odd horizontal frequencies, which a left-right flip inverts."""
