"""Isotonic regression of labels on the logits of scores."""

import numpy as np
from jaxtyping import Bool, Float64
from scipy.optimize import isotonic_regression

Points = tuple[Float64[np.ndarray, " K"], Float64[np.ndarray, " K"]]
"""Logits and probabilities to interpolate between."""


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
