import inspect
import math

import pytest
import torch
from torch import Tensor

from helpers.mixtures import (
    DIMS,
    GOALS,
    REGIMES,
    Goal,
    Largest,
    assert_as_good_as,
    draw,
    evaluate_similarity,
    literal_correlation,
    means_written_out,
    mixture_of,
)
from probmcl.mixture import IsotropicMixture, aligned, aligned_correlation
from probmcl.mixture.aligned import ComponentWeight, squared_distance

WEIGHTS: list[ComponentWeight] = ["l2", "density"]
SIZES = pytest.mark.parametrize("size", [(), (3,)], ids=["scalar", "vector"])


def reference_aligned(p: IsotropicMixture, q: IsotropicMixture, component_weight: str) -> Tensor:
    """Compute the similarity in loops, with κ from the integrals of products of two Gaussians."""

    def kappa(v: float, w: float, squared_distance: float) -> float:
        def log_product(total: float, distance: float) -> float:
            return -p.dim / 2 * math.log(2 * math.pi * total) - distance / (2 * total)

        return math.exp(log_product(v + w, squared_distance) - log_product(2 * v, 0) / 2 - log_product(2 * w, 0) / 2)

    def weight(m: IsotropicMixture, i: int, k: int) -> float:
        v = m.variance[i, k].item()
        return m.log_weight[i, k].exp().item() * (v ** (-p.dim / 4) if component_weight == "density" else 1)

    components = range(p.variance.shape[1])
    distance = (means_written_out(p)[:, None] - means_written_out(q)).square().sum(3)
    out = torch.zeros(len(p.variance), len(q.variance), dtype=torch.float64)
    for i in range(len(p.variance)):
        for j in range(len(q.variance)):
            a, b = [weight(p, i, k) for k in components], [weight(q, j, k) for k in components]
            inner = sum(
                a[k] * b[k] * kappa(p.variance[i, k].item(), q.variance[j, k].item(), distance[i, j, k].item())
                for k in components
            )
            out[i, j] = inner / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
    return out


class TestValue:
    @pytest.mark.parametrize("component_weight", WEIGHTS)
    @SIZES
    @pytest.mark.parametrize("regime", REGIMES)
    def test_matches_loops(self, regime: str, size: tuple[int, ...], component_weight: ComponentWeight) -> None:
        p = mixture_of(draw(regime, rows=3, size=size), 3)
        q = mixture_of(draw(regime, rows=2, size=size, seed=1), 3)
        for other in (None, q):
            measured = aligned_correlation(p, other, component_weight=component_weight)
            expected = reference_aligned(p, other or p, component_weight)
            torch.testing.assert_close(measured, expected, rtol=1e-10, atol=1e-12)

    @SIZES
    def test_equals_correlation_with_separated_classes(self, size: tuple[int, ...]) -> None:
        """Moving component k to (m_k, 10⁴·e_k) in d + C dimensions leaves only pairs of the same class."""
        dim, components = 3, 4
        p, q = (mixture_of(draw(rows=3, components=components, size=size, seed=seed), dim) for seed in (0, 1))
        far = [
            IsotropicMixture(
                m.log_weight,
                torch.cat([means_written_out(m), 1e4 * torch.eye(components).double().expand(3, -1, -1)], 2),
                m.variance,
                dim=dim + components,
            )
            for m in (p, q)
        ]
        # The C extra dimensions enter κ and the norms, so the aligned mixtures need them too.
        extra = [
            IsotropicMixture(
                m.log_weight,
                torch.cat([means_written_out(m), torch.zeros(3, components, components).double()], 2),
                m.variance,
                dim=dim + components,
            )
            for m in (p, q)
        ]
        measured = aligned_correlation(extra[0], extra[1], component_weight="density")
        torch.testing.assert_close(measured, literal_correlation(far[0], far[1]), rtol=1e-9, atol=1e-12)

    def test_equal_variances_make_both_weights_equal(self) -> None:
        p = mixture_of(draw("floor", rows=4, size=(2,)), 2)
        far = torch.cat([p.mean, 1e3 * torch.eye(4).double().expand(4, -1, -1)], 2)
        expected = literal_correlation(*[IsotropicMixture(p.log_weight, far, p.variance, dim=6)] * 2)
        for component_weight in WEIGHTS:
            measured = aligned_correlation(p, component_weight=component_weight)
            torch.testing.assert_close(measured, expected, rtol=1e-9, atol=1e-12)

    def test_scalar_means_equal_constant_vectors(self) -> None:
        log_weight, mean, variance = draw()
        written_out = IsotropicMixture(log_weight, mean[:, :, None].repeat(1, 1, 5), variance, dim=5)
        torch.testing.assert_close(aligned_correlation(mixture_of(draw(), 5)), aligned_correlation(written_out))

    def test_default_weight_is_l2(self) -> None:
        p = mixture_of(draw(), 8)
        assert torch.equal(aligned_correlation(p), aligned_correlation(p, component_weight="l2"))
        assert not torch.allclose(aligned_correlation(p), aligned_correlation(p, component_weight="density"))

    def test_different_components_have_similarity_zero(self) -> None:
        first, second = torch.tensor([[0.0, -math.inf]]), torch.tensor([[-math.inf, 0.0]])
        same = torch.zeros(1, 2, 3), torch.ones(1, 2)
        p, q = IsotropicMixture(first, *same, dim=3), IsotropicMixture(second, *same, dim=3)
        assert aligned_correlation(p, q) == 0
        assert aligned_correlation(p, p) == 1

    def test_unknown_component_weight_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"component_weight.*'l1'"):
            inspect.unwrap(aligned_correlation)(mixture_of(draw(), 2), component_weight="l1")


class TestGradients:
    @pytest.mark.parametrize("component_weight", WEIGHTS)
    @SIZES
    def test_gradcheck_of_one_and_two_sides(self, size: tuple[int, ...], component_weight: ComponentWeight) -> None:
        a, b = draw(rows=3, components=2, size=size), draw(rows=2, components=2, size=size, seed=1)

        def alone(*x: Tensor) -> Tensor:
            return aligned_correlation(mixture_of(x, 3), component_weight=component_weight)

        def both(*x: Tensor) -> Tensor:
            p, q = mixture_of(x[:3], 3), mixture_of(x[3:], 3)
            return aligned_correlation(p, q, component_weight=component_weight)

        assert torch.autograd.gradcheck(alone, [x.requires_grad_() for x in a])
        assert torch.autograd.gradcheck(both, [x.requires_grad_() for x in (*a, *b)])

    def test_gradient_of_one_side_does_not_depend_on_the_other_requiring_grad(self) -> None:
        p, q = ([x.requires_grad_() for x in draw(size=(3,), seed=seed)] for seed in (0, 1))
        both = torch.autograd.grad(aligned_correlation(mixture_of(p, 3), mixture_of(q, 3)).sum(), [*p, *q])
        fixed = mixture_of((x.detach() for x in q), 3)
        alone = torch.autograd.grad(aligned_correlation(mixture_of(p, 3), fixed).sum(), p)
        for measured, expected in zip(alone, both[:3], strict=True):
            assert torch.equal(measured, expected)

    @pytest.mark.parametrize("component_weight", WEIGHTS)
    def test_equal_mixtures_have_no_gradient(self, component_weight: ComponentWeight) -> None:
        inputs = [x[:1].float().repeat(4, *[1] * (x.ndim - 1)).requires_grad_() for x in draw(size=(16,))]
        measured = aligned_correlation(mixture_of(inputs, 16), component_weight=component_weight)
        torch.testing.assert_close(measured, torch.ones(4, 4), rtol=0, atol=1e-6)
        for gradient in torch.autograd.grad(measured.sum(), inputs):
            assert gradient.abs().max() < 1e-4

    def test_second_derivative_is_an_error(self) -> None:
        inputs = [x.requires_grad_() for x in draw(size=(3,))]
        value = aligned_correlation(mixture_of(inputs, 3)).square().sum()
        (gradient,) = torch.autograd.grad(value, inputs[1], create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            torch.autograd.backward(gradient.square().sum())


class TestNearlyEqualMeans:
    """Steps are multiples of 2⁻¹⁰, the resolution of float32 at 10⁴, so all means are represented exactly."""

    @pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
    def test_similarity_is_accurate_in_float32(self, offset: float) -> None:
        step = 2.0**-7
        mean = torch.full((2, 1, 64), offset)
        mean[1] += step
        p = IsotropicMixture(torch.zeros(2, 1), mean, torch.ones(2, 1), dim=64)
        assert aligned_correlation(p)[0, 1].item() == pytest.approx(math.exp(-64 * step**2 / 4), abs=1e-7)

    @pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
    @pytest.mark.parametrize("against", ["itself", "another"])
    def test_gradient_does_not_depend_on_the_offset(self, offset: float, against: str) -> None:
        """Sim = exp(−d²/4) has derivative −d/2 Sim with respect to the first mean."""
        step = 2.0**-7
        mean = torch.full((2, 1, 64), offset)
        mean[1] += step
        mean.requires_grad_()
        p = IsotropicMixture(torch.zeros(2, 1), mean, torch.ones(2, 1), dim=64)
        similarity = aligned_correlation(p) if against == "itself" else aligned_correlation(p, p)
        (gradient,) = torch.autograd.grad(similarity[0, 1], mean)
        slope = torch.full((1, 64), step / 2 * math.exp(-64 * step**2 / 4))
        torch.testing.assert_close(gradient, torch.stack([slope, -slope]), rtol=1e-5, atol=0)

    @pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
    def test_similarity_is_accurate_among_distant_means(self, offset: float) -> None:
        """The means are so far apart that centering does not bring all of them close to zero."""
        generator = torch.Generator().manual_seed(0)
        mean = offset + torch.randint(-64, 64, (6, 3, 16), generator=generator).float()
        mean[1] = mean[0] + 2.0**-8
        mean[3] = mean[2] - 2.0**-8
        p = IsotropicMixture(torch.full((6, 3), -math.log(3)), mean, torch.ones(6, 3), dim=16)
        measured = aligned_correlation(p)
        near = math.exp(-16 * 2.0**-16 / 4)
        for i, j in ((0, 1), (2, 3)):
            assert measured[i, j].item() == pytest.approx(near, abs=1e-7)

    def test_squared_distance_matches_differences_and_is_nonnegative(self) -> None:
        mean = draw(rows=6, components=3, size=(4,))[1].transpose(0, 1)
        other = 1e4 + torch.cat([mean, mean + 1e-4], 1)
        measured = squared_distance(1e4 + mean, other)
        expected = (1e4 + mean[:, :, None] - other[:, None]).square().sum(3)
        torch.testing.assert_close(measured, expected, rtol=0, atol=1e-12)
        assert measured.min() >= 0


class TestMemory:
    def test_temporary_tensors_fit_into_a_block(self) -> None:
        """All pairs of 64 rows, for 2,000 classes in 16 dimensions, would be a tensor of 131 million elements."""
        inputs = [x.float().requires_grad_() for x in draw(rows=64, components=2000, size=(16,))]
        with Largest() as tracker:  # type: ignore[no-untyped-call]
            torch.autograd.backward(aligned_correlation(mixture_of(inputs, 16)).square().sum())
        assert tracker.numbers <= max(aligned.BLOCK, inputs[1].numel())

    @pytest.mark.parametrize("block", [1, 100, 3000])
    @SIZES
    def test_block_size_does_not_change_the_result(
        self, size: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inputs = [x.requires_grad_() for x in (*draw(rows=7, size=size), *draw(rows=5, size=size, seed=1))]

        def values_and_gradients() -> list[Tensor]:
            p, q = mixture_of(inputs[:3], 3), mixture_of(inputs[3:], 3)
            values = [aligned_correlation(p), aligned_correlation(p, q)]
            return [*values, *torch.autograd.grad(values, inputs, [x.detach() for x in values])]

        expected = values_and_gradients()
        monkeypatch.setattr(aligned, "BLOCK", block)
        for measured, value in zip(values_and_gradients(), expected, strict=True):
            torch.testing.assert_close(measured, value, rtol=1e-12, atol=1e-13)


def tolerance(regime: str, dim: int) -> float:
    """Return the tolerance of gradients relative to the largest, three times the measured error.

    If all mixtures are nearly equal, as they also are in few dimensions, gradients are small differences of large
    numbers and float32 is less accurate.
    """
    return 1e-5 if dim >= 16 and regime != "alike" else 3e-5


@pytest.mark.pairwise
@pytest.mark.parametrize("component_weight", WEIGHTS)
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("components", [10, 80])
@pytest.mark.parametrize("goal", list(GOALS))
def test_float32_matches_float64(
    goal: Goal, components: int, dim: int, regime: str, component_weight: ComponentWeight
) -> None:
    def similarity(p: IsotropicMixture) -> Tensor:
        return aligned_correlation(p, component_weight=component_weight)

    rounded = [x.float() for x in draw(regime, rows=12, components=components)]
    truth = evaluate_similarity(similarity, [x.double() for x in rounded], dim, goal)
    measured = evaluate_similarity(similarity, rounded, dim, goal)
    assert_as_good_as(truth, measured, dim, similarity=1e-6, relative=tolerance(regime, dim))


@pytest.mark.parametrize("component_weight", WEIGHTS)
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("goal", list(GOALS))
def test_float32_matches_float64_for_mean_vectors(goal: Goal, regime: str, component_weight: ComponentWeight) -> None:
    def similarity(p: IsotropicMixture) -> Tensor:
        return aligned_correlation(p, component_weight=component_weight)

    rounded = [x.float() for x in draw(regime, rows=12, components=20, size=(16,))]
    truth = evaluate_similarity(similarity, [x.double() for x in rounded], 16, goal)
    measured = evaluate_similarity(similarity, rounded, 16, goal)
    assert_as_good_as(truth, measured, 16, similarity=1e-6, relative=tolerance(regime, 16))
