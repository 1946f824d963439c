"""KMCL's kernel mixtures, with one kernel per class: heads, kernels and their Bhattacharyya coefficients."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from probmcl.errors import counted
from probmcl.mixture.density import Initialization, floored_variance, initialize_as_paper, slices, variance_term
from probmcl.runtime.precision import at_least_float32, full_precision, to_float64

Covariance = Literal["isotropic", "anisotropic"]

BLOCK = 2**19
"""Maximum number of elements in a temporary tensor, which compares a few kernels with the kernels of all columns."""


@dataclass(frozen=True, eq=False)
class KernelMixture:
    """M mixtures of C kernels in `dim` dimensions, with independent sigmoid weights.

    Σ_k p_ik g_ik(z), with p_ik = sigmoid(`logit`) and g_ik(z) = exp[−½ Σ_t (z_t − m_ikt)² / v_ikt], where t runs over
    all dimensions. Kernels are not normalized: each is 1 at its mean. `mean` and `variance` have either d = dim
    coordinates (anisotropic) or d = 1, a single value for all dimensions (isotropic).

    Reference: KMCL, kernel mixture module.

    >>> one = KernelMixture(torch.zeros(1, 1), torch.zeros(1, 1, 1), torch.ones(1, 1, 1), dim=2)
    >>> one.log_kernels(torch.ones(1, 2))  # −½ (1 + 1)
    tensor([[-1.]], dtype=torch.float64)
    """

    logit: Float[Tensor, "M C"]
    mean: Float[Tensor, "M C d"]
    variance: Float[Tensor, "M C d"]
    dim: int

    def __post_init__(self) -> None:
        if self.mean.shape[:2] != self.logit.shape or self.variance.shape != self.mean.shape:
            raise ValueError(
                f"logit {tuple(self.logit.shape)}, mean {tuple(self.mean.shape)} and variance "
                f"{tuple(self.variance.shape)} must have matching numbers of rows, kernels and coordinates"
            )
        if self.mean.shape[2] not in (1, self.dim):
            raise ValueError(f"`mean` must have 1 or dim={self.dim} coordinates per kernel, got {self.mean.shape[2]}")
        for name in ("logit", "mean", "variance"):
            object.__setattr__(self, name, at_least_float32(getattr(self, name)))

    @property
    def log_weight(self) -> Float[Tensor, "M C"]:
        """Logarithm of p_ik; the weights of a row need not sum to one."""
        return logsigmoid(self.logit)

    @property
    def repeats(self) -> int:
        """Number of dimensions that share a stored coordinate: `dim` if isotropic, else 1."""
        return self.dim // self.mean.shape[2]

    @full_precision
    def log_kernels(self, z: Float[Tensor, "M n"]) -> Float[Tensor, "M C"]:
        """Return the logarithm of each kernel of row i at row i of z.

        The result is float64, because the sum over dimensions can reach thousands and its decimals matter.
        """
        if z.shape[1] != self.dim:
            raise ValueError(f"z has {counted(z.shape[1], 'dimension')}, but the kernels have {self.dim}")
        z, mean, variance = to_float64(z), to_float64(self.mean), to_float64(self.variance)
        if self.repeats == 1:
            return -0.5 * ((z[:, None] - mean).square() / variance).sum(2)
        # ‖z − μ1‖² = ‖z − z̄1‖² + n (z̄ − μ)² needs no (M, C, n) tensor.
        center = z.mean(1, keepdim=True)
        distance = (z - center).square().sum(1, keepdim=True) + self.dim * (center - mean[:, :, 0]).square()
        return -0.5 * distance / variance[:, :, 0]


class KernelHeads(nn.Module):
    """Linear heads that map a feature h(x) to the logits, means and variances ELU(a) + 2 of a kernel mixture.

    Isotropic heads act on h directly. Anisotropic heads act on z = W h + b of size `reduced_size`, because they predict
    a mean and a variance for every class and every dimension of z.

    Reference: KMCL, published code.

    Args:
        covariance: whether a kernel has a single mean and variance or one of each per dimension of z.
        reduced_size: dimension of z if the kernels are anisotropic.
        initialization: `paper` applies `initialize_as_paper` to two of the heads; `torch` keeps PyTorch's default.

    >>> heads = KernelHeads(in_features=8, classes=3, covariance="anisotropic", reduced_size=4)
    >>> mixture = heads(torch.zeros(2, 8))
    >>> mixture.mean.shape, mixture.dim, bool((mixture.variance >= 1).all())
    (torch.Size([2, 3, 4]), 4, True)
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        covariance: Covariance = "isotropic",
        reduced_size: int = 128,
        initialization: Initialization = "paper",
    ) -> None:
        super().__init__()
        isotropic = covariance == "isotropic"
        self.dim = in_features if isotropic else reduced_size
        self.coordinates = 1 if isotropic else reduced_size
        self.reduction = nn.Identity() if isotropic else nn.Linear(in_features, reduced_size)
        self.logit_head = nn.Linear(self.dim, classes)
        self.mean_head = nn.Linear(self.dim, classes * self.coordinates)
        self.variance_head = nn.Linear(self.dim, classes * self.coordinates)
        if initialization == "paper":
            initialize_as_paper(self.mean_head, self.variance_head)

    def logits(self, h: Float[Tensor, "M D"]) -> Float[Tensor, "M C"]:
        """Return only the logits, which are sufficient for prediction."""
        logits: Tensor = self.logit_head(self.reduction(h))
        return logits

    def forward(self, h: Float[Tensor, "M D"]) -> KernelMixture:
        """Return the mixture of each row."""
        return self.mixture(self.reduction(h))

    @full_precision
    def mixture(self, z: Float[Tensor, "M n"]) -> KernelMixture:
        """Apply the three heads to the output of `reduction`."""
        mean, raw = (head(z).unflatten(1, (-1, self.coordinates)) for head in (self.mean_head, self.variance_head))
        return KernelMixture(self.logit_head(z), mean, floored_variance(raw, "variance"), self.dim)


@full_precision
def kernel_bhattacharyya(
    p: KernelMixture, q: KernelMixture | None = None, *, present: Bool[Tensor, "M C"], distance_scale: float = 1.0
) -> Float[Tensor, "T P"]:
    """Return Bhattacharyya coefficients of selected kernels in p with the same-class kernel in every mixture of q.

    BC = exp(−s D_B), D_B = Σ_t ½ log[S_t / 2σ_tσ'_t] + ¼ (m_t − m'_t)² / S_t, S_t = v_t + v'_t, where t runs over all
    dimensions and s is `distance_scale`. The T rows of the result are the true entries of `present`, in row-major
    order: a contrastive loss over shared labels needs no other kernels, and most images have few labels.

    Temporary tensors are limited to `BLOCK` elements. Second derivatives are not supported.

    Reference: KMCL, kernel similarity.

    Args:
        p: M mixtures.
        q: P mixtures; None compares p with itself.
        present: mask of the kernels in p to compare.
        distance_scale: factor s of the distance. The published code uses `dim` for anisotropic kernels.

    >>> p = KernelMixture(torch.zeros(2, 1), torch.tensor([[[0.0]], [[2.0]]]), torch.ones(2, 1, 1), dim=1)
    >>> kernel_bhattacharyya(p, present=torch.tensor([[True], [False]]))
    tensor([[1.0000, 0.6065]])
    """
    q = q or p
    if (p.mean.shape[1:], p.dim) != (q.mean.shape[1:], q.dim):
        raise ValueError(
            f"cannot compare kernels of shape {tuple(p.mean.shape[1:])} in {counted(p.dim, 'dimension')} "
            f"with kernels of shape {tuple(q.mean.shape[1:])} in {q.dim}"
        )
    label = present.nonzero()[:, 1]
    scale = distance_scale * p.repeats
    coefficients: Tensor = _Coefficients.apply(  # type: ignore[no-untyped-call]
        scale, label, p.mean[present], p.variance[present], q.mean, q.variance
    )
    return coefficients


class _Coefficients(torch.autograd.Function):
    """Autograd function for exp(−s D_B) of T kernels (T, d) with the P kernels of their class, a few rows at a time.

    With F = (dL/dBC) s BC, δ = m − m' and S = v + v', the gradients are dm = −Σ F δ/2S and
    dv = Σ F [δ²/4S² + (v' − v)/(4vS)]. For the other side, the signs of δ and v' − v are reversed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scale: float,
        label: Int[Tensor, "T"],
        mean: Float[Tensor, "T d"],
        variance: Float[Tensor, "T d"],
        means: Float[Tensor, "P C d"],
        variances: Float[Tensor, "P C d"],
    ) -> Float[Tensor, "T P"]:
        coefficients = mean.new_empty(len(mean), len(means))
        for rows in _blocks(mean, means):
            v, w = variance[rows, None], variances[:, label[rows]].transpose(0, 1)
            distance = (mean[rows, None] - means[:, label[rows]].transpose(0, 1)).square() / (4 * (v + w))
            coefficients[rows] = (-scale * (variance_term(v, w) + distance).sum(2)).exp()
        ctx.scale = scale
        ctx.save_for_backward(label, mean, variance, means, variances, coefficients)
        return coefficients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        label, mean, variance, means, variances, coefficients = ctx.saved_tensors
        quarter_f = (ctx.scale / 4 * grad * coefficients)[:, :, None]  # F/4
        d_mean, d_variance, d_means, d_variances = map(torch.zeros_like, (mean, variance, means, variances))
        for rows in _blocks(mean, means):
            classes = label[rows]
            v, w = variance[rows, None], variances[:, classes].transpose(0, 1)
            total = v + w
            slope = (mean[rows, None] - means[:, classes].transpose(0, 1)) / total  # δ/S
            mean_pairs = 2 * quarter_f[rows] * slope
            square_pairs, variance_pairs = quarter_f[rows] * slope.square(), quarter_f[rows] * (w - v) / total
            d_mean[rows], d_variance[rows] = -mean_pairs.sum(1), (square_pairs + variance_pairs / v).sum(1)
            d_means.index_add_(1, classes, mean_pairs.transpose(0, 1))
            d_variances.index_add_(1, classes, (square_pairs - variance_pairs / w).transpose(0, 1))
        return None, None, d_mean, d_variance, d_means, d_variances


def _blocks(mean: Float[Tensor, "T d"], means: Float[Tensor, "P C d"]) -> list[slice]:
    return slices(len(mean), max(1, BLOCK // max(1, len(means) * mean.shape[1])))
