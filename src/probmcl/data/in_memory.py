"""Images in memory: Pillow images, NumPy arrays and tensors."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy import ndarray
from PIL import Image
from torch import Tensor

from probmcl.errors import DataError

InMemory = Image.Image | ndarray | Tensor

EXPECTED = (
    "a path, a Pillow image, a uint8 array (H×W, H×W×3 or H×W×4), or a tensor (H×W, 1×H×W or 3×H×W) of uint8 or of "
    "floats between 0 and 1"
)


def refuse_invalid(image: object, name: str) -> None:
    """Raise `DataError` if an object is not a path or an image; `name` is its position.

    >>> refuse_invalid(np.zeros((8, 8, 3), dtype=np.uint8), "image 0")
    >>> refuse_invalid(np.zeros((2, 8, 8, 3), dtype=np.uint8), "image 1")
    Traceback (most recent call last):
    ...
    probmcl.errors.DataError: image 1: got an array of shape (2, 8, 8, 3) and dtype uint8; pass a batch as a list of \
images, such as list(batch)
    """
    problem = _problem(image)
    if problem:
        raise DataError(f"{name}: got {_description(image)}; {problem}")


def _description(image: object) -> str:
    """Return the type of an object for a message; for an image, also its size or shape."""
    if isinstance(image, Image.Image):
        return f"a Pillow image of size {image.size}"
    if isinstance(image, ndarray | Tensor):
        kind = "a tensor" if isinstance(image, Tensor) else "an array"
        dtype = str(image.dtype).removeprefix("torch.")
        return f"{kind} of shape {tuple(image.shape)} and dtype {dtype}"
    return "None" if image is None else f"an object of type {type(image).__name__}"


def _problem(image: object) -> str:
    """Return why an object is not a valid image, or '' if it is valid."""
    if isinstance(image, Image.Image):
        return "" if all(image.size) else "it has no pixels"
    if isinstance(image, ndarray):
        return _array_problem(image)
    if isinstance(image, Tensor):
        return _tensor_problem(image)
    if isinstance(image, list | tuple):
        return "lists cannot be nested"
    if isinstance(image, Iterable) and not isinstance(image, bytes):
        return "pass a list, such as list(images)"
    return f"expected {EXPECTED}, or a list of these"


def _array_problem(array: ndarray) -> str:
    """Return why an array is not a valid image, or '' if it is valid."""
    if array.ndim == 4:
        return "pass a batch as a list of images, such as list(batch)"
    if array.dtype.kind == "f":
        return "convert it to uint8; if its values are between 0 and 1, with (255 * array).round().astype('uint8')"
    if array.dtype.kind in "USO":
        return "pass paths as a list, such as array.tolist()"
    channels_last = array.ndim == 3 and array.shape[-1] in (1, 3, 4)
    channels_first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
    if channels_first and not channels_last:
        return "the channels must be the last axis; use array.transpose(1, 2, 0)"
    valid_shape = (array.ndim == 2 or channels_last) and array.size > 0
    if not valid_shape or array.dtype != np.uint8:
        return f"expected {EXPECTED}"
    return ""


def _tensor_problem(tensor: Tensor) -> str:
    """Return why a tensor is not a valid image, or '' if it is valid."""
    if tensor.ndim == 4:
        return "pass a batch as a list of images, such as list(batch)"
    channels_first = tensor.ndim == 3 and tensor.shape[0] in (1, 3)
    channels_last = tensor.ndim == 3 and tensor.shape[-1] in (1, 3)
    if channels_last and not channels_first:
        return "the channels must be the first axis; use tensor.permute(2, 0, 1)"
    valid_shape = (tensor.ndim == 2 or channels_first) and tensor.numel() > 0
    valid_dtype = tensor.dtype == torch.uint8 or tensor.is_floating_point()
    if not valid_shape or not valid_dtype:
        return f"expected {EXPECTED}"
    if not tensor.is_floating_point():
        return ""
    low, high = (float(value) for value in tensor.detach().aminmax())
    in_range = low >= 0 and high <= 1  # false for NaN
    if not in_range:
        return f"its values range from {low:g} to {high:g}; floats must be between 0 and 1, before any normalization"
    return ""


def to_pillow(image: InMemory) -> Image.Image:
    """Return an image that `refuse_invalid` accepts as a Pillow image.

    The floats of a tensor are rounded to 8 bits (`_channels_last`).

    >>> to_pillow(torch.full((3, 4, 5), 0.2)).getpixel((0, 0))
    (51, 51, 51)
    """
    if isinstance(image, Image.Image):
        return image
    array = _channels_last(image) if isinstance(image, Tensor) else image
    has_gray_channel = array.ndim == 3 and array.shape[-1] == 1
    if has_gray_channel:  # Pillow expects gray pixels without a channel axis
        array = array[..., 0]
    return Image.fromarray(np.ascontiguousarray(array))


def _channels_last(tensor: Tensor) -> ndarray:
    """Return a tensor (H×W or C×H×W) as a uint8 array (H×W or H×W×C)."""
    pixels = tensor.detach().cpu()
    if pixels.is_floating_point():
        pixels = (pixels.float() * 255).round().byte()
    if pixels.ndim == 3:
        pixels = pixels.permute(1, 2, 0)
    array: ndarray = pixels.numpy()
    return array
