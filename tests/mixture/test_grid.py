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
    """Largest error relative to the integral, over all places that the first node may have."""

    def total(step: float, shift: float) -> float:
        nodes = range(math.floor(low / step), math.ceil(high / step) + 1)
        return step * math.fsum(function((k + shift) * step) for k in nodes)

    exact = total(step / 4, 0.0)
    return max(abs(total(step, shift / 32) / exact - 1) for shift in range(32))


def squared_profile(dim: int) -> Callable[[float], float]:
    """Square of a component across the line, by the distance ξ from its middle."""
    return lambda xi: math.exp(-(dim - 1) / 2 * (math.expm1(2 * xi) - 2 * xi))


def components(regime: str = "init", rows: int = 6, count: int = 8, seed: int = 0) -> Components:
    """With norms from one down to 10⁻¹³ of it."""
    log_weight, mean, variance = draw(regime, rows=rows, components=count, seed=seed)
    spread_out = 8 * log_weight
    return Components((spread_out - spread_out.amax(1, keepdim=True)).clamp(min=-30), mean, variance)


def outside_of(built: Grid, c: Components, *, halved: bool) -> list[Tensor]:
    """What each component has beyond each end of each axis; of its square, which is half as wide, or of itself."""
    variance = c.variance / 2 if halved else c.variance
    place = built.dim**0.5 * c.mean
    first, last = built.along.first, built.along.first + (built.along.nodes - 1) * built.along.step
    distances = [x / (2 * variance).sqrt() for x in (place - first, last - place)]
    beyond = [torch.special.erfc(x) / 2 for x in distances]
    if built.across is not None:  # the squared distance from the line has a gamma distribution
        half = torch.full_like(variance, (built.dim - 1) / 2)
        first, last = built.across.first, built.across.first + (built.across.nodes - 1) * built.across.step
        beyond += [
            torch.special.gammainc(half, math.exp(2 * first) / (2 * variance)),
            torch.special.gammaincc(half, math.exp(2 * last) / (2 * variance)),
        ]
    return beyond


@pytest.fixture
def made() -> Callable[..., Grid]:
    def make(*sides: Components, dim: int = 16, **options: object) -> Grid:
        built = grid_for(list(sides), dim, **options)  # type: ignore[arg-type]
        assert built is not None
        return built

    return make


class TestSteps:
    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("deviation", [0.1, 1.0, 30.0])
    def test_along_the_line_the_error_is_the_one_asked_for(self, deviation: float, error: float) -> None:
        reach = 10 * deviation
        measured = trapezoidal_error(
            lambda u: math.exp(-((u / deviation) ** 2)), step_along(deviation, error), -reach, reach
        )
        assert measured == pytest.approx(error, rel=1e-3)

    @pytest.mark.parametrize("wider", [1.0, 1.5, 10.0])
    @pytest.mark.parametrize("distance", [0.0, 1.0, 4.0])
    def test_two_components_of_which_none_is_narrower_have_no_larger_error(self, wider: float, distance: float) -> None:
        """Relative to their norms, which are one."""

        def product(u: float) -> float:
            return math.exp(-(u**2) / 2 - ((u - distance) / wider) ** 2 / 2) / math.sqrt(math.pi * wider)

        step = step_along(1.0, 1e-6)
        nodes = [step * (k + 0.5) for k in range(-200, 200)]
        kappa = math.sqrt(2 * wider / (1 + wider**2)) * math.exp(-(distance**2) / (2 * (1 + wider**2)))
        assert abs(step * math.fsum(map(product, nodes)) - kappa) <= 1e-6

    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("dim", [2, 3, 16, 128, 2048])
    def test_across_the_line_the_error_is_the_one_asked_for(self, dim: int, error: float) -> None:
        below, above = tails_across(dim, 1e-16)
        measured = trapezoidal_error(squared_profile(dim), step_across(dim, error), -below, above)
        assert measured == pytest.approx(error, rel=0.01)

    @pytest.mark.parametrize("dim", [2, 128, 4096])
    def test_a_smaller_error_takes_a_smaller_step(self, dim: int) -> None:
        assert step_across(dim, 1e-15) < step_across(dim, 1e-9) < step_across(dim, 1e-3)
        assert step_along(1.0, 1e-15) < step_along(1.0, 1e-9) < step_along(1.0, 1e-3)


class TestTails:
    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("dim", [2, 3, 16, 128, 2048])
    def test_there_the_square_of_a_component_has_sunk_to_the_error(self, dim: int, error: float) -> None:
        below, above = tails_across(dim, error)
        profile = squared_profile(dim)
        assert profile(-below) == pytest.approx(error, rel=1e-6)
        assert profile(above) == pytest.approx(error, rel=1e-6)
        assert 0 < above < below

    @pytest.mark.parametrize("dim", [2, 3, 16, 128, 2048])
    def test_what_lies_beyond_is_no_more_than_the_error(self, dim: int) -> None:
        below, above = tails_across(dim, 1e-6)
        far, profile = tails_across(dim, 1e-16)[0], squared_profile(dim)
        step = (far - below) / 10_000
        outside = step * math.fsum(profile(x) for k in range(10_000) for x in (-below - k * step, above + k * step))
        whole = step * math.fsum(profile(-far + k * step) for k in range(math.ceil(2 * far / step)))
        assert outside < 1e-6 * whole

    @pytest.mark.parametrize("power", [0.25, 0.5])
    def test_the_middle_is_where_a_component_is_largest(self, power: float) -> None:
        """With the room r^m that there is at its distance, or with the root of that."""

        def log_profile(y: float) -> float:
            return 2 * power * (dim - 1) * y - math.exp(2 * y) / 2

        dim = 17
        middle = middle_across(dim, power)
        assert log_profile(middle) > max(log_profile(middle - 1e-3), log_profile(middle + 1e-3))


class TestGrid:
    @pytest.mark.parametrize("kind", ["norm", "mass"])
    @pytest.mark.parametrize("dim", [1, 2, 3, 128, 2048])
    def test_what_lies_outside_of_it_is_no_more_than_the_error(
        self, kind: Literal["norm", "mass"], dim: int, made: Callable[..., Grid]
    ) -> None:
        """Of any component, heavy or light, in units of its row's heaviest: its squared norm, or its mass."""
        sides = [components("wide"), components("thousand", seed=1)]
        built = made(*sides, dim=dim, kind=kind)
        for c in sides:
            weight = (2 * c.log_norm).exp() if kind == "norm" else c.log_norm.exp()
            for outside in outside_of(built, c, halved=kind == "norm"):
                assert (weight * outside).max() <= 1e-15

    @pytest.mark.parametrize("dim", [1, 2, 128, 2048])
    def test_it_reaches_hardly_further_than_the_tails_of_components_of_norm_one(
        self, dim: int, made: Callable[..., Grid]
    ) -> None:
        c = components("wide")
        built = made(c, dim=dim)
        place, deviation, tail = dim**0.5 * c.mean, c.variance.sqrt(), math.sqrt(math.log(1e15))
        needed = (place + tail * deviation).max() - (place - tail * deviation).min()
        assert (built.along.nodes - 9) * built.along.step <= needed.item()
        assert built.along.step == step_along(deviation.min().item(), 1e-15)
        if built.across is not None:
            needed = deviation.max().log() - deviation.min().log() + sum(tails_across(dim, 1e-15))
            assert (built.across.nodes - 9) * built.across.step <= needed.item()
            assert built.across.step == step_across(dim, 1e-15)

    def test_it_has_nodes_across_the_line_for_every_node_along_it(self, made: Callable[..., Grid]) -> None:
        built, flat = made(components()), made(components(), dim=1)
        assert built.across is not None
        assert built.nodes == built.along.nodes * built.across.nodes
        assert flat.across is None
        assert flat.nodes == flat.along.nodes

    def test_components_without_weight_need_no_nodes(self, made: Callable[..., Grid]) -> None:
        c = components()
        nowhere = Components(c.log_norm.clone(), c.mean.clone(), c.variance)
        nowhere.log_norm[:, 1], nowhere.mean[:, 1] = -math.inf, 1e6
        assert made(nowhere).nodes <= made(c).nodes

    def test_half_the_step_takes_twice_the_nodes_along_and_across(self, made: Callable[..., Grid]) -> None:
        c = components("wide", rows=20)
        whole, half = made(c, dim=512), made(c, dim=512, step=0.5)
        assert whole.across is not None
        assert half.across is not None
        for fine, coarse in ((half.along, whole.along), (half.across, whole.across)):
            assert fine.step == pytest.approx(coarse.step / 2)
            assert abs(fine.nodes - 2 * coarse.nodes) <= 16

    def test_float32_is_content_with_fewer_nodes(self, made: Callable[..., Grid]) -> None:
        fine = components()
        coarse = Components(*(x.float() for x in fine))
        assert made(coarse).nodes < 0.7 * made(fine).nodes

    def test_the_nodes_at_the_start_of_training_are_about_two_thousand(self, made: Callable[..., Grid]) -> None:
        c = Components(*(x.float() for x in components(rows=256, count=80)))
        assert 1000 < made(c, dim=128).nodes < 4000

    @pytest.mark.parametrize("parameter", ["mean", "variance"])
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_there_is_none_where_a_parameter_is_not_finite(self, parameter: str, value: float) -> None:
        good, bad = components(), components()
        getattr(bad, parameter)[2, 1] = value
        assert grid_for([good], 16) is not None
        for sides in ([bad], [good, bad], [bad, good]):
            assert grid_for(sides, 16) is None

    def test_places_are_equispaced_and_in_float64(self) -> None:
        places = Axis(first=-1.0, step=0.25, nodes=8).places(torch.zeros(1))
        torch.testing.assert_close(places, torch.tensor([-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75]).double())
