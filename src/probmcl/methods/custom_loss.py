"""A custom loss from the user's file: on logits it trains encoder and linear layer, on similarities the contrast."""

import functools
import importlib.util
import inspect
import sys
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.methods.base import Known, Labels, LinearClassifier, Logits, Method
from probmcl.methods.contrast import ProjectedContrast, label_overlap, self_columns

Loss = Callable[..., Tensor]

FORMS = "loss(logits, labels, known) or loss(similarity, overlap)"


@dataclass(frozen=True)
class Nothing:
    """Settings of a loss on logits: there are none."""


@dataclass(frozen=True)
class Projection:
    """Settings of a loss on similarities.

    Attributes:
        projection: sizes of the layers between feature and sphere; () compares the features themselves.
    """

    projection: tuple[int, ...] = (128,)


class CustomLoss(LinearClassifier, ABC):
    """Encoder and linear layer, trained together with a custom loss.

    The loss is called with logits and labels (M, C) and the mask `known` (M, C); unknown labels are 0. It returns the
    mean over the known entries.
    """

    presets = {"default": Nothing()}  # noqa: RUF012  # read, never written
    function: ClassVar[Loss]

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the value of the function."""
        known = torch.ones_like(labels, dtype=torch.bool) if known is None else known
        return _one_number(type(self).function, logits, labels.where(known, 0), known)


class CustomContrast(ProjectedContrast, ABC):
    """A custom loss on the cosines of two views of each image, projected onto the unit sphere.

    The loss is called with the cosines of M rows with all other rows, and with the overlaps of their label sets, both
    (M, P); the row itself is left out, and views of one image have overlap 1. It returns the mean over rows.
    """

    presets = {"default": Projection()}  # noqa: RUF012  # read, never written
    config: Projection
    function: ClassVar[Loss]

    def contrast(
        self, similarity: Float[Tensor, "M P"], labels: Labels, known: Known, n_views: int
    ) -> Float[Tensor, ""]:
        """Return the value of the function."""
        shared = label_overlap(labels, known, n_views=n_views)
        itself = self_columns(similarity)
        return _one_number(type(self).function, _others(similarity, itself), _others(shared, itself))


@functools.cache
def custom_loss(path: str) -> type[Method]:
    """Return the method of a loss function in a file, of the kind that the names of its arguments imply.

    Args:
        path: FILE.py:FUNCTION. The file is executed, so it must be one that the user has named.
    """
    file, _, name = path.partition(":")
    function = getattr(_module(Path(file)), name, None)
    if not inspect.isfunction(function):
        raise ValueError(f"{file}: there is no function {name!r}; write {FORMS} there")
    base = _base(function, path)

    @final
    class Own(base):  # type: ignore[misc,valid-type]
        __doc__ = inspect.getdoc(function) or f"A custom loss, {name}."

    Own.function, Own.__name__ = staticmethod(function), name
    method: type[Method] = Own
    return method


def _base(function: Loss, path: str) -> type[Any]:
    arguments = list(inspect.signature(function).parameters)
    if arguments[:3] == ["logits", "labels", "known"]:
        return CustomLoss
    if arguments[:2] == ["similarity", "overlap"]:
        return CustomContrast
    raise ValueError(f"{path} takes ({', '.join(arguments)}); a custom loss is {FORMS}")


def _module(path: Path) -> ModuleType:
    """Import the file once, under its path as module name, which no other module has."""
    name = str(path.resolve())
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ValueError(f"{path}: the file does not exist; give FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # before it runs: a dataclass looks itself up
    sys.path.insert(0, str(path.resolve().parent))  # it may import modules next to it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _one_number(function: Loss, *arguments: Tensor) -> Float[Tensor, ""]:
    loss = function(*arguments)
    if not isinstance(loss, Tensor) or loss.ndim:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ValueError(
            f"the loss {function.__name__} returns {what}; it must return one number, a tensor of shape ()"
        )
    return loss


def _others(matrix: Float[Tensor, "M P"], itself: Tensor) -> Float[Tensor, "M Q"]:
    rows, columns = matrix.shape
    kept = torch.arange(columns, device=matrix.device)[None] != itself[:, None]  # (M, P)
    return matrix[kept].reshape(rows, columns - 1)
