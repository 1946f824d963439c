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
    if isinstance(image, ndarray | Tensor):
        kind = "a tensor" if isinstance(image, Tensor) else "an array"
        received = f"{kind} of shape {tuple(image.shape)} and dtype {str(image.dtype).removeprefix('torch.')}"
        problem = _tensor_problem(image) if isinstance(image, Tensor) else _array_problem(image)
    else:
        received = "None" if image is None else f"an object of type {type(image).__name__}"
        problem = f"expected {EXPECTED}, or a list of these"
        if isinstance(image, list | tuple):
            problem = "lists cannot be nested"
        elif isinstance(image, Iterable) and not isinstance(image, bytes):
            problem = "pass a list, such as list(images)"
        if isinstance(image, Image.Image):
            received, problem = f"a Pillow image of size {image.size}", "" if all(image.size) else "it has no pixels"
    if problem:
        raise DataError(f"{name}: got {received}; {problem}")


def _array_problem(array: ndarray) -> str:
    if array.ndim == 4:
        return "pass a batch as a list of images, such as list(batch)"
    if array.dtype.kind == "f":
        return "convert it to uint8; if its values are between 0 and 1, with (255 * array).round().astype('uint8')"
    if array.dtype.kind in "USO":
        return "pass paths as a list, such as array.tolist()"
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        return "the channels must be the last axis; use array.transpose(1, 2, 0)"
    valid = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (1, 3, 4))
    return "" if valid and array.dtype == np.uint8 and array.size else f"expected {EXPECTED}"


def _tensor_problem(tensor: Tensor) -> str:
    if tensor.ndim == 4:
        return "pass a batch as a list of images, such as list(batch)"
    if tensor.ndim == 3 and tensor.shape[0] not in (1, 3) and tensor.shape[-1] in (1, 3):
        return "the channels must be the first axis; use tensor.permute(2, 0, 1)"
    valid = tensor.ndim == 2 or (tensor.ndim == 3 and tensor.shape[0] in (1, 3))
    if not valid or not tensor.numel() or not (tensor.dtype == torch.uint8 or tensor.is_floating_point()):
        return f"expected {EXPECTED}"
    low, high = (float(value) for value in tensor.detach().aminmax())
    if tensor.is_floating_point() and not (low >= 0 and high <= 1):  # also false for NaN
        return f"its values range from {low:g} to {high:g}; floats must be between 0 and 1, before any normalization"
    return ""


def to_pillow(image: InMemory) -> Image.Image:
    """Return an image that `refuse_invalid` accepts as a Pillow image; floats are rounded to 8 bits.

    >>> to_pillow(torch.full((3, 4, 5), 0.2)).getpixel((0, 0))
    (51, 51, 51)
    """
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, Tensor):
        pixels = image.detach().cpu()
        pixels = (pixels.float() * 255).round().byte() if pixels.is_floating_point() else pixels
        image = (pixels.permute(1, 2, 0) if pixels.ndim == 3 else pixels).numpy()
    gray = image.ndim == 3 and image.shape[-1] == 1
    return Image.fromarray(np.ascontiguousarray(image[..., 0] if gray else image))
