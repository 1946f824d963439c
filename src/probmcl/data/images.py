"""From a file to an image, and from an image to the tensor that a network takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from jaxtyping import Float
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from probmcl.data.records import DataError, Missing

if TYPE_CHECKING:
    from torch import Tensor  # torch takes a second to import, and who only reads labels or images need not wait for it

Interpolation = Literal["bilinear", "bicubic"]

# What undoes each EXIF orientation from 2 to 8; 1 is upright.
UPRIGHT = (
    Image.Transpose.FLIP_LEFT_RIGHT,
    Image.Transpose.ROTATE_180,
    Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
END_OF_JPEG = b"\xff\xd9"


class ImageError(ValueError):
    """A file that gives no image: which, and why.

    >>> str(ImageError(Path("photos/7.jpg"), "the file is empty"))
    'photos/7.jpg: the file is empty'
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # both, so that it can be pickled: workers send it to the main process
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def find_images(
    folder: Path, names: Sequence[str], *, source: Path, remedy: str, missing: Missing = "error"
) -> list[Path]:
    """Paths of the files in a folder that a source names; one that is not there is an error with its remedy.

    With `missing="keep"` it is an error only if none is there, since then it is the folder that is wrong. The folder is
    listed once: asking for each file by itself takes far longer on a network disk.
    """
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    absent = [name for name in names if name not in there]
    if absent and (missing == "error" or len(absent) == len(names)):
        share = f"{len(absent)} of {len(names)} missing"
        raise DataError(f"{source}: {absent[0]!r} is not in {folder} ({share}); {remedy}")
    return [folder / name for name in names]


def read_image(path: Path, size: int | None = None) -> Image.Image:
    """Decode a file into an upright RGB image, whole, or raise `ImageError`.

    With `size`, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size where neither side falls below `size`; with the resize
    that follows this is nearly twice as fast. Grey, palette, CMYK and 16-bit images become RGB; 16-bit levels keep
    their high byte. What is transparent shows white, as on a page: the colour stored beneath it is arbitrary, and often
    black. Of several frames the first is taken. The image carries no metadata, so that nothing turns it a second time.

    >>> read_image(Path("nowhere.jpg"))
    Traceback (most recent call last):
    ...
    probmcl.data.images.ImageError: nowhere.jpg: does not exist
    """
    _refuse_what_is_no_file(path)
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, which lets half an image pass; set it to False")
    try:
        return _decode(path, size)
    except UnidentifiedImageError as error:
        raise ImageError(path, "not an image in any format that Pillow reads") from error
    except Exception as error:  # on a damaged file Pillow's decoders raise almost any type
        raise ImageError(path, str(error) or type(error).__name__) from error


@dataclass(frozen=True)
class Preprocessing:
    """The one way from an image to the plain tensor (3, S, S).

    x = (RGB / 255 − mean) / std, of the image squashed to `size` × `size` with antialiasing.

    >>> grey = Image.new("RGB", (40, 30), (51, 51, 51))
    >>> Preprocessing(size=2, mean=(0.0, 0.1, 0.2), std=(1.0, 1.0, 0.5))(grey)[:, 0, 0]
    tensor([0.2000, 0.1000, 0.0000])
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size {self.size}: an image has at least one pixel a side")
        if not all(deviation > 0 for deviation in self.std):
            raise ValueError(f"std {self.std}: every channel is divided by its own, which must be positive")
        if self.interpolation not in get_args(Interpolation):
            raise ValueError(f"interpolation {self.interpolation!r} is none of {', '.join(get_args(Interpolation))}")

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 S S"]:
        """Squash the image to size, then make it a tensor."""
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling[self.interpolation.upper()])
        return self.tensor(image)

    def tensor(self, image: Image.Image) -> Float[Tensor, "3 S S"]:
        """Make a tensor of an image that has the right size already, as an augmented view does."""
        import torch

        if image.mode != "RGB" or image.size != (self.size, self.size):
            wanted = f"RGB of {self.size} × {self.size}"
            raise ValueError(f"the image is {image.mode} of {image.width} × {image.height} pixels, not {wanted}")
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        mean, std = torch.tensor(self.mean).view(3, 1, 1), torch.tensor(self.std).view(3, 1, 1)
        return pixels.float().div_(255).sub_(mean).div_(std)


def _refuse_what_is_no_file(path: Path) -> None:
    if path.is_dir():
        raise ImageError(path, "is a folder, not a file")
    if not path.exists():
        raise ImageError(path, "does not exist")
    if not path.is_file():
        raise ImageError(path, "is not a regular file")
    if path.stat().st_size == 0:
        raise ImageError(path, "the file is empty")


def _decode(path: Path, size: int | None) -> Image.Image:
    with Image.open(path) as image:
        if image.format in ("JPEG", "MPO"):
            _refuse_a_jpeg_without_end(path, image)
        if size is not None:
            image.draft("RGB", (size, size))
        image.load()
        upright = _upright(image)
        rgb = upright if upright.mode == "RGB" and not upright.has_transparency_data else _rgb(upright)
    rgb.info = {}
    return rgb


def _refuse_a_jpeg_without_end(path: Path, image: ImageFile.ImageFile) -> None:
    """Pillow notices a file that stops early, but not one whose lost rest was filled with zeros by a broken copy."""
    start_of_scan = image.fp.tell() if image.fp else 0  # beyond a thumbnail, which has an end of its own
    if path.read_bytes().find(END_OF_JPEG, start_of_scan) < 0:
        raise ValueError("image file is truncated (its end is missing)")


def _upright(image: Image.Image) -> Image.Image:
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return image.transpose(UPRIGHT[orientation - 2]) if orientation in range(2, 9) else image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _high_byte(image).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of no fixed range; save it with 8 or 16 bits")
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, colours).convert("RGB")
    return image.convert("RGB")


def _high_byte(image: Image.Image) -> Image.Image:
    """Pillow's own conversion cuts everything above 255 off, which makes most 16-bit images plain white."""
    levels = np.asarray(image)
    if levels.min() < 0 or levels.max() > 0xFFFF:
        raise ValueError(f"its levels reach from {levels.min()} to {levels.max()}; save it with 8 or 16 bits")
    return Image.fromarray((levels >> 8).astype(np.uint8))
