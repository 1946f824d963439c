"""Simulated scores with labels, and sigmoids that are fitted to them by a general optimizer."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit

from probmcl.calibration.maps import MIN_SLOPE
from probmcl.evaluation.scores import ScoredRows

Array = npt.NDArray[Any]


def simulated_rows(
    images: int = 200, classes: int = 4, *, slope: Any = 0.7, intercept: Any = -1.0, unknown: float = 0.2, seed: int = 0
) -> ScoredRows:
    """Draw scores with logits z, and labels that are present with probability sigmoid(slope · z + intercept).

    `slope` and `intercept` are numbers or one number per class. A fraction `unknown` of the labels is not known.
    """
    generator = np.random.default_rng(seed)
    z = generator.normal(scale=2, size=(images, classes))
    labels = generator.random(z.shape) < expit(z * slope + intercept)
    known = generator.random(z.shape) >= unknown
    return ScoredRows(expit(z).astype(np.float32), labels.astype(np.float32), known)


def flip_unknown(rows: ScoredRows) -> ScoredRows:
    """Invert the labels that are not known, which must not change any result."""
    return replace(rows, labels=np.where(rows.known, rows.labels, 1 - rows.labels))


def smoothed_targets(positive: npt.NDArray[np.bool_]) -> Array:
    """Return the targets of Platt scaling."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    return np.where(positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))


def minimize_log_loss(u: Array, targets: Array, strength: float = 0.0) -> Array:
    """Return the slope and intercept that minimize the log loss with a Gaussian prior toward 1 and 0."""
    if strength == np.inf:
        return np.array([1.0, 0.0])

    def objective(parameters: Array) -> tuple[float, Array]:
        x, distance = parameters[0] * u + parameters[1], parameters - [1, 0]
        residual = expit(x) - targets
        value = (np.logaddexp(0, x) - targets * x).sum() + strength / 2 * distance @ distance
        return value, np.array([residual @ u, residual.sum()]) + strength * distance

    bounds, options = [(MIN_SLOPE, None), (None, None)], {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000}
    start = np.array([MIN_SLOPE, 0.0])  # a large slope would start where the gradient vanishes
    result: Array = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return result
