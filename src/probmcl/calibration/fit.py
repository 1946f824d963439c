"""Fitting a calibration to held-out scores, with the strength of its prior chosen by cross-validation."""

import math
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
    LabeledLogits,
    compose,
    fit_isotonic,
    fit_platt,
    fit_sigmoids,
    logits,
)
from probmcl.calibration.thresholds import BALANCED, ThresholdRule, choose_thresholds
from probmcl.evaluation.scores import Entries, ScoredRows, checked, group_numbers
from probmcl.runtime.files import nan_to_none

FOLDS = 5
"""Parts of the images in the cross-validation."""

CACHED_ENTRIES = 2**18
"""Entries of the classes that are fitted together, few enough for the CPU's cache."""

POOLED_ENTRIES = 2**20
"""Most entries for the pooled fit."""

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

    The sigmoid of a class has a prior, which draws it toward the pooled sigmoid: one that is fitted to all classes
    together. The strength of the prior with the lowest cross-validated log loss is chosen.

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
    is_isotonic = _isotonic_classes(entries, kind)
    fold = assign_folds(len(rows), rows.group)
    last_fold = fold.max()  # the last folds are empty if there are few images or groups
    is_validated = kind != "none" and last_fold > 0
    can_choose = is_validated and len(rows) >= MIN_IMAGES
    strengths = STRENGTHS if can_choose else STRENGTHS[:1]  # the first gives every class the pooled sigmoid

    # Sums over all folds: of the sigmoid of each class for each strength, and of the isotonic regression of each class.
    losses = _Losses(sigmoid=np.zeros((len(strengths), len(names))), isotonic=np.zeros(len(names)))
    for number in range(FOLDS):
        if is_validated and number <= last_fold:
            held_out = torch.from_numpy(fold == number)
            losses.add(entries, held_out, strengths, is_isotonic)
        advance()
    loss_of_strength = losses.sigmoid.sum(1)
    best = int(loss_of_strength.argmin())
    strength = strengths[best]
    sigmoid_losses = losses.sigmoid[best] if is_validated else np.full(len(names), np.nan)
    cross_validated = np.where(is_isotonic, losses.isotonic, sigmoid_losses)

    classes = _fit_classes(entries, kind, strength, is_isotonic, cross_validated)
    has_own_sigmoids = kind != "none" and strength < float("inf")
    calibration = Calibration(
        kind=kind,
        thresholds=str(rule),
        predictions=predictions,
        images=len(rows),
        strength=strength if has_own_sigmoids else None,
        classes=dict(zip(names, classes, strict=True)),
    )
    return _with_thresholds(calibration, rule, rows, parents)


def _isotonic_classes(entries: Entries, kind: Kind) -> Bool[np.ndarray, " C"]:
    """Mark the classes that are fitted by isotonic regression: those with enough positives, if it was requested."""
    is_positive = (entries.labels == 1) & entries.known
    positives = is_positive.sum(0).numpy()
    if kind != "isotonic":
        return np.zeros(len(positives), dtype=bool)
    enough: Bool[np.ndarray, " C"] = positives >= MIN_ISOTONIC
    return enough


def _with_thresholds(
    calibration: Calibration, rule: ThresholdRule, rows: ScoredRows, parents: Int[np.ndarray, "C"]
) -> Calibration:
    """Return a calibration with the thresholds that the rule chooses from the probabilities of the held-out rows."""
    probabilities = calibration.probabilities(rows.scores, parents)
    chosen = choose_thresholds(rule, probabilities, rows.labels, rows.known)
    classes = {}
    for column, (name, fitted) in enumerate(calibration.classes.items()):
        promised = None if chosen.promised is None else bool(chosen.promised[column])
        threshold = float(chosen.values[column])
        classes[name] = replace(fitted, threshold=threshold, promised=promised)
    return replace(calibration, classes=classes)


def assign_folds(images: int, groups: Sequence[str] | None, *, seed: int = 0) -> Int[np.ndarray, "N"]:
    """Return a random fold for each image; images of one group are in the same fold.

    >>> assign_folds(6, ["a", "a", "b", "b", "c", "c"]).tolist()
    [1, 1, 2, 2, 0, 0]
    """
    group = group_numbers(images, groups)
    count = int(group.max()) + 1
    shuffled = np.random.default_rng(seed).permutation(count)
    fold_of_group = np.empty(count, dtype=np.int64)
    fold_of_group[shuffled] = np.arange(count) % FOLDS
    fold: Int[np.ndarray, "N"] = fold_of_group[group]
    return fold


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
        is_isotonic: Bool[np.ndarray, " C"],
    ) -> None:
        """Fit the sigmoids and isotonic regressions to the other images, and add their losses on the held-out images.

        The sigmoids of all classes are fitted for each strength of their prior, and isotonic regression only to the
        classes that `is_isotonic` marks. The classes are fitted in blocks, which limits memory.
        """
        fit_to = ~held_out
        pooled = _fit_pooled(Entries(entries.scores[fit_to], entries.labels[fit_to], entries.known[fit_to]))
        for classes_of_block, block in _class_blocks(entries):
            training = block.of_images(fit_to)
            test = block.of_images(held_out)
            self.sigmoid[:, classes_of_block] += _sigmoid_losses(training, test, pooled, strengths)
            for column, number in enumerate(range(classes_of_block.start, classes_of_block.stop)):
                if is_isotonic[number]:
                    self.isotonic[number] += _isotonic_loss(training, test, column)


def _sigmoid_losses(
    training: LabeledLogits, test: LabeledLogits, pooled: Float64[Tensor, "2"], strengths: Sequence[float]
) -> Float64[np.ndarray, "S K"]:
    """Fit the sigmoids of K classes to the training images for each strength; return summed log losses on the test.

    `pooled` has the slope a₀ and the intercept b₀ of one sigmoid for all classes. The fit of a class is a correction of
    its logit: sigmoid(α (a₀ z + b₀) + β). The prior draws α toward 1 and β toward 0, more for a larger strength.
    """
    losses = []
    correction = None  # α and β of each class
    for strength in strengths:
        # The fit for one strength is a good start for the next. A rough fit is enough to compare the strengths.
        correction = fit_sigmoids(training, pooled, strength, start=correction, tolerance=1e-3)
        slope, intercept = compose(pooled, correction)  # α a₀ and α b₀ + β
        calibrated_logits = test.z * slope + intercept
        losses.append(log_loss_sum(calibrated_logits, test.labels, test.known))
    return torch.stack(losses).numpy()


def _isotonic_loss(training: LabeledLogits, test: LabeledLogits, column: int) -> float:
    """Fit isotonic regression to the training images of a class, and return its summed log loss on the test images."""
    points = fit_isotonic(*training.of_class(column))
    z, positive = test.of_class(column)
    p = np.interp(z, points.logits, points.probabilities)
    log_likelihoods = np.where(positive, np.log(p), np.log1p(-p))
    return float(-log_likelihoods.sum())


def _fit_classes(
    entries: Entries,
    kind: Kind,
    strength: float,
    is_isotonic: Bool[np.ndarray, " C"],
    cross_validated: Float64[np.ndarray, " C"],
) -> Iterator[ClassCalibration]:
    """Yield the calibration of each class, with thresholds of 0.5.

    Args:
        entries: the held-out scores and labels.
        kind: the requested kind of calibration.
        strength: the strength of the prior of the sigmoids.
        is_isotonic: marks the classes that are fitted by isotonic regression.
        cross_validated: the sum of the cross-validated log loss of each class; NaN if there is none.
    """
    pooled = _fit_pooled(entries)  # one sigmoid for all classes
    for classes_of_block, block in _class_blocks(entries):
        correction = fit_sigmoids(block, pooled, strength)  # of the pooled sigmoid, for each class
        slope, intercept = compose(pooled, correction)
        loss_before = log_loss_sum(block.z, block.labels, block.known).tolist()
        for column, number in enumerate(range(classes_of_block.start, classes_of_block.stop)):
            z, positive = block.of_class(column)
            unfitted = _uncalibrated_class(positive, loss_before[column], loss_after=cross_validated[number].item())
            if kind == "none":
                yield unfitted
            elif is_isotonic[number]:
                points = fit_isotonic(z, positive)
                yield replace(
                    unfitted,
                    kind="isotonic",
                    logits=tuple(points.logits.tolist()),
                    probabilities=tuple(points.probabilities.tolist()),
                )
            else:
                yield replace(unfitted, kind="sigmoid", slope=slope[column].item(), intercept=intercept[column].item())


def _uncalibrated_class(positive: Bool[np.ndarray, " K"], loss_before: float, loss_after: float) -> ClassCalibration:
    """Return the calibration of kind `none` for a class with K known entries.

    The losses are sums over the known entries. `loss_after` is NaN without cross-validation.
    """
    known = len(positive)
    positives = int(positive.sum())
    mean_before = loss_before / known if known else None
    mean_after = nan_to_none(loss_after / known) if known else None
    return ClassCalibration("none", positives, known - positives, mean_before, mean_after)


def log_loss_sum(
    x: Float64[Tensor, "N C"], labels: Shaped[Tensor, "N C"], known: Bool[Tensor, "N C"]
) -> Float64[Tensor, " C"]:
    """Return the sum of the log loss of sigmoid(x) over the known entries of each class."""
    positive = (labels == 1) & known
    losses = torch.nn.functional.softplus(x) - x * positive  # log(1 + eˣ) − y x
    return (losses * known).sum(0)


def _fit_pooled(entries: Entries) -> Float64[Tensor, "2"]:
    """Fit one sigmoid to the entries of all classes; of very many images, only every second, third, … is used."""
    step = math.ceil(entries.scores.numel() / POOLED_ENTRIES)
    scores = entries.scores[::step].flatten()
    labels = entries.labels[::step].flatten()
    known = entries.known[::step].flatten()
    z = torch.from_numpy(logits(scores.numpy()))
    return fit_platt(z, labels, known)


def _class_blocks(entries: Entries) -> Iterator[tuple[slice, LabeledLogits]]:
    """Yield the classes in blocks: the slice of their columns, with the logits and labels of these columns."""
    images, classes = entries.scores.shape
    width = max(1, CACHED_ENTRIES // images)
    for start in range(0, classes, width):
        columns = slice(start, min(start + width, classes))
        z = torch.from_numpy(logits(entries.scores[:, columns].numpy()))
        yield columns, LabeledLogits(z, entries.labels[:, columns], entries.known[:, columns])
