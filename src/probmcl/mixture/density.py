"""A Gaussian mixture for every image, p(z|x) of ProbMCL, Eq. 1: its density, its network and its components."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from probmcl.runtime.precision import at_least_float32, full_precision, to_float64

Activation = Literal["relu", "none"]
Floor = Literal["variance", "deviation"]
Initialization = Literal["paper", "torch"]

LEFT_OUT = {torch.float32: 1e-8, torch.float64: 1e-17}
"""Largest sum of the norms of all components that are left out, relative to the largest norm."""


@dataclass(frozen=True, eq=False)
class IsotropicMixture:
    """M mixtures of C isotropic Gaussians in `dim` dimensions.

    p_i(z) = Σ_k π_ik N(z; m_ik, v_ik I), where log π_ik is `log_weight`, v_ik is `variance`, and `mean` is either the
    scalar μ_ik of the paper, which stands for the vector m_ik = μ_ik·1, or m_ik itself (then dim is its size).

    Reference: ProbMCL, Eq. 1.

    >>> one = IsotropicMixture(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), dim=2)
    >>> one.log_prob(torch.zeros(1, 2))  # minus log 2π
    tensor([-1.8379])
    """

    log_weight: Float[Tensor, "M C"]
    mean: Float[Tensor, "M C"] | Float[Tensor, "M C d"]
    variance: Float[Tensor, "M C"]
    dim: int

    def __post_init__(self) -> None:
        shape = self.log_weight.shape
        if self.variance.shape != shape or self.mean.shape[:2] != shape:
            raise ValueError(
                f"log_weight {tuple(shape)}, mean {tuple(self.mean.shape)} and variance {tuple(self.variance.shape)} "
                "must agree in rows and components"
            )
        if self.has_vector_means and self.mean.shape[2] != self.dim:
            raise ValueError(
                f"means of size {self.mean.shape[2]} in a mixture of dim={self.dim}; the two must be equal"
            )
        for name in ("log_weight", "mean", "variance"):
            object.__setattr__(self, name, at_least_float32(getattr(self, name)))

    @property
    def has_vector_means(self) -> bool:
        """Whether each component has a mean vector of its own, not the paper's μ·1."""
        return self.mean.ndim == 3

    @full_precision
    def log_prob(self, z: Float[Tensor, "M n"]) -> Float[Tensor, "M"]:
        """Logarithm of the density of row i's mixture at row i of z.

        log p(z) = logsumexp_k [ log π_k − (n/2) log(2π v_k) − ‖z − m_k‖² / 2v_k ].

        >>> p = IsotropicMixture(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2), dim=1)
        >>> p.log_prob(torch.zeros(1, 1)).exp()  # the normal density at distance one
        tensor([0.2420])
        """
        if z.shape[1] != self.dim:
            raise ValueError(f"z has {z.shape[1]} dimensions, the mixture {self.dim}")
        if self.has_vector_means:
            squared_distance = (z[:, None] - self.mean).square().sum(2)
        else:
            # Pythagoras with the direction 1/√n: ‖z − μ1‖² = ‖z − z̄1‖² + n (z̄ − μ)². No (M, C, n) tensor, and none of
            # the cancellation of ‖z‖² − 2μ(1·z) + nμ².
            center = z.mean(1, keepdim=True)
            squared_distance = (z - center).square().sum(1, keepdim=True) + self.dim * (center - self.mean).square()
        # In float64: (n/2) log v reaches thousands, of which the digits after the point decide between components.
        variance = to_float64(self.variance)
        log_normal = -0.5 * (self.dim * (2 * math.pi * variance).log() + squared_distance / variance)
        return (self.log_weight + log_normal).logsumexp(1).to(squared_distance.dtype)

    def effective_components(self) -> Float[Tensor, "M"]:
        """How many components carry the weight: inverse Simpson index 1 / Σ_k π_k², from 1 to C.

        >>> even = torch.full((1, 4), 0.25)
        >>> IsotropicMixture(even.log(), torch.zeros(1, 4), torch.ones(1, 4), dim=1).effective_components()
        tensor([4.])
        """
        return torch.exp(-(2 * self.log_weight).logsumexp(1))


class MixtureDensityNetwork(nn.Module):
    """Maps a feature h(x) to a Gaussian mixture with one component for each class.

    Hidden layers (2048 and 128 units in the paper; without any, the heads are linear in h), then three heads: the
    weights π by softmax, the means μ as they come, the variances by ELU(a) + 2, which is never below one.

    Reference: ProbMCL, section 2.1, "Mixture Density Network", and section 3.1 for the initialization.

    Args:
        in_features: size D of the feature.
        classes: number C of components.
        dim: dimensions of the space the mixture lives in; by default D, the paper's z = h. With `mean_size`, that.
        mean_size: None for the paper's scalar means μ·1, or the size d of a mean vector for each component.
        hidden: sizes of the hidden layers.
        activation: what follows each hidden layer. The text points to heads with ReLU, the figure draws none.
        floor: what ELU(a) + 2 is: the variance (the paper's "for the variances") or the standard deviation.
        initialization: of the mean and variance heads; `paper` is `initialize_as_paper`, `torch` keeps PyTorch's draw.

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
            raise ValueError(f"mean vectors of size {mean_size} live in {mean_size} dimensions, not dim={dim}")
        self.dim = mean_size or dim or in_features
        self.mean_size = mean_size
        self.floor = floor
        sizes = (in_features, *hidden)
        self.hidden = nn.Sequential(*_layers(sizes, activation))
        self.hidden_features = sizes[-1]
        self.weight_head = nn.Linear(sizes[-1], classes)
        self.mean_head = nn.Linear(sizes[-1], classes * (mean_size or 1))
        self.variance_head = nn.Linear(sizes[-1], classes)
        if initialization == "paper":
            initialize_as_paper(self.mean_head, self.variance_head)

    def forward(self, h: Float[Tensor, "M D"]) -> IsotropicMixture:
        """The mixture of each row."""
        return self.mixture(self.hidden(h))

    @full_precision
    def mixture(self, hidden: Float[Tensor, "M K"]) -> IsotropicMixture:
        """The three heads, on the output of `hidden`."""
        mean = self.mean_head(hidden)
        if self.mean_size is not None:
            mean = mean.unflatten(1, (-1, self.mean_size))
        variance = floored_variance(self.variance_head(hidden), self.floor)
        return IsotropicMixture(self.weight_head(hidden).log_softmax(1), mean, variance, self.dim)


def initialize_as_paper(mean_head: nn.Linear, variance_head: nn.Linear) -> None:
    """Draw mean weights from U(0, 0.1) and set variance weights to 1, both biases to 0 (ProbMCL, section 3.1)."""
    nn.init.uniform_(mean_head.weight, 0.0, 0.1)
    nn.init.ones_(variance_head.weight)
    for head in (mean_head, variance_head):
        nn.init.zeros_(head.bias)


def floored_variance(raw: Float[Tensor, "*shape"], floor: Floor) -> Float[Tensor, "*shape"]:
    """Variances of at least one from any numbers: ELU(a) + 2, or its square.

    >>> import torch
    >>> floored_variance(torch.tensor([0.0, 1.0]), "deviation")
    tensor([4., 9.])
    """
    floored = nn.functional.elu(raw) + 2
    return floored if floor == "variance" else floored.square()


def _layers(sizes: Sequence[int], activation: Activation) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers.append(nn.Linear(inputs, outputs))
        if activation == "relu":
            layers.append(nn.ReLU())
    return layers


class Components(NamedTuple):
    """K components in each of M rows: ω = log ‖π_k N_k‖ up to a constant in each row, μ_k and v_k."""

    log_norm: Float[Tensor, "M K"]
    mean: Float[Tensor, "M K"]
    variance: Float[Tensor, "M K"]


def check_same_space(p: IsotropicMixture, q: IsotropicMixture) -> None:
    """Refuse mixtures that cannot be compared."""
    sizes = [(m.variance.shape[1], m.dim) for m in (p, q)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            "mixtures of {} components in {} dimensions and of {} in {} differ".format(*sizes[0], *sizes[1])
        )


def log_norms(p: IsotropicMixture) -> Float[Tensor, "M C"]:
    """Logarithm of ‖π_k N_k‖ up to a constant in each row, which every similarity here divides out; its maximum is 0.

    In float64: (n/4) log v reaches thousands, of which the digits after the point are the ones that count.
    """
    log_norm = to_float64(p.log_weight) - p.dim / 4 * to_float64(p.variance).log()
    return log_norm - log_norm.amax(1, keepdim=True).detach()


def components_that_count(p: IsotropicMixture, dtype: torch.dtype) -> Components:
    """The components of scalar means without those whose norm is next to nothing; as many in each row.

    A weight is π_k σ_k^(−n/2): in many dimensions the narrow components leave nothing to the others, and what is
    computed over pairs or nodes gets cheaper by as much.
    """
    log_norm: Tensor = _ScaleFree.apply(log_norms(p))  # type: ignore[no-untyped-call]
    everything = Components(log_norm.to(dtype), p.mean.to(dtype), p.variance.to(dtype))
    rows, components = log_norm.shape
    if rows == 0 or components == 1:
        return everything
    count = (log_norm > math.log(LEFT_OUT[dtype] / components)).sum(1).amax()
    most = max(8, math.ceil(int(count) / 8) * 8)
    if most > 0.8 * components:
        return everything
    heaviest = everything.log_norm.topk(most).indices
    log_norm, mean, variance = (x.gather(1, heaviest) for x in everything)
    return Components(log_norm + 0 * p.mean.sum(1, keepdim=True), mean, variance)  # a mean that is NaN must propagate


def spread(v_a: Tensor, v_b: Tensor) -> Tensor:
    """How far two variances are apart: −½ log(2σσ'/S), without logarithm of a number near one.

    2σσ'/S = (1 − t)/(1 + t) with t = ((σ − σ')/(σ + σ'))², hence ½ log = −atanh t.
    """
    return torch.atanh(((v_a - v_b) / (v_a.sqrt() + v_b.sqrt()).square()).square())


def at_most_one(similarity: Tensor) -> Tensor:
    """Take off what rounding put above one, and leave the gradient alone (a clamp would make it zero there)."""
    return similarity - (similarity - 1).clamp(min=0).detach()


def of_nothing(p: IsotropicMixture, q: IsotropicMixture) -> Float[Tensor, "M P"]:
    """The similarities where a side has no rows: no numbers, but of the right shape and with gradients of their own."""
    sums = [x.flatten(1).sum(1)[:, None] for m in (p, q) for x in (m.log_weight, m.mean, m.variance)]
    return sum(sums[:3]) * sum(sums[3:]).T  # type: ignore[union-attr]  # a sum of tensors


def one_with_itself(similarity: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """Put ones on the diagonal, which pull nowhere: what rounding made of them would."""
    diagonal = similarity.diagonal()
    return similarity - torch.diag(diagonal - torch.where(diagonal.isnan(), diagonal, 1).detach())


def slices(length: int, step: int) -> list[slice]:
    """One after the other, of `step` each; the last one may be shorter.

    >>> slices(5, 3)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


class _ScaleFree(torch.autograd.Function):
    """Log-norms that only count relative to each other within a row.

    The gradient of anything scale-free sums to zero over a row. What rounding leaves of that sum is taken off.
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
