import math

import pytest
import torch
from torch import Tensor

from helpers.mixtures import REGIMES, draw, means_written_out, mixture_of
from probmcl.mixture import IsotropicMixture, aligned_correlation
from probmcl.mixture.aligned import ComponentWeight
from probmcl.mixture.anchors import LabelAnchors, class_logits, label_set_correlation
from probmcl.mixture.density import Floor

WEIGHTS: list[ComponentWeight] = ["l2", "density"]
SIZES = pytest.mark.parametrize("size", [(), (3,)], ids=["scalar", "vector"])
SETS = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)


def anchors_of(regime: str, size: tuple[int, ...], dim: int = 3) -> IsotropicMixture:
    _, mean, variance = draw(regime, rows=1, size=size, seed=1)
    return IsotropicMixture(torch.full((1, 4), -math.log(4), dtype=torch.float64), mean, variance, dim)


def set_mixtures(anchors: IsotropicMixture, sets: Tensor) -> IsotropicMixture:
    """Return one mixture per label set, with weight zero for the components of other classes."""
    weight = sets.double() / sets.sum(1, keepdim=True)
    mean, variance = (x.repeat(len(sets), *[1] * (x.ndim - 1)) for x in (anchors.mean, anchors.variance))
    return IsotropicMixture(weight.log(), mean, variance, anchors.dim)


class TestLabelSets:
    @pytest.mark.parametrize("component_weight", WEIGHTS)
    @SIZES
    @pytest.mark.parametrize("regime", REGIMES)
    def test_equals_aligned_correlation_with_set_mixtures(
        self, regime: str, size: tuple[int, ...], component_weight: ComponentWeight
    ) -> None:
        p, anchors = mixture_of(draw(regime, rows=3, size=size), 3), anchors_of(regime, size)
        measured = label_set_correlation(p, anchors, SETS, component_weight=component_weight)
        expected = aligned_correlation(p, set_mixtures(anchors, SETS), component_weight=component_weight)
        torch.testing.assert_close(measured, expected, rtol=1e-10, atol=1e-12)

    @SIZES
    def test_matches_formula_in_loops(self, size: tuple[int, ...]) -> None:
        """Σ_{k∈y} w_k κ_k / √(|y| Σ w²), with κ from the integrals of products of two Gaussians."""
        p, anchors = mixture_of(draw("wide", rows=3, size=size), 3), anchors_of("wide", size)

        def log_product(total: float, squared_distance: float) -> float:
            return -3 / 2 * math.log(2 * math.pi * total) - squared_distance / (2 * total)

        def kappa(i: int, k: int) -> float:
            v, w = p.variance[i, k].item(), anchors.variance[0, k].item()
            distance = (means_written_out(p)[i, k] - means_written_out(anchors)[0, k]).square().sum().item()
            return math.exp(log_product(v + w, distance) - log_product(2 * v, 0) / 2 - log_product(2 * w, 0) / 2)

        measured = label_set_correlation(p, anchors, SETS)
        weight = p.log_weight.exp()
        for i in range(3):
            for j, present in enumerate(SETS):
                labels = [k for k in range(4) if present[k]]
                total = sum(weight[i, k].item() * kappa(i, k) for k in labels)
                norm = math.sqrt(len(labels) * sum(weight[i, k].item() ** 2 for k in range(4)))
                assert measured[i, j].item() == pytest.approx(total / norm, rel=1e-10)

    def test_mixture_of_a_set_has_correlation_one_with_it(self) -> None:
        anchors = anchors_of("init", (3,))
        for component_weight in WEIGHTS:
            measured = label_set_correlation(
                set_mixtures(anchors, SETS), anchors, SETS, component_weight=component_weight
            )
            torch.testing.assert_close(measured.diagonal(), torch.ones(5).double())
            assert measured.max() <= 1
            assert measured[0, 1] == 0  # no label in common

    @pytest.mark.parametrize("component_weight", WEIGHTS)
    def test_empty_set_has_correlation_zero_and_no_gradient(self, component_weight: ComponentWeight) -> None:
        inputs = [x.requires_grad_() for x in (*draw(rows=2, size=(3,)), *draw(rows=1, size=(3,), seed=1))]
        p, anchors = mixture_of(inputs[:3], 3), mixture_of(inputs[3:], 3)
        sets = torch.tensor([[False] * 4, [True] * 4])
        measured = label_set_correlation(p, anchors, sets, component_weight=component_weight)
        assert (measured[:, 0] == 0).all()
        empty_gradients = torch.autograd.grad(measured[:, 0].sum(), inputs, retain_graph=True, allow_unused=True)
        assert all(g is None or (g == 0).all() for g in empty_gradients)
        gradients = torch.autograd.grad(measured[:, 1].sum(), inputs, allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in gradients)

    def test_zero_sets_give_zero_columns(self) -> None:
        measured = label_set_correlation(mixture_of(draw(), 2), anchors_of("init", (), 2), SETS[:0])
        assert measured.shape == (6, 0)

    @pytest.mark.parametrize("component_weight", WEIGHTS)
    @SIZES
    def test_gradients(self, size: tuple[int, ...], component_weight: ComponentWeight) -> None:
        inputs = [*draw(rows=3, size=size), *draw(rows=1, size=size, seed=1)[1:]]

        def similarity(*x: Tensor) -> Tensor:
            anchors = IsotropicMixture(torch.zeros(1, 4).double(), x[3], x[4], 3)
            return label_set_correlation(mixture_of(x[:3], 3), anchors, SETS, component_weight=component_weight)

        assert torch.autograd.gradcheck(similarity, [x.requires_grad_() for x in inputs])

    @pytest.mark.parametrize("component_weight", WEIGHTS)
    def test_two_thousand_dimensions_in_float32(self, component_weight: ComponentWeight) -> None:
        """The norms of the densities are proportional to v^−512."""
        p, anchors = mixture_of(draw("wide", rows=3), 2048), anchors_of("wide", (), 2048)
        rounded = [
            IsotropicMixture(m.log_weight.float(), m.mean.float(), m.variance.float(), 2048) for m in (p, anchors)
        ]
        exact = [IsotropicMixture(m.log_weight.double(), m.mean.double(), m.variance.double(), 2048) for m in rounded]
        measured = label_set_correlation(rounded[0], rounded[1], SETS, component_weight=component_weight)
        expected = label_set_correlation(exact[0], exact[1], SETS, component_weight=component_weight)
        assert measured.dtype == torch.float32
        torch.testing.assert_close(measured.double(), expected, rtol=1e-6, atol=1e-30)

    def test_different_dimensions_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="cannot compare"):
            label_set_correlation(mixture_of(draw(), 3), anchors_of("init", (), 2), SETS)


class TestLogits:
    @pytest.mark.parametrize("component_weight", WEIGHTS)
    @SIZES
    @pytest.mark.parametrize("regime", REGIMES)
    def test_sigmoid_is_the_correlation_with_single_labels(
        self, regime: str, size: tuple[int, ...], component_weight: ComponentWeight
    ) -> None:
        p, anchors = mixture_of(draw(regime, rows=3, size=size), 3), anchors_of(regime, size)
        alone = label_set_correlation(p, anchors, torch.eye(4).bool(), component_weight=component_weight)
        measured = class_logits(p, anchors, component_weight=component_weight)
        torch.testing.assert_close(measured.sigmoid(), alone, rtol=1e-10, atol=1e-300)
        torch.testing.assert_close(measured, alone.logit(), rtol=1e-8, atol=1e-8)

    def test_accurate_far_from_an_anchor(self) -> None:
        """At distance d, the correlation e^(−d²/4)/√2 underflows, but the logit stays accurate."""
        for distance in (0.0, 10.0, 100.0, 1e4):
            mean = torch.tensor([[[distance], [distance]]])
            p = IsotropicMixture(torch.full((1, 2), math.log(0.5)), mean, torch.ones(1, 2), dim=1)
            anchors = IsotropicMixture(torch.full((1, 2), math.log(0.5)), torch.zeros(1, 2, 1), torch.ones(1, 2), dim=1)
            t = 0.5 * math.log(2) + distance**2 / 4
            expected = -t - math.log(-math.expm1(-t))
            assert class_logits(p, anchors)[0, 0].item() == pytest.approx(expected, rel=1e-6)

    def test_accurate_near_an_anchor(self) -> None:
        """With one class, 1 − Sim ≈ d²/4 is below the resolution of float32, but the logit stays accurate."""
        for distance in (1e-1, 1e-4, 1e-8):
            one = torch.zeros(1, 1), torch.tensor([[[distance]]]), torch.ones(1, 1)
            anchor = IsotropicMixture(torch.zeros(1, 1), torch.zeros(1, 1, 1), torch.ones(1, 1), dim=1)
            t = torch.tensor(distance).double().item() ** 2 / 4
            expected = -t - math.log(-math.expm1(-t))
            assert class_logits(IsotropicMixture(*one, dim=1), anchor).item() == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_large_and_finite_on_an_anchor(self, dtype: torch.dtype) -> None:
        one = IsotropicMixture(
            torch.zeros(1, 1, dtype=dtype), torch.zeros(1, 1, 2, dtype=dtype), torch.ones(1, 1, dtype=dtype), dim=2
        )
        measured = class_logits(one, one)
        assert measured.dtype == dtype
        assert measured.isfinite()
        assert measured > 80
        assert measured.sigmoid() == 1

    def test_tiny_weight_gives_a_finite_logit(self) -> None:
        log_weight = torch.tensor([[0.0, -5e4]]).log_softmax(1)
        p = IsotropicMixture(log_weight, torch.zeros(1, 2, 2), torch.ones(1, 2), dim=2)
        measured = class_logits(p, p)
        assert measured.isfinite().all()
        assert measured[0, 1].item() == pytest.approx(-5e4)

    @SIZES
    def test_gradients(self, size: tuple[int, ...]) -> None:
        inputs = [*draw(rows=3, size=size), *draw(rows=1, size=size, seed=1)[1:]]

        def logits(*x: Tensor) -> Tensor:
            return class_logits(
                mixture_of(x[:3], 3),
                IsotropicMixture(torch.zeros(1, 4).double(), x[3], x[4], 3),
                component_weight="density",
            )

        assert torch.autograd.gradcheck(logits, [x.requires_grad_() for x in inputs])


class TestAnchors:
    @pytest.mark.parametrize("floor", ["variance", "deviation"])
    @pytest.mark.parametrize("mean_size", [None, 5])
    def test_one_gaussian_per_class(self, mean_size: int | None, floor: Floor) -> None:
        module = LabelAnchors(4, dim=5, mean_size=mean_size, floor=floor)
        anchors = module()
        assert anchors.mean.shape == ((1, 4) if mean_size is None else (1, 4, 5))
        assert (anchors.mean == 0).all()
        assert (anchors.variance == (2 if floor == "variance" else 4)).all()
        torch.testing.assert_close(anchors.log_weight.exp(), torch.full((1, 4), 0.25))
        assert anchors.dim == 5
        with torch.no_grad():
            module.variance.fill_(-1e3)
        assert (module().variance == 1).all()

    def test_parameters_are_a_mean_and_a_variance_per_class(self) -> None:
        assert {k: tuple(v.shape) for k, v in LabelAnchors(4, dim=5, mean_size=5).named_parameters()} == {
            "mean": (4, 5),
            "variance": (4,),
        }
