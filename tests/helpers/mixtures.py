"""Mixtures to compare, and slow, obvious references to compare them by."""

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
    """Log-weights, means and variances, as they are at the start of training or at its edges."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    logit, mean, raw = normal(rows, components), normal(rows, components, *size) / 2, normal(rows, components)
    if regime == "alike":  # rows that differ by a hundredth, as views of one image do
        logit, mean, raw = (x[:1] + x / 100 for x in (logit, mean, raw))
    between = torch.special.ndtr(raw)  # uniform in (0, 1)
    variance = {"wide": 1 + 5.8 * between, "floor": torch.ones_like(raw), "thousand": 1000**between}
    mean = 10 * torch.special.ndtr(2 * mean) - 5 if regime == "wide" else mean
    return logit.log_softmax(1), mean, variance.get(regime, elu(raw) + 2)


def mixture_of(parameters: Iterable[Tensor], dim: int) -> IsotropicMixture:
    log_weight, mean, variance = parameters
    return IsotropicMixture(log_weight, mean, variance, dim)


def means_written_out(p: IsotropicMixture) -> Tensor:
    return p.mean if p.has_vector_means else p.mean[:, :, None].expand(-1, -1, p.dim)


def class_bhattacharyya(p: IsotropicMixture, q: IsotropicMixture) -> Tensor:
    """exp(−D_B) of component k with component k, D_B = (n/2) log[S/(2σσ')] + ‖m − m'‖²/4S, as in any textbook."""
    total = p.variance[:, None] + q.variance
    apart = (means_written_out(p)[:, None] - means_written_out(q)).square().sum(3)
    deviations = p.variance[:, None].sqrt() * q.variance.sqrt()
    return (-p.dim / 2 * (total / (2 * deviations)).log() - apart / (4 * total)).exp()


def literal_correlation(p: IsotropicMixture, q: IsotropicMixture) -> Tensor:
    """∫pq = Σ π π' (2πS)^(−n/2) exp(−‖m − m'‖²/2S), as in any textbook, in logarithms and row by row."""

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


class Found(NamedTuple):
    """Similarities, the gradients of a goal, and the largest gradient with respect to a similarity; in float64."""

    similarity: Tensor
    logit: Tensor
    mean: Tensor
    variance: Tensor
    pull: float


def found(
    similarity: Callable[[IsotropicMixture], Tensor], parameters: Iterable[Tensor], dim: int, goal: Goal
) -> Found:
    """What a similarity gives for these parameters, and where the goal pulls them."""
    inputs = [x.clone().requires_grad_() for x in parameters]
    softmax = inputs[0].log_softmax(1)
    given = softmax + (inputs[0] - softmax).detach()  # the gradient of softmax, at the very weights that were given
    value = similarity(IsotropicMixture(given, inputs[1], inputs[2], dim))
    seen = value.detach().double().requires_grad_()
    (pull,) = torch.autograd.grad(GOALS[goal](seen), seen)  # in float64: it is not the loss that is judged here
    gradients = torch.autograd.grad(value, inputs, pull.to(value))
    measured, logit, mean, variance = (x.detach().double() for x in (value, *gradients))
    return Found(measured, logit, mean, variance, pull.abs().max().item())


def weighted_sum(similarity: Tensor) -> Tensor:
    """Of all similarities, those with themselves included, with random weights of either sign."""
    weight = torch.randn(similarity.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (similarity * weight.to(similarity)).sum()


def contrastive_loss(similarity: Tensor) -> Tensor:
    """The loss of ProbMCL, with two views of each image and up to four labels."""
    generator = torch.Generator().manual_seed(0)
    rows = len(similarity)
    labels = (torch.rand(-(-rows // 2), 4, generator=generator) < 0.5).double().repeat(2, 1)[:rows]
    return contrastive(similarity, jaccard(labels).to(similarity), threshold=0.5, temperature=0.2)


GOALS: dict[Goal, Callable[[Tensor], Tensor]] = {"weighted": weighted_sum, "contrastive": contrastive_loss}


def assert_as_good_as(
    truth: Found, measured: Found, dim: int, *, similarity: float, relative: float, mean_floor: float = 0.0
) -> None:
    """Within `similarity` of the truth, and with gradients within `relative` of their maximum.

    Where one component leaves nothing to the others, the gradients of all logits are nothing, too. An error of a logit
    is then allowed to be 10⁻⁸ of what pulls at a similarity, and that of a variance, which moves its logit by n/4v, n/4
    times as much. For a mean, which counts in units of 1/√n, there is `mean_floor`.
    """
    assert (measured.similarity - truth.similarity).abs().max() <= similarity
    floors = {"logit": 1e-8, "mean": math.sqrt(dim) * mean_floor, "variance": dim / 4 * 1e-8}
    for name, floor in floors.items():
        gradient, true = getattr(measured, name), getattr(truth, name)
        assert gradient.isfinite().all()
        error, largest = (gradient - true).abs().max().item(), true.abs().max().item()
        limit = relative * largest + floor * truth.pull + 1e-30
        assert error <= limit, f"{name}: off by {error:.1e}, more than {limit:.1e}; the largest is {largest:.1e}"


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the size of the largest tensor that any operation made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else [out]
        self.numbers = max(self.numbers, *(x.numel() if isinstance(x, Tensor) else 0 for x in made), 0)
        return out
