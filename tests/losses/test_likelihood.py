import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from probmcl.losses import negative_log_likelihood
from probmcl.losses.reduction import Reduction
from probmcl.mixture import IsotropicMixture

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
