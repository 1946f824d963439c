"""Baselines for `similarity.py`: the paper's similarity in plain autograd, and a version that needs little memory.

Only the mixture class comes from probmcl.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from probmcl.mixture import IsotropicMixture

TILE = 1024
"""Rows times components along each side of a tile."""


def log_inner(p: IsotropicMixture, q: IsotropicMixture) -> Tensor:
    """Return the logarithm of ∫pq = Σ_kl π_k π'_l N(μ_k·1; μ'_l·1, (v_k + v'_l) I) for all pairs of rows."""
    variance = p.variance[:, None, :, None] + q.variance[None, :, None, :]  # (M, P, C, C)
    distance = p.dim * (p.mean[:, None, :, None] - q.mean[None, :, None, :]).square()
    log_normal = -0.5 * (p.dim * (2 * math.pi * variance).log() + distance / variance)
    return (p.log_weight[:, None, :, None] + q.log_weight[None, :, None, :] + log_normal).flatten(2).logsumexp(2)


def from_inner(inner: Tensor) -> Tensor:
    """Return ∫pq / √(∫p² ∫q²), from the logarithms of the integrals."""
    log_norm = inner.diagonal() / 2
    return (inner - log_norm[:, None] - log_norm).exp()


def naive(p: IsotropicMixture) -> Tensor:
    """Return the similarity, with plain autograd."""
    return from_inner(log_inner(p, p))


def truth(p: IsotropicMixture) -> Tensor:
    """Return the similarity, computed a few components at a time, so float64 works with any number of components."""
    inner: Tensor = TiledInner.apply(p.dim, p.log_weight, p.mean, p.variance)  # type: ignore[no-untyped-call]
    return from_inner(inner)


class TiledInner(torch.autograd.Function):
    """`log_inner` of mixtures with themselves, with autograd on one tile of components at a time."""

    @staticmethod
    def forward(ctx: Any, dim: int, *parameters: Tensor) -> Tensor:
        """Return the log-sum-exp over the tiles and over the transposes of the off-diagonal tiles."""
        inner = parameters[0].new_full((len(parameters[0]),) * 2, -math.inf)
        for a, b in tiles(parameters[0]):
            part = tile([x[:, a] for x in parameters], [x[:, b] for x in parameters], dim)
            torch.logaddexp(inner, part if a == b else torch.logaddexp(part, part.T), out=inner)
        ctx.dim = dim
        ctx.save_for_backward(inner, *parameters)
        return inner

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, summed over the tiles, each weighted by its share of the log-sum-exp."""
        inner, *parameters = ctx.saved_tensors
        gradients = [torch.zeros_like(x) for x in parameters]
        for a, b in tiles(parameters[0]):
            sides = [[x[:, part].detach().requires_grad_() for x in parameters] for part in (a, b)]
            with torch.enable_grad():
                part = tile(sides[0], sides[1], ctx.dim)
            share = (part.detach() - inner).exp() * (grad if a == b else grad + grad.T)
            tile_gradients = torch.autograd.grad(part, [*sides[0], *sides[1]], share)
            for k, gradient in enumerate(gradients):
                gradient[:, a] += tile_gradients[k]
                gradient[:, b] += tile_gradients[k + 3]
        return None, *gradients


def tile(a: list[Tensor], b: list[Tensor], dim: int) -> Tensor:
    """Return `log_inner` of two sets of components."""
    return log_inner(IsotropicMixture(a[0], a[1], a[2], dim), IsotropicMixture(b[0], b[1], b[2], dim))


def tiles(parameter: Tensor) -> Iterator[tuple[slice, slice]]:
    """Return pairs of component slices on and above the diagonal."""
    step = max(1, TILE // len(parameter))
    slices = [slice(k, k + step) for k in range(0, parameter.shape[1], step)]
    return itertools.combinations_with_replacement(slices, 2)
