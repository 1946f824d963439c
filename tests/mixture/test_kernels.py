import math
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from helpers.mixtures import Largest, class_bhattacharyya
from probmcl.mixture import (
    IsotropicMixture,
    KernelHeads,
    KernelMixture,
    kernel_bhattacharyya,
    kernels,
)
from probmcl.mixture.kernels import Covariance

EACH_COVARIANCE = pytest.mark.parametrize("coordinates", [1, 5], ids=["isotropic", "anisotropic"])
DIM = 5


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch off the shape checks, which are active in tests only."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def draw_parameters(rows: int = 4, classes: int = 3, *, coordinates: int, seed: int = 0) -> list[Tensor]:
    """Return random logits, means and variances in float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, classes), (rows, classes, coordinates), (rows, classes, coordinates)]
    logit, mean, raw = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [logit, mean, elu(raw) + 2]


def mixture(*parts: Tensor, dim: int = DIM) -> KernelMixture:
    logit, mean, variance = parts
    return KernelMixture(logit, mean, variance, dim)


def expand(p: KernelMixture) -> tuple[Tensor, Tensor]:
    """Return means and variances expanded to every dimension."""
    return p.mean.expand(-1, -1, p.dim), p.variance.expand(-1, -1, p.dim)


def random_mask(rows: int = 4, classes: int = 3, seed: int = 0) -> Tensor:
    return torch.rand(rows, classes, generator=torch.Generator().manual_seed(seed)) < 0.5


def reference_coefficients(p: KernelMixture, q: KernelMixture, present: Tensor, scale: float = 1.0) -> Tensor:
    """Compute exp(−s D_B) in loops over kernels and dimensions."""
    (means_p, variances_p), (means_q, variances_q) = expand(p), expand(q)
    rows = []
    for i in range(len(present)):
        for k in range(present.shape[1]):
            if not present[i, k]:
                continue
            row = []
            for j in range(len(q.mean)):
                distance = 0.0
                for t in range(p.dim):
                    v, w = variances_p[i, k, t].item(), variances_q[j, k, t].item()
                    squared_distance = (means_p[i, k, t] - means_q[j, k, t]).item() ** 2
                    distance += 0.5 * math.log((v + w) / (2 * math.sqrt(v * w))) + 0.25 * squared_distance / (v + w)
                row.append(math.exp(-scale * distance))
            rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


class TestKernels:
    @EACH_COVARIANCE
    def test_log_kernels_match_loops(self, coordinates: int) -> None:
        p = mixture(*draw_parameters(coordinates=coordinates))
        z = torch.randn(4, DIM, generator=torch.Generator().manual_seed(9)).double()
        means, variances = expand(p)
        for i in range(4):
            for k in range(3):
                terms = [((z[i, t] - means[i, k, t]) ** 2 / variances[i, k, t]).item() for t in range(DIM)]
                assert p.log_kernels(z)[i, k].item() == pytest.approx(-0.5 * sum(terms), rel=1e-12)

    def test_weight_is_the_sigmoid_of_the_logit(self) -> None:
        p = mixture(*draw_parameters(coordinates=1))
        torch.testing.assert_close(p.log_weight.exp(), torch.sigmoid(p.logit))

    def test_log_kernel_is_exact_far_from_the_mean(self) -> None:
        p = KernelMixture(torch.zeros(1, 1), torch.full((1, 1, 1), 20.0), torch.full((1, 1, 1), 2.0), dim=2048)
        assert p.log_kernels(torch.zeros(1, 2048)).item() == -0.25 * 400 * 2048

    @EACH_COVARIANCE
    def test_gradients(self, coordinates: int) -> None:
        parts = [x.requires_grad_() for x in draw_parameters(2, 2, coordinates=coordinates)[1:]]
        z = torch.randn(2, DIM, dtype=torch.float64, requires_grad=True)
        logit = torch.zeros(2, 2).double()
        assert torch.autograd.gradcheck(lambda m, v, z: mixture(logit, m, v).log_kernels(z), (*parts, z))

    def test_wrong_sizes_are_an_error(self) -> None:
        logit, mean, variance = draw_parameters(coordinates=2)
        with pytest.raises(ValueError, match="dim=5 coordinates per kernel, got 2"):
            mixture(logit, mean, variance)
        with pytest.raises(ValueError, match="z has 3 dimensions"):
            KernelMixture(logit, mean, variance, dim=2).log_kernels(torch.zeros(4, 3))

    @pytest.mark.usefixtures("unchecked")
    def test_parameters_of_different_shapes_are_an_error(self) -> None:
        logit, mean, variance = draw_parameters(coordinates=DIM)
        for parts in ((logit[:, :2], mean, variance), (logit, mean, variance[:, :, :1]), (logit, mean, variance[:2])):
            with pytest.raises(ValueError, match="matching numbers"):
                mixture(*parts)


class TestBhattacharyya:
    @EACH_COVARIANCE
    @pytest.mark.parametrize("scale", [1.0, 5.0])
    def test_matches_loops(self, scale: float, coordinates: int) -> None:
        p, q = (
            mixture(*draw_parameters(coordinates=coordinates)),
            mixture(*draw_parameters(6, coordinates=coordinates, seed=1)),
        )
        present = random_mask()
        measured = kernel_bhattacharyya(p, q, present=present, distance_scale=scale)
        expected = reference_coefficients(p, q, present, scale)
        assert measured.shape == (int(present.sum()), 6)
        torch.testing.assert_close(measured, expected, rtol=1e-10, atol=1e-14)

    def test_isotropic_kernels_match_isotropic_components(self) -> None:
        (a, b), present = (draw_parameters(coordinates=1, seed=s) for s in (0, 1)), random_mask()
        p, q = (IsotropicMixture(x[0], x[1][:, :, 0], x[2][:, :, 0], dim=2048) for x in (a, b))
        anchor, label = present.nonzero(as_tuple=True)
        expected = class_bhattacharyya(p, q)[anchor, :, label]
        measured = kernel_bhattacharyya(mixture(*a, dim=2048), mixture(*b, dim=2048), present=present)
        torch.testing.assert_close(measured, expected, rtol=1e-8, atol=1e-14)

    def test_equal_variances_match_components_with_mean_vectors(self) -> None:
        parts = []
        for seed in (0, 1):
            logit, mean, variance = draw_parameters(coordinates=DIM, seed=seed)
            parts.append((logit, mean, variance[:, :, :1]))
        present = random_mask()
        p, q = (IsotropicMixture(logit, mean, variance[:, :, 0], dim=DIM) for logit, mean, variance in parts)
        a, b = (mixture(logit, mean, variance.expand(-1, -1, DIM)) for logit, mean, variance in parts)
        anchor, label = present.nonzero(as_tuple=True)
        expected = class_bhattacharyya(p, q)[anchor, :, label]
        torch.testing.assert_close(kernel_bhattacharyya(a, b, present=present), expected, rtol=1e-8, atol=1e-14)

    @EACH_COVARIANCE
    def test_self_coefficient_is_one(self, coordinates: int) -> None:
        p = mixture(*(x.float() for x in draw_parameters(coordinates=coordinates)))
        present = torch.ones(4, 3, dtype=torch.bool)
        measured = kernel_bhattacharyya(p, present=present)
        anchor = present.nonzero()[:, 0]
        assert measured.dtype == torch.float32
        assert (measured[torch.arange(12), anchor] == 1).all()
        assert 0 <= measured.min() <= measured.max() <= 1

    @EACH_COVARIANCE
    def test_gradients(self, coordinates: int) -> None:
        a, b = (
            [x.requires_grad_() for x in draw_parameters(2, 2, coordinates=coordinates, seed=s)[1:]] for s in (0, 1)
        )
        logit, present = torch.zeros(2, 2).double(), torch.tensor([[True, True], [False, True]])

        def two_sides(*x: Tensor) -> Tensor:
            p, q = mixture(logit, *x[:2]), mixture(logit, *x[2:])
            return kernel_bhattacharyya(p, q, present=present, distance_scale=1.5)

        assert torch.autograd.gradcheck(lambda *x: kernel_bhattacharyya(mixture(logit, *x), present=present), a)
        assert torch.autograd.gradcheck(two_sides, (*a, *b))

    def test_blocks_bound_memory_without_changing_the_result(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows, dim = 32, 64
        parameters = draw_parameters(rows, coordinates=dim)
        present = torch.ones(rows, 3, dtype=torch.bool)
        weight = torch.randn(3 * rows, rows, dtype=torch.float64)
        results, largest = [], []
        for block in (2**30, 10_000):
            monkeypatch.setattr(kernels, "BLOCK", block)
            parts = [x.clone().requires_grad_() for x in parameters]
            with Largest() as tracker:  # type: ignore[no-untyped-call]
                value = kernel_bhattacharyya(mixture(*parts, dim=dim), present=present)
                gradients = torch.autograd.grad((weight * value).sum(), parts[1:])
            results.append([value, *gradients])
            largest.append(tracker.numbers)
        for unblocked, blocked in zip(*results, strict=True):
            torch.testing.assert_close(blocked, unblocked, rtol=1e-10, atol=1e-12)
        assert largest[0] == 3 * rows * rows * dim
        assert largest[1] <= 10_000

    @EACH_COVARIANCE
    def test_empty_mask_gives_no_rows_and_zero_gradients(self, coordinates: int) -> None:
        parts = [x.requires_grad_() for x in draw_parameters(coordinates=coordinates)]
        measured = kernel_bhattacharyya(mixture(*parts), present=torch.zeros(4, 3, dtype=torch.bool))
        assert measured.shape == (0, 4)
        for gradient in torch.autograd.grad(measured.sum(), parts[1:]):
            assert (gradient == 0).all()

    def test_distant_kernels_have_coefficient_zero_and_finite_gradients(self) -> None:
        mean = torch.tensor([[[0.0]], [[1e4]]], requires_grad=True)
        p = KernelMixture(torch.zeros(2, 1), mean, torch.ones(2, 1, 1), dim=2048)
        measured = kernel_bhattacharyya(p, present=torch.ones(2, 1, dtype=torch.bool))
        assert torch.equal(measured, torch.eye(2))
        assert torch.autograd.grad(measured.sum(), mean)[0].isfinite().all()

    def test_autocast_does_not_change_the_result(self) -> None:
        p = mixture(*(x.float() for x in draw_parameters(coordinates=DIM)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast_result = kernel_bhattacharyya(p, present=random_mask())
        assert torch.equal(autocast_result, kernel_bhattacharyya(p, present=random_mask()))

    def test_different_dimensions_are_an_error(self) -> None:
        p = mixture(*draw_parameters(coordinates=1))
        for q in (mixture(*draw_parameters(coordinates=1), dim=6), mixture(*draw_parameters(classes=4, coordinates=1))):
            with pytest.raises(ValueError, match="cannot compare"):
                kernel_bhattacharyya(p, q, present=random_mask())


class TestHeads:
    @pytest.mark.parametrize("classes", [9, 80])
    def test_parameter_count_of_isotropic_heads(self, classes: int) -> None:
        heads = KernelHeads(2048, classes)
        assert sum(p.numel() for p in heads.parameters()) == 3 * 2049 * classes

    @pytest.mark.parametrize("classes", [9, 80])
    def test_parameter_count_of_anisotropic_heads(self, classes: int) -> None:
        heads = KernelHeads(2048, classes, covariance="anisotropic")
        logit_parameters, kernel_parameters = 129 * classes, 2 * 129 * 128 * classes
        assert sum(p.numel() for p in heads.parameters()) == 2049 * 128 + logit_parameters + kernel_parameters

    @pytest.mark.parametrize(
        ("covariance", "classes", "millions"),
        [("isotropic", 9, 44.20), ("isotropic", 80, 44.78), ("anisotropic", 9, 44.71), ("anisotropic", 80, 47.20)],
    )
    def test_parameter_count_of_the_published_network(
        self, covariance: Covariance, classes: int, millions: float
    ) -> None:
        trunk, classifier = (
            44.126e6,
            2049 * classes,
        )  # TResNet-L V2, and its classifier, which the published code does not use
        heads = sum(p.numel() for p in KernelHeads(2048, classes, covariance=covariance).parameters())
        assert round((trunk + classifier + heads) / 1e6, 2) == millions

    @pytest.mark.parametrize("covariance", ["isotropic", "anisotropic"])
    def test_heads_match_their_linear_layers(self, covariance: Covariance) -> None:
        torch.manual_seed(0)
        heads = KernelHeads(6, 3, covariance=covariance, reduced_size=4, initialization="torch")
        h = 3 * torch.randn(5, 6)
        z = heads.reduction(h)
        p = heads(h)
        raw = heads.variance_head(z).reshape(p.variance.shape)
        torch.testing.assert_close(p.variance, torch.where(raw > 0, raw + 2, raw.exp() + 1))
        torch.testing.assert_close(p.mean, heads.mean_head(z).reshape(p.mean.shape))
        assert torch.equal(p.logit, heads.logits(h))
        assert (p.dim, p.mean.shape[2]) == ((6, 1) if covariance == "isotropic" else (4, 4))
        assert (p.variance >= 1).all()

    def test_initialization_of_the_paper(self) -> None:
        torch.manual_seed(0)
        heads = KernelHeads(64, 10)
        assert 0 <= heads.mean_head.weight.min() < 0.01 < 0.09 < heads.mean_head.weight.max() <= 0.1
        assert (heads.variance_head.weight == 1).all()
        assert (heads.mean_head.bias == 0).all()
        assert (heads.variance_head.bias == 0).all()
        assert heads.logit_head.weight.min() < -0.1
        plain = KernelHeads(64, 10, initialization="torch")
        assert plain.mean_head.weight.min() < -0.1
        assert plain.variance_head.weight.min() < -0.1
