"""Custom losses from a Python file: classification losses on logits and contrastive losses on similarities."""

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
from jaxtyping import Float, Int
from torch import Tensor

from probmcl.errors import SettingsError
from probmcl.methods.base import Known, Labels, LinearClassifier, Logits, Method
from probmcl.methods.contrast import ProjectedContrast, label_overlap, self_columns

Loss = Callable[..., Tensor]

FORMS = "loss(logits, labels, known) or loss(similarity, overlap)"


@dataclass(frozen=True)
class NoSettings:
    """Settings for a loss computed from logits; there are none."""


@dataclass(frozen=True)
class Projection:
    """Settings for a loss computed from similarities.

    Attributes:
        projection: layer sizes of the projection head; without layers, the features themselves are compared.
    """

    projection: tuple[int, ...] = (128,)


class CustomLoss(LinearClassifier, ABC):
    """Encoder and linear layer, trained end to end with a custom loss.

    The loss receives logits, labels and the mask `known`, all of shape (M, C); unknown labels are 0. It must return the
    mean over the known entries.
    """

    presets = {"default": NoSettings()}  # noqa: RUF012  # read, never written
    function: ClassVar[Loss]

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the value of the function."""
        if known is None:
            known = torch.ones_like(labels, dtype=torch.bool)
        known_labels = labels.where(known, 0)
        return _call_loss(type(self).function, logits, known_labels, known)


class CustomContrast(ProjectedContrast, ABC):
    """Custom loss on the cosine similarities of projected features, with two views of each image.

    The loss receives the cosines of each of M rows with all other rows, and the overlaps of their label sets, both of
    shape (M, P−1). Views of one image have overlap 1. The loss must return the mean over rows.
    """

    presets = {"default": Projection()}  # noqa: RUF012  # read, never written
    config: Projection
    function: ClassVar[Loss]

    def contrast(
        self, similarity: Float[Tensor, "M P"], labels: Labels, known: Known, n_views: int
    ) -> Float[Tensor, ""]:
        """Return the value of the function."""
        overlaps = label_overlap(labels, known, n_views=n_views)  # (M, P)
        self_column = self_columns(similarity)
        similarity_to_others = _drop_column(similarity, self_column)  # (M, P−1)
        overlaps_with_others = _drop_column(overlaps, self_column)
        return _call_loss(type(self).function, similarity_to_others, overlaps_with_others)


@functools.cache
def custom_loss(path: str) -> type[Method]:
    """Return a method for a loss function from a file; the function's argument names determine the base class.

    Args:
        path: FILE.py:FUNCTION. The file is executed, so the path must come from the user, not from a run folder.
    """
    file, _, name = path.partition(":")
    module = _import_file(Path(file))
    function = getattr(module, name, None)
    if not inspect.isfunction(function):
        raise SettingsError(f"{file}: function {name!r} does not exist; expected {FORMS}")
    base = _base_class(function, path)

    @final
    class Custom(base):  # type: ignore[misc,valid-type]
        __doc__ = inspect.getdoc(function) or f"Custom loss {name}."

    Custom.function = staticmethod(function)
    Custom.__name__ = name
    method: type[Method] = Custom
    return method


def _base_class(function: Loss, path: str) -> type[Any]:
    """Return the base class of a method for a loss function; the names of its first arguments decide.

    `path` names the function in an error.
    """
    arguments = list(inspect.signature(function).parameters)
    if arguments[:3] == ["logits", "labels", "known"]:
        return CustomLoss
    if arguments[:2] == ["similarity", "overlap"]:
        return CustomContrast
    raise SettingsError(f"{path}: expected {FORMS}, got arguments ({', '.join(arguments)})")


def _import_file(path: Path) -> ModuleType:
    """Import a Python file once, using its path as a unique module name."""
    name = str(path.resolve())
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise SettingsError(f"{path}: the file does not exist; expected FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before the file is executed, since dataclasses look up their module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # the file may import modules from its folder
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SettingsError(f"{path}: the file cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
    return module


def _call_loss(function: Loss, *arguments: Tensor) -> Float[Tensor, ""]:
    """Call the loss function of a user. Raise `ValueError` if it does not return a scalar, or calls `sys.exit`."""
    try:
        loss = function(*arguments)
    except SystemExit as end:
        if end.code:  # also the exit after a signal
            raise
        raise ValueError(f"the loss {function.__name__} called sys.exit") from end  # or the run would seem to succeed
    if isinstance(loss, Tensor) and loss.ndim == 0:
        return loss
    returned = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        returned = f"a tensor of shape {tuple(loss.shape)}"
    raise ValueError(f"the loss {function.__name__} must return a scalar tensor of shape (), got {returned}")


def _drop_column(matrix: Float[Tensor, "M P"], column: Int[Tensor, "M"]) -> Float[Tensor, "M Q"]:
    """Remove one entry from each row, so that Q = P−1 columns remain; `column` has the position in each row."""
    n_rows, n_columns = matrix.shape
    positions = torch.arange(n_columns, device=matrix.device)
    kept = positions[None] != column[:, None]  # (M, P)
    return matrix[kept].reshape(n_rows, n_columns - 1)
