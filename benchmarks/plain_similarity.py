"""What `similarity.py` compares with: the paper's similarity as one would write it, and the same with little memory.

Nothing here is the package's but the mixture.
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
"""Rows times components of a tile, along either side."""


def log_inner(p: IsotropicMixture, q: IsotropicMixture) -> Tensor:
    """Logarithm of ∫pq = Σ_kl π_k π'_l N(μ_k·1; μ'_l·1, (v_k + v'_l) I) for all pairs of rows, as one writes it."""
    variance = p.variance[:, None, :, None] + q.variance[None, :, None, :]  # (M, P, C, C)
    distance = p.dim * (p.mean[:, None, :, None] - q.mean[None, :, None, :]).square()
    log_normal = -0.5 * (p.dim * (2 * math.pi * variance).log() + distance / variance)
    return (p.log_weight[:, None, :, None] + q.log_weight[None, :, None, :] + log_normal).flatten(2).logsumexp(2)


def from_inner(inner: Tensor) -> Tensor:
    """∫pq / √(∫p² ∫q²) from the logarithms of the integrals."""
    own = inner.diagonal() / 2
    return (inner - own[:, None] - own).exp()


def naive(p: IsotropicMixture) -> Tensor:
    """The similarity by plain autograd."""
    return from_inner(log_inner(p, p))


def truth(p: IsotropicMixture) -> Tensor:
    """The same a few components at a time: for float64, and for any number of them."""
    inner: Tensor = TiledInner.apply(p.dim, p.log_weight, p.mean, p.variance)  # type: ignore[no-untyped-call]
    return from_inner(inner)


class TiledInner(torch.autograd.Function):
    """`log_inner` of mixtures with themselves, of which autograd sees one tile of components at a time."""

    @staticmethod
    def forward(ctx: Any, dim: int, *parameters: Tensor) -> Tensor:
        """Log-sum-exp over the tiles, and over the mirror images of those off the diagonal."""
        inner = parameters[0].new_full((len(parameters[0]),) * 2, -math.inf)
        for a, b in tiles(parameters[0]):
            part = tile([x[:, a] for x in parameters], [x[:, b] for x in parameters], dim)
            torch.logaddexp(inner, part if a == b else torch.logaddexp(part, part.T), out=inner)
        ctx.dim = dim
        ctx.save_for_backward(inner, *parameters)
        return inner

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Each part pulls by its share."""
        inner, *parameters = ctx.saved_tensors
        pulls = [torch.zeros_like(x) for x in parameters]
        for a, b in tiles(parameters[0]):
            sides = [[x[:, part].detach().requires_grad_() for x in parameters] for part in (a, b)]
            with torch.enable_grad():
                part = tile(sides[0], sides[1], ctx.dim)
            share = (part.detach() - inner).exp() * (grad if a == b else grad + grad.T)
            found = torch.autograd.grad(part, [*sides[0], *sides[1]], share)
            for k, pull in enumerate(pulls):
                pull[:, a] += found[k]
                pull[:, b] += found[k + 3]
        return None, *pulls


def tile(a: list[Tensor], b: list[Tensor], dim: int) -> Tensor:
    """`log_inner` of some components with some others."""
    return log_inner(IsotropicMixture(a[0], a[1], a[2], dim), IsotropicMixture(b[0], b[1], b[2], dim))


def tiles(like: Tensor) -> Iterator[tuple[slice, slice]]:
    """Components against components, on one side of the diagonal."""
    step = max(1, TILE // len(like))
    slices = [slice(k, k + step) for k in range(0, like.shape[1], step)]
    return itertools.combinations_with_replacement(slices, 2)
