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
    """Draw scores sigmoid(z), and labels that are present with probability sigmoid(slope · z + intercept).

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
    """Return the targets of Platt scaling, which are not quite 0 and 1."""
    positives = int(positive.sum())
    negatives = int((~positive).sum())
    return np.where(positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))


def minimize_log_loss(u: Array, targets: Array, strength: float = 0.0) -> Array:
    """Return the slope and intercept that minimize the log loss with a Gaussian prior toward 1 and 0.

    Args:
        u: logits.
        targets: target probability of each logit.
        strength: strength of the prior.
    """
    prior_mean = np.array([1.0, 0.0])
    if strength == np.inf:
        return prior_mean

    def loss_and_gradient(parameters: Array) -> tuple[float, Array]:
        slope, intercept = parameters
        logit = slope * u + intercept
        from_prior = parameters - prior_mean
        residual = expit(logit) - targets
        loss = (np.logaddexp(0, logit) - targets * logit).sum() + strength / 2 * from_prior @ from_prior
        gradient = np.array([residual @ u, residual.sum()]) + strength * from_prior
        return loss, gradient

    start = np.array([MIN_SLOPE, 0.0])  # a large slope would start where the gradient vanishes
    bounds = [(MIN_SLOPE, None), (None, None)]
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000}
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    result: Array = found.x
    return result
