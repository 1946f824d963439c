"""Features, labels and paths of the training images of a run, stored in half precision."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from probmcl.errors import RunError, counted
from probmcl.runtime.tensor_files import load_tensors, save_tensors
from probmcl.store.files import NEIGHBORS

BLOCK = 16_384
"""Training images per matrix product, which limits memory."""


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """The training images of a run, as the model sees their plain views.

    Attributes:
        paths: paths relative to `common_image_folder` of all images of the run.
        features: the features of the kept model's encoder, in half precision.
        labels: 0/1 labels; only known entries count.
        known: mask of known labels.
    """

    paths: tuple[str, ...]
    features: Float[Tensor, "N D"]
    labels: Bool[Tensor, "N C"]
    known: Bool[Tensor, "N C"]

    def save(self, path: Path) -> None:
        """Write a safetensors file. The paths are JSON, encoded as bytes."""
        encoded_paths = bytearray(json.dumps(self.paths).encode())
        tensors = {
            "features": self.features.half(),
            "labels": self.labels,
            "known": self.known,
            "paths": torch.frombuffer(encoded_paths, dtype=torch.uint8),
        }
        save_tensors(path, tensors)

    @classmethod
    def load(cls, path: Path, *, classes: int | None = None) -> "TrainingImages":
        """Read the file that `save` wrote. If `classes` is given, the labels must have this number of columns."""
        try:
            tensors, _ = load_tensors(path)
            encoded_paths = bytes(tensors["paths"].tolist())
            paths = tuple(json.loads(encoded_paths))
            images = cls(paths, tensors["features"], tensors["labels"], tensors["known"])
            images._check(classes)
        except Exception as error:  # safetensors raises its own exceptions for a damaged file
            raise RunError(f"{path} cannot be read ({error}); copy the file again, or train again") from error
        return images

    def _check(self, classes: int | None) -> None:
        """Raise `ValueError` if the content of a file has a wrong type or shape."""
        if not all(isinstance(path, str) for path in self.paths):
            raise ValueError("its paths are not text")
        tensors = {"features": self.features, "labels": self.labels, "known": self.known}
        have_row_per_path = all(tensor.ndim == 2 and len(tensor) == len(self.paths) for tensor in tensors.values())
        if not have_row_per_path or self.labels.shape != self.known.shape:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
            raise ValueError(f"its tensors have wrong shapes for {counted(len(self.paths), 'path')}: {shapes}")
        have_boolean_labels = self.labels.dtype == self.known.dtype == torch.bool
        if not self.features.is_floating_point() or not have_boolean_labels:
            raise ValueError("its features are not floating-point numbers, or its labels are not booleans")
        columns = self.labels.shape[1]
        if classes is not None and columns != classes:
            raise ValueError(f"it has {counted(columns, 'class', 'classes')}; the run has {classes}")

    def nearest(self, features: Float[Tensor, "Q D"], k: int) -> tuple[Int64[Tensor, "Q K"], Float32[Tensor, "Q K"]]:
        """Return the training images with the highest cosine similarity to each feature, and the similarities.

        >>> images = TrainingImages(("a", "b"), torch.eye(2).half(), torch.ones(2, 1) > 0, torch.ones(2, 1) > 0)
        >>> images.nearest(torch.tensor([[0.1, 2.0]]), k=1)[0].tolist()
        [[1]]
        """
        size = self.features.shape[1]
        if features.shape[1] != size:
            stored = counted(size, "number")
            raise _damaged(f"its features have {stored}; those of the encoder have {features.shape[1]}")
        queries = normalize(features.float(), dim=1)
        similarities = []
        for block in torch.split(self.features, BLOCK):
            directions = normalize(block.float(), dim=1)
            similarities.append(queries @ directions.T)
        similarity = torch.cat(similarities, dim=1)  # (Q, N)
        if not similarity.isfinite().all():
            raise _damaged("its features are NaN or infinite")
        # A stable sort makes the order of ties, such as duplicates, independent of the machine.
        order = similarity.sort(dim=1, descending=True, stable=True).indices
        nearest = order[:, : min(k, len(self.paths))]
        return nearest, similarity.gather(1, nearest)


def _damaged(problem: str) -> RunError:
    """Return an error about the file with the training images of a run."""
    return RunError(f"{NEIGHBORS}: {problem}; copy the file again, or train again")


def common_image_folder(paths: Sequence[str | Path]) -> Path:
    """Return the folder that contains all images.

    >>> common_image_folder(["photos/a/1.jpg", "photos/b/2.jpg"]).as_posix()
    'photos'
    """
    folders = [os.path.dirname(str(path)) or "." for path in paths]  # noqa: PTH120
    return Path(os.path.commonpath(folders))


def relative_path(path: str | Path, root: Path) -> str:
    """Return a path relative to the folder of all images, with forward slashes.

    >>> relative_path("photos/a/1.jpg", Path("photos"))
    'a/1.jpg'
    """
    return Path(os.path.relpath(path, root)).as_posix()


def cooccurrence(labels: Bool[Tensor, "N C"], known: Bool[Tensor, "N C"]) -> Int64[np.ndarray, "C C"]:
    """Return how many images have both labels of each pair.

    >>> cooccurrence(torch.tensor([[True, True], [True, False]]), torch.ones(2, 2, dtype=torch.bool)).tolist()
    [[2, 1], [1, 1]]
    """
    present = (labels & known).double()
    pairs = present.T @ present
    counts: Int64[np.ndarray, "C C"] = pairs.round().long().numpy()
    return counts
