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
"""Log-weights, means and variances."""

Goal = Literal["weighted", "contrastive"]


def draw(
    regime: str = "init", rows: int = 6, components: int = 4, *, size: tuple[int, ...] = (), seed: int = 0
) -> Parameters:
    """Draw log-weights, means and variances, as at initialization or in an extreme regime.

    The shapes are (rows, components); those of the means end in `size`, which is empty for scalar means.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    logit = normal(rows, components)
    mean = normal(rows, components, *size) / 2
    raw_variance = normal(rows, components)
    if regime == "alike":
        logit = _almost_equal_rows(logit)
        mean = _almost_equal_rows(mean)
        raw_variance = _almost_equal_rows(raw_variance)
    if regime == "wide":
        mean = 10 * torch.special.ndtr(2 * mean) - 5  # uniform in (−5, 5)
    return logit.log_softmax(1), mean, _variance(regime, raw_variance)


def _almost_equal_rows(x: Tensor) -> Tensor:
    """Return rows that differ by 1 %, like those of views of the same image."""
    return x[:1] + x / 100


def _variance(regime: str, raw: Tensor) -> Tensor:
    """Return variances of a regime from standard normal numbers."""
    uniform: Tensor = torch.special.ndtr(raw)  # in (0, 1)
    if regime == "wide":
        return 1 + 5.8 * uniform
    if regime == "floor":
        return torch.ones_like(raw)
    if regime == "thousand":
        return 1000**uniform
    return elu(raw) + 2  # as in the mixture head


def mixture_of(parameters: Iterable[Tensor], dim: int) -> IsotropicMixture:
    """Return the mixtures with these log-weights, means and variances in `dim` dimensions."""
    log_weight, mean, variance = parameters
    return IsotropicMixture(log_weight, mean, variance, dim)


def means_written_out(p: IsotropicMixture) -> Tensor:
    """Return the means as vectors of shape (rows, components, dim); a scalar mean is repeated in every dimension."""
    if p.has_vector_means:
        return p.mean
    return p.mean[:, :, None].expand(-1, -1, p.dim)


def class_bhattacharyya(p: IsotropicMixture, q: IsotropicMixture) -> Tensor:
    """Return exp(−D_B) of corresponding components, where D_B = (n/2) log[S/(2σσ')] + ‖m − m'‖²/4S."""
    total = p.variance[:, None] + q.variance
    distance = (means_written_out(p)[:, None] - means_written_out(q)).square().sum(3)
    deviations = p.variance[:, None].sqrt() * q.variance.sqrt()
    return (-p.dim / 2 * (total / (2 * deviations)).log() - distance / (4 * total)).exp()


def literal_correlation(p: IsotropicMixture, q: IsotropicMixture) -> Tensor:
    """Return ∫pq / √(∫p² ∫q²) for every pair of a row of p and a row of q, in logarithms and pair by pair."""
    log_norms_p = [_log_inner(p, i, p, i) / 2 for i in range(len(p.variance))]
    log_norms_q = [_log_inner(q, j, q, j) / 2 for j in range(len(q.variance))]
    rows = []
    for i, log_norm_p in enumerate(log_norms_p):
        row = []
        for j, log_norm_q in enumerate(log_norms_q):
            row.append((_log_inner(p, i, q, j) - log_norm_p - log_norm_q).exp())
        rows.append(torch.stack(row))
    return torch.stack(rows)


def _log_inner(p: IsotropicMixture, i: int, q: IsotropicMixture, j: int) -> Tensor:
    """Return log ∫pq = log Σ π π' (2πS)^(−n/2) exp(−‖m − m'‖²/2S) for row i of p and row j of q."""
    total = p.variance[i][:, None] + q.variance[j]
    squares = (p.mean[i][:, None] - q.mean[j]).square()
    distance = squares.sum(2) if p.has_vector_means else p.dim * squares
    log_density = -p.dim / 2 * (2 * math.pi * total).log() - distance / (2 * total)
    return (p.log_weight[i][:, None] + q.log_weight[j] + log_density).flatten().logsumexp(0)


class SimilarityResult(NamedTuple):
    """Similarities and the gradients of a goal, in float64.

    Attributes:
        similarity: the similarities.
        logit: gradients of the goal with respect to the logits of the mixture weights.
        mean: gradients with respect to the means.
        variance: gradients with respect to the variances.
        pull: the largest gradient with respect to a similarity.
    """

    similarity: Tensor
    logit: Tensor
    mean: Tensor
    variance: Tensor
    pull: float


def evaluate_similarity(
    similarity: Callable[[IsotropicMixture], Tensor], parameters: Iterable[Tensor], dim: int, goal: Goal
) -> SimilarityResult:
    """Evaluate a similarity at these log-weights, means and variances, and the gradients of the goal."""
    logit, mean, variance = [x.clone().requires_grad_() for x in parameters]
    normalized = logit.log_softmax(1)
    log_weight = normalized + (logit - normalized).detach()  # the value of the input with the gradient of log_softmax
    value = similarity(IsotropicMixture(log_weight, mean, variance, dim))
    detached = value.detach().double().requires_grad_()
    (pull,) = torch.autograd.grad(GOALS[goal](detached), detached)  # in float64, since the loss is not under test
    gradients = torch.autograd.grad(value, [logit, mean, variance], pull.to(value))
    logit_gradient, mean_gradient, variance_gradient = [gradient.double() for gradient in gradients]
    return SimilarityResult(
        value.detach().double(), logit_gradient, mean_gradient, variance_gradient, pull.abs().max().item()
    )


def weighted_sum(similarity: Tensor) -> Tensor:
    """Return the sum of all similarities with random positive and negative weights."""
    weight = torch.randn(similarity.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (similarity * weight.to(similarity)).sum()


def contrastive_loss(similarity: Tensor) -> Tensor:
    """Return the contrastive loss of ProbMCL, with two views of each image and four classes."""
    generator = torch.Generator().manual_seed(0)
    rows = len(similarity)
    images = math.ceil(rows / 2)
    labels = (torch.rand(images, 4, generator=generator) < 0.5).double()
    labels_of_rows = labels.repeat(2, 1)[:rows]  # if the number of rows is odd, the last image has one view
    return contrastive(similarity, jaccard(labels_of_rows).to(similarity), threshold=0.5, temperature=0.2)


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
        gradient = getattr(measured, name)
        true_gradient = getattr(truth, name)
        assert gradient.isfinite().all()
        error = (gradient - true_gradient).abs().max().item()
        largest = true_gradient.abs().max().item()
        limit = relative * largest + floor * truth.pull + 1e-30
        assert error <= limit, f"{name}: error {error:.1e} exceeds {limit:.1e}; the largest gradient is {largest:.1e}"


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the number of elements of the largest tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else [result]
        for output in outputs:
            if isinstance(output, Tensor):
                self.numbers = max(self.numbers, output.numel())
        return result
