import math

import pytest
import torch
from torch import Tensor

from helpers.mixtures import REGIMES, class_bhattacharyya, draw, mixture_of
from probmcl.mixture import IsotropicMixture, bhattacharyya


def on_a_plain_grid(p: IsotropicMixture) -> Tensor:
    """∫√(p_i p_j) over the whole of R or R², as a sum over a square of equal cells."""
    axis = torch.linspace(-30, 30, 401, dtype=torch.float64)
    places = torch.cartesian_prod(*[axis] * p.dim).reshape(-1, p.dim)
    log_densities = []
    for i in range(len(p.mean)):
        row = (x[i : i + 1].expand(len(places), -1) for x in (p.log_weight, p.mean, p.variance))
        log_densities.append(mixture_of(row, p.dim).log_prob(places))
    roots = (torch.stack(log_densities) / 2).exp()
    return roots @ roots.T * (axis[1] - axis[0]) ** p.dim


def along_and_across(p: IsotropicMixture) -> Tensor:
    """∫√(p_i p_j), by u along the line of all multiples of 1 and the distance r from it, as a sum over equal cells.

    What lies at the distance r is a sphere of n − 2 dimensions, of area 2π^(m/2)/Γ(m/2) r^(m−1) with m = n − 1.
    """
    m, root = p.dim - 1, math.sqrt(p.dim)
    widest = p.variance.max().sqrt().item()
    reach = root * p.mean.abs().max().item() + 9 * widest
    u = torch.linspace(-reach, reach, 601, dtype=torch.float64)
    t = torch.linspace(0, math.sqrt((math.sqrt(m) + 7) * widest), 802, dtype=torch.float64)[1:]
    r = t.square()  # so that the integrand is flat at zero, and dr = 2t dt
    log_area = math.log(2) + m / 2 * math.log(math.pi) - math.lgamma(m / 2) + (m - 1) * r.log() + (2 * t).log()
    log_densities = []
    for log_weight, mean, variance in zip(p.log_weight, p.mean, p.variance, strict=True):
        squares = (u[:, None, None] - root * mean).square() + r[:, None].square()
        log_normal = -p.dim / 2 * (2 * math.pi * variance).log() - squares / (2 * variance)
        log_densities.append((log_weight + log_normal).logsumexp(2))
    cell = (u[1] - u[0]) * (t[1] - t[0])
    roots = ((torch.stack(log_densities) + log_area) / 2).exp().flatten(1)
    return roots @ roots.T * cell


class TestWholeMixtures:
    @pytest.mark.parametrize("regime", ["init", "wide"])
    @pytest.mark.parametrize("dim", [1, 2])
    def test_it_is_the_integral_on_a_plain_grid(self, regime: str, dim: int) -> None:
        p = mixture_of(draw(regime, rows=3, components=3), dim)
        torch.testing.assert_close(bhattacharyya(p), on_a_plain_grid(p), rtol=0, atol=1e-8)

    @pytest.mark.parametrize("regime", ["init", "wide", "floor"])
    @pytest.mark.parametrize("dim", [3, 128])
    def test_it_is_the_integral_along_and_across_the_line(self, regime: str, dim: int) -> None:
        p = mixture_of(draw(regime, rows=3, components=3), dim)
        torch.testing.assert_close(bhattacharyya(p, step=0.5), along_and_across(p), rtol=0, atol=1e-7)

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", [1, 2, 16, 128, 2048])
    def test_between_single_gaussians_it_is_the_closed_form(self, regime: str, dim: int) -> None:
        p, q = (mixture_of(draw(regime, components=1, seed=seed), dim) for seed in (0, 1))
        torch.testing.assert_close(bhattacharyya(p, q), class_bhattacharyya(p, q)[:, :, 0], rtol=0, atol=1e-12)

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", [1, 2, 16, 128, 2048])
    def test_symmetric_between_zero_and_one_and_one_with_itself(self, regime: str, dim: int) -> None:
        p = mixture_of((x.float() for x in draw(regime)), dim)
        measured = bhattacharyya(p)
        assert measured.dtype == torch.float32
        assert measured.isfinite().all()
        assert 0 <= measured.min() <= measured.max() <= 1
        torch.testing.assert_close(measured, measured.T, rtol=0, atol=1e-6)
        torch.testing.assert_close(measured.diagonal(), torch.ones(6), rtol=0, atol=2e-6)

    def test_a_batch_against_another_is_a_block_of_both_together(self) -> None:
        together = draw(rows=7)
        p, q = (mixture_of((x[rows] for x in together), 16) for rows in (slice(0, 3), slice(3, 7)))
        whole = bhattacharyya(mixture_of(together, 16), step=0.5)
        torch.testing.assert_close(bhattacharyya(p, q, step=0.5), whole[:3, 3:], rtol=0, atol=1e-9)

    @pytest.mark.parametrize("dim", [1, 3, 16])
    def test_gradients(self, dim: int) -> None:
        a, b = ([x.requires_grad_() for x in draw(rows=2, components=2, seed=seed)] for seed in (0, 1))
        assert torch.autograd.gradcheck(lambda *x: bhattacharyya(mixture_of(x, dim), step=0.5), a)
        assert torch.autograd.gradcheck(
            lambda *x: bhattacharyya(mixture_of(x[:3], dim), mixture_of(x[3:], dim), step=0.5), (*a, *b)
        )

    @pytest.mark.parametrize("dim", [1, 16, 2048])
    def test_one_hot_weights_leave_one_component_and_finite_gradients(self, dim: int) -> None:
        mean = torch.tensor([[0.0, 9.0], [-9.0, 0.01]]).requires_grad_()
        variance = torch.tensor([[1.0, 50.0], [0.5, 1.0]]).requires_grad_()
        log_weight = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]]).requires_grad_()
        measured = bhattacharyya(IsotropicMixture(log_weight, mean, variance, dim=dim))
        between = math.exp(-dim * 1e-4 / 8)
        torch.testing.assert_close(measured, torch.tensor([[1, between], [between, 1]]), rtol=0, atol=3e-6)
        for gradient in torch.autograd.grad(measured.square().sum(), (log_weight, mean, variance)):
            assert gradient.isfinite().all()

    def test_mixtures_that_lie_far_apart_share_nothing_and_have_finite_gradients(self) -> None:
        mean = torch.tensor([[0.0], [50.0]], requires_grad=True)
        measured = bhattacharyya(IsotropicMixture(torch.zeros(2, 1), mean, torch.ones(2, 1), dim=2))
        torch.testing.assert_close(measured, torch.eye(2), rtol=0, atol=1e-6)
        assert torch.autograd.grad(measured[0, 1], mean)[0].isfinite().all()

    @pytest.mark.parametrize("rows", [(0, 0), (0, 3), (3, 0)])
    def test_no_rows_give_no_coefficients(self, rows: tuple[int, int]) -> None:
        p, q = (mixture_of(draw(rows=count), 16) for count in rows)
        assert bhattacharyya(p, q).shape == rows

    def test_autocast_around_the_call_changes_nothing(self) -> None:
        p = mixture_of((x.float() for x in draw()), 128)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = bhattacharyya(p)
        assert torch.equal(inside, bhattacharyya(p))

    def test_to_differentiate_twice_is_an_error_that_says_so(self) -> None:
        inputs = [x.requires_grad_() for x in draw()]
        value = bhattacharyya(mixture_of(inputs, 16)).square().sum()
        (gradient,) = torch.autograd.grad(value, inputs[1], create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            torch.autograd.backward(gradient.square().sum())

    def test_vector_means_are_an_error(self) -> None:
        p, vectors = mixture_of(draw(), 2), mixture_of(draw(size=(2,)), 2)
        for sides in ((vectors, None), (p, vectors)):
            with pytest.raises(ValueError, match="is for scalar means"):
                bhattacharyya(*sides)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_parameter_that_is_not_finite_is_an_error(self, value: float) -> None:
        log_weight, mean, variance = draw()
        mean[0, 0] = value
        with pytest.raises(ValueError, match="not finite"):
            bhattacharyya(IsotropicMixture(log_weight, mean, variance, dim=16))

    def test_mixtures_in_different_spaces_are_an_error(self) -> None:
        p = mixture_of(draw(), 16)
        for q in (mixture_of(draw(), 17), mixture_of(draw(components=5), 16)):
            with pytest.raises(ValueError, match="mixtures of 4 components in 16 dimensions and of"):
                bhattacharyya(p, q)


class TestError:
    """The change of a coefficient when the step is halved estimates the error of the coarser one."""

    @staticmethod
    def estimate(p: IsotropicMixture, step: float) -> float:
        return (bhattacharyya(p, step=step) - bhattacharyya(p, step=step / 2)).abs().max().item()

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", [1, 2, 16, 128, 2048])
    @pytest.mark.parametrize("step", [1.0, 2.0])
    def test_what_is_estimated_is_what_is_made_up_to_a_factor_of_three(
        self, step: float, dim: int, regime: str
    ) -> None:
        p = mixture_of(draw(regime, rows=5, components=3), dim)
        made = (bhattacharyya(p, step=step) - bhattacharyya(p, step=0.25)).abs().max().item()
        estimated, rounding = self.estimate(p, step), 1e-13
        assert made / 3 - rounding <= estimated <= 3 * made + rounding

    @pytest.mark.parametrize("dim", [1, 128])
    def test_it_covers_the_difference_from_slow_integration(self, dim: int) -> None:
        p = mixture_of(draw("init", rows=3, components=3), dim)
        reference = on_a_plain_grid(p) if dim == 1 else along_and_across(p)
        for step in (2.0, 3.0):
            made = (bhattacharyya(p, step=step) - reference).abs().max().item()
            assert 1e-9 < made < 3 * self.estimate(p, step)
