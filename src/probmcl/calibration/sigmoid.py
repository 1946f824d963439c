"""Platt scaling: one sigmoid pooled over all classes, and one per class with a prior toward the pooled one."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

MIN_SLOPE = 0.01
"""Smallest slope, relative to the pooled fit. It is positive, so a sigmoid never changes a ranking."""

LOWEST, HIGHEST = 2.0**-150, 1 - 2.0**-25
"""Scores are clipped to this range, which contains every float32 number strictly between 0 and 1."""

MAX_STEPS, MAX_HALVINGS, TOLERANCE = 200, 60, 1e-8


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
