"""From scores to probabilities: Platt scaling and isotonic regression, and the calibration of a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from scipy.optimize import isotonic_regression
from scipy.special import expit
from torch import Tensor

from probmcl.data.labels import cap_at_parents
from probmcl.errors import LISTED, check_range, counted, listing
from probmcl.store.files import CALIBRATION

MIN_SLOPE = 0.01
"""Smallest slope, relative to the pooled fit. It is positive, so a sigmoid never changes a ranking."""

LOWEST, HIGHEST = 2.0**-150, 1 - 2.0**-25
"""Scores are clipped to this range, which contains every float32 number strictly between 0 and 1."""

MAX_STEPS, MAX_HALVINGS, TOLERANCE = 200, 60, 1e-8

Points = tuple[Float64[np.ndarray, " K"], Float64[np.ndarray, " K"]]
"""Logits and probabilities to interpolate between."""

MIN_IMAGES = 50
"""With fewer images, all classes have the pooled sigmoid."""

MIN_POSITIVES = 10
"""Classes with fewer held-out positives are flagged, because their thresholds are uncertain."""

STEEPEST = 20.0
"""Logits above it are compressed, since a sigmoid of more than 37 would be exactly 1."""

LARGEST = 1e100
"""Largest slope and intercept; fitted ones are far smaller, and larger ones could overflow."""

Kind = Literal["sigmoid", "isotonic", "none"]

HeldOutName = Literal["val", "out_of_fold", "calibration"]
"""The name of the scores that a calibration is fitted to, in predictions/: those of the validation images, of other
folds, or of images from another site."""


class Sigmoid(NamedTuple):
    """The parameters of sigmoid(slope · z + intercept) for C classes, where z is the logit of a score."""

    slope: Float64[Tensor, " C"]
    intercept: Float64[Tensor, " C"]


def logits(scores: Float[np.ndarray, "*N"]) -> Float64[np.ndarray, "*N"]:
    """Return log(p / (1 − p)) in double precision; scores of 0 and 1 have finite logits.

    >>> logits(np.array([0.5, 0.75], dtype=np.float32)).round(4).tolist()
    [0.0, 1.0986]
    """
    p = np.clip(scores.astype(np.float64), LOWEST, HIGHEST)
    return np.log(p) - np.log1p(-p)


def fit_platt(
    z: Float64[Tensor, " K"], labels: Shaped[Tensor, " K"], known: Bool[Tensor, " K"]
) -> Float64[Tensor, "2"]:
    """Fit the slope and intercept of one sigmoid to K entries, and return both.

    The targets are (P + 1) / (P + 2) for P positives and 1 / (Q + 2) for Q negatives, so the fit is finite even if all
    labels are equal or the classes are separable. The slope is at least `MIN_SLOPE`. Entries where `known` is False are
    ignored.

    Reference: Platt, Probabilistic Outputs for Support Vector Machines, 1999.
    """
    positive = (labels == 1) & known
    positives, negatives = int(positive.sum()), int((known & ~positive).sum())
    targets = torch.where(positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    start = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    return _minimize(z[:, None], targets.double()[:, None], known[:, None], 0.0, start)[:, 0]


def fit_sigmoids(
    z: Float64[Tensor, "N C"],
    labels: Shaped[Tensor, "N C"],
    known: Bool[Tensor, "N C"],
    pooled: Float64[Tensor, "2"],
    strength: float,
    start: Float64[Tensor, "2 C"] | None = None,
    tolerance: float = TOLERANCE,
) -> Float64[Tensor, "2 C"]:
    """Fit the sigmoid of each class with a Gaussian prior toward the pooled fit.

    With u = a₀ z + b₀ the pooled logit, the probability is sigmoid(α u + β), and α ≥ `MIN_SLOPE` and β minimize

        Σ_i log loss(y_i, sigmoid(α u_i + β)) + strength / 2 · ((α − 1)² + β²)

    over the known entries. An infinite strength gives the pooled fit, α = 1 and β = 0. Returned are α and β, which
    `compose` converts to a sigmoid of z. `start` may be the result for another strength. Before the last of Newton's
    steps, the objective of every class is within about `tolerance` of its minimum.
    """
    if start is None:
        start = torch.tensor([[1.0], [0.0]], dtype=torch.float64).repeat(1, z.shape[1])
    if strength == float("inf"):
        return start.new_tensor([[1.0], [0.0]]).repeat(1, z.shape[1])
    targets = ((labels == 1) & known).double()
    return _minimize(pooled[0] * z + pooled[1], targets, known, strength, start, tolerance)


def compose(pooled: Float64[Tensor, "2"], relative: Float64[Tensor, "2 C"]) -> Sigmoid:
    """Return the sigmoids of z, from the pooled fit and the fits relative to it."""
    return Sigmoid(relative[0] * pooled[0], relative[0] * pooled[1] + relative[1])


class _Objective(NamedTuple):
    """The value of the objective for each class, with its gradient and Hessian (αα, αβ, ββ)."""

    value: Float64[Tensor, " C"]
    gradient: Float64[Tensor, "2 C"]
    hessian: Float64[Tensor, "3 C"]


def _minimize(
    u: Float64[Tensor, "N C"],
    targets: Float64[Tensor, "N C"],
    known: Bool[Tensor, "N C"],
    strength: float,
    start: Float64[Tensor, "2 C"],
    tolerance: float = TOLERANCE,
) -> Float64[Tensor, "2 C"]:
    """Minimize the objective of each class by Newton's method; a step that increases it is halved."""
    weight, parameters = known.double(), start
    current = _objective(u, targets, weight, strength, parameters)
    for _ in range(MAX_STEPS):
        step = _newton_step(current, parameters[0])
        decrement = -(current.gradient * step).sum(0)
        for _ in range(MAX_HALVINGS):
            trial = parameters + step
            trial[0].clamp_(min=MIN_SLOPE)
            after = _objective(u, targets, weight, strength, trial)
            worse = after.value > current.value + TOLERANCE
            if not worse.any():
                break
            step = torch.where(worse, step / 2, step)
        parameters = torch.where(worse, parameters, trial)
        current = _Objective(*(torch.where(worse, old, new) for old, new in zip(current, after, strict=True)))
        if (decrement < tolerance).all():  # convergence is quadratic, so the error is now far smaller
            break
    return parameters


def _objective(
    u: Float64[Tensor, "N C"],
    targets: Float64[Tensor, "N C"],
    weight: Float64[Tensor, "N C"],
    strength: float,
    parameters: Float64[Tensor, "2 C"],
) -> _Objective:
    slope, intercept = parameters
    x = u * slope + intercept
    decay = (-x.abs()).exp()
    loss = (x.clamp(min=0) - targets * x + decay.log1p()).mul_(weight)  # log(1 + eˣ) − t x
    p = torch.where(x >= 0, 1.0, decay) / (1 + decay)
    residual, curvature = (p - targets).mul_(weight), (p * (1 - p)).mul_(weight)
    curved = curvature * u
    value = loss.sum(0) + strength / 2 * ((slope - 1) ** 2 + intercept**2)
    gradient = torch.stack([(residual * u).sum(0) + strength * (slope - 1), residual.sum(0) + strength * intercept])
    hessian = torch.stack([(curved * u).sum(0) + strength, curved.sum(0), curvature.sum(0) + strength])
    return _Objective(value, gradient, hessian)


def _newton_step(current: _Objective, slope: Float64[Tensor, " C"]) -> Float64[Tensor, "2 C"]:
    """Return the Newton step. A slope at its bound, with a gradient that would lower it, stays there."""
    (g_slope, g_intercept), (ss, si, ii) = current.gradient, current.hessian
    # The Hessian is singular if all scores are equal, and 0 without known entries and without a prior.
    ss, ii = ss * (1 + 1e-9) + 1e-12, ii * (1 + 1e-9) + 1e-12
    determinant = ss * ii - si**2
    full = torch.stack([si * g_intercept - ii * g_slope, si * g_slope - ss * g_intercept]) / determinant
    at_bound = torch.stack([torch.zeros_like(g_slope), -g_intercept / ii])
    return torch.where((slope <= MIN_SLOPE) & (g_slope > 0), at_bound, full)


def fit_isotonic(z: Float64[np.ndarray, " N"], positive: Bool[np.ndarray, " N"]) -> Points:
    """Fit the non-decreasing function of z with the smallest squared error.

    It is returned as its corner points, and is constant beyond the outer ones. Probabilities are kept at least
    1 / (N + 2) away from 0 and 1, because no finite number of images proves that a class is never present. Without any
    images, the probability is 0.5.

    Reference: Zadrozny and Elkan, Transforming classifier scores into accurate multiclass probability estimates, 2002.

    >>> [part.round(2).tolist() for part in fit_isotonic(np.array([-1.0, 0.0, 1.0, 2.0]), np.array([0, 1, 0, 1]) == 1)]
    [[-1.0, 0.0, 1.0, 2.0], [0.17, 0.5, 0.5, 0.83]]
    """
    if not len(z):
        return np.zeros(1), np.full(1, 0.5)
    points, member, counts = np.unique(z, return_inverse=True, return_counts=True)
    means = np.bincount(member, weights=positive) / counts
    values = np.clip(isotonic_regression(means, weights=counts).x, 1 / (len(z) + 2), 1 - 1 / (len(z) + 2))
    changes = np.flatnonzero(np.diff(values))
    corners = np.unique([0, *changes, *(changes + 1), len(values) - 1])
    return points[corners], values[corners]


@dataclass(frozen=True)
class ClassCalibration:
    """The calibration and the threshold of one class.

    Attributes:
        kind: how scores become probabilities; `none` leaves them unchanged.
        positives: known positives among the held-out images.
        negatives: known negatives among them.
        log_loss_before: mean log loss of the raw scores on the held-out images; None if no label is known.
        log_loss_after: the same after calibration, cross-validated; None without several groups of images.
        threshold: the class is predicted if its probability is above this value.
        promised: whether the rule's guarantee holds for this class; None if the rule gives none.
        slope: with kind `sigmoid`, the probability is sigmoid(slope · z + intercept) for a score with logit z.
        intercept: see slope.
        logits: with kind `isotonic`, the probability is interpolated between these logits of the score.
        probabilities: the probabilities at these logits.
    """

    kind: Kind
    positives: int
    negatives: int
    log_loss_before: float | None
    log_loss_after: float | None
    threshold: float = 0.5
    promised: bool | None = None
    slope: float = 1.0
    intercept: float = 0.0
    logits: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_range(above=0, at_most=LARGEST, slope=self.slope)
        check_range(at_least=-LARGEST, at_most=LARGEST, intercept=self.intercept)
        check_range(at_least=0, at_most=1, threshold=self.threshold)
        if not np.isfinite((*self.logits, *self.probabilities)).all():
            raise ValueError("the parameters of a calibration must be finite numbers")
        if len(self.logits) != len(self.probabilities) or (self.kind == "isotonic") != bool(self.logits):
            raise ValueError("an isotonic calibration needs as many logits as probabilities, and others have none")
        if (np.diff(self.logits) < 0).any() or (np.diff(self.probabilities) < 0).any():
            raise ValueError("the logits and probabilities of an isotonic calibration must be in ascending order")
        if self.probabilities:
            check_range(at_least=0, at_most=1, first=self.probabilities[0], last=self.probabilities[-1])


@dataclass(frozen=True)
class Calibration:
    """Calibrated probabilities and thresholds for all classes of a model.

    Attributes:
        kind: the requested kind; with `isotonic`, classes with few positives have a sigmoid.
        thresholds: the rule that chose the thresholds, such as `balanced` or `recall:0.9`.
        predictions: name of the file in predictions/ with the held-out scores, without its suffix.
        images: number of held-out images.
        strength: strength of the prior toward the pooled sigmoid; None if all classes have the pooled sigmoid.
        classes: the calibration of each class, in the order of the scores.
    """

    kind: Kind
    thresholds: str
    predictions: HeldOutName
    images: int
    strength: float | None
    classes: Mapping[str, ClassCalibration]

    def probabilities(
        self, scores: Float[np.ndarray, "N C"], parents: Int[np.ndarray, "C"]
    ) -> Float64[np.ndarray, "N C"]:
        """Return the calibrated probabilities; that of a class is capped by its parent's (−1: it has no parent).

        They are in double precision, and above 1 − 2e-9 they approach 1 more slowly than a sigmoid. Otherwise,
        different scores could get the same probability.

        >>> cat = ClassCalibration("sigmoid", 10, 90, 0.5, 0.2, slope=2.0, intercept=-1.0)
        >>> calibration = Calibration("sigmoid", "balanced", "val", 100, 1.0, {"cat": cat})
        >>> calibration.probabilities(np.array([[0.5]]), np.array([-1])).round(4)
        array([[0.2689]])
        """
        z = logits(scores)
        slope, intercept = self._parameters
        probabilities = _sigmoid(z * slope + intercept)
        for column, fitted in enumerate(self.classes.values()):
            if fitted.kind == "isotonic":
                probabilities[:, column] = np.interp(z[:, column], fitted.logits, fitted.probabilities)
            elif fitted.kind == "none":
                probabilities[:, column] = scores[:, column]
        return cap_at_parents(probabilities, parents)

    @cached_property
    def _parameters(self) -> Float64[np.ndarray, "2 C"]:
        return np.array([[fitted.slope, fitted.intercept] for fitted in self.classes.values()]).T

    @property
    def threshold(self) -> Float64[np.ndarray, " C"]:
        """The threshold of each class."""
        return np.array([fitted.threshold for fitted in self.classes.values()])

    @property
    def few_positives(self) -> list[str]:
        """Classes with fewer than 10 held-out positives, whose thresholds are uncertain."""
        return [name for name, fitted in self.classes.items() if fitted.positives < MIN_POSITIVES]

    @property
    def not_promised(self) -> list[str]:
        """Classes with too few examples for the guarantee of the rule; their thresholds are the balanced ones."""
        return [name for name, fitted in self.classes.items() if fitted.promised is False]

    def summary(self) -> list[str]:
        """Return lines that describe the calibration and the thresholds."""
        before, after = self.log_loss
        change = "" if before is None or after is None else f": log loss {before:.3f} → {after:.3f}"
        lines = [f"calibrated on {counted(self.images, 'image')}{change}; thresholds: {self.thresholds}"]
        if self.kind == "none":
            lines = [f"not calibrated; thresholds: {self.thresholds}, fitted on {counted(self.images, 'image')}"]
        elif self.warning:
            lines = [f"warning: {self.warning}"]
        return [*lines, *self._notes()]

    @property
    def warning(self) -> str:
        """A warning if there are too few images to calibrate each class, otherwise ''."""
        few = self.kind != "none" and self.images < MIN_IMAGES
        return f"calibrated on {counted(self.images, 'image')}, too few for a curve per class" if few else ""

    def _notes(self) -> list[str]:
        notes, few = [], [name for name in self.few_positives if name not in self.not_promised]
        if self.not_promised:
            reason = "too few examples, or scores that are not good enough"
            classes = f"{counted(len(self.not_promised), 'class', 'classes')} ({reason})"
            names = listing(self.not_promised, LISTED)
            notes.append(f"note: {self.thresholds} cannot be promised for {classes}, so it is balanced for {names}")
        if few:
            classes = counted(len(few), "class has", "classes have")
            notes.append(
                f"note: {classes} fewer than {MIN_POSITIVES} positives for a threshold: {listing(few, LISTED)}"
            )
        if self.kind == "isotonic" and all(fitted.kind == "sigmoid" for fitted in self.classes.values()):
            notes.append("note: no class has enough positives for isotonic regression, so all have a sigmoid")
        if self.kind == "none" and self.thresholds in ("balanced", "f1"):
            notes.append(f"note: {self.thresholds} thresholds need calibrated probabilities; these may be far off")
        return notes

    @property
    def log_loss(self) -> tuple[float | None, float | None]:
        """The mean log loss over the known held-out entries, before and after calibration (cross-validated)."""
        fitted = list(self.classes.values())
        totals = [c.positives + c.negatives for c in fitted]
        means = []
        for losses in ([c.log_loss_before for c in fitted], [c.log_loss_after for c in fitted]):
            terms = [(loss, total) for loss, total in zip(losses, totals, strict=True) if loss is not None]
            means.append(sum(loss * n for loss, n in terms) / sum(n for _, n in terms) if terms else None)
        return means[0], means[1]


CALIBRATION_FILE = CALIBRATION.holding(Calibration)


def _sigmoid(x: Float64[np.ndarray, "N C"]) -> Float64[np.ndarray, "N C"]:
    """Return 1 / (1 + e⁻ˣ); beyond `STEEPEST`, x is replaced by a slowly growing function of it."""
    beyond = np.maximum(x - STEEPEST, 0)
    return np.asarray(expit(np.minimum(x, STEEPEST) + np.log1p(beyond)))
