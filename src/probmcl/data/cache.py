"""A cache of decoded images on disk: optional, and safe to delete in part or as a whole at any time."""

import hashlib
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import PIL
from PIL import Image

from probmcl.data.images import read_image
from probmcl.data.intensity import IntensityRange
from probmcl.errors import OptionError

HEADER = struct.Struct("<8sIII")  # the mark, width, height, and the checksum of the pixels that follow as RGB
MARK = b"probmcl1"


@dataclass(frozen=True)
class ImageCache:
    """A cache of decoded images, made by `open_cache`; several processes may read and write it at once.

    It stores nothing while fewer than `keep_free` bytes of the disk are free, by default a tenth of it.
    """

    folder: Path
    keep_free: int | None = None

    def read(self, path: Path, size: int | None = None, *, intensity: IntensityRange | None = None) -> Image.Image:
        """Return what `read_image` returns, from the disk if it is cached; errors are the same too."""
        entry = self._entry(path, size, intensity)
        cached = None if entry is None else _load(entry)
        if cached is not None:
            return cached
        image = read_image(path, size, intensity=intensity)
        if entry is not None and self.has_room():
            _store(entry, image)
        return image

    def has_room(self) -> bool:
        """Return whether the disk has room for more entries."""
        try:
            disk = shutil.disk_usage(self.folder)
        except OSError:  # deleted meanwhile; whoever stores makes it again
            return True
        return disk.free >= (0.1 * disk.total if self.keep_free is None else self.keep_free)

    def _entry(self, path: Path, size: int | None, intensity: IntensityRange | None) -> Path | None:
        try:
            facts = path.stat()
        except (OSError, ValueError):
            return None
        levels = None if intensity is None else (intensity.low, intensity.high)
        # The version of this format comes first; another Pillow may decode differently.
        key = (1, PIL.__version__, os.path.realpath(path), facts.st_mtime_ns, facts.st_size, size, levels)
        name = hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()
        return self.folder / name[:2] / name[2:]  # some hundred folders, since one of a million files is slow


def default_folder() -> Path:
    """Return `probmcl/images` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "probmcl" / "images"


def open_cache(
    folder: Path | None = None, *, apart_from: Iterable[Path] = (), keep_free: int | None = None
) -> ImageCache:
    """Create the folder if it is missing, and refuse one inside a folder of the user's images.

    >>> open_cache(Path("photos/cache"), apart_from=[Path("photos")])
    Traceback (most recent call last):
    ...
    probmcl.errors.OptionError: `cache=photos/cache` lies in photos, which has your images; name a folder elsewhere
    """
    folder = folder or default_folder()
    for images in apart_from:
        if folder.resolve().is_relative_to(images.resolve()):
            raise OptionError("cache", folder, f"lies in {images}, which has your images; name a folder elsewhere")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OptionError("cache", folder, f"cannot be written ({error.strerror}); name another folder") from error
    return ImageCache(folder.resolve(), keep_free)


def _load(entry: Path) -> Image.Image | None:
    """Return a cached image, or None if it is missing, truncated or damaged."""
    try:
        data = entry.read_bytes()
        mark, width, height, checksum = HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    pixels = data[HEADER.size :]
    if mark != MARK or len(pixels) != 3 * width * height or zlib.crc32(pixels) != checksum:
        return None
    return Image.frombytes("RGB", (width, height), pixels)


def _store(entry: Path, image: Image.Image) -> None:
    """Write an entry atomically. If that fails, as on a full disk, the image is decoded again the next time."""
    pixels = image.tobytes()
    header = HEADER.pack(MARK, image.width, image.height, zlib.crc32(pixels))
    part: Path | None = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: two processes may come to the same image at once.
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=entry.parent)
        part = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines((header, pixels))
        part.replace(entry)
    except OSError:
        if part is not None:
            part.unlink(missing_ok=True)
