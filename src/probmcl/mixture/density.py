"""ProbMCL's Gaussian mixtures p(z|x), Eq. 1: density, mixture density network and components."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from probmcl.errors import counted
from probmcl.runtime.precision import at_least_float32, full_precision, to_float64

Activation = Literal["relu", "none"]
Floor = Literal["variance", "deviation"]
Initialization = Literal["paper", "torch"]

PRUNED_NORM = {torch.float32: 1e-8, torch.float64: 1e-17}
"""Upper bound on the total norm of the components pruned from a row, relative to the largest norm in the row."""


@dataclass(frozen=True, eq=False)
class IsotropicMixture:
    """M mixtures of C isotropic Gaussians in `dim` dimensions.

    p_i(z) = Σ_k π_ik N(z; m_ik, v_ik I), where log π_ik is `log_weight` and v_ik is `variance`. `mean` is either the
    paper's scalar μ_ik, with m_ik = μ_ik·1, or the vector m_ik, whose size must be `dim`.

    Reference: ProbMCL, Eq. 1.

    >>> one = IsotropicMixture(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), dim=2)
    >>> one.log_prob(torch.zeros(1, 2))  # −log 2π
    tensor([-1.8379])
    """

    log_weight: Float[Tensor, "M C"]
    mean: Float[Tensor, "M C"] | Float[Tensor, "M C d"]
    variance: Float[Tensor, "M C"]
    dim: int

    def __post_init__(self) -> None:
        shape = self.log_weight.shape
        shapes_match = self.variance.shape == shape and self.mean.shape[:2] == shape
        if not shapes_match:
            raise ValueError(
                f"log_weight {tuple(shape)}, mean {tuple(self.mean.shape)} and variance {tuple(self.variance.shape)} "
                "must have matching numbers of rows and components"
            )
        if self.has_vector_means and self.mean.shape[2] != self.dim:
            raise ValueError(
                f"the size of the mean vectors must equal `dim`; got size {self.mean.shape[2]} and dim={self.dim}"
            )
        for name in ("log_weight", "mean", "variance"):
            converted = at_least_float32(getattr(self, name))
            object.__setattr__(self, name, converted)  # the only way to set a field of a frozen dataclass

    @property
    def has_vector_means(self) -> bool:
        """True if the means are vectors, False if they are the paper's scalars μ."""
        return self.mean.ndim == 3

    @full_precision
    def log_prob(self, z: Float[Tensor, "M n"]) -> Float[Tensor, "M"]:
        """Return the log-density of mixture i at row i of z.

        log p(z) = logsumexp_k [ log π_k − (n/2) log(2π v_k) − ‖z − m_k‖² / 2v_k ].

        >>> p = IsotropicMixture(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2), dim=1)
        >>> p.log_prob(torch.zeros(1, 1)).exp()  # density of N(0, 1) at 1
        tensor([0.2420])
        """
        if z.shape[1] != self.dim:
            raise ValueError(f"z has {counted(z.shape[1], 'dimension')}, but the mixture has {self.dim}")
        if self.has_vector_means:
            squared_distance = (z[:, None] - self.mean).square().sum(2)
        else:
            # ‖z − μ1‖² = ‖z − z̄1‖² + n (z̄ − μ)² needs no (M, C, n) tensor and avoids the cancellation in
            # ‖z‖² − 2μ(1·z) + nμ².
            center = z.mean(1, keepdim=True)  # z̄
            across_line = (z - center).square().sum(1, keepdim=True)
            squared_distance = across_line + self.dim * (center - self.mean).square()
        # float64, because (n/2) log v can reach thousands and only its decimals distinguish the components.
        variance = to_float64(self.variance)
        log_normal = -0.5 * (self.dim * (2 * math.pi * variance).log() + squared_distance / variance)
        log_density = (self.log_weight + log_normal).logsumexp(1)
        return log_density.to(squared_distance.dtype)

    def effective_components(self) -> Float[Tensor, "M"]:
        """Return the effective number of components: the inverse Simpson index 1 / Σ_k π_k², from 1 to C.

        >>> even = torch.full((1, 4), 0.25)
        >>> IsotropicMixture(even.log(), torch.zeros(1, 4), torch.ones(1, 4), dim=1).effective_components()
        tensor([4.])
        """
        log_sum_of_squares = (2 * self.log_weight).logsumexp(1)
        return torch.exp(-log_sum_of_squares)


class MixtureDensityNetwork(nn.Module):
    """Mixture density network that maps a feature h(x) to a Gaussian mixture with one component per class.

    The hidden layers (2048 and 128 units in the paper) are followed by three linear heads: a softmax gives the weights
    π, the means μ have no activation, and ELU(a) + 2 gives variances of at least one.

    Reference: ProbMCL, section 2.1, "Mixture Density Network", and section 3.1 for the initialization.

    Args:
        in_features: size D of the feature.
        classes: number C of components.
        dim: dimension of z; defaults to `mean_size` if given, otherwise to D (the paper's z = h).
        mean_size: size d of the mean vectors, or None for the paper's scalar means μ·1.
        hidden: sizes of the hidden layers; if empty, the heads are linear in h.
        activation: activation after each hidden layer. The paper's text suggests ReLU; its figure shows none.
        floor: whether ELU(a) + 2 is the variance ("for the variances" in the paper) or the standard deviation.
        initialization: `paper` applies `initialize_as_paper` to two of the heads; `torch` keeps PyTorch's default.

    >>> import torch
    >>> network = MixtureDensityNetwork(in_features=8, classes=3, hidden=(16,))
    >>> mixture = network(torch.zeros(2, 8))
    >>> mixture.mean.shape, mixture.dim, bool((mixture.variance >= 1).all())
    (torch.Size([2, 3]), 8, True)
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        dim: int | None = None,
        mean_size: int | None = None,
        hidden: Sequence[int] = (2048, 128),
        activation: Activation = "relu",
        floor: Floor = "variance",
        initialization: Initialization = "paper",
    ) -> None:
        super().__init__()
        if mean_size is not None and dim not in (None, mean_size):
            raise ValueError(f"`dim` must equal `mean_size`; got dim={dim} and mean_size={mean_size}")
        self.dim = mean_size or dim or in_features
        self.mean_size = mean_size
        self.floor = floor
        sizes = (in_features, *hidden)
        numbers_per_mean = mean_size or 1
        self.hidden = nn.Sequential(*_hidden_layers(sizes, activation))
        self.hidden_features = sizes[-1]
        self.weight_head = nn.Linear(self.hidden_features, classes)
        self.mean_head = nn.Linear(self.hidden_features, classes * numbers_per_mean)
        self.variance_head = nn.Linear(self.hidden_features, classes)
        if initialization == "paper":
            initialize_as_paper(self.mean_head, self.variance_head)

    def forward(self, h: Float[Tensor, "M D"]) -> IsotropicMixture:
        """Return the mixture of each row."""
        return self.mixture(self.hidden(h))

    @full_precision
    def mixture(self, hidden: Float[Tensor, "M K"]) -> IsotropicMixture:
        """Apply the three heads to the output of `hidden`."""
        mean = self.mean_head(hidden)
        if self.mean_size is not None:
            mean = mean.unflatten(1, (-1, self.mean_size))  # (M, C, d)
        variance = floored_variance(self.variance_head(hidden), self.floor)
        log_weight = self.weight_head(hidden).log_softmax(1)
        return IsotropicMixture(log_weight, mean, variance, self.dim)


def initialize_as_paper(mean_head: nn.Linear, variance_head: nn.Linear) -> None:
    """Draw mean weights from U(0, 0.1), set variance weights to 1 and both biases to 0 (ProbMCL, section 3.1)."""
    nn.init.uniform_(mean_head.weight, 0.0, 0.1)
    nn.init.ones_(variance_head.weight)
    for head in (mean_head, variance_head):
        nn.init.zeros_(head.bias)


def floored_variance(raw: Float[Tensor, "*shape"], floor: Floor) -> Float[Tensor, "*shape"]:
    """Map unconstrained values to variances of at least one: ELU(a) + 2, or its square.

    >>> import torch
    >>> floored_variance(torch.tensor([0.0, 1.0]), "deviation")
    tensor([4., 9.])
    """
    at_least_one = nn.functional.elu(raw) + 2
    if floor == "deviation":
        return at_least_one.square()
    return at_least_one


def _hidden_layers(sizes: Sequence[int], activation: Activation) -> list[nn.Module]:
    """Return one linear layer for each pair of consecutive sizes, each followed by its activation if there is one."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers.append(nn.Linear(inputs, outputs))
        if activation == "relu":
            layers.append(nn.ReLU())
    return layers


class Components(NamedTuple):
    """K components in each of M rows: ω_k = log ‖π_k N_k‖ up to a constant per row, μ_k and v_k."""

    log_norm: Float[Tensor, "M K"]  # ω
    mean: Float[Tensor, "M K"]  # the paper's scalar μ
    variance: Float[Tensor, "M K"]


def check_same_space(p: IsotropicMixture, q: IsotropicMixture) -> None:
    """Raise ValueError if two sets of mixtures differ in dimension or number of components."""
    components_p, components_q = p.variance.shape[1], q.variance.shape[1]
    if components_p == components_q and p.dim == q.dim:
        return
    space_p = f"{counted(components_p, 'component')} in {counted(p.dim, 'dimension')}"
    space_q = f"{counted(components_q, 'component')} in {counted(q.dim, 'dimension')}"
    raise ValueError(f"cannot compare mixtures of {space_p} with mixtures of {space_q}")


def log_norms(p: IsotropicMixture) -> Float[Tensor, "M C"]:
    """Return log ‖π_k N_k‖, shifted so that the maximum of each row is 0; similarities do not depend on the shift.

    The result is float64, because (n/4) log v can reach thousands and its decimals matter.
    """
    log_norm = to_float64(p.log_weight) - p.dim / 4 * to_float64(p.variance).log()
    return log_norm - log_norm.amax(1, keepdim=True).detach()


def prune_components(p: IsotropicMixture, dtype: torch.dtype) -> Components:
    """Drop components with negligible norm from mixtures with scalar means, keeping the same number in each row.

    Norms are proportional to π_k σ_k^(−n/2). In many dimensions, a few narrow components dominate, so pruning makes
    computations over pairs or nodes much cheaper. The number of kept components is a multiple of 8. Nothing is dropped
    if that would save less than a fifth of the components.
    """
    # The values are those of `log_norms`. The function only removes rounding errors from their gradient.
    log_norm: Tensor = _ScaleFree.apply(log_norms(p))  # type: ignore[no-untyped-call]
    unpruned = Components(log_norm.to(dtype), p.mean.to(dtype), p.variance.to(dtype))
    rows, components = log_norm.shape
    if rows == 0 or components == 1:
        return unpruned
    # The largest norm of each row is 1. The norms of all dropped components then add up to at most PRUNED_NORM.
    matters = log_norm > math.log(PRUNED_NORM[dtype] / components)
    most_in_a_row = int(matters.sum(1).amax())
    kept = max(8, math.ceil(most_in_a_row / 8) * 8)
    if kept > 0.8 * components:
        return unpruned
    heaviest = unpruned.log_norm.topk(kept).indices  # (M, K)
    pruned = Components._make(x.gather(1, heaviest) for x in unpruned)
    nan_of_dropped_means = 0 * p.mean.sum(1, keepdim=True)  # a NaN must reach the similarity, also from a dropped mean
    return pruned._replace(log_norm=pruned.log_norm + nan_of_dropped_means)


def variance_term(v_a: Tensor, v_b: Tensor) -> Tensor:
    """Return −½ log(2σσ'/S), S = v + v', without taking the logarithm of a number close to one.

    2σσ'/S = (1 − t)/(1 + t) with t = ((σ − σ')/(σ + σ'))², hence ½ log = −atanh t. The ratio is computed as
    (v − v')/(σ + σ')², because the difference of two rounded roots has fewer correct digits.
    """
    ratio = (v_a - v_b) / (v_a.sqrt() + v_b.sqrt()).square()
    return torch.atanh(ratio.square())


def cap_at_one(similarity: Tensor) -> Tensor:
    """Cap values that rounding pushed above one, without the zero gradient of a clamp."""
    excess = (similarity - 1).clamp(min=0).detach()
    return similarity - excess


def empty_similarity(p: IsotropicMixture, q: IsotropicMixture) -> Float[Tensor, "M P"]:
    """Return an empty similarity matrix for mixtures without rows, connected to the autograd graph.

    The product of a column of p and a row of q has the right shape and depends on every parameter. p, q or both have no
    rows, so the matrix has no elements.
    """
    return _sum_of_parameters(p) * _sum_of_parameters(q).T


def _sum_of_parameters(p: IsotropicMixture) -> Float[Tensor, "M 1"]:
    """Return the sum of all parameters of each mixture."""
    log_weight, mean, variance = (x.flatten(1).sum(1, keepdim=True) for x in (p.log_weight, p.mean, p.variance))
    return log_weight + mean + variance


def set_diagonal_to_one(similarity: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """Set the diagonal to a constant 1, so its rounding errors contribute no gradient; NaNs are kept."""
    diagonal = similarity.diagonal()
    target = torch.where(diagonal.isnan(), diagonal, 1).detach()
    return similarity - torch.diag(diagonal - target)


def slices(length: int, step: int) -> list[slice]:
    """Return consecutive slices of `step` elements that cover `length` elements; the last slice may be shorter.

    >>> slices(5, 3)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


class _ScaleFree(torch.autograd.Function):
    """Identity on log-norms whose backward pass makes the gradient of each row sum to zero.

    Adding a constant to a row does not change similarities, so a nonzero sum is a rounding error.
    """

    @staticmethod
    def forward(ctx: Any, log_norm: Tensor) -> Tensor:
        ctx.save_for_backward(log_norm.softmax(1))
        return log_norm.view_as(log_norm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (share,) = ctx.saved_tensors
        corrected: Tensor = grad - share * grad.sum(1, keepdim=True)
        return corrected
