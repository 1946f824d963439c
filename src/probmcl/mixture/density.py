"""A Gaussian mixture for every image: p(z|x) of ProbMCL, Eq. 1."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.runtime.precision import at_least_float32, full_precision, to_float64


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
