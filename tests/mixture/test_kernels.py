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

BOTH = pytest.mark.parametrize("coordinates", [1, 5], ids=["isotropic", "anisotropic"])
DIM = 5


@pytest.fixture
def unchecked() -> Iterator[None]:
    """What a caller without shape checking sees."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def drawn(rows: int = 4, classes: int = 3, *, coordinates: int, seed: int = 0) -> list[Tensor]:
    """Logits, means and variances of order one, in float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, classes), (rows, classes, coordinates), (rows, classes, coordinates)]
    logit, mean, raw = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [logit, mean, elu(raw) + 2]


def mixture(*parts: Tensor, dim: int = DIM) -> KernelMixture:
    logit, mean, variance = parts
    return KernelMixture(logit, mean, variance, dim)


def written_out(p: KernelMixture) -> tuple[Tensor, Tensor]:
    """Means and variances in every dimension."""
    return p.mean.expand(-1, -1, p.dim), p.variance.expand(-1, -1, p.dim)


def chosen(rows: int = 4, classes: int = 3, seed: int = 0) -> Tensor:
    return torch.rand(rows, classes, generator=torch.Generator().manual_seed(seed)) < 0.5


def slow_coefficients(p: KernelMixture, q: KernelMixture, present: Tensor, scale: float = 1.0) -> Tensor:
    """exp(−s D_B), kernel by kernel and dimension by dimension."""
    (means_p, variances_p), (means_q, variances_q) = written_out(p), written_out(q)
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
                    apart = (means_p[i, k, t] - means_q[j, k, t]).item() ** 2
                    distance += 0.5 * math.log((v + w) / (2 * math.sqrt(v * w))) + 0.25 * apart / (v + w)
                row.append(math.exp(-scale * distance))
            rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


class TestKernels:
    @BOTH
    def test_they_are_the_exponentials_of_weighted_squares(self, coordinates: int) -> None:
        p = mixture(*drawn(coordinates=coordinates))
        z = torch.randn(4, DIM, generator=torch.Generator().manual_seed(9)).double()
        means, variances = written_out(p)
        for i in range(4):
            for k in range(3):
                terms = [((z[i, t] - means[i, k, t]) ** 2 / variances[i, k, t]).item() for t in range(DIM)]
                assert p.log_kernels(z)[i, k].item() == pytest.approx(-0.5 * sum(terms), rel=1e-12)

    def test_a_weight_is_the_sigmoid_of_its_logit(self) -> None:
        p = mixture(*drawn(coordinates=1))
        torch.testing.assert_close(p.log_weight.exp(), torch.sigmoid(p.logit))

    def test_far_from_every_kernel_the_logarithm_is_still_right(self) -> None:
        p = KernelMixture(torch.zeros(1, 1), torch.full((1, 1, 1), 20.0), torch.full((1, 1, 1), 2.0), dim=2048)
        assert p.log_kernels(torch.zeros(1, 2048)).item() == -0.25 * 400 * 2048

    @BOTH
    def test_gradients(self, coordinates: int) -> None:
        parts = [x.requires_grad_() for x in drawn(2, 2, coordinates=coordinates)[1:]]
        z = torch.randn(2, DIM, dtype=torch.float64, requires_grad=True)
        logit = torch.zeros(2, 2).double()
        assert torch.autograd.gradcheck(lambda m, v, z: mixture(logit, m, v).log_kernels(z), (*parts, z))

    def test_what_does_not_fit_is_an_error_that_says_what(self) -> None:
        logit, mean, variance = drawn(coordinates=2)
        with pytest.raises(ValueError, match="kernels of 2 coordinates in dim=5; give 1 or 5"):
            mixture(logit, mean, variance)
        with pytest.raises(ValueError, match="z has 3 dimensions, the kernels 2"):
            KernelMixture(logit, mean, variance, dim=2).log_kernels(torch.zeros(4, 3))

    @pytest.mark.usefixtures("unchecked")
    def test_parts_that_disagree_are_an_error(self) -> None:
        logit, mean, variance = drawn(coordinates=DIM)
        for parts in ((logit[:, :2], mean, variance), (logit, mean, variance[:, :, :1]), (logit, mean, variance[:2])):
            with pytest.raises(ValueError, match="must agree in rows, kernels and coordinates"):
                mixture(*parts)


class TestBhattacharyya:
    @BOTH
    @pytest.mark.parametrize("scale", [1.0, 5.0])
    def test_it_is_the_exponential_of_minus_the_distance(self, scale: float, coordinates: int) -> None:
        p, q = mixture(*drawn(coordinates=coordinates)), mixture(*drawn(6, coordinates=coordinates, seed=1))
        present = chosen()
        measured = kernel_bhattacharyya(p, q, present=present, distance_scale=scale)
        expected = slow_coefficients(p, q, present, scale)
        assert measured.shape == (int(present.sum()), 6)
        torch.testing.assert_close(measured, expected, rtol=1e-10, atol=1e-14)

    def test_isotropic_kernels_have_the_coefficients_of_isotropic_components(self) -> None:
        (a, b), present = (drawn(coordinates=1, seed=s) for s in (0, 1)), chosen()
        p, q = (IsotropicMixture(x[0], x[1][:, :, 0], x[2][:, :, 0], dim=2048) for x in (a, b))
        anchor, label = present.nonzero(as_tuple=True)
        expected = class_bhattacharyya(p, q)[anchor, :, label]
        measured = kernel_bhattacharyya(mixture(*a, dim=2048), mixture(*b, dim=2048), present=present)
        torch.testing.assert_close(measured, expected, rtol=1e-8, atol=1e-14)

    def test_equal_variances_along_the_dimensions_are_components_with_mean_vectors(self) -> None:
        parts = []
        for seed in (0, 1):
            logit, mean, variance = drawn(coordinates=DIM, seed=seed)
            parts.append((logit, mean, variance[:, :, :1]))
        present = chosen()
        p, q = (IsotropicMixture(logit, mean, variance[:, :, 0], dim=DIM) for logit, mean, variance in parts)
        a, b = (mixture(logit, mean, variance.expand(-1, -1, DIM)) for logit, mean, variance in parts)
        anchor, label = present.nonzero(as_tuple=True)
        expected = class_bhattacharyya(p, q)[anchor, :, label]
        torch.testing.assert_close(kernel_bhattacharyya(a, b, present=present), expected, rtol=1e-8, atol=1e-14)

    @BOTH
    def test_a_mixture_with_itself_is_one(self, coordinates: int) -> None:
        p = mixture(*(x.float() for x in drawn(coordinates=coordinates)))
        present = torch.ones(4, 3, dtype=torch.bool)
        measured = kernel_bhattacharyya(p, present=present)
        anchor = present.nonzero()[:, 0]
        assert measured.dtype == torch.float32
        assert (measured[torch.arange(12), anchor] == 1).all()
        assert 0 <= measured.min() <= measured.max() <= 1

    @BOTH
    def test_gradients(self, coordinates: int) -> None:
        a, b = ([x.requires_grad_() for x in drawn(2, 2, coordinates=coordinates, seed=s)[1:]] for s in (0, 1))
        logit, present = torch.zeros(2, 2).double(), torch.tensor([[True, True], [False, True]])

        def both(*x: Tensor) -> Tensor:
            p, q = mixture(logit, *x[:2]), mixture(logit, *x[2:])
            return kernel_bhattacharyya(p, q, present=present, distance_scale=1.5)

        assert torch.autograd.gradcheck(lambda *x: kernel_bhattacharyya(mixture(logit, *x), present=present), a)
        assert torch.autograd.gradcheck(both, (*a, *b))

    def test_blocks_change_nothing_and_no_tensor_is_much_larger_than_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows, dim = 32, 64
        given = drawn(rows, coordinates=dim)
        present = torch.ones(rows, 3, dtype=torch.bool)
        weight = torch.randn(3 * rows, rows, dtype=torch.float64)
        found, largest = [], []
        for block in (2**30, 10_000):
            monkeypatch.setattr(kernels, "BLOCK", block)
            parts = [x.clone().requires_grad_() for x in given]
            with Largest() as watched:  # type: ignore[no-untyped-call]
                value = kernel_bhattacharyya(mixture(*parts, dim=dim), present=present)
                gradients = torch.autograd.grad((weight * value).sum(), parts[1:])
            found.append([value, *gradients])
            largest.append(watched.numbers)
        for whole, blocked in zip(*found, strict=True):
            torch.testing.assert_close(blocked, whole, rtol=1e-10, atol=1e-12)
        assert largest[0] == 3 * rows * rows * dim
        assert largest[1] <= 10_000

    @BOTH
    def test_where_nothing_is_chosen_there_are_no_rows_and_no_gradients(self, coordinates: int) -> None:
        parts = [x.requires_grad_() for x in drawn(coordinates=coordinates)]
        measured = kernel_bhattacharyya(mixture(*parts), present=torch.zeros(4, 3, dtype=torch.bool))
        assert measured.shape == (0, 4)
        for gradient in torch.autograd.grad(measured.sum(), parts[1:]):
            assert (gradient == 0).all()

    def test_kernels_far_apart_share_nothing_and_have_finite_gradients(self) -> None:
        mean = torch.tensor([[[0.0]], [[1e4]]], requires_grad=True)
        p = KernelMixture(torch.zeros(2, 1), mean, torch.ones(2, 1, 1), dim=2048)
        measured = kernel_bhattacharyya(p, present=torch.ones(2, 1, dtype=torch.bool))
        assert torch.equal(measured, torch.eye(2))
        assert torch.autograd.grad(measured.sum(), mean)[0].isfinite().all()

    def test_autocast_around_the_call_changes_nothing(self) -> None:
        p = mixture(*(x.float() for x in drawn(coordinates=DIM)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = kernel_bhattacharyya(p, present=chosen())
        assert torch.equal(inside, kernel_bhattacharyya(p, present=chosen()))

    def test_kernels_in_different_spaces_are_an_error(self) -> None:
        p = mixture(*drawn(coordinates=1))
        for q in (mixture(*drawn(coordinates=1), dim=6), mixture(*drawn(classes=4, coordinates=1))):
            with pytest.raises(ValueError, match="differ"):
                kernel_bhattacharyya(p, q, present=chosen())


class TestHeads:
    @pytest.mark.parametrize("classes", [9, 80])
    def test_isotropic_heads_have_three_linear_layers(self, classes: int) -> None:
        heads = KernelHeads(2048, classes)
        assert sum(p.numel() for p in heads.parameters()) == 3 * 2049 * classes

    @pytest.mark.parametrize("classes", [9, 80])
    def test_anisotropic_heads_have_a_mean_and_a_variance_for_each_of_128_dimensions(self, classes: int) -> None:
        heads = KernelHeads(2048, classes, covariance="anisotropic")
        of_logits, of_kernels = 129 * classes, 2 * 129 * 128 * classes
        assert sum(p.numel() for p in heads.parameters()) == 2049 * 128 + of_logits + of_kernels

    @pytest.mark.parametrize(
        ("covariance", "classes", "millions"),
        [("isotropic", 9, 44.20), ("isotropic", 80, 44.78), ("anisotropic", 9, 44.71), ("anisotropic", 80, 47.20)],
    )
    def test_with_the_trunk_and_its_unused_head_they_are_as_large_as_the_published_network(
        self, covariance: Covariance, classes: int, millions: float
    ) -> None:
        trunk, unused = 44.126e6, 2049 * classes  # TResNet-L V2; a layer of it that the published code never calls
        heads = sum(p.numel() for p in KernelHeads(2048, classes, covariance=covariance).parameters())
        assert round((trunk + unused + heads) / 1e6, 2) == millions

    @pytest.mark.parametrize("covariance", ["isotropic", "anisotropic"])
    def test_variances_are_elu_plus_two_and_logits_predict(self, covariance: Covariance) -> None:
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

    def test_the_papers_initialization(self) -> None:
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
