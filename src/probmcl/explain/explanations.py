"""Explanations of predictions: a heat map for each image and label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from probmcl.errors import counted
from probmcl.runtime.files import arrays_file, atomic_write


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
        labels = ", ".join(f"{label} {self.probabilities[label]:.2f}" for label in self.maps)
        shape = "×".join(str(side) for side in next(iter(self.maps.values())).shape) if self.maps else ""
        return f"Explanation({self.path}: {f'{shape} maps of {labels}' if labels else 'no labels'})"

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
        lines += [f"  {str(image).removeprefix('Explanation(').removesuffix(')')}" for image in self.images[:10]]
        return "\n".join([*lines, *(["  …"] if len(self) > 10 else [])])

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
        maps = [image.maps[label] for image, label in rows]
        arrays = {
            "path": np.array([str(image.path) for image, _ in rows], dtype=np.str_),
            "label": np.array([label for _, label in rows], dtype=np.str_),
            "probability": np.array([image.probabilities[label] for image, label in rows], dtype=np.float64),
            "maps": np.stack(maps) if maps else np.empty((0, 0, 0), dtype=np.float32),
        }
        atomic_write(Path(path), arrays_file(arrays))


def enlarge(heat: Float[ndarray, "h w"], *, width: int, height: int) -> Float[ndarray, "height width"]:
    """Resize a map by bilinear interpolation, so that each entry is at the center of its part of the image.

    >>> enlarge(np.array([[0.0, 1.0]], dtype=np.float32), width=4, height=1)
    array([[0.  , 0.25, 0.75, 1.  ]], dtype=float32)
    """
    from PIL import Image

    enlarged = Image.fromarray(np.ascontiguousarray(heat, dtype=np.float32)).resize(
        (width, height), Image.Resampling.BILINEAR
    )
    return np.asarray(enlarged)
