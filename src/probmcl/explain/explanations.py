"""Explanations of predictions: a heat map for each image and label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from probmcl.data.loader import Decoded
from probmcl.errors import ImageError, OptionError, counted, suggestion
from probmcl.explain.grad_cam import forward_pass
from probmcl.methods.base import Classifier
from probmcl.runtime.files import arrays_file, atomic_write
from probmcl.settings.model_options import ExplainedLabels

NOT_FINITE = "the model produced NaN or inf"
REPR_IMAGES = 10  # images in the text of explanations; "…" stands for the others

Decide = Callable[[Float[ndarray, "K C"]], tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]]
"""Returns the probabilities of K images and whether each class is assigned, given their raw scores."""


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """The heat maps of one image.

    A map has h × w entries, which are at least 0. It covers the whole image: entry (i, j) is centered at
    row (i + 0.5) / h of the height and column (j + 0.5) / w of the width. If there is no positive
    evidence for a label, all entries are 0. `enlarged` gives a map the size of an image.

    >>> maps = {"cat": np.zeros((5, 5), np.float32)}
    >>> explanation = Explanation(Path("a.jpg"), maps, {"cat": 0.9, "dog": 0.2}, ("cat",))
    >>> explanation
    Explanation(a.jpg: 5×5 maps of cat 0.90)
    >>> explanation.enlarged("cat", width=40, height=30).shape
    (30, 40)
    """

    path: Path
    maps: Mapping[str, Float[ndarray, "h w"]]  # by label, in the order of the classes or of the request
    probabilities: Mapping[str, float]  # of all classes; empty if the image could not be read
    decided: tuple[str, ...] = ()  # the labels that the model assigns
    error: str | None = None  # the reason why the image could not be read

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Explanation({self.path}: ERROR: {self.error})"
        if not self.maps:
            return f"Explanation({self.path}: no labels)"
        first_map = next(iter(self.maps.values()))
        shape = "×".join(str(side) for side in first_map.shape)
        labels = ", ".join(f"{label} {self.probabilities[label]:.2f}" for label in self.maps)
        return f"Explanation({self.path}: {shape} maps of {labels})"

    def enlarged(self, label: str, *, width: int, height: int) -> Float[ndarray, "height width"]:
        """Return the map of a label for every pixel of an image, by bilinear interpolation."""
        return enlarge(self.maps[label], width=width, height=height)

    def only(self, labels: Sequence[str]) -> Explanation:
        """Return the explanation with only the maps of these labels, in this order."""
        return replace(self, maps={label: self.maps[label] for label in labels})


@dataclass(frozen=True, repr=False, eq=False)
class Explanations:
    """The heat maps of several images, in the order of the images.

    >>> maps = {"cat": np.ones((5, 5), np.float32)}
    >>> explanations = Explanations(("cat", "dog"), (Explanation(Path("a.jpg"), maps, {"cat": 0.9, "dog": 0.2}),))
    >>> explanations
    Explanations(1 image, 1 map)
      a.jpg: 5×5 maps of cat 0.90
    >>> explanations[0].maps["cat"].shape, [explanation.path.name for explanation in explanations]
    ((5, 5), ['a.jpg'])
    """

    names: tuple[str, ...]  # the classes of the model
    images: tuple[Explanation, ...]

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.images)

    def __getitem__(self, row: int) -> Explanation:
        return self.images[row]

    def __repr__(self) -> str:
        maps = counted(sum(len(image.maps) for image in self), "map")
        lines = [f"Explanations({counted(len(self), 'image')}, {maps})"]
        for image in self.images[:REPR_IMAGES]:
            content = str(image).removeprefix("Explanation(").removesuffix(")")
            lines.append(f"  {content}")
        if len(self) > REPR_IMAGES:
            lines.append("  …")
        return "\n".join(lines)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the images; an image in memory is named by its position."""
        return tuple(image.path for image in self)

    @property
    def errors(self) -> dict[Path, str]:
        """The reason for each unreadable image."""
        return {image.path: image.error for image in self if image.error is not None}

    def to_npz(self, path: Path | str) -> None:
        """Write all maps to a compressed NumPy file, one row per map.

        Arrays: `path`, `label` and `probability` of each row, and `maps` (rows × h × w). `numpy.load` reads it.
        """
        rows = [(image, label) for image in self for label in image.maps]
        paths = [str(image.path) for image, _ in rows]
        labels = [label for _, label in rows]
        probabilities = [image.probabilities[label] for image, label in rows]
        maps = [image.maps[label] for image, label in rows]
        arrays = {
            "path": np.array(paths, dtype=np.str_),
            "label": np.array(labels, dtype=np.str_),
            "probability": np.array(probabilities, dtype=np.float64),
            "maps": np.stack(maps) if maps else np.empty((0, 0, 0), dtype=np.float32),
        }
        atomic_write(Path(path), arrays_file(arrays))


def enlarge(heat: Float[ndarray, "h w"], *, width: int, height: int) -> Float[ndarray, "height width"]:
    """Resize a map by bilinear interpolation, so that each entry is at the center of its part of the image.

    >>> enlarge(np.array([[0.0, 1.0]], dtype=np.float32), width=4, height=1)
    array([[0.  , 0.25, 0.75, 1.  ]], dtype=float32)
    """
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(heat, dtype=np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def label_columns(labels: ExplainedLabels, names: Sequence[str]) -> list[int] | None:
    """Return the columns of the labels to explain; None for the labels that the model assigns.

    >>> label_columns("all", ("cat", "dog")), label_columns(["dog"], ("cat", "dog"))
    ([0, 1], [1])
    >>> label_columns(["cts"], ("cat", "dog"))
    Traceback (most recent call last):
    probmcl.errors.OptionError: `labels=["cts"]` contains 'cts', which is not a class of the model; available: cat, dog
    """
    if labels == "decided":
        return None
    if labels == "all":
        return list(range(len(names)))
    if isinstance(labels, str):
        raise OptionError("labels", labels, 'must be "decided", "all" or a list of class names')
    for label in labels:
        if label not in names:
            problem = f"contains {label!r}, which is not a class of the model; {suggestion(label, names)}"
            raise OptionError("labels", list(labels), problem)
    return list(dict.fromkeys(names.index(label) for label in labels))


def explain_batch(
    classifier: Classifier,
    batch: Decoded,
    names: Sequence[str],
    decide: Decide,
    columns: Sequence[int] | None,
) -> list[Explanation]:
    """Explain the images of a batch; `decide` computes probabilities and decisions from scores.

    `columns` are the classes to explain; None for the classes that the model assigns to each image.
    """
    explained = {}
    for row, error in errors_by_row(batch).items():
        explained[row] = Explanation(batch.paths[row], {}, {}, error=error.reason)
    if batch.rows:
        explained |= _explain_images(classifier, batch, names, decide, columns)
    return [explained[row] for row in range(len(batch.paths))]


def errors_by_row(batch: Decoded) -> dict[int, ImageError]:
    """Return the error of each image in a batch that cannot be used, by its position in `batch.paths`.

    The errors of a batch are in the order of the images.
    """
    usable = set(batch.rows)
    unusable = [row for row in range(len(batch.paths)) if row not in usable]
    return dict(zip(unusable, batch.errors, strict=True))


def failed_rows(batch: Decoded, outputs: Float[Tensor, "K *D"]) -> dict[int, str]:
    """Return the positions of the decoded images whose outputs are not all finite, with the reason.

    `outputs` has a row for each of the K decoded images; positions are those in `batch.paths`.
    """
    all_finite = outputs.isfinite().flatten(1).all(1).tolist()
    return {row: NOT_FINITE for row, is_finite in zip(batch.rows, all_finite, strict=True) if not is_finite}


def _explain_images(
    classifier: Classifier,
    batch: Decoded,
    names: Sequence[str],
    decide: Decide,
    columns: Sequence[int] | None,
) -> dict[int, Explanation]:
    """Return the explanation of each decoded image, by its position in `batch.paths`; see `explain_batch`.

    An image whose logits are not finite has an explanation with an error and without maps.
    """
    device = next(classifier.parameters()).device
    result = forward_pass(classifier, batch.images.to(device, memory_format=torch.channels_last))
    logits = result.logits.detach()
    failed = failed_rows(batch, logits)
    probabilities, decisions = decide(np.asarray(logits.sigmoid().cpu()))
    assigned_columns = [np.flatnonzero(is_assigned).tolist() for is_assigned in decisions]
    map_columns = assigned_columns
    if columns is not None:
        map_columns = [list(columns)] * len(batch.rows)
    padded_columns = _padded(map_columns).to(device)  # (K, J), since images may have different numbers of labels
    maps = np.asarray(result.maps(padded_columns).cpu())  # (K, J, h, w)

    explained = {}
    images = zip(batch.rows, map_columns, maps, assigned_columns, probabilities, strict=True)
    for row, explained_columns, image_maps, assigned, image_probabilities in images:
        path = batch.paths[row]
        if row in failed:
            explained[row] = Explanation(path, {}, {}, error=failed[row])
            continue
        labels = [names[column] for column in explained_columns]
        explained[row] = Explanation(
            path,
            maps=dict(zip(labels, image_maps, strict=False)),  # leaves out the maps of the padding
            probabilities=dict(zip(names, image_probabilities.tolist(), strict=True)),
            decided=tuple(names[column] for column in assigned),
        )
    return explained


def _padded(columns: Sequence[Sequence[int]]) -> Int[Tensor, "N J"]:
    """Return lists of different lengths as a rectangular tensor, filled up with column 0."""
    longest = max(map(len, columns))
    padded = torch.zeros(len(columns), longest, dtype=torch.long)
    for row, indices in enumerate(columns):
        padded[row, : len(indices)] = torch.tensor(indices, dtype=torch.long)
    return padded
