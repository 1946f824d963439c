import inspect
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import elu
from torch.utils._python_dispatch import TorchDispatchMode

import probmcl
from probmcl.mixture import IsotropicMixture, aligned_correlation, correlation, similarity
from probmcl.mixture.similarity import ComponentWeight

REGIMES = ["init", "alike", "wide", "floor", "thousand"]
DIMS = [1, 2, 16, 128, 2048, 4096]
WEIGHTS: list[ComponentWeight] = ["l2", "density"]
Parameters = tuple[Tensor, Tensor, Tensor]


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


def mixtures(parameters: Iterable[Tensor], dim: int) -> IsotropicMixture:
    log_weight, mean, variance = parameters
    return IsotropicMixture(log_weight, mean, variance, dim)


def means_written_out(p: IsotropicMixture) -> Tensor:
    return p.mean if p.has_vector_means else p.mean[:, :, None].expand(-1, -1, p.dim)


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


def slow_aligned(p: IsotropicMixture, q: IsotropicMixture, component_weight: str) -> Tensor:
    """Three loops, and κ from the integrals of products of two Gaussians."""

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


SIMILARITIES: dict[str, Callable[..., Tensor]] = {
    "correlation": correlation,
    "aligned-l2": lambda p, q=None: aligned_correlation(p, q, component_weight="l2"),
    "aligned-density": lambda p, q=None: aligned_correlation(p, q, component_weight="density"),
}


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the size of the largest tensor that any operation made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, out.numel() if isinstance(out, Tensor) else 0)
        return out


class TestCorrelation:
    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", [1, 3, 40])
    def test_it_is_the_textbook_formula(self, regime: str, dim: int) -> None:
        p, q = mixtures(draw(regime, rows=3), dim), mixtures(draw(regime, rows=2, seed=1), dim)
        torch.testing.assert_close(correlation(p), literal_correlation(p, p), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(correlation(p, q), literal_correlation(p, q), rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("dim", [1, 2])
    def test_it_is_the_ratio_of_numeric_integrals(self, dim: int) -> None:
        p = mixtures(draw("wide", rows=3, components=3), dim)
        axis = torch.linspace(-30, 30, 401, dtype=torch.float64)
        grid = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
        densities = torch.stack(
            [
                mixtures((x[i : i + 1].expand(len(grid), -1) for x in (p.log_weight, p.mean, p.variance)), dim)
                .log_prob(grid)
                .exp()
                for i in range(3)
            ]
        )
        inner = densities @ densities.T * (axis[1] - axis[0]) ** dim
        expected = inner / (inner.diagonal()[:, None] * inner.diagonal()).sqrt()
        torch.testing.assert_close(correlation(p), expected, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("way", ["auto", "tiled"])
    def test_every_way_gives_the_same(self, way: similarity.Way) -> None:
        p = mixtures(draw(), 16)
        torch.testing.assert_close(correlation(p, way=way), literal_correlation(p, p))

    @pytest.mark.parametrize("dim", [1, 16])
    def test_gradients_of_a_batch_with_itself(self, dim: int) -> None:
        inputs = [x.requires_grad_() for x in draw(rows=3, components=2)]
        assert torch.autograd.gradcheck(lambda *x: correlation(mixtures(x, dim)), inputs)

    @pytest.mark.parametrize("dim", [1, 16])
    def test_gradients_between_two_batches(self, dim: int) -> None:
        inputs = [x.requires_grad_() for x in (*draw(rows=2, components=2), *draw(rows=3, components=2, seed=1))]
        assert torch.autograd.gradcheck(lambda *x: correlation(mixtures(x[:3], dim), mixtures(x[3:], dim)), inputs)

    def test_where_only_one_side_learns_the_other_gets_no_gradient(self) -> None:
        mean = draw()[1].requires_grad_()
        p, q = mixtures((draw()[0], mean, draw()[2]), 2), mixtures(draw(seed=1), 2)
        (measured,) = torch.autograd.grad(correlation(p, q).sum(), mean)
        (expected,) = torch.autograd.grad(literal_correlation(p, q).sum(), mean)
        torch.testing.assert_close(measured, expected)

    def test_vector_means_are_an_error_that_names_the_other_function(self) -> None:
        with pytest.raises(ValueError, match="aligned_correlation"):
            correlation(mixtures(draw(size=(2,)), 2))
        with pytest.raises(ValueError, match="aligned_correlation"):
            correlation(mixtures(draw(), 2), mixtures(draw(size=(2,)), 2))

    def test_an_unknown_way_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="way='fast'; there are 'auto' and 'tiled'"):
            inspect.unwrap(correlation)(mixtures(draw(), 2), way="fast")


class TestAligned:
    @pytest.mark.parametrize("component_weight", WEIGHTS)
    @pytest.mark.parametrize("size", [(), (3,)], ids=["scalar", "vector"])
    @pytest.mark.parametrize("regime", REGIMES)
    def test_it_is_what_slow_loops_give(
        self, regime: str, size: tuple[int, ...], component_weight: ComponentWeight
    ) -> None:
        p = mixtures(draw(regime, rows=3, size=size), 3)
        q = mixtures(draw(regime, rows=2, size=size, seed=1), 3)
        for other in (None, q):
            measured = aligned_correlation(p, other, component_weight=component_weight)
            expected = slow_aligned(p, other or p, component_weight)
            torch.testing.assert_close(measured, expected, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("size", [(), (3,)], ids=["scalar", "vector"])
    def test_it_is_the_correlation_of_mixtures_whose_classes_live_far_apart(self, size: tuple[int, ...]) -> None:
        """Component k is moved to (m_k, 10⁴·e_k): d + C dimensions, all pairs, the textbook formula."""
        dim, components = 3, 4
        p, q = (mixtures(draw(rows=3, components=components, size=size, seed=seed), dim) for seed in (0, 1))
        far = [
            IsotropicMixture(
                m.log_weight,
                torch.cat([means_written_out(m), 1e4 * torch.eye(components).double().expand(3, -1, -1)], 2),
                m.variance,
                dim=dim + components,
            )
            for m in (p, q)
        ]
        # The C extra dimensions enter κ and the norms of the densities, so here too the mixture is said to have them.
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

    def test_with_equal_variances_both_weights_are_the_far_apart_correlation(self) -> None:
        p = mixtures(draw("floor", rows=4, size=(2,)), 2)
        far = torch.cat([p.mean, 1e3 * torch.eye(4).double().expand(4, -1, -1)], 2)
        expected = literal_correlation(*[IsotropicMixture(p.log_weight, far, p.variance, dim=6)] * 2)
        for component_weight in WEIGHTS:
            measured = aligned_correlation(p, component_weight=component_weight)
            torch.testing.assert_close(measured, expected, rtol=1e-9, atol=1e-12)

    def test_scalar_means_are_vectors_of_equal_coordinates(self) -> None:
        log_weight, mean, variance = draw()
        written_out = IsotropicMixture(log_weight, mean[:, :, None].repeat(1, 1, 5), variance, dim=5)
        torch.testing.assert_close(aligned_correlation(mixtures(draw(), 5)), aligned_correlation(written_out))

    def test_by_default_components_count_by_their_weight_alone(self) -> None:
        p = mixtures(draw(), 8)
        assert torch.equal(aligned_correlation(p), aligned_correlation(p, component_weight="l2"))
        assert not torch.allclose(aligned_correlation(p), aligned_correlation(p, component_weight="density"))

    @pytest.mark.parametrize("component_weight", WEIGHTS)
    @pytest.mark.parametrize("size", [(), (3,)], ids=["scalar", "vector"])
    def test_gradients(self, size: tuple[int, ...], component_weight: ComponentWeight) -> None:
        a, b = draw(rows=3, components=2, size=size), draw(rows=2, components=2, size=size, seed=1)

        def alone(*x: Tensor) -> Tensor:
            return aligned_correlation(mixtures(x, 3), component_weight=component_weight)

        def both(*x: Tensor) -> Tensor:
            p, q = mixtures(x[:3], 3), mixtures(x[3:], 3)
            return aligned_correlation(p, q, component_weight=component_weight)

        assert torch.autograd.gradcheck(alone, [x.requires_grad_() for x in a])
        assert torch.autograd.gradcheck(both, [x.requires_grad_() for x in (*a, *b)])

    def test_the_default_shares_a_component_only_with_its_namesake(self) -> None:
        first, second = torch.tensor([[0.0, -math.inf]]), torch.tensor([[-math.inf, 0.0]])
        same = torch.zeros(1, 2, 3), torch.ones(1, 2)
        p, q = IsotropicMixture(first, *same, dim=3), IsotropicMixture(second, *same, dim=3)
        assert aligned_correlation(p, q) == 0
        assert aligned_correlation(p, p) == 1

    @pytest.mark.parametrize("offset", [0.0, 100.0])
    def test_mean_vectors_that_nearly_coincide_keep_their_distance_in_float32(self, offset: float) -> None:
        step = 2.0**-7  # exact beside 100
        mean = torch.full((2, 1, 64), offset)
        mean[1] += step
        p = IsotropicMixture(torch.zeros(2, 1), mean, torch.ones(2, 1), dim=64)
        assert aligned_correlation(p)[0, 1].item() == pytest.approx(math.exp(-64 * step**2 / 4), abs=1e-7)

    @pytest.mark.parametrize("component_weight", WEIGHTS)
    def test_equal_mean_vectors_are_alike_and_pull_nowhere(self, component_weight: ComponentWeight) -> None:
        inputs = [x[:1].float().repeat(4, *[1] * (x.ndim - 1)).requires_grad_() for x in draw(size=(16,))]
        measured = aligned_correlation(mixtures(inputs, 16), component_weight=component_weight)
        torch.testing.assert_close(measured, torch.ones(4, 4), rtol=0, atol=1e-6)
        for gradient in torch.autograd.grad(measured.sum(), inputs):
            assert gradient.abs().max() < 1e-4

    def test_an_unknown_weight_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="component_weight='l1'; there are 'l2' and 'density'"):
            inspect.unwrap(aligned_correlation)(mixtures(draw(), 2), component_weight="l1")


@pytest.mark.parametrize("name", list(SIMILARITIES))
class TestEverySimilarity:
    @given(seed=st.integers(0, 999), regime=st.sampled_from(REGIMES), dim=st.sampled_from(DIMS))
    @settings(deadline=None, max_examples=50)
    def test_symmetric_between_zero_and_one_and_one_with_itself(
        self, name: str, seed: int, regime: str, dim: int
    ) -> None:
        parameters = draw(regime, seed=seed)
        for dtype, digit in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
            measured = SIMILARITIES[name](mixtures((x.to(dtype) for x in parameters), dim))
            assert measured.dtype == dtype
            assert measured.isfinite().all()
            assert 0 <= measured.min() <= measured.max() <= 1
            torch.testing.assert_close(measured, measured.T, rtol=0, atol=digit)
            torch.testing.assert_close(measured.diagonal(), torch.ones(6, dtype=dtype), rtol=0, atol=digit)

    @given(seed=st.integers(0, 999), shift=st.floats(-20, 20), data=st.data())
    @settings(deadline=None, max_examples=50)
    def test_order_of_rows_and_components_common_shift_and_scale_of_weights(
        self, name: str, seed: int, shift: float, data: st.DataObject
    ) -> None:
        log_weight, mean, variance = draw(seed=seed)
        expected = SIMILARITIES[name](IsotropicMixture(log_weight, mean, variance, dim=16))
        rows, order = data.draw(st.permutations(range(6))), data.draw(st.permutations(range(4)))
        shuffled = mixtures((x[rows][:, order] for x in (log_weight, mean, variance)), 16)
        torch.testing.assert_close(SIMILARITIES[name](shuffled), expected[rows][:, rows])
        moved = IsotropicMixture(log_weight + 7 * shift, mean + shift, variance, dim=16)
        torch.testing.assert_close(SIMILARITIES[name](moved), expected)

    def test_a_batch_against_another_is_a_block_of_both_together(self, name: str) -> None:
        together = draw(rows=7)
        p, q = (mixtures((x[rows] for x in together), 16) for rows in (slice(0, 3), slice(3, 7)))
        measured = SIMILARITIES[name](p, q)
        assert measured.shape == (3, 4)
        torch.testing.assert_close(measured, SIMILARITIES[name](mixtures(together, 16))[:3, 3:])

    def test_one_row_with_one_component_is_like_itself(self, name: str) -> None:
        p = IsotropicMixture(torch.zeros(1, 1), torch.full((1, 1), 3.0), torch.full((1, 1), 2.0), dim=2048)
        assert torch.equal(SIMILARITIES[name](p), torch.ones(1, 1))

    def test_one_component_is_kappa(self, name: str) -> None:
        p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [0.5]]), torch.tensor([[1.0], [4.0]]), dim=8)
        kappa = (2 * 1 * 2 / 5) ** 4 * math.exp(-8 * 0.25 / 10)
        assert SIMILARITIES[name](p)[0, 1].item() == pytest.approx(kappa, rel=1e-6)

    @pytest.mark.parametrize("dim", DIMS)
    def test_one_hot_weights_leave_one_component_and_finite_gradients(self, name: str, dim: int) -> None:
        mean = torch.tensor([[0.0, 9.0], [-9.0, 0.01]]).requires_grad_()
        variance = torch.tensor([[1.0, 50.0], [0.5, 1.0]]).requires_grad_()
        log_weight = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]]).requires_grad_()
        measured = SIMILARITIES[name](IsotropicMixture(log_weight, mean, variance, dim=dim))
        between = (
            math.exp(-dim * 1e-4 / 4) if name == "correlation" else 0.0
        )  # aligned: they have no component in common
        torch.testing.assert_close(measured, torch.tensor([[1, between], [between, 1]]), rtol=0, atol=1e-6)
        for gradient in torch.autograd.grad(measured.square().sum(), (log_weight, mean, variance)):
            assert gradient.isfinite().all()

    def test_equal_components_are_one_component(self, name: str) -> None:
        _, mean, variance = draw(components=1)
        spread = torch.full((6, 3), -math.log(3)).double()
        thrice = IsotropicMixture(spread, mean.expand(6, 3), variance.expand(6, 3), dim=16)
        once = IsotropicMixture(torch.zeros(6, 1).double(), mean, variance, dim=16)
        torch.testing.assert_close(SIMILARITIES[name](thrice), SIMILARITIES[name](once))

    def test_equal_rows_are_alike_and_pull_nowhere(self, name: str) -> None:
        inputs = [x[:1].float().repeat(5, 1).requires_grad_() for x in draw()]
        measured = SIMILARITIES[name](mixtures(inputs, 128))
        torch.testing.assert_close(measured, torch.ones(5, 5), rtol=0, atol=1e-6)
        for gradient in torch.autograd.grad(measured.sum(), inputs):
            assert gradient.abs().max() < 1e-3

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
    def test_half_precision_is_raised_first(self, name: str, half: torch.dtype) -> None:
        log_weight, mean, variance = (x.to(half) for x in draw())
        p = IsotropicMixture(log_weight, mean, variance, dim=2048)
        raised = IsotropicMixture(log_weight.float(), mean.float(), variance.float(), dim=2048)
        assert torch.equal(SIMILARITIES[name](p), SIMILARITIES[name](raised))

    def test_autocast_around_the_call_changes_nothing(self, name: str) -> None:
        p = mixtures((x.float() for x in draw()), 128)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = SIMILARITIES[name](p)
        assert torch.equal(inside, SIMILARITIES[name](p))

    def test_mixtures_in_different_spaces_are_an_error(self, name: str) -> None:
        p = mixtures(draw(), 16)
        for q in (mixtures(draw(), 17), mixtures(draw(components=5), 16)):
            with pytest.raises(ValueError, match="mixtures of 4 components in 16 dimensions and of"):
                SIMILARITIES[name](p, q)


def found(
    compute: Callable[[IsotropicMixture], Tensor], parameters: list[Tensor], pull: Tensor, dim: int
) -> list[Tensor]:
    """Similarities, and the gradients of their sum weighted by `pull`, in float64."""
    inputs = [x.clone().requires_grad_() for x in parameters]
    value = compute(mixtures(inputs, dim))
    gradients = torch.autograd.grad((value * pull).sum(), inputs)
    return [x.detach().double() for x in (value, *gradients)]


def compare(name: str, regime: str, dim: int, components: int = 10) -> tuple[list[Tensor], list[Tensor]]:
    """Float32, and the truth in float64 from the same rounded parameters."""
    rounded = [x.float() for x in draw(regime, rows=12, components=components)]
    pull = torch.randn(12, 12, generator=torch.Generator().manual_seed(0))
    finer = [x.double() for x in rounded]
    reference = (lambda p: literal_correlation(p, p)) if name == "correlation" else SIMILARITIES[name]
    return found(SIMILARITIES[name], rounded, pull, dim), found(reference, finer, pull, dim)


def allowed(regime: str, dim: int) -> float:
    """Error of a gradient relative to the largest, three times what was measured.

    Where all mixtures are nearly the same, so are all gradients nearly zero: what is left of them after float32 has
    taken the difference of large numbers is less. Few dimensions make all mixtures alike, too.
    """
    if regime == "alike":
        return 1e-4 if dim >= 16 else 1e-3
    return 1e-5 if dim >= 16 else 3e-5


def assert_as_good_as_truth(measured: list[Tensor], truth: list[Tensor], relative: float, dim: int) -> None:
    assert (measured[0] - truth[0]).abs().max() <= 1e-6
    rounding = 6e-8  # of a logit's gradient; a variance moves its logit by n/4 (in wide regimes nothing else is left)
    for k, least in ((1, rounding), (2, 1e-30), (3, dim / 4 * rounding)):
        assert measured[k].isfinite().all()
        assert (measured[k] - truth[k]).abs().max() <= relative * truth[k].abs().max() + least


@pytest.mark.parametrize("name", list(SIMILARITIES))
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dim", DIMS)
def test_float32_is_as_good_as_float64(name: str, regime: str, dim: int) -> None:
    assert_as_good_as_truth(*compare(name, regime, dim), allowed(regime, dim), dim)


@pytest.mark.parametrize("name", list(SIMILARITIES))
@pytest.mark.parametrize("regime", ["init", "floor", "thousand"])
@pytest.mark.parametrize("dim", [16, 2048])
def test_float32_is_as_good_as_float64_with_the_classes_of_coco(name: str, regime: str, dim: int) -> None:
    assert_as_good_as_truth(*compare(name, regime, dim, components=80), allowed(regime, dim), dim)


def test_the_plain_formula_would_underflow_where_this_one_does_not() -> None:
    p = mixtures((x.float() for x in draw("floor")), 2048)
    assert (2 * math.pi * 2 * p.variance).pow(-1024).max() == 0
    torch.testing.assert_close(correlation(p).diagonal(), torch.ones(6), rtol=0, atol=1e-6)


def test_what_rounding_put_above_one_is_taken_off_and_keeps_its_gradient() -> None:
    rounded = torch.tensor([0.25, 1.0, 1 + 2**-23, 1 + 2**-20], requires_grad=True)
    measured = similarity._at_most_one(rounded)
    assert measured.tolist() == [0.25, 1.0, 1.0, 1.0]
    assert torch.equal(torch.autograd.grad(measured.sum(), rounded)[0], torch.ones(4))


class TestTiles:
    @pytest.mark.parametrize("tile", [1, 15, 16, 40, 100, 1000])
    def test_the_size_of_a_tile_changes_nothing(self, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
        parameters = [*draw(rows=7), *draw(rows=5, seed=1)]

        def everything() -> list[Tensor]:
            inputs = [x.clone().requires_grad_() for x in parameters]
            p, q = mixtures(inputs[:3], 16), mixtures(inputs[3:], 16)
            alone, both = correlation(p), correlation(p, q)
            return [alone, both, *torch.autograd.grad(alone.square().sum() + both.square().sum(), inputs)]

        expected = everything()
        monkeypatch.setattr(similarity, "TILE", tile)
        for measured, whole in zip(everything(), expected, strict=True):
            torch.testing.assert_close(measured, whole, rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("tile", [400, 1000, 5000])
    def test_no_tensor_is_larger_than_a_tile_forward_or_backward(
        self, tile: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(similarity, "TILE", tile)
        inputs = [x.requires_grad_() for x in draw(rows=20, components=5)]  # 10,000 pairs of components
        with Largest() as seen:  # type: ignore[no-untyped-call]
            torch.autograd.backward(correlation(mixtures(inputs, 16)).square().sum())
        assert tile / 2 < seen.numbers <= tile

    def test_the_paper_s_own_setting_takes_less_than_half_a_gigabyte(self) -> None:
        """256 views and 80 classes in 2048 dimensions; the plain formula takes 18 GB. It computes for 10 to 20 s."""
        pytest.importorskip("resource")
        code = """
import resource, sys, torch
from torch.nn.functional import elu
from torch.utils._python_dispatch import TorchDispatchMode
from probmcl.mixture import IsotropicMixture, correlation

def step(rows):
    logit, mean, raw = (torch.randn(rows, 80, requires_grad=True) for _ in range(3))
    p = IsotropicMixture(logit.log_softmax(1), mean / 2, elu(raw) + 2, dim=2048)
    correlation(p).square().sum().backward()
    assert all(x.grad.isfinite().all() for x in (logit, mean, raw))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

torch.set_num_threads(1)
step(4)
before = peak()
step(256)
print(peak() - before)
"""
        environment = {**os.environ, "PYTHONPATH": str(Path(probmcl.__file__).parents[1])}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert 0 <= int(run.stdout) < 0.5e9
