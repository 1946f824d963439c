"""From scores to probabilities: Platt scaling and isotonic regression, and the calibration of a model."""

from collections.abc import Mapping, Sequence
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

LOWEST = 2.0**-150
"""Scores are at least this large. It is below the smallest positive float32 number."""

HIGHEST = 1 - 2.0**-25
"""Scores are at most this large. It is above the largest float32 number below 1."""

MAX_STEPS = 200
"""Most steps of Newton's method. A fit takes far fewer."""

MAX_HALVINGS = 60
"""Most times that one of Newton's steps is halved."""

TOLERANCE = 1e-8
"""An increase of the loss that may be due to rounding, and how far from its minimum a fit may end."""

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


class Points(NamedTuple):
    """Logits and probabilities to interpolate between."""

    logits: Float64[np.ndarray, " K"]
    probabilities: Float64[np.ndarray, " K"]


class LabeledLogits(NamedTuple):
    """The logits z of the scores of C classes for N images, with 0/1 labels and the mask of known labels."""

    z: Float64[Tensor, "N C"]
    labels: Shaped[Tensor, "N C"]
    known: Bool[Tensor, "N C"]

    def of_images(self, selected: Bool[Tensor, " N"]) -> "LabeledLogits":
        """Return the rows of the selected images."""
        return LabeledLogits(self.z[selected], self.labels[selected], self.known[selected])

    def of_class(self, column: int) -> tuple[Float64[np.ndarray, " K"], Bool[np.ndarray, " K"]]:
        """Return the logits of one class for the images whose label is known, and which of them are positive."""
        known = self.known[:, column]
        positive = self.labels[known, column] == 1
        return self.z[known, column].numpy(), positive.numpy()


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
    negative = known & ~positive
    positives = int(positive.sum())
    negatives = int(negative.sum())
    targets = torch.where(positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    loss = _PenalizedLoss(  # of a single class, without a prior
        u=z[:, None],
        targets=targets.double()[:, None],
        weight=known.double()[:, None],
        strength=0.0,
    )
    fitted = _minimize(loss, start=_identity(classes=1))  # (2, 1): slope and intercept
    return fitted[:, 0]


def fit_sigmoids(
    entries: LabeledLogits,
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
    pooled_fit = _identity(classes=entries.z.shape[1])
    if strength == float("inf"):
        return pooled_fit
    if start is None:
        start = pooled_fit
    pooled_slope, pooled_intercept = pooled
    positive = (entries.labels == 1) & entries.known
    loss = _PenalizedLoss(
        u=pooled_slope * entries.z + pooled_intercept,
        targets=positive.double(),
        weight=entries.known.double(),
        strength=strength,
    )
    return _minimize(loss, start, tolerance)


def compose(pooled: Float64[Tensor, "2"], relative: Float64[Tensor, "2 C"]) -> Sigmoid:
    """Return the sigmoids of z, from the pooled fit and the fits relative to it.

        α (a₀ z + b₀) + β = (α a₀) z + (α b₀ + β)

    where a₀ and b₀ are the pooled slope and intercept, and α and β those of a class.
    """
    pooled_slope, pooled_intercept = pooled
    alpha, beta = relative
    return Sigmoid(slope=alpha * pooled_slope, intercept=alpha * pooled_intercept + beta)


def _identity(classes: int) -> Float64[Tensor, "2 C"]:
    """Return the slope 1 and the intercept 0 for each class, which leave logits unchanged."""
    return torch.tensor([[1.0], [0.0]], dtype=torch.float64).repeat(1, classes)


class _Expansion(NamedTuple):
    """The loss of each class at some parameters, to second order: its value, gradient and Hessian (αα, αβ, ββ)."""

    value: Float64[Tensor, " C"]
    gradient: Float64[Tensor, "2 C"]
    hessian: Float64[Tensor, "3 C"]


@dataclass(frozen=True, eq=False)
class _PenalizedLoss:
    """The loss of C sigmoids as a function of their slopes α and intercepts β.

        Σ_i w_i · log loss(t_i, sigmoid(α u_i + β)) + strength / 2 · ((α − 1)² + β²)

    Attributes:
        u: the inputs of the sigmoids.
        targets: the targets t, between 0 and 1.
        weight: the weights w: 1 for known entries and 0 for the others.
        strength: the strength of the Gaussian prior toward α = 1 and β = 0.
    """

    u: Float64[Tensor, "N C"]
    targets: Float64[Tensor, "N C"]
    weight: Float64[Tensor, "N C"]
    strength: float

    def at(self, parameters: Float64[Tensor, "2 C"]) -> _Expansion:
        """Return the value, gradient and Hessian of the loss of each class, for its slope α and intercept β.

            Σ_i w_i · log loss(t_i, sigmoid(x_i)) + strength / 2 · ((α − 1)² + β²),   x_i = α u_i + β

        where u_i are the inputs, t_i the targets and w_i the weights of N images. The arrays of N · C numbers are
        multiplied by the weights in place, which limits memory.
        """
        slope, intercept = parameters
        x = self.u * slope + intercept
        decay = (-x.abs()).exp()  # e^−|x| cannot overflow; eˣ could

        losses = x.clamp(min=0) - self.targets * x + decay.log1p()  # log(1 + eˣ) − t x
        losses.mul_(self.weight)
        penalty = self.strength / 2 * ((slope - 1) ** 2 + intercept**2)
        value = losses.sum(0) + penalty

        p = torch.where(x >= 0, 1.0, decay) / (1 + decay)  # sigmoid(x)
        residual = p - self.targets
        residual.mul_(self.weight)
        slope_gradient = (residual * self.u).sum(0) + self.strength * (slope - 1)
        intercept_gradient = residual.sum(0) + self.strength * intercept

        curvature = p * (1 - p)
        curvature.mul_(self.weight)
        curvature_u = curvature * self.u
        slope_curvature = (curvature_u * self.u).sum(0) + self.strength
        mixed_curvature = curvature_u.sum(0)
        intercept_curvature = curvature.sum(0) + self.strength

        return _Expansion(
            value=value,
            gradient=torch.stack([slope_gradient, intercept_gradient]),
            hessian=torch.stack([slope_curvature, mixed_curvature, intercept_curvature]),
        )


def _minimize(
    loss: _PenalizedLoss, start: Float64[Tensor, "2 C"], tolerance: float = TOLERANCE
) -> Float64[Tensor, "2 C"]:
    """Minimize the loss of each class by Newton's method, with slopes of at least `MIN_SLOPE`.

    Before the last step, every class is within about `tolerance` of its minimum. Convergence is quadratic, so the
    error of the result is far smaller.
    """
    parameters = start
    current = loss.at(parameters)
    for _ in range(MAX_STEPS):
        step = _newton_step(current, slope=parameters[0])
        decrement = -(current.gradient * step).sum(0)  # about twice the distance of the loss from its minimum
        parameters, current = _descend(loss, parameters, current, step)
        if (decrement < tolerance).all():
            break
    return parameters


def _descend(
    loss: _PenalizedLoss, parameters: Float64[Tensor, "2 C"], current: _Expansion, step: Float64[Tensor, "2 C"]
) -> tuple[Float64[Tensor, "2 C"], _Expansion]:
    """Return the parameters after a step and the loss there.

    `current` is the loss at `parameters`. The step of a class is halved until its loss does not increase. If it still
    increases after the last halving, the class keeps its parameters.
    """
    for _ in range(MAX_HALVINGS):
        moved = parameters + step
        moved[0].clamp_(min=MIN_SLOPE)
        after = loss.at(moved)
        is_worse = after.value > current.value + TOLERANCE
        if not is_worse.any():
            return moved, after
        step = torch.where(is_worse, step / 2, step)
    kept = torch.where(is_worse, parameters, moved)
    kept_loss = _Expansion(
        value=torch.where(is_worse, current.value, after.value),
        gradient=torch.where(is_worse, current.gradient, after.gradient),
        hessian=torch.where(is_worse, current.hessian, after.hessian),
    )
    return kept, kept_loss


def _newton_step(current: _Expansion, slope: Float64[Tensor, " C"]) -> Float64[Tensor, "2 C"]:
    """Return the change of the slope α and the intercept β of each class in one step of Newton's method.

    The step is −H⁻¹ g, where g = (g_α, g_β) is the gradient and H = [[αα, αβ], [αβ, ββ]] the Hessian. A slope at its
    lower bound, with a gradient that would lower it, stays there; then only β changes, by −g_β / ββ.
    """
    g_alpha, g_beta = current.gradient
    exact_alpha_alpha, alpha_beta, exact_beta_beta = current.hessian
    # The exact Hessian is singular if all scores are equal, and 0 without known entries and without a prior.
    alpha_alpha = exact_alpha_alpha * (1 + 1e-9) + 1e-12
    beta_beta = exact_beta_beta * (1 + 1e-9) + 1e-12

    determinant = alpha_alpha * beta_beta - alpha_beta**2
    alpha_numerator = alpha_beta * g_beta - beta_beta * g_alpha
    beta_numerator = alpha_beta * g_alpha - alpha_alpha * g_beta
    full_step = torch.stack([alpha_numerator, beta_numerator]) / determinant
    step_at_bound = torch.stack([torch.zeros_like(g_alpha), -g_beta / beta_beta])

    is_at_bound = (slope <= MIN_SLOPE) & (g_alpha > 0)
    return torch.where(is_at_bound, step_at_bound, full_step)


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
        return Points(logits=np.zeros(1), probabilities=np.full(1, 0.5))
    distinct, member, counts = np.unique(z, return_inverse=True, return_counts=True)
    frequencies = np.bincount(member, weights=positive) / counts
    fitted = isotonic_regression(frequencies, weights=counts).x
    margin = 1 / (len(z) + 2)
    probabilities = np.clip(fitted, margin, 1 - margin)

    # Corners are both ends, and the points before and after each change. In between, interpolation gives the others.
    before_change = np.flatnonzero(np.diff(probabilities))
    ends = [0, len(probabilities) - 1]
    corners = np.unique(np.concatenate([ends, before_change, before_change + 1]))
    return Points(distinct[corners], probabilities[corners])


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
        self._check_points()

    def _check_points(self) -> None:
        """Raise `ValueError` if the logits and probabilities are not those of an isotonic regression."""
        points = (*self.logits, *self.probabilities)
        if not np.isfinite(points).all():
            raise ValueError("the parameters of a calibration must be finite numbers")
        has_points = bool(self.logits)
        needs_points = self.kind == "isotonic"
        if len(self.logits) != len(self.probabilities) or has_points != needs_points:
            raise ValueError("an isotonic calibration needs as many logits as probabilities, and others have none")
        if (np.diff(self.logits) < 0).any() or (np.diff(self.probabilities) < 0).any():
            raise ValueError("the logits and probabilities of an isotonic calibration must be in ascending order")
        if has_points:  # the probabilities between the first and the last are in the range too, because of the order
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
        slope, intercept = self._slopes_and_intercepts
        probabilities = _sigmoid(z * slope + intercept)  # (N, C); columns of another kind are replaced
        for column, fitted in enumerate(self.classes.values()):
            if fitted.kind == "isotonic":
                probabilities[:, column] = np.interp(z[:, column], fitted.logits, fitted.probabilities)
            elif fitted.kind == "none":
                probabilities[:, column] = scores[:, column]
        return cap_at_parents(probabilities, parents)

    @cached_property
    def _slopes_and_intercepts(self) -> Float64[np.ndarray, "2 C"]:
        """The slope of each class in the first row, and its intercept in the second."""
        slopes = [fitted.slope for fitted in self.classes.values()]
        intercepts = [fitted.intercept for fitted in self.classes.values()]
        return np.array([slopes, intercepts])

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
        return [self._first_line(), *self._notes()]

    def _first_line(self) -> str:
        """Return the line that describes the calibration as a whole."""
        images = counted(self.images, "image")
        if self.kind == "none":
            return f"not calibrated; thresholds: {self.thresholds}, fitted on {images}"
        if self.warning:
            return f"warning: {self.warning}"
        before, after = self.log_loss
        change = ""
        if before is not None and after is not None:
            change = f": log loss {before:.3f} → {after:.3f}"
        return f"calibrated on {images}{change}; thresholds: {self.thresholds}"

    @property
    def warning(self) -> str:
        """A warning if there are too few images to calibrate each class, otherwise ''."""
        if self.kind == "none" or self.images >= MIN_IMAGES:
            return ""
        return f"calibrated on {counted(self.images, 'image')}, too few for a curve per class"

    def _notes(self) -> list[str]:
        """Return one line for each limitation of the calibration or the thresholds."""
        notes = []
        without_guarantee = self.not_promised
        if without_guarantee:
            reason = "too few examples, or scores that are not good enough"
            classes = f"{counted(len(without_guarantee), 'class', 'classes')} ({reason})"
            names = listing(without_guarantee, LISTED)
            notes.append(f"note: {self.thresholds} cannot be promised for {classes}, so it is balanced for {names}")
        rare = [name for name in self.few_positives if name not in without_guarantee]
        if rare:
            classes = counted(len(rare), "class has", "classes have")
            names = listing(rare, LISTED)
            notes.append(f"note: {classes} fewer than {MIN_POSITIVES} positives for a threshold: {names}")
        all_sigmoid = all(fitted.kind == "sigmoid" for fitted in self.classes.values())
        if self.kind == "isotonic" and all_sigmoid:
            notes.append("note: no class has enough positives for isotonic regression, so all have a sigmoid")
        if self.kind == "none" and self.thresholds in ("balanced", "f1"):
            notes.append(f"note: {self.thresholds} thresholds need calibrated probabilities; these may be far off")
        return notes

    @property
    def log_loss(self) -> tuple[float | None, float | None]:
        """The mean log loss over the known held-out entries, before and after calibration (cross-validated)."""
        classes = self.classes.values()
        known = [fitted.positives + fitted.negatives for fitted in classes]
        before = _weighted_mean([fitted.log_loss_before for fitted in classes], known)
        after = _weighted_mean([fitted.log_loss_after for fitted in classes], known)
        return before, after


CALIBRATION_FILE = CALIBRATION.holding(Calibration)


def _weighted_mean(losses: Sequence[float | None], known: Sequence[int]) -> float | None:
    """Return the mean of the losses of the classes, weighted by their known entries; None if every loss is None."""
    measured = [(loss, count) for loss, count in zip(losses, known, strict=True) if loss is not None]
    if not measured:
        return None
    weighted_sum = sum(loss * count for loss, count in measured)
    return weighted_sum / sum(count for _, count in measured)


def _sigmoid(x: Float64[np.ndarray, "N C"]) -> Float64[np.ndarray, "N C"]:
    """Return 1 / (1 + e⁻ˣ); beyond `STEEPEST`, x is replaced by a slowly growing function of it."""
    beyond = np.maximum(x - STEEPEST, 0)
    compressed = np.minimum(x, STEEPEST) + np.log1p(beyond)
    return np.asarray(expit(compressed))
