"""Random mixtures, and slow reference implementations of their similarities."""

import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu
from torch.utils._python_dispatch import TorchDispatchMode

from probmcl.losses import contrastive
from probmcl.mixture import IsotropicMixture
from probmcl.overlap import jaccard

REGIMES = ["init", "alike", "wide", "floor", "thousand"]
DIMS = [1, 2, 16, 128, 512, 2048, 4096]
Parameters = tuple[Tensor, Tensor, Tensor]
Goal = Literal["weighted", "contrastive"]


def draw(
    regime: str = "init", rows: int = 6, components: int = 4, *, size: tuple[int, ...] = (), seed: int = 0
) -> Parameters:
    """Draw log-weights, means and variances, as at initialization or in an extreme regime."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    logit, mean, raw = normal(rows, components), normal(rows, components, *size) / 2, normal(rows, components)
    if regime == "alike":  # rows that differ by 1 %, like views of the same image
        logit, mean, raw = (x[:1] + x / 100 for x in (logit, mean, raw))
    uniform = torch.special.ndtr(raw)  # in (0, 1)
    variance = {"wide": 1 + 5.8 * uniform, "floor": torch.ones_like(raw), "thousand": 1000**uniform}
    mean = 10 * torch.special.ndtr(2 * mean) - 5 if regime == "wide" else mean
    return logit.log_softmax(1), mean, variance.get(regime, elu(raw) + 2)


def mixture_of(parameters: Iterable[Tensor], dim: int) -> IsotropicMixture:
    log_weight, mean, variance = parameters
    return IsotropicMixture(log_weight, mean, variance, dim)


def means_written_out(p: IsotropicMixture) -> Tensor:
    return p.mean if p.has_vector_means else p.mean[:, :, None].expand(-1, -1, p.dim)


def class_bhattacharyya(p: IsotropicMixture, q: IsotropicMixture) -> Tensor:
    """Return exp(−D_B) of corresponding components, where D_B = (n/2) log[S/(2σσ')] + ‖m − m'‖²/4S."""
    total = p.variance[:, None] + q.variance
    distance = (means_written_out(p)[:, None] - means_written_out(q)).square().sum(3)
    deviations = p.variance[:, None].sqrt() * q.variance.sqrt()
    return (-p.dim / 2 * (total / (2 * deviations)).log() - distance / (4 * total)).exp()


def literal_correlation(p: IsotropicMixture, q: IsotropicMixture) -> Tensor:
    """Return the normalized ∫pq = Σ π π' (2πS)^(−n/2) exp(−‖m − m'‖²/2S), in logarithms and row by row."""

    def log_inner(p: IsotropicMixture, i: int, q: IsotropicMixture, j: int) -> Tensor:
        total = p.variance[i][:, None] + q.variance[j]
        if p.has_vector_means:
            distance = (p.mean[i][:, None] - q.mean[j]).square().sum(2)
        else:
            distance = p.dim * (p.mean[i][:, None] - q.mean[j]).square()
        density = -p.dim / 2 * (2 * math.pi * total).log() - distance / (2 * total)
        return (p.log_weight[i][:, None] + q.log_weight[j] + density).flatten().logsumexp(0)

    rows, columns = range(len(p.variance)), range(len(q.variance))
    own_p, own_q = [log_inner(p, i, p, i) for i in rows], [log_inner(q, j, q, j) for j in columns]
    return torch.stack(
        [torch.stack([(log_inner(p, i, q, j) - own_p[i] / 2 - own_q[j] / 2).exp() for j in columns]) for i in rows]
    )


class SimilarityResult(NamedTuple):
    """Similarities, the gradients of a goal, and the largest gradient with respect to a similarity; in float64."""

    similarity: Tensor
    logit: Tensor
    mean: Tensor
    variance: Tensor
    pull: float


def evaluate_similarity(
    similarity: Callable[[IsotropicMixture], Tensor], parameters: Iterable[Tensor], dim: int, goal: Goal
) -> SimilarityResult:
    """Evaluate a similarity at these parameters, and the gradients of the goal."""
    inputs = [x.clone().requires_grad_() for x in parameters]
    softmax = inputs[0].log_softmax(1)
    log_weight = softmax + (inputs[0] - softmax).detach()  # the value of the input with the gradient of log_softmax
    value = similarity(IsotropicMixture(log_weight, inputs[1], inputs[2], dim))
    detached = value.detach().double().requires_grad_()
    (pull,) = torch.autograd.grad(GOALS[goal](detached), detached)  # in float64, since the loss is not under test
    gradients = torch.autograd.grad(value, inputs, pull.to(value))
    measured, logit, mean, variance = (x.detach().double() for x in (value, *gradients))
    return SimilarityResult(measured, logit, mean, variance, pull.abs().max().item())


def weighted_sum(similarity: Tensor) -> Tensor:
    """Return the sum of all similarities with random positive and negative weights."""
    weight = torch.randn(similarity.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (similarity * weight.to(similarity)).sum()


def contrastive_loss(similarity: Tensor) -> Tensor:
    """Return the contrastive loss of ProbMCL, with two views of each image and four classes."""
    generator = torch.Generator().manual_seed(0)
    rows = len(similarity)
    labels = (torch.rand(-(-rows // 2), 4, generator=generator) < 0.5).double().repeat(2, 1)[:rows]
    return contrastive(similarity, jaccard(labels).to(similarity), threshold=0.5, temperature=0.2)


GOALS: dict[Goal, Callable[[Tensor], Tensor]] = {"weighted": weighted_sum, "contrastive": contrastive_loss}


def assert_as_good_as(
    truth: SimilarityResult,
    measured: SimilarityResult,
    dim: int,
    *,
    similarity: float,
    relative: float,
    mean_floor: float = 0.0,
) -> None:
    """Assert that similarities are within `similarity` of the truth, and gradients within `relative` of their maximum.

    If one component dominates, the gradients of all logits vanish. An error of a logit may then be 10⁻⁸ of the largest
    gradient with respect to a similarity. The floor of a variance, which changes its logit by n/4v, is n/4 times as
    large. The floor of a mean, whose scale is 1/√n, is √n · `mean_floor`.
    """
    assert (measured.similarity - truth.similarity).abs().max() <= similarity
    floors = {"logit": 1e-8, "mean": math.sqrt(dim) * mean_floor, "variance": dim / 4 * 1e-8}
    for name, floor in floors.items():
        gradient, true = getattr(measured, name), getattr(truth, name)
        assert gradient.isfinite().all()
        error, largest = (gradient - true).abs().max().item(), true.abs().max().item()
        limit = relative * largest + floor * truth.pull + 1e-30
        assert error <= limit, f"{name}: error {error:.1e} exceeds {limit:.1e}; the largest gradient is {largest:.1e}"


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the number of elements of the largest tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        outputs = out if isinstance(out, tuple | list) else [out]
        self.numbers = max(self.numbers, *(x.numel() if isinstance(x, Tensor) else 0 for x in outputs), 0)
        return out
