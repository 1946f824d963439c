"""Image decoding, and preprocessing of images into tensors."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Shaped, UInt8
from numpy import ndarray
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TILELENGTH, TILEWIDTH, TiffImageFile

from probmcl.data.dicom import dicom_values, read_dicom
from probmcl.data.image_files import DICOM_HEAD, FORMATS, is_dicom
from probmcl.data.jpeg_damage import jpeg_damage, scan_count
from probmcl.data.pixels import IntensityRange, Kind, is_deep, orientation, to_rgb, turned
from probmcl.errors import ImageError, check_range
from probmcl.store.files import PREPROCESSING
from probmcl.store.run_folder import MAX_IMAGE_SIZE

if TYPE_CHECKING:
    from torch import Tensor  # importing torch takes a second, and commands that only read labels do not need it

Interpolation = Literal["bilinear", "bicubic"]

MISSING = "does not exist"  # the reason if there is no file
START_OF_JPEG, START_OF_SCAN, END_OF_JPEG = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"

BYTES_PER_PIXEL = {"WEBP": 18, "AVIF": 14, "JPEG2000": 26}
MAX_BYTES_PER_PIXEL = 12
"""Peak memory of reading an image, measured: Pillow's own image, the copy in RGB and the buffers of the decoder. In all
other formats it is at most `MAX_BYTES_PER_PIXEL`, so no image takes more than that times the pixel limit (1.1 GB)."""
MAX_REDUCTION = 3.0  # stored pixels of a JPEG, relative to the pixel limit; cameras of telephones have 200 megapixels
MAX_JPEG_BYTES = 10**9
MAX_SCANS = 100  # decoding each scan takes time; encoders write about ten


def read_image(path: Path, size: int | None = None, *, intensity: IntensityRange | None = None) -> Image.Image:
    """Decode an image file into an upright RGB image, or raise `ImageError`.

    If `size` is given, a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, as long as both sides have at least `size`
    pixels, which is two to five times as fast. Transparent pixels become white, because the color stored for them is
    arbitrary. Only the first frame is read. Metadata are removed so that no later step rotates the image again.

    `intensity` applies to gray images with more than 8 bits or with floats. Without it, the high byte of 16-bit values
    is used, and images without a fixed range are an error. Pillow reduces 16-bit colors to their high byte.

    Only `FORMATS` and DICOM are opened. A decoded image may have up to `PIL.Image.MAX_IMAGE_PIXELS` pixels, fewer in
    formats whose decoders need more memory (`BYTES_PER_PIXEL`), and a JPEG three times as many before it is reduced.

    >>> read_image(Path("nowhere.jpg"))
    Traceback (most recent call last):
    ...
    probmcl.errors.ImageError: nowhere.jpg: does not exist
    """
    with _open(path) as (file, head):
        return read_dicom(file, intensity) if is_dicom(head) else _decode(file, head, size, intensity)


def decode_image(
    image: Image.Image, size: int | None = None, *, intensity: IntensityRange | None = None, name: Path
) -> Image.Image:
    """Return a Pillow image of any mode as an upright RGB image like `read_image`, or raise `ImageError` with `name`.

    An image that was opened but not loaded is decoded from its file, with the same result as `read_image`. A loaded
    image may have been modified, so its pixels are used. Neither is changed, except that Pillow may load it.

    >>> decode_image(Image.new("L", (2, 2), 7), name=Path("image 0")).getpixel((0, 0))
    (7, 7, 7)
    """
    try:
        content = _unread_content(image)
        if content is not None:
            return _decode(io.BytesIO(content), content[:DICOM_HEAD], size, intensity)
        image.load()
        rgb = turned(to_rgb(image, intensity), orientation(image))
    except Exception as error:  # Pillow's decoders raise almost any exception for a damaged file
        raise ImageError(name, _reason(error)) from error
    if rgb is image:  # the caller's image keeps its metadata
        rgb = rgb.copy()
    rgb.info = {}
    return rgb


def gray_values(path: Path) -> tuple[Kind, Shaped[ndarray, "H W"]] | None:
    """Return the kind and the stored pixels of a deep image (more than 8 bits, or floats), or None for other images."""
    with _open(path) as (file, head):
        if is_dicom(head):
            values = dicom_values(file)
            return None if values is None else ("DICOM", values)
        if head.startswith(START_OF_JPEG):  # never deep
            return None
        with open_image(file, head) as image:
            if not is_deep(image):
                return None
            _refuse_huge(image)
            kind: Kind = "float" if image.mode == "F" else "16-bit"
            return kind, np.asarray(image)


class StoredImage(NamedTuple):
    """Properties of an image file: the size of the upright image, the mode, and a warning if its data are damaged."""

    size: tuple[int, int]
    mode: str
    damage: str | None


def stored_image(path: Path, decoded: Image.Image) -> StoredImage:
    """Return the properties of an image file that was decoded, at any size, without an error, or raise `ImageError`."""
    with _open(path) as (file, head):
        if is_dicom(head):
            return StoredImage(decoded.size, decoded.mode, None)
        if not head.startswith(START_OF_JPEG):
            with open_image(file, head) as image:
                return StoredImage(decoded.size, image.mode, None)
        data = _jpeg_content(file)
        with _jpeg(data) as image:
            # The size is read from the header: `decoded` may be smaller, because a JPEG can be decoded at reduced size.
            width, height = image.size
            swaps_sides = orientation(image) >= 5  # turned by 90 degrees
            size = (height, width) if swaps_sides else (width, height)
            return StoredImage(size, image.mode, jpeg_damage(data))


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of images into (3, S, S) tensors, used in training and inference.

    The image is resized to `size` × `size` with antialiasing, then normalized: x = (RGB / 255 − mean) / std.

    >>> gray = Image.new("RGB", (40, 30), (51, 51, 51))
    >>> Preprocessing(size=2, mean=(0.0, 0.1, 0.2), std=(1.0, 1.0, 0.5))(gray)[:, 0, 0]
    tensor([0.2000, 0.1000, 0.0000])
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation = "bilinear"
    intensity: IntensityRange | None = None  # for `read_image`

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size} must be at least 1")
        check_range(at_most=MAX_IMAGE_SIZE, size=self.size)
        if not all(deviation > 0 for deviation in self.std):
            raise ValueError(f"std={self.std} must be positive for every channel")
        interpolations = get_args(Interpolation)
        if self.interpolation not in interpolations:
            raise ValueError(f"interpolation={self.interpolation!r} must be {' or '.join(interpolations)}")

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 S S"]:
        """Resize and normalize an image."""
        if image.size == (self.size, self.size):
            return self.tensor(image)
        return self._normalized(self.squash(image))

    def squash(self, image: Image.Image) -> UInt8[Tensor, "3 S S"]:
        """Resize to `size` × `size` with antialiasing, without keeping the aspect ratio."""
        if self.interpolation == "bilinear":
            return resize_bilinear(image, self.size)
        return _pixels(image.resize((self.size, self.size), Image.Resampling.BICUBIC))

    def tensor(self, image: Image.Image) -> Float[Tensor, "3 S S"]:
        """Normalize an image that already has the right size, such as an augmented view."""
        if image.mode != "RGB" or image.size != (self.size, self.size):
            expected = f"an RGB image of {self.size} × {self.size} pixels"
            raise ValueError(f"expected {expected}, got {image.mode} with {image.width} × {image.height} pixels")
        return self._normalized(_pixels(image))

    def _normalized(self, pixels: UInt8[Tensor, "3 S S"]) -> Float[Tensor, "3 S S"]:
        """Return (pixels / 255 − mean) / std."""
        import torch

        mean = torch.tensor(self.mean).view(3, 1, 1)
        std = torch.tensor(self.std).view(3, 1, 1)
        normalized = pixels.contiguous().float()  # a copy, modified in place
        normalized.div_(255)
        normalized.sub_(mean)
        normalized.div_(std)
        return normalized


PREPROCESSING_FILE = PREPROCESSING.holding(Preprocessing)


def resize_bilinear(image: Image.Image, size: int) -> UInt8[Tensor, "3 S S"]:
    """Resize an RGB image to `size` × `size` pixels, using bilinear interpolation with antialiasing.

    torch is more than twice as fast as Pillow, and its result differs by at most one of 255 levels (not for bicubic).

    >>> resize_bilinear(Image.new("RGB", (40, 30), (51, 0, 255)), 2)[:, 0, 0]
    tensor([ 51,   0, 255], dtype=torch.uint8)
    """
    from torch.nn.functional import interpolate

    batch = _pixels(image)[None]
    return interpolate(batch, (size, size), mode="bilinear", antialias=True)[0]


def _pixels(image: Image.Image) -> UInt8[Tensor, "3 H W"]:
    """Return the pixels of an RGB image with the channels first."""
    import torch

    if image.mode != "RGB":
        raise ValueError(f"expected an RGB image, got {image.mode}; convert it with image.convert('RGB')")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@contextmanager
def _open(path: Path) -> Iterator[tuple[BinaryIO, bytes]]:
    """Open a file and yield it with its first `DICOM_HEAD` bytes; errors inside the context become an `ImageError`."""
    _refuse_non_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(DICOM_HEAD)
            file.seek(0)
            yield file, head
    except Exception as error:  # Pillow's decoders raise almost any exception for a damaged file
        raise ImageError(path, _reason(error)) from error


def _refuse_non_file(path: Path) -> None:
    """Raise `ImageError` if a path does not exist, is not a file or is empty."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES hides truncated images; set it to False")
    try:
        status = path.stat()  # a single call, because each call is slow on a network disk
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ImageError(path, MISSING) from error
    except OSError as error:
        raise ImageError(path, error.strerror or str(error)) from error
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(path, "is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(path, "is not a regular file")
    if status.st_size == 0:
        raise ImageError(path, "the file is empty")


def _reason(error: Exception) -> str:
    """Return the reason of an `ImageError` for an exception that Pillow, pydicom or this module raised."""
    if isinstance(error, UnidentifiedImageError):
        return f"is not an image in a supported format ({', '.join(FORMATS)}, DICOM)"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"decodes to more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels; resize it"
    message = str(error) or type(error).__name__
    if message == "Truncated File Read":  # Pillow's message for some formats only
        return "image file is truncated"
    return message


def _decode(
    file: IO[bytes] | io.BytesIO, head: bytes, size: int | None, intensity: IntensityRange | None
) -> Image.Image:
    """Decode a file that is not DICOM, as `read_image` does; `head` are its first bytes."""
    with open_image(file, head) as image:
        if size is not None:
            image.draft("RGB", (size, size))  # a JPEG is then decoded at a reduced size; other formats ignore it
        _refuse_huge(image)
        image.load()
        stored_orientation = orientation(image)
        rgb = to_rgb(image, intensity)
    del image  # its memory, before the image is turned
    rgb.info = {}
    return turned(rgb, stored_orientation)


def _unread_content(image: Image.Image) -> bytes | None:
    """Return the content of the file if an image was opened but not loaded; the file keeps its position."""
    if not isinstance(image, ImageFile.ImageFile):
        return None
    is_loaded = not image.tile  # Pillow empties the list of tiles when it has decoded them
    if is_loaded or image.tell() != 0:  # or the caller has chosen another frame
        return None
    if image.fp is None:
        raise ValueError("its file is closed; open it again, or call image.load() before closing it")
    position = image.fp.tell()
    image.fp.seek(0)
    try:
        return image.fp.read()
    finally:
        image.fp.seek(position)


def open_image(file: IO[bytes] | io.BytesIO, head: bytes) -> ImageFile.ImageFile:
    """Open an image in one of `FORMATS`, without decoding it; `head` are the first bytes of the file."""
    if head.startswith(START_OF_JPEG):
        return _jpeg(_jpeg_content(file))
    Image.init()
    supported = [name for name in FORMATS if name in Image.OPEN]  # old versions of Pillow have no AVIF
    return Image.open(file, formats=supported)


def _jpeg_content(file: IO[bytes] | io.BytesIO) -> bytes:
    """Return the content of a JPEG file; a huge file is an error."""
    size = file.seek(0, io.SEEK_END)
    if size > MAX_JPEG_BYTES:
        raise ValueError(f"has {size:,} bytes, and a JPEG may have at most {MAX_JPEG_BYTES:,}; save it again")
    file.seek(0)
    return file.read()


def _jpeg(data: bytes) -> JpegImageFile:
    """Open a JPEG without `Image.open`, which would limit the stored size instead of the decoded size."""
    try:
        image = JpegImageFile(io.BytesIO(data))
    except SyntaxError as error:  # like `Image.open`
        raise UnidentifiedImageError from error
    # Pillow detects a file that ends early, but not one that an interrupted copy filled up with zeros.
    start_of_pixels = image.fp.tell() if image.fp else 0  # after the thumbnail, which has an end marker too
    if data.rfind(END_OF_JPEG, start_of_pixels) < 0:
        raise ValueError("image file is truncated (no end marker)")
    has_several_scans = _has_several_scans(image, data, start_of_pixels)
    _refuse_huge_jpeg(image, several=has_several_scans)
    if has_several_scans:
        _refuse_many_scans(data)
    return image


def _has_several_scans(image: JpegImageFile, data: bytes, start_of_pixels: int) -> bool:
    """Return whether a JPEG has several scans, judging by its header and the header of its first scan."""
    if "progressive" in image.info:
        return True
    first_scan = data.rfind(START_OF_SCAN, 0, start_of_pixels)  # a thumbnail before it has a scan too
    components_in_scan = data[first_scan + 4]  # after the marker and two bytes with the length of the header
    return components_in_scan < image.layers  # the number of color components


def _refuse_many_scans(data: bytes) -> None:
    """Raise an error if a JPEG has more than `MAX_SCANS` scans."""
    if data.count(START_OF_SCAN) <= MAX_SCANS:  # an upper bound, and faster than reading all markers
        return
    scans = scan_count(data)
    if scans > MAX_SCANS:
        raise ValueError(f"has {scans:,} scans, and a JPEG may have at most {MAX_SCANS}; save it again")


def _refuse_huge(image: Image.Image) -> None:
    """Raise an error if decoding would take too much memory, judging by the header."""
    # The pixel limit is meant for `MAX_BYTES_PER_PIXEL`. If a decoder needs more, the limit is lower in proportion.
    bytes_per_pixel = BYTES_PER_PIXEL.get(image.format or "", MAX_BYTES_PER_PIXEL)
    factor = MAX_BYTES_PER_PIXEL / bytes_per_pixel
    _refuse_pixels(image.width * image.height, factor)
    if isinstance(image, TiffImageFile):  # a tile may be larger than the image
        tile_pixels = image.tag_v2.get(TILEWIDTH, 1) * image.tag_v2.get(TILELENGTH, 1)
        _refuse_pixels(tile_pixels, factor)


def _refuse_huge_jpeg(image: JpegImageFile, *, several: bool) -> None:
    """Raise an error if a JPEG is huge before it is reduced.

    With `several` scans, the decoder keeps all coefficients until the last scan: two bytes for each pixel and layer.
    """
    factor = MAX_REDUCTION
    if several:
        factor = min(MAX_BYTES_PER_PIXEL / (2 * image.layers), MAX_REDUCTION)
    _refuse_pixels(image.width * image.height, factor)


def _refuse_pixels(pixels: int, factor: float) -> None:
    """Raise an error if an image has more pixels than `factor` times the pixel limit."""
    if Image.MAX_IMAGE_PIXELS is None:
        return
    limit = factor * Image.MAX_IMAGE_PIXELS
    if pixels > limit:
        raise ValueError(f"decodes to more than {limit:,.0f} pixels; resize it")
