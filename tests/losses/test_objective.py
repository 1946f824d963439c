import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import elu, normalize

from probmcl.losses import balanced_weight, contrastive, negative_log_likelihood, objective
from probmcl.losses.objective import LARGEST_WEIGHT
from probmcl.losses.reduction import Reduction
from probmcl.mixture import IsotropicMixture, MixtureDensityNetwork, correlation
from probmcl.overlap import jaccard


@pytest.mark.parametrize("weight", [0.3, torch.tensor(0.3)], ids=["number", "tensor"])
def test_it_is_eq_4(weight: float | Tensor) -> None:
    measured = objective(torch.tensor(2.0), torch.tensor(5.0), contrastive_weight=weight)
    assert measured.shape == ()
    assert measured.item() == pytest.approx(3.5)


def test_gradients_of_the_sum() -> None:
    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2.0, -5.0)]
    assert torch.autograd.gradcheck(lambda a, b: objective(a, b, contrastive_weight=0.3), inputs)


class Run:
    """A small network with both terms of ProbMCL."""

    def __init__(self, reduction: Reduction = "mean") -> None:
        torch.manual_seed(0)
        self.encoder = nn.Linear(5, 8)
        self.network = MixtureDensityNetwork(8, 3, hidden=(6,), initialization="torch")
        labels = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 0]]).repeat(2, 1)
        self.features = normalize(self.encoder(torch.randn(8, 5)), dim=1)
        mixture = self.network(self.features)
        self.likelihood = negative_log_likelihood(mixture, self.features, reduction=reduction)
        self.contrast = contrastive(
            correlation(mixture), jaccard(labels), threshold=0.5, temperature=0.2, reduction=reduction
        )

    def pull(self, loss: Tensor) -> Tensor:
        """The gradient at the features."""
        return torch.autograd.grad(loss, self.features, retain_graph=True)[0]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_with_the_balanced_weight_both_terms_pull_equally_hard(reduction: Reduction) -> None:
    run = Run(reduction)
    weight = balanced_weight(run.likelihood, run.contrast, run.features)
    assert weight.shape == ()
    likelihood, contrast = run.pull(run.likelihood).norm().item(), run.pull(weight * run.contrast).norm().item()
    assert contrast == pytest.approx(likelihood, rel=1e-5)
    assert abs(weight.item() - 1) > 0.1  # without it they did not


def test_the_balanced_weight_is_a_number_without_gradient() -> None:
    run = Run()
    weight = balanced_weight(run.likelihood, run.contrast, run.features)
    assert not weight.requires_grad
    total = objective(run.likelihood, run.contrast, contrastive_weight=weight)
    expected = run.pull(run.likelihood) + weight * run.pull(run.contrast)
    torch.testing.assert_close(run.pull(total), expected)


def test_the_graph_is_still_there_for_the_step_and_no_gradient_was_left_behind() -> None:
    run = Run()
    weight = balanced_weight(run.likelihood, run.contrast, run.features)
    parameters = [*run.encoder.parameters(), *run.network.parameters()]
    assert all(x.grad is None for x in parameters)
    torch.autograd.backward(objective(run.likelihood, run.contrast, contrastive_weight=weight))
    assert all(x.grad is not None and x.grad.isfinite().all() for x in parameters)


def test_a_contrast_without_gradient_has_weight_zero() -> None:
    h = torch.ones(2, 3, requires_grad=True)
    weight = balanced_weight(h.sum(), (0 * h).sum(), h)
    assert weight == 0
    alone = contrastive(torch.ones(2, 2) * h.sum(), torch.eye(2), threshold=0.5, temperature=0.1)  # no positives
    assert balanced_weight(h.sum(), alone, h) == 0


def test_a_likelihood_without_gradient_has_weight_zero() -> None:
    h = torch.ones(2, 3, requires_grad=True)
    assert balanced_weight((0 * h).sum(), h.sum(), h) == 0


@pytest.mark.parametrize("likelihood", [1.0, 1e30])
def test_a_contrast_with_almost_no_gradient_has_a_bounded_weight(likelihood: float) -> None:
    h = torch.ones(2, 3, requires_grad=True)
    assert balanced_weight(likelihood * h.sum(), 1e-15 * h.sum(), h) == LARGEST_WEIGHT


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_features_in_half_precision_have_norms_in_float32(half: torch.dtype) -> None:
    h = torch.ones(100, 100, dtype=half, requires_grad=True)
    weight = balanced_weight((2048 * h.float()).sum(), (2 * h.float()).sum(), h)  # 204,800 does not exist in float16
    assert weight.dtype == torch.float32
    assert weight.item() == pytest.approx(1024)


def test_without_gradients_at_the_features_there_is_an_error_that_says_what_to_do() -> None:
    with torch.no_grad():
        run = Run()
    with pytest.raises(ValueError, match="under no_grad give a number"):
        balanced_weight(run.likelihood, run.contrast, run.features)


ROWS, COMPONENTS, DIM = 4, 3, 5


def drawn(*, vector: bool) -> list[Tensor]:
    """Logits, means, unbounded variances and z."""
    generator = torch.Generator().manual_seed(int(vector))
    mean = (ROWS, COMPONENTS, DIM) if vector else (ROWS, COMPONENTS)
    shapes = [(ROWS, COMPONENTS), mean, (ROWS, COMPONENTS), (ROWS, DIM)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def build(logit: Tensor, mean: Tensor, raw: Tensor) -> IsotropicMixture:
    return IsotropicMixture(logit.log_softmax(1), mean, elu(raw) + 2, DIM)


def slow_likelihoods(p: IsotropicMixture, z: Tensor) -> list[float]:
    """Eq. 1 as printed, coordinate by coordinate, and minus its logarithm for each row."""
    losses = []
    for i in range(ROWS):
        density = 0.0
        for k in range(COMPONENTS):
            normal = 1.0
            for t in range(DIM):
                center = p.mean[i, k, t] if p.has_vector_means else p.mean[i, k]
                variance = p.variance[i, k].item()
                normal *= math.exp(-((z[i, t] - center).item() ** 2) / (2 * variance))
                normal /= math.sqrt(2 * math.pi * variance)
            density += p.log_weight[i, k].exp().item() * normal
        losses.append(-math.log(density))
    return losses


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_it_is_eq_2_with_two_settings_for_its_scale(reduction: Reduction, per_dimension: bool, vector: bool) -> None:
    logit, mean, raw, z = drawn(vector=vector)
    p = build(logit, mean, raw)
    measured = negative_log_likelihood(p, z, reduction=reduction, per_dimension=per_dimension)
    expected = sum(slow_likelihoods(p, z)) / (ROWS if reduction == "mean" else 1) / (DIM if per_dimension else 1)
    assert measured.shape == ()
    assert measured.item() == pytest.approx(expected, rel=1e-12)


def test_by_default_it_is_the_mean_over_rows_and_the_sum_over_dimensions() -> None:
    logit, mean, raw, z = drawn(vector=False)
    p = build(logit, mean, raw)
    assert negative_log_likelihood(p, z).item() == pytest.approx(sum(slow_likelihoods(p, z)) / ROWS, rel=1e-12)


@pytest.mark.parametrize("vector", [False, True])
def test_gradients_reach_the_mixture_and_the_target(vector: bool) -> None:
    inputs = [x.requires_grad_() for x in drawn(vector=vector)]
    assert torch.autograd.gradcheck(lambda a, m, v, z: negative_log_likelihood(build(a, m, v), z), inputs)


def test_one_row_one_component_at_its_own_mean() -> None:
    one = IsotropicMixture(torch.zeros(1, 1), torch.full((1, 1), 3.0), torch.full((1, 1), 2.0), dim=2048)
    expected = 1024 * math.log(2 * math.pi * 2)
    assert negative_log_likelihood(one, torch.full((1, 2048), 3.0)).item() == pytest.approx(expected, rel=1e-6)


def test_a_target_of_another_size_is_an_error() -> None:
    logit, mean, raw, z = drawn(vector=False)
    with pytest.raises(ValueError, match="z has 4 dimensions, the mixture 5"):
        negative_log_likelihood(build(logit, mean, raw), z[:, :4])


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_a_target_in_half_precision_under_autocast_is_computed_in_float32(half: torch.dtype) -> None:
    logit, mean, raw, z = (x.to(half) for x in drawn(vector=False))
    p = build(logit.float(), mean.float(), raw.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = negative_log_likelihood(p, z, per_dimension=True)
    assert torch.equal(inside, negative_log_likelihood(p, z.float(), per_dimension=True))
