import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from helpers.mixtures import draw
from probmcl.mixture.density import Components
from probmcl.mixture.grid import Axis, Grid, grid_for, middle_across, step_across, step_along, tails_across

ERRORS = [1e-3, 1e-6, 1e-9]


def trapezoidal_error(function: Callable[[float], float], step: float, low: float, high: float) -> float:
    """Return the largest error relative to the integral, over 32 offsets of the nodes."""

    def total(step: float, shift: float) -> float:
        nodes = range(math.floor(low / step), math.ceil(high / step) + 1)
        return step * math.fsum(function((k + shift) * step) for k in nodes)

    exact = total(step / 4, 0.0)
    return max(abs(total(step, shift / 32) / exact - 1) for shift in range(32))


def squared_profile(dim: int) -> Callable[[float], float]:
    """Return the squared profile of a component across the line, as a function of the distance ξ from its mode."""
    return lambda xi: math.exp(-(dim - 1) / 2 * (math.expm1(2 * xi) - 2 * xi))


def components(regime: str = "init", rows: int = 6, count: int = 8, seed: int = 0) -> Components:
    """Return components whose norms range from 1 down to 10⁻¹³."""
    log_weight, mean, variance = draw(regime, rows=rows, components=count, seed=seed)
    scaled = 8 * log_weight
    return Components((scaled - scaled.amax(1, keepdim=True)).clamp(min=-30), mean, variance)


def mass_outside(built: Grid, c: Components, *, halved: bool) -> list[Tensor]:
    """Return the mass of each component beyond each end of each axis; `halved` selects its square, of variance v/2."""
    variance = c.variance / 2 if halved else c.variance
    position = built.dim**0.5 * c.mean
    first, last = built.along.first, built.along.first + (built.along.nodes - 1) * built.along.step
    distances = [x / (2 * variance).sqrt() for x in (position - first, last - position)]
    tails = [torch.special.erfc(x) / 2 for x in distances]
    if built.across is not None:  # the squared distance from the line is gamma distributed
        shape = torch.full_like(variance, (built.dim - 1) / 2)
        first, last = built.across.first, built.across.first + (built.across.nodes - 1) * built.across.step
        tails += [
            torch.special.gammainc(shape, math.exp(2 * first) / (2 * variance)),
            torch.special.gammaincc(shape, math.exp(2 * last) / (2 * variance)),
        ]
    return tails


@pytest.fixture
def make_grid() -> Callable[..., Grid]:
    def make(*sides: Components, dim: int = 16, **options: object) -> Grid:
        built = grid_for(list(sides), dim, **options)  # type: ignore[arg-type]
        assert built is not None
        return built

    return make


class TestSteps:
    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("deviation", [0.1, 1.0, 30.0])
    def test_step_along_gives_the_requested_error(self, deviation: float, error: float) -> None:
        reach = 10 * deviation
        measured = trapezoidal_error(
            lambda u: math.exp(-((u / deviation) ** 2)), step_along(deviation, error), -reach, reach
        )
        assert measured == pytest.approx(error, rel=1e-3)

    @pytest.mark.parametrize("wider", [1.0, 1.5, 10.0])
    @pytest.mark.parametrize("distance", [0.0, 1.0, 4.0])
    def test_wider_components_have_no_larger_error(self, wider: float, distance: float) -> None:
        """The error is relative to the norms, which are one."""

        def product(u: float) -> float:
            return math.exp(-(u**2) / 2 - ((u - distance) / wider) ** 2 / 2) / math.sqrt(math.pi * wider)

        step = step_along(1.0, 1e-6)
        nodes = [step * (k + 0.5) for k in range(-200, 200)]
        kappa = math.sqrt(2 * wider / (1 + wider**2)) * math.exp(-(distance**2) / (2 * (1 + wider**2)))
        assert abs(step * math.fsum(map(product, nodes)) - kappa) <= 1e-6

    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("dim", [2, 3, 16, 128, 2048])
    def test_step_across_gives_the_requested_error(self, dim: int, error: float) -> None:
        below, above = tails_across(dim, 1e-16)
        measured = trapezoidal_error(squared_profile(dim), step_across(dim, error), -below, above)
        assert measured == pytest.approx(error, rel=0.01)

    @pytest.mark.parametrize("dim", [2, 128, 4096])
    def test_smaller_error_needs_a_smaller_step(self, dim: int) -> None:
        assert step_across(dim, 1e-15) < step_across(dim, 1e-9) < step_across(dim, 1e-3)
        assert step_along(1.0, 1e-15) < step_along(1.0, 1e-9) < step_along(1.0, 1e-3)


class TestTails:
    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("dim", [2, 3, 16, 128, 2048])
    def test_squared_profile_equals_the_error_at_the_tails(self, dim: int, error: float) -> None:
        below, above = tails_across(dim, error)
        profile = squared_profile(dim)
        assert profile(-below) == pytest.approx(error, rel=1e-6)
        assert profile(above) == pytest.approx(error, rel=1e-6)
        assert 0 < above < below

    @pytest.mark.parametrize("dim", [2, 3, 16, 128, 2048])
    def test_mass_beyond_the_tails_is_below_the_error(self, dim: int) -> None:
        below, above = tails_across(dim, 1e-6)
        far, profile = tails_across(dim, 1e-16)[0], squared_profile(dim)
        step = (far - below) / 10_000
        outside = step * math.fsum(profile(x) for k in range(10_000) for x in (-below - k * step, above + k * step))
        total = step * math.fsum(profile(-far + k * step) for k in range(math.ceil(2 * far / step)))
        assert outside < 1e-6 * total

    @pytest.mark.parametrize("power", [0.25, 0.5])
    def test_middle_is_the_mode(self, power: float) -> None:
        """The profile includes the volume factor r^m, or its root for `power` ¼."""

        def log_profile(y: float) -> float:
            return 2 * power * (dim - 1) * y - math.exp(2 * y) / 2

        dim = 17
        middle = middle_across(dim, power)
        assert log_profile(middle) > max(log_profile(middle - 1e-3), log_profile(middle + 1e-3))


class TestGrid:
    @pytest.mark.parametrize("kind", ["norm", "mass"])
    @pytest.mark.parametrize("dim", [1, 2, 3, 128, 2048])
    def test_mass_outside_the_grid_is_below_the_error(
        self, kind: Literal["norm", "mass"], dim: int, make_grid: Callable[..., Grid]
    ) -> None:
        """Squared norm or mass is relative to the component of largest norm in the row."""
        sides = [components("wide"), components("thousand", seed=1)]
        built = make_grid(*sides, dim=dim, kind=kind)
        for c in sides:
            weight = (2 * c.log_norm).exp() if kind == "norm" else c.log_norm.exp()
            for outside in mass_outside(built, c, halved=kind == "norm"):
                assert (weight * outside).max() <= 1e-15

    @pytest.mark.parametrize("dim", [1, 2, 128, 2048])
    def test_grid_is_not_larger_than_necessary(self, dim: int, make_grid: Callable[..., Grid]) -> None:
        c = components("wide")
        built = make_grid(c, dim=dim)
        position, deviation, tail = dim**0.5 * c.mean, c.variance.sqrt(), math.sqrt(math.log(1e15))
        needed = (position + tail * deviation).max() - (position - tail * deviation).min()
        assert (built.along.nodes - 9) * built.along.step <= needed.item()
        assert built.along.step == step_along(deviation.min().item(), 1e-15)
        if built.across is not None:
            needed = deviation.max().log() - deviation.min().log() + sum(tails_across(dim, 1e-15))
            assert (built.across.nodes - 9) * built.across.step <= needed.item()
            assert built.across.step == step_across(dim, 1e-15)

    def test_nodes_are_the_product_of_both_axes(self, make_grid: Callable[..., Grid]) -> None:
        built, flat = make_grid(components()), make_grid(components(), dim=1)
        assert built.across is not None
        assert built.nodes == built.along.nodes * built.across.nodes
        assert flat.across is None
        assert flat.nodes == flat.along.nodes

    def test_components_of_weight_zero_need_no_nodes(self, make_grid: Callable[..., Grid]) -> None:
        c = components()
        distant = Components(c.log_norm.clone(), c.mean.clone(), c.variance)
        distant.log_norm[:, 1], distant.mean[:, 1] = -math.inf, 1e6
        assert make_grid(distant).nodes <= make_grid(c).nodes

    def test_half_the_step_doubles_the_nodes_per_axis(self, make_grid: Callable[..., Grid]) -> None:
        c = components("wide", rows=20)
        coarse, fine = make_grid(c, dim=512), make_grid(c, dim=512, step=0.5)
        assert coarse.across is not None
        assert fine.across is not None
        for finer, coarser in ((fine.along, coarse.along), (fine.across, coarse.across)):
            assert finer.step == pytest.approx(coarser.step / 2)
            assert abs(finer.nodes - 2 * coarser.nodes) <= 16

    def test_float32_needs_fewer_nodes(self, make_grid: Callable[..., Grid]) -> None:
        fine = components()
        coarse = Components(*(x.float() for x in fine))
        assert make_grid(coarse).nodes < 0.7 * make_grid(fine).nodes

    def test_number_of_nodes_at_initialization(self, make_grid: Callable[..., Grid]) -> None:
        c = Components(*(x.float() for x in components(rows=256, count=80)))
        assert 1000 < make_grid(c, dim=128).nodes < 4000

    @pytest.mark.parametrize("parameter", ["mean", "variance"])
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_no_grid_for_parameters_that_are_not_finite(self, parameter: str, value: float) -> None:
        good, bad = components(), components()
        getattr(bad, parameter)[2, 1] = value
        assert grid_for([good], 16) is not None
        for sides in ([bad], [good, bad], [bad, good]):
            assert grid_for(sides, 16) is None

    def test_positions_are_equispaced_and_float64(self) -> None:
        positions = Axis(first=-1.0, step=0.25, nodes=8).positions(torch.zeros(1))
        torch.testing.assert_close(positions, torch.tensor([-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75]).double())
