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
        shapes_match = self.mean.shape[:2] == self.logit.shape and self.variance.shape == self.mean.shape
        if not shapes_match:
            raise ValueError(
                f"logit {tuple(self.logit.shape)}, mean {tuple(self.mean.shape)} and variance "
                f"{tuple(self.variance.shape)} must have matching numbers of rows, kernels and coordinates"
            )
        if self.mean.shape[2] not in (1, self.dim):
            raise ValueError(f"`mean` must have 1 or dim={self.dim} coordinates per kernel, got {self.mean.shape[2]}")
        for name in ("logit", "mean", "variance"):
            converted = at_least_float32(getattr(self, name))
            object.__setattr__(self, name, converted)  # the only way to set a field of a frozen dataclass

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
        center = z.mean(1, keepdim=True)  # z̄
        across_line = (z - center).square().sum(1, keepdim=True)
        squared_distance = across_line + self.dim * (center - mean[:, :, 0]).square()
        return -0.5 * squared_distance / variance[:, :, 0]


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
        if covariance == "isotropic":
            self.dim = in_features
            self.coordinates = 1
            self.reduction: nn.Module = nn.Identity()
        else:
            self.dim = reduced_size
            self.coordinates = reduced_size
            self.reduction = nn.Linear(in_features, reduced_size)
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
        by_kernel = (-1, self.coordinates)  # (C, d)
        mean = self.mean_head(z).unflatten(1, by_kernel)
        unconstrained = self.variance_head(z).unflatten(1, by_kernel)
        variance = floored_variance(unconstrained, "variance")
        return KernelMixture(self.logit_head(z), mean, variance, self.dim)


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
    shape_p, shape_q = p.mean.shape[1:], q.mean.shape[1:]  # (C, d)
    if shape_p != shape_q or p.dim != q.dim:
        raise ValueError(
            f"cannot compare kernels of shape {tuple(shape_p)} in {counted(p.dim, 'dimension')} "
            f"with kernels of shape {tuple(shape_q)} in {q.dim}"
        )
    label = present.nonzero()[:, 1]  # (T,): the class of each selected kernel
    scale = distance_scale * p.repeats  # an isotropic kernel stores one of `dim` equal terms
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
        """Return exp(−s D_B) of T kernels with the kernel of the same class in each of P mixtures; s is `scale`.

        D_B = Σ_t [variance term + (m_t − m'_t)² / 4S_t] with S_t = v_t + v'_t, over the d coordinates. `label` is the
        class of each of the T kernels. `mean` and `variance` are theirs, `means` and `variances` those of the mixtures.
        """
        coefficients = mean.new_empty(len(mean), len(means))
        for rows in _blocks(mean, means):
            classes = label[rows]
            v, v_others = variance[rows, None], _same_class(variances, classes)  # (R, 1, d) and (R, P, d)
            distance_term = (mean[rows, None] - _same_class(means, classes)).square() / (4 * (v + v_others))
            distance = (variance_term(v, v_others) + distance_term).sum(2)
            coefficients[rows] = (-scale * distance).exp()
        ctx.scale = scale
        ctx.save_for_backward(label, mean, variance, means, variances, coefficients)
        return coefficients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the means and variances of the T kernels, and of those of the P mixtures.

        With F = (dL/dBC) s BC, δ = m − m' and S = v + v', they are dm = −Σ F δ/2S and
        dv = Σ F [δ²/4S² + (v' − v)/(4vS)]. For the mixtures, the signs of δ and v' − v are reversed.
        """
        label, mean, variance, means, variances, coefficients = ctx.saved_tensors
        quarter_f = (ctx.scale / 4 * grad * coefficients)[:, :, None]  # F/4
        d_mean, d_variance = torch.zeros_like(mean), torch.zeros_like(variance)
        d_means, d_variances = torch.zeros_like(means), torch.zeros_like(variances)
        for rows in _blocks(mean, means):
            classes = label[rows]
            v, v_others = variance[rows, None], _same_class(variances, classes)  # (R, 1, d) and (R, P, d)
            total = v + v_others  # S
            slope = (mean[rows, None] - _same_class(means, classes)) / total  # δ/S
            mean_terms = 2 * quarter_f[rows] * slope  # F δ/2S
            square_terms = quarter_f[rows] * slope.square()  # F δ²/4S²
            variance_terms = quarter_f[rows] * (v_others - v) / total  # F (v' − v)/4S
            d_mean[rows] = -mean_terms.sum(1)
            d_variance[rows] = (square_terms + variance_terms / v).sum(1)
            d_means.index_add_(1, classes, mean_terms.transpose(0, 1))
            d_variances.index_add_(1, classes, (square_terms - variance_terms / v_others).transpose(0, 1))
        return None, None, d_mean, d_variance, d_means, d_variances  # `scale` and `label` have no gradient


def _same_class(values: Float[Tensor, "P C d"], classes: Int[Tensor, "R"]) -> Float[Tensor, "R P d"]:
    """Return the values of all P mixtures for the class of each row."""
    return values[:, classes].transpose(0, 1)


def _blocks(mean: Float[Tensor, "T d"], means: Float[Tensor, "P C d"]) -> list[slice]:
    """Return slices of the T rows for which all (R, P, d) tensors have at most `BLOCK` elements."""
    rows, coordinates = mean.shape
    elements_per_row = max(1, len(means) * coordinates)
    return slices(rows, max(1, BLOCK // elements_per_row))
