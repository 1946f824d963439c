"""Decoding of image files, and preprocessing from an image to the tensor that a network takes."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, get_args

import numpy as np
from jaxtyping import Float, Shaped, UInt8
from numpy import ndarray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from probmcl.data.dicom import HEAD, dicom_values, is_dicom, read_dicom
from probmcl.data.intensity import IntensityRange, Kind
from probmcl.errors import ImageError

if TYPE_CHECKING:
    from torch import Tensor  # not imported at run time: torch takes a second, and reading labels does not need it

Interpolation = Literal["bilinear", "bicubic"]

# The transpositions that undo the EXIF orientations from 2 to 8; 1 is upright.
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
START_OF_JPEG, END_OF_JPEG = b"\xff\xd8\xff", b"\xff\xd9"


def read_image(path: Path, size: int | None = None, *, intensity: IntensityRange | None = None) -> Image.Image:
    """Decode a file completely into an upright RGB image, or raise `ImageError`.

    With `size`, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if no side falls below `size`, which is two to five
    times as fast. Transparent pixels become white: the color stored beneath them is arbitrary. Of several frames the
    first is taken. The image carries no metadata, so that it is not rotated a second time.

    `intensity` scales gray images of 16 bits or more, or of floats. Without it 16-bit grays keep their high byte, and
    images without a fixed range are an error. Other images are never scaled; of 16-bit colors Pillow keeps the high
    byte. A decoded image has at most `PIL.Image.MAX_IMAGE_PIXELS` pixels, a stored one twice as many.

    >>> read_image(Path("nowhere.jpg"))
    Traceback (most recent call last):
    ...
    probmcl.errors.ImageError: nowhere.jpg: does not exist
    """
    with _opened(path) as (file, head):
        return read_dicom(file, intensity) if is_dicom(head) else _decode(file, head, size, intensity)


def gray_values(path: Path) -> tuple[Kind, Shaped[ndarray, "H W"]] | None:
    """Return the stored pixels of a deep image; None for any other image, whose pixels are not read."""
    with _opened(path) as (file, head):
        if is_dicom(head):
            values = dicom_values(file)
            return None if values is None else ("DICOM", values)
        if head.startswith(START_OF_JPEG):
            return None
        with Image.open(file) as image:
            if not _is_deep(image):
                return None
            _refuse_a_bomb(image)
            return "float" if image.mode == "F" else "16-bit", np.array(image)


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of an image to a tensor (3, S, S), the same in training and inference.

    x = (RGB / 255 − mean) / std, of the image squashed to `size` × `size` with antialiasing.

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
            raise ValueError(f"size {self.size}: an image has at least one pixel a side")
        if not all(deviation > 0 for deviation in self.std):
            raise ValueError(f"std {self.std}: every channel is divided by its own, which must be positive")
        if self.interpolation not in get_args(Interpolation):
            raise ValueError(f"interpolation {self.interpolation!r} is none of {', '.join(get_args(Interpolation))}")

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 S S"]:
        """Squash the image to size, then make it a tensor."""
        return self.tensor(image) if image.size == (self.size, self.size) else self._normalized(self.squash(image))

    def squash(self, image: Image.Image) -> UInt8[Tensor, "3 S S"]:
        """Resize to `size` × `size`, whatever the aspect ratio, with antialiasing."""
        if self.interpolation == "bilinear":
            return squashed(image, self.size)
        return _pixels(image.resize((self.size, self.size), Image.Resampling.BICUBIC))

    def tensor(self, image: Image.Image) -> Float[Tensor, "3 S S"]:
        """Make a tensor of an image that has the right size already, as an augmented view does."""
        if image.mode != "RGB" or image.size != (self.size, self.size):
            wanted = f"RGB of {self.size} × {self.size}"
            raise ValueError(f"the image is {image.mode} of {image.width} × {image.height} pixels, not {wanted}")
        return self._normalized(_pixels(image))

    def _normalized(self, pixels: UInt8[Tensor, "3 S S"]) -> Float[Tensor, "3 S S"]:
        import torch

        mean, std = torch.tensor(self.mean).view(3, 1, 1), torch.tensor(self.std).view(3, 1, 1)
        return pixels.contiguous().float().div_(255).sub_(mean).div_(std)


def squashed(image: Image.Image, size: int) -> UInt8[Tensor, "3 S S"]:
    """Resize an RGB image to `size` × `size` pixels, bilinear and with antialiasing.

    torch agrees with Pillow up to one level in 255, in less than half the time; for bicubic it does not.

    >>> squashed(Image.new("RGB", (40, 30), (51, 0, 255)), 2)[:, 0, 0]
    tensor([ 51,   0, 255], dtype=torch.uint8)
    """
    from torch.nn.functional import interpolate

    return interpolate(_pixels(image)[None], (size, size), mode="bilinear", antialias=True)[0]


def _pixels(image: Image.Image) -> UInt8[Tensor, "3 H W"]:
    import torch

    if image.mode != "RGB":
        raise ValueError(f"the image is {image.mode}, not RGB; convert it with image.convert('RGB')")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], bytes]]:
    """Open a file and yield it with its first bytes; whatever is wrong with it is an `ImageError`."""
    _refuse_non_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
            file.seek(0)
            yield file, head
    except Exception as error:  # on a damaged file Pillow's decoders raise almost any type
        raise ImageError(path, _reason(error)) from error


def _refuse_non_file(path: Path) -> None:
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, which lets half an image pass; set it to False")
    try:
        status = path.stat()  # once: every call takes time on a network disk
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ImageError(path, "does not exist") from error
    except OSError as error:
        raise ImageError(path, error.strerror or str(error)) from error
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(path, "is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(path, "is not a regular file")
    if status.st_size == 0:
        raise ImageError(path, "the file is empty")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image in any format that Pillow reads"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"would take more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels of memory to decode; save it smaller"
    return str(error) or type(error).__name__


def _decode(file: IO[bytes], head: bytes, size: int | None, intensity: IntensityRange | None) -> Image.Image:
    with _jpeg(file.read()) if head.startswith(START_OF_JPEG) else Image.open(file) as image:
        if size is not None:
            image.draft("RGB", (size, size))
        _refuse_a_bomb(image)
        image.load()
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        turned = orientation in range(2, 9)
        upright = image.transpose(Image.Transpose[TURNS[orientation - 2]]) if turned else image
        rgb = upright if upright.mode == "RGB" and not upright.has_transparency_data else _rgb(upright, intensity)
    rgb.info = {}
    return rgb


def _jpeg(data: bytes) -> JpegImageFile:
    """Open a JPEG without `Image.open`, which limits the stored size instead of the decoded one."""
    image = JpegImageFile(io.BytesIO(data))
    # Pillow notices a file that stops early, but not one whose lost rest was filled with zeros by a broken copy.
    start_of_scan = image.fp.tell() if image.fp else 0  # beyond a thumbnail, which has an end of its own
    if data.rfind(END_OF_JPEG, start_of_scan) < 0:
        raise ValueError("image file is truncated (its end is missing)")
    _refuse_a_bomb(image, times=2)  # as `Image.open` does; a progressive one is held whole while it is decoded
    return image


def _refuse_a_bomb(image: Image.Image, times: int = 1) -> None:
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and image.width * image.height > times * most:
        raise Image.DecompressionBombError


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "F" or image.mode.startswith("I")


def _rgb(image: Image.Image, intensity: IntensityRange | None) -> Image.Image:
    if _is_deep(image):
        gray = _high_byte(image) if intensity is None else intensity.gray(np.asarray(image))
        return Image.fromarray(gray).convert("RGB")
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def _high_byte(image: Image.Image) -> UInt8[ndarray, "H W"]:
    """Return the high byte: Pillow's own conversion clips at 255, which makes most 16-bit images plain white."""
    remedy = "give those that become black and white as `range=LOW,HIGH`, or `range=auto`"
    if image.mode == "F":
        raise ValueError(f"its pixels are floating-point numbers of no fixed range; {remedy}")
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ValueError(f"its levels reach from {values.min()} to {values.max()}, beyond 16 bits; {remedy}")
    return (values >> 8).astype(np.uint8)
