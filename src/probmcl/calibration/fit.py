"""Fitting a calibration to held-out scores, with the strength of its prior chosen by cross-validation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int, Shaped
from torch import Tensor

from probmcl.calibration.maps import (
    MIN_IMAGES,
    Calibration,
    ClassCalibration,
    HeldOutName,
    Kind,
    compose,
    fit_isotonic,
    fit_platt,
    fit_sigmoids,
    logits,
)
from probmcl.calibration.thresholds import BALANCED, ThresholdRule, choose_thresholds
from probmcl.evaluation.scores import Entries, ScoredRows, checked

FOLDS = 5

CACHED_ENTRIES, POOLED_ENTRIES = 2**18, 2**20
"""Entries of the classes that are fitted together, few enough for the CPU's cache, and entries for the pooled fit."""

MIN_ISOTONIC = 1000
"""Fewest positives of a class for isotonic regression. With fewer, its steps follow the noise."""

STRENGTHS = (float("inf"), 30.0, 10.0, 3.0, 1.0)
"""Strengths of the prior to choose from; infinity means the pooled sigmoid. Each fit starts from the one before."""


def fit_calibration(
    rows: ScoredRows,
    names: Sequence[str],
    *,
    kind: Kind = "sigmoid",
    rule: ThresholdRule = BALANCED,
    parents: Int[np.ndarray, "C"],
    predictions: HeldOutName = "val",
    advance: Callable[[], object] = lambda: None,
) -> Calibration:
    """Fit the calibration of every class to held-out scores, and choose the thresholds.

    Args:
        rows: raw scores with labels, and the group of each image if there are groups.
        names: the classes.
        kind: `sigmoid`, `isotonic` (with fewer than 1,000 positives, a class has a sigmoid) or `none`.
        rule: how thresholds are chosen from the calibrated probabilities.
        parents: the parent of each class, or −1; a probability is capped by that of the parent.
        predictions: name of the stored scores.
        advance: called after each of the `FOLDS` folds.
    """
    entries = checked(rows.scores, rows.labels, rows.known)
    fold = assign_folds(len(rows), rows.group)
    is_validated = kind != "none" and fold.max() > 0
    strengths = STRENGTHS if is_validated and len(rows) >= MIN_IMAGES else STRENGTHS[:1]
    positives = ((entries.labels == 1) & entries.known).sum(0).numpy()
    isotonic = positives >= MIN_ISOTONIC if kind == "isotonic" else np.zeros(len(names), dtype=bool)
    losses = _Losses(np.zeros((len(strengths), len(names))), np.zeros(len(names)))
    for number in range(FOLDS):
        if is_validated and number <= fold.max():
            losses.add(entries, torch.from_numpy(fold == number), strengths, isotonic)
        advance()
    best = int(losses.sigmoid.sum(1).argmin())
    cross_validated = np.where(isotonic, losses.isotonic, losses.sigmoid[best] if is_validated else np.nan)
    classes = list(_fit_classes(entries, kind, strengths[best], isotonic, cross_validated))
    strength = None if strengths[best] == float("inf") or kind == "none" else strengths[best]
    fitted = Calibration(kind, str(rule), predictions, len(rows), strength, dict(zip(names, classes, strict=True)))
    return _with_thresholds(fitted, rule, rows, parents)


def _with_thresholds(
    calibration: Calibration, rule: ThresholdRule, rows: ScoredRows, parents: Int[np.ndarray, "C"]
) -> Calibration:
    chosen = choose_thresholds(rule, calibration.probabilities(rows.scores, parents), rows.labels, rows.known)
    classes = {}
    for column, (name, fitted) in enumerate(calibration.classes.items()):
        promised = None if chosen.promised is None else bool(chosen.promised[column])
        classes[name] = replace(fitted, threshold=float(chosen.values[column]), promised=promised)
    return replace(calibration, classes=classes)


def assign_folds(images: int, groups: Sequence[str] | None, *, seed: int = 0) -> Int[np.ndarray, "N"]:
    """Return a random fold for each image; images of one group are in the same fold.

    >>> assign_folds(6, ["a", "a", "b", "b", "c", "c"]).tolist()
    [1, 1, 2, 2, 0, 0]
    """
    member = np.arange(images) if groups is None else np.unique(np.array(groups), return_inverse=True)[1]
    count = int(member.max()) + 1
    fold = np.empty(count, dtype=np.int64)
    fold[np.random.default_rng(seed).permutation(count)] = np.arange(count) % FOLDS
    return fold[member]


@dataclass(frozen=True)
class _Losses:
    """Sums of the log loss over held-out entries: of the sigmoids for each strength, and of isotonic regression."""

    sigmoid: Float64[np.ndarray, "S C"]
    isotonic: Float64[np.ndarray, " C"]

    def add(
        self,
        entries: Entries,
        held_out: Bool[Tensor, " N"],
        strengths: Sequence[float],
        isotonic: Bool[np.ndarray, " C"],
    ) -> None:
        """Fit everything to the images of the other folds, and add the loss on the held-out images."""
        pooled = _fit_pooled(Entries(*(part[~held_out] for part in entries)))
        for columns, z, labels, known in _class_blocks(entries):
            others, tested = (Entries(z[rows], labels[rows], known[rows]) for rows in (~held_out, held_out))
            fitted = None
            for row, strength in enumerate(strengths):
                fitted = fit_sigmoids(*others, pooled, strength, fitted, tolerance=1e-3)
                slope, intercept = compose(pooled, fitted)
                self.sigmoid[row, columns] += log_loss_sum(
                    tested.scores * slope + intercept, tested.labels, tested.known
                ).numpy()
            for column in np.flatnonzero(isotonic[columns]):
                positive, fit, test = labels[:, column] == 1, known[:, column] & ~held_out, known[:, column] & held_out
                points = fit_isotonic(z[fit, column].numpy(), positive[fit].numpy())
                p = np.interp(z[test, column].numpy(), *points)
                loss = -np.where(positive[test].numpy(), np.log(p), np.log1p(-p)).sum()
                self.isotonic[columns.start + column] += loss


def _fit_classes(
    entries: Entries,
    kind: Kind,
    strength: float,
    isotonic: Bool[np.ndarray, " C"],
    cross_validated: Float64[np.ndarray, " C"],
) -> Iterator[ClassCalibration]:
    pooled = _fit_pooled(entries)
    for columns, z, labels, known in _class_blocks(entries):
        slope, intercept = compose(pooled, fit_sigmoids(z, labels, known, pooled, strength))
        positive = (labels == 1) & known
        positives, totals = positive.sum(0).tolist(), known.sum(0).tolist()
        before = log_loss_sum(z, labels, known).tolist()
        for column, total in enumerate(totals):
            after = cross_validated[columns.start + column] / max(total, 1)
            fitted = ClassCalibration(
                kind="none" if kind == "none" else "sigmoid",
                positives=positives[column],
                negatives=total - positives[column],
                log_loss_before=before[column] / total if total else None,
                log_loss_after=float(after) if total and after == after else None,
            )
            if isotonic[columns.start + column]:
                mask = known[:, column]
                points = fit_isotonic(z[mask, column].numpy(), positive[mask, column].numpy())
                fitted = replace(
                    fitted, kind="isotonic", logits=tuple(points[0].tolist()), probabilities=tuple(points[1].tolist())
                )
            elif kind != "none":
                fitted = replace(fitted, slope=slope[column].item(), intercept=intercept[column].item())
            yield fitted


def log_loss_sum(
    x: Float64[Tensor, "N C"], labels: Shaped[Tensor, "N C"], known: Bool[Tensor, "N C"]
) -> Float64[Tensor, " C"]:
    """Return the sum of the log loss of sigmoid(x) over the known entries of each class."""
    losses = torch.nn.functional.softplus(x) - x * ((labels == 1) & known)
    return (losses * known).sum(0)


def _fit_pooled(entries: Entries) -> Float64[Tensor, "2"]:
    """Fit one sigmoid to the entries of all classes; of very many images, only some are used."""
    step = -(-entries.scores.numel() // POOLED_ENTRIES)
    scores, labels, known = (part[::step].flatten() for part in entries)
    return fit_platt(torch.from_numpy(logits(scores.numpy())), labels, known)


def _class_blocks(
    entries: Entries,
) -> Iterator[tuple[slice, Float64[Tensor, "N K"], Shaped[Tensor, "N K"], Bool[Tensor, "N K"]]]:
    """Yield the columns of some classes at a time, with the logits of their scores."""
    images, classes = entries.scores.shape
    width = max(1, CACHED_ENTRIES // images)
    for columns in (slice(start, min(start + width, classes)) for start in range(0, classes, width)):
        scores, labels, known = (part[:, columns] for part in entries)
        yield columns, torch.from_numpy(logits(scores.numpy())), labels, known
