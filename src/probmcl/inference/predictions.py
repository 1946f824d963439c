"""Predictions for images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from probmcl.errors import ProbmclError
from probmcl.evaluation.reliability import uncertainty
from probmcl.inference import prediction_display, prediction_files
from probmcl.inference.prediction import Prediction

Rows = slice | Sequence[int] | Sequence[bool] | ndarray
"""A selection of images: a slice, a list of positions, or a mask."""


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Probabilities and decisions for each image and class.

    An integer selects the prediction of one image; a slice, a list of positions or a mask selects several.

    >>> scores = np.array([[0.9, 0.5], [0.3, 0.2]], dtype=np.float32)
    >>> predictions = Predictions(("cat", "dog"), (Path("a.jpg"), Path("b.jpg")), scores, 0.5, (None, None))
    >>> predictions
    Predictions(2 images, 2 classes, threshold 0.5)
      a.jpg: cat 0.90
      b.jpg: no labels; most probable: cat 0.30
    >>> predictions.labels.tolist()
    [[True, False], [False, False]]
    >>> predictions[0].labels, len(predictions[1:])
    (('cat',), 1)
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]  # in the order of the images; an image in memory is named by its position
    scores: Float[ndarray, "N C"]  # probabilities; NaN for an unreadable image
    threshold: float | Float64[ndarray, " C"]  # a class is predicted above this probability; one, or one per class
    reasons: tuple[str | None, ...]  # why each image could not be read; None for a readable image
    no_up_to: Float64[ndarray, " C"] | None = None  # with abstention, decisions between this and `threshold` are open

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Prediction]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, rows: int | np.int64) -> Prediction: ...
    @overload
    def __getitem__(self, rows: Rows) -> Predictions: ...
    def __getitem__(self, rows: int | np.int64 | Rows) -> Prediction | Predictions:
        """Return the prediction at a position, or those in a slice, at a list of positions or where a mask is True."""
        if rows is None or isinstance(rows, bool | str):
            raise TypeError(f"predictions[{rows!r}]: expected a position, a slice, a list of positions, or a mask")
        if isinstance(rows, tuple):
            rows = list(rows)
        if isinstance(rows, np.ma.MaskedArray):
            rows = rows.filled(False)  # a mask made from `labels` does not select unreadable images
        if not isinstance(rows, slice) and np.size(rows) == 0:
            rows = slice(0)  # NumPy takes an empty list for floats, which it refuses as positions
        positions = np.arange(len(self))[rows]
        if positions.ndim == 0:
            return self._prediction(int(positions))
        paths = tuple(self.paths[row] for row in positions)
        reasons = tuple(self.reasons[row] for row in positions)
        return replace(self, paths=paths, scores=self.scores[positions], reasons=reasons)

    def _prediction(self, row: int) -> Prediction:
        """Return the prediction of the image at a position."""
        path = self.paths[row]
        error = self.reasons[row]
        if error is not None:
            return Prediction(path, {}, None, error)
        scores = self.scores[row]
        labels = self._selected_names(scores > self.threshold)
        not_sure = self._selected_names(self._open(scores))
        probabilities = dict(zip(self.names, scores.tolist(), strict=True))
        return Prediction(path, probabilities, labels, not_sure=not_sure)

    def _selected_names(self, mask: Bool[ndarray, " C"]) -> tuple[str, ...]:
        """Return the names of the classes for which a mask is true."""
        return tuple(self.names[k] for k in np.flatnonzero(mask))

    def _open(self, scores: Float[ndarray, "*N C"]) -> Bool[ndarray, "*N C"]:
        """Return which decisions are neither yes nor no."""
        if self.no_up_to is None:
            return np.zeros(scores.shape, dtype=bool)
        return (scores > self.no_up_to) & ~(scores > self.threshold)

    def __repr__(self) -> str:
        return prediction_display.text(self)

    def _repr_html_(self) -> str:
        return prediction_display.html(self)

    @classmethod
    def concatenate(
        cls, names: Sequence[str], threshold: float | Float64[ndarray, " C"], blocks: Iterable[Predictions]
    ) -> Predictions:
        """Concatenate blocks of predictions, possibly none."""
        parts = list(blocks)
        if not parts:
            no_scores = np.empty((0, len(names)), dtype=np.float32)
            return cls(tuple(names), (), no_scores, threshold, ())
        paths = tuple(path for part in parts for path in part.paths)
        scores = np.concatenate([part.scores for part in parts])
        reasons = tuple(reason for part in parts for reason in part.reasons)
        return replace(parts[0], paths=paths, scores=scores, reasons=reasons)

    @property
    def errors(self) -> dict[Path, str]:
        """The reason for each unreadable image."""
        return {path: reason for path, reason in zip(self.paths, self.reasons, strict=True) if reason is not None}

    @property
    def labels(self) -> Bool[np.ma.MaskedArray, "N C"]:
        """Decisions: True if the probability is above the threshold.

        Rows of unreadable images are masked and, with abstention, the decisions that are neither yes nor no.
        """
        unreadable = np.array([reason is not None for reason in self.reasons], dtype=bool)
        mask = unreadable[:, None] | self._open(self.scores)
        return np.ma.MaskedArray(self.scores > self.threshold, mask=mask)

    @property
    def uncertainty(self) -> Float64[ndarray, " N"]:
        """The mean binary entropy of each image's probabilities, between 0 and 1; NaN for an unreadable image."""
        return uncertainty(self.scores)

    def top(self, k: int) -> list[list[tuple[str, float]]]:
        """Return, for each image, the `k` most probable classes with their probabilities."""
        return [prediction.top(k) for prediction in self]

    def to_csv(
        self,
        path: Path | str,
        format: prediction_files.Format = "full",  # noqa: A002
        *,
        raw_cells: bool = False,
    ) -> None:
        """Write a CSV file.

        The `full` format has the columns path, error and uncertainty, the probability of each class, and
        `NAME:decision` (1, 0 or, if abstention leaves it open, ?). The `short` format has the columns path and labels,
        with the assigned labels joined by `|` (or by another separator if a class name contains it), and has no rows
        for unreadable images. `probmcl.readers.read` reads it.

        A spreadsheet takes text that starts with =, +, - or @ for a formula. Such a path or name is written with a
        leading ', which `probmcl.readers.read` removes; `raw_cells` writes it unchanged.
        """
        prediction_files.write_predictions_csv(Path(path), self, format, raw_cells=raw_cells)

    def to_json(self, path: Path | str) -> None:
        """Write JSON with the threshold of each class and, per image, its uncertainty, probabilities and decisions.

        A decision is true, false or, if abstention leaves it open, null.
        """
        prediction_files.write_predictions_json(Path(path), self)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with the columns of the CSV file; requires pandas.

        Decisions are True, False, or missing for an unreadable image and for a decision that abstention leaves open.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ProbmclError("to_pandas requires pandas; run pip install 'probmcl[pandas]'") from error
        prediction_files.refuse_ambiguous(self.names, "the table")
        columns: dict[str, Any] = {
            prediction_files.PATH: [str(path) for path in self.paths],
            prediction_files.ERROR: list(self.reasons),
            prediction_files.UNCERTAINTY: self.uncertainty,
        }
        columns |= dict(zip(self.names, self.scores.T, strict=True))
        for name, decisions in zip(self.names, self.labels.T, strict=True):
            mask = np.ma.getmaskarray(decisions)
            column = pd.arrays.BooleanArray(decisions.data.copy(), mask.copy())
            columns[f"{name}{prediction_files.DECISION}"] = column
        return pd.DataFrame(columns)
