"""Optional disk cache of decoded images. Entries can be deleted at any time."""

import os
import shutil
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import PIL
from PIL import Image

from probmcl.data.images import read_image
from probmcl.data.pixels import IntensityRange
from probmcl.errors import OptionError
from probmcl.runtime.files import user_cache_folder
from probmcl.runtime.tensor_files import block_checksum, content_digest

HEADER = struct.Struct("<8sIII")  # magic bytes, width, height and checksum of the RGB pixels that follow
MAGIC = b"probmcl1"


@dataclass(frozen=True)
class ImageCache:
    """A disk cache of decoded images, created by `open_cache`. Concurrent reads and writes are safe.

    New images are not stored if fewer than `keep_free` bytes are free on the disk (default: a tenth of the disk).
    """

    folder: Path
    keep_free: int | None = None

    def read(self, path: Path, size: int | None = None, *, intensity: IntensityRange | None = None) -> Image.Image:
        """Read an image like `read_image`, with the same errors, but from the cache if possible."""
        entry = self._entry(path, size, intensity)
        cached = None if entry is None else _load(entry)
        if cached is not None:
            return cached
        image = read_image(path, size, intensity=intensity)
        if entry is not None and self.has_room():
            _store(entry, image)
        return image

    def has_room(self) -> bool:
        """Return whether the disk has enough free space for more entries."""
        try:
            disk = shutil.disk_usage(self.folder)
        except OSError:  # the folder was deleted; `_store` creates it again
            return True
        keep_free = 0.1 * disk.total if self.keep_free is None else self.keep_free
        return disk.free >= keep_free

    def _entry(self, path: Path, size: int | None, intensity: IntensityRange | None) -> Path | None:
        """Return the file of an image in the cache, which need not exist, or None if there is no such image."""
        try:
            status = path.stat()
        except (OSError, ValueError):
            return None
        levels = None if intensity is None else (intensity.low, intensity.high)
        # The first number is the version of the cache format. Another version of Pillow may decode differently.
        key = (1, PIL.__version__, os.path.realpath(path), status.st_mtime_ns, status.st_size, size, levels)
        name = content_digest([repr(key).encode("utf-8", "surrogateescape")]).hex()
        return self.folder / name[:2] / name[2:]  # 256 subfolders, because a folder with a million files is slow


def default_folder() -> Path:
    """Return `probmcl/images` in the user's cache folder."""
    return user_cache_folder() / "images"


def open_cache(
    folder: Path | None = None, *, apart_from: Iterable[Path] = (), keep_free: int | None = None
) -> ImageCache:
    """Open a cache and create its folder, which must be outside the image folders `apart_from`.

    >>> open_cache(Path("photos/cache"), apart_from=[Path("photos")])
    Traceback (most recent call last):
    ...
    probmcl.errors.OptionError: `cache="photos/cache"` is inside the image folder photos; choose a folder outside
    """
    folder = folder or default_folder()
    for images in apart_from:
        if folder.resolve().is_relative_to(images.resolve()):
            raise OptionError("cache", folder, f"is inside the image folder {images}; choose a folder outside")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OptionError("cache", folder, f"is not writable ({error.strerror}); choose another folder") from error
    return ImageCache(folder.resolve(), keep_free)


def _load(entry: Path) -> Image.Image | None:
    """Return a cached image, or None if it is missing, truncated or damaged."""
    try:
        data = entry.read_bytes()
        magic, width, height, checksum = HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    pixels = data[HEADER.size :]
    is_complete = magic == MAGIC and len(pixels) == 3 * width * height
    if not is_complete or block_checksum(pixels) != checksum:
        return None
    return Image.frombytes("RGB", (width, height), pixels)


def _store(entry: Path, image: Image.Image) -> None:
    """Write an entry atomically. If this fails, for example on a full disk, the image is not cached."""
    pixels = image.tobytes()
    header = HEADER.pack(MAGIC, image.width, image.height, block_checksum(pixels))
    temporary: Path | None = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        # The name is unique, because two processes may store the same image concurrently.
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=entry.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines((header, pixels))
        temporary.replace(entry)
    except OSError:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
