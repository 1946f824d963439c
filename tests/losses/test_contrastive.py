import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import elu, normalize

from probmcl.losses import balanced_weight, contrastive, negative_log_likelihood, objective, positives
from probmcl.losses.binary import Reduction
from probmcl.losses.contrastive import LARGEST_WEIGHT
from probmcl.mixture import IsotropicMixture, MixtureDensityNetwork, correlation
from probmcl.overlap import jaccard

FRACTIONS = sorted({Fraction(p, q) for q in range(1, 13) for p in range(q + 1)})


def random_pairs(rows: int, columns: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random similarities and overlaps (multiples of ¼) in float64."""
    generator = torch.Generator().manual_seed(seed)
    similarity, overlap = torch.rand(2, rows, columns or rows, generator=generator, dtype=torch.float64)
    return similarity, (overlap * 4).round() / 4


def reference_rows(
    similarity: Tensor, overlap: Tensor, threshold: float, temperature: float, self_column: list[int] | None = None
) -> list[float]:
    """Compute Eq. 3 as printed, in loops."""
    rows, columns = similarity.shape
    losses = []
    for i in range(rows):
        anchor_column = self_column[i] if self_column else i
        others = [j for j in range(columns) if j != anchor_column]
        positive_columns = [j for j in others if overlap[i, j].item() >= threshold]
        total = 0.0
        for j in positive_columns:
            numerator = math.exp(similarity[i, j].item() / temperature)
            denominator = sum(math.exp(similarity[i, other].item() / temperature) for other in others)
            total += overlap[i, j].item() * math.log(numerator / denominator)
        losses.append(-total / len(positive_columns) if positive_columns else 0.0)
    return losses


@given(
    rows=st.integers(1, 6),
    seed=st.integers(0, 999),
    threshold=st.sampled_from([0.0, 0.25, 0.5, 0.6, 1.0]),
    temperature=st.floats(0.05, 2),
)
def test_contrastive_matches_eq_3(rows: int, seed: int, threshold: float, temperature: float) -> None:
    similarity, overlap = random_pairs(rows, seed=seed)
    expected = reference_rows(similarity, overlap, threshold, temperature)
    reductions: list[Reduction] = ["sum", "mean"]
    for reduction in reductions:
        measured = contrastive(similarity, overlap, threshold=threshold, temperature=temperature, reduction=reduction)
        assert measured.shape == ()
        total = sum(expected) / (rows if reduction == "mean" else 1)
        assert measured.item() == pytest.approx(total, rel=1e-10, abs=1e-12)


def test_default_reduction_is_the_mean_over_all_rows() -> None:
    similarity, overlap = random_pairs(5)
    overlap[2] = 0  # a row without positives is included in the mean
    expected = sum(reference_rows(similarity, overlap, 0.5, 0.2)) / 5
    assert contrastive(similarity, overlap, threshold=0.5, temperature=0.2).item() == pytest.approx(expected)


def test_contrastive_by_hand() -> None:
    """Anchor 0 has positives 1 (D = 1) and 2 (D = ½), and its denominator is e² + e + 1."""
    similarity = torch.tensor([[9.0, 2.0, 1.0, 0.0]]).repeat(4, 1)
    overlap = torch.tensor([[1.0, 1.0, 0.5, 0.25], *[[0.0] * 4] * 3])
    log_denominator = math.log(math.exp(2) + math.exp(1) + 1)
    expected = -(1 * (2 - log_denominator) + 0.5 * (1 - log_denominator)) / 2
    measured = contrastive(similarity, overlap, threshold=0.5, temperature=1.0, reduction="sum")
    assert measured.item() == pytest.approx(expected, rel=1e-6)


def test_binary_overlap_gives_the_supervised_contrastive_loss() -> None:
    similarity, _ = random_pairs(6)
    group = torch.tensor([0, 0, 0, 1, 1, 2])
    same = (group[:, None] == group).double()
    off_diagonal = ~torch.eye(6, dtype=torch.bool)
    log_share = torch.stack([(similarity[i][off_diagonal[i]] / 0.1).log_softmax(0) for i in range(6)])
    rows = [-log_share[i][same[i][off_diagonal[i]] == 1] for i in range(6)]
    expected = sum(row.mean().item() for row in rows if len(row)) / 6
    assert contrastive(similarity, same, threshold=0.5, temperature=0.1).item() == pytest.approx(expected)


class TestPositives:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_overlap_equal_to_the_threshold_is_positive(self, dtype: torch.dtype) -> None:
        for fraction in FRACTIONS:
            overlap = torch.tensor(fraction.numerator, dtype=dtype) / torch.tensor(fraction.denominator, dtype=dtype)
            matrix = overlap.expand(2, 2)
            assert positives(matrix, threshold=fraction.numerator / fraction.denominator).sum() == 2, fraction

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_jaccard_overlap_equal_to_the_threshold_is_positive(self, dtype: torch.dtype) -> None:
        for fraction in FRACTIONS:
            labels = torch.zeros(2, fraction.denominator)
            labels[0], labels[1, : fraction.numerator] = 1, 1
            overlap = jaccard(labels.to(dtype))
            assert positives(overlap, threshold=float(fraction)).sum() == 2, fraction
            assert positives(overlap, threshold=float(fraction) + 1e-6).sum() == 0, fraction

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_close_fractions_are_distinguished(self, dtype: torch.dtype) -> None:
        column = torch.tensor([x.numerator for x in FRACTIONS], dtype=dtype)
        column /= torch.tensor([x.denominator for x in FRACTIONS], dtype=dtype)
        for index, fraction in enumerate(FRACTIONS):
            positive_columns = positives(column[None], threshold=float(fraction), self_column=torch.tensor([-1]))
            assert positive_columns.sum() == len(FRACTIONS) - index

    def test_image_is_not_its_own_positive(self) -> None:
        assert torch.equal(positives(torch.ones(3, 3), threshold=0.5), ~torch.eye(3, dtype=torch.bool))
        self_column = torch.tensor([3, 0])
        assert positives(torch.ones(2, 4), threshold=0.5, self_column=self_column).tolist() == [
            [True, True, True, False],
            [False, True, True, True],
        ]

    @pytest.mark.parametrize("n_views", [2, 3])
    def test_other_views_of_an_image_are_positives(self, n_views: int) -> None:
        labels = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0]])
        overlap = jaccard(labels.repeat(n_views, 1))
        positive_columns = positives(overlap, threshold=0.6)
        for row in range(3 * n_views):
            assert positive_columns[row].nonzero().flatten().tolist() == [
                j for j in range(3 * n_views) if j != row and j % 3 == row % 3
            ]

    def test_image_without_known_labels_is_attracted_to_its_other_view(self) -> None:
        known = torch.tensor([[True, True], [False, False]])
        overlap = jaccard(torch.tensor([[1.0, 0.0], [math.nan, math.nan]]), known_a=known)
        views = overlap.fill_diagonal_(1).repeat(2, 2)
        similarity = torch.rand(4, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(contrastive(similarity, views, threshold=0.5, temperature=0.1), similarity)
        assert gradient[1, 3] < 0
        assert gradient[1, [0, 2]].min() > 0


class TestRectangle:
    @pytest.mark.parametrize("rows", [[0], [3, 1], [5, 0, 2]])
    def test_subset_of_anchors_matches_rows_of_the_square(self, rows: list[int]) -> None:
        similarity, overlap = random_pairs(6)
        expected = reference_rows(similarity, overlap, 0.5, 0.2)
        measured = contrastive(
            similarity[rows],
            overlap[rows],
            threshold=0.5,
            temperature=0.2,
            self_column=torch.tensor(rows),
            reduction="sum",
        )
        assert measured.item() == pytest.approx(sum(expected[i] for i in rows))

    def test_two_halves_match_the_full_loss_and_gradient(self) -> None:
        similarity, overlap = random_pairs(6)
        similarity.requires_grad_()
        full = contrastive(similarity, overlap, threshold=0.5, temperature=0.2)
        halves = [
            contrastive(
                similarity[half],
                overlap[half],
                threshold=0.5,
                temperature=0.2,
                self_column=torch.arange(6)[half],
            )
            for half in (slice(0, 3), slice(3, 6))
        ]
        joined = (halves[0] + halves[1]) / 2
        torch.testing.assert_close(joined, full)
        torch.testing.assert_close(torch.autograd.grad(joined, similarity), torch.autograd.grad(full, similarity))

    def test_arbitrary_self_columns(self) -> None:
        similarity, overlap = random_pairs(3, 7)
        expected = reference_rows(similarity, overlap, 0.5, 0.2, [6, 2, 0])
        measured = contrastive(similarity, overlap, threshold=0.5, temperature=0.2, self_column=torch.tensor([6, 2, 0]))
        assert measured.item() == pytest.approx(sum(expected) / 3)

    def test_rectangle_without_self_column_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="self_column"):
            contrastive(torch.rand(2, 3), torch.ones(2, 3), threshold=0.5, temperature=0.1)


class TestEdges:
    @pytest.mark.parametrize("rows", [1, 4])
    def test_loss_and_gradient_without_positives_are_zero(self, rows: int) -> None:
        similarity = torch.rand(rows, rows, requires_grad=True)
        value = contrastive(similarity, torch.eye(rows), threshold=0.5, temperature=0.01)
        assert value == 0
        assert torch.equal(torch.autograd.grad(value, similarity)[0], torch.zeros(rows, rows))

    def test_two_rows_have_loss_zero(self) -> None:
        assert contrastive(torch.rand(2, 2), torch.ones(2, 2), threshold=0.5, temperature=0.1) == 0

    def test_diagonal_is_ignored(self) -> None:
        similarity, overlap = random_pairs(5)
        expected = contrastive(similarity, overlap, threshold=0.5, temperature=0.2)
        for diagonal in (-1e6, 0.0, 1e6):
            changed = similarity.clone().fill_diagonal_(diagonal)
            other = overlap.clone().fill_diagonal_(0)
            assert contrastive(changed, other, threshold=0.5, temperature=0.2).item() == pytest.approx(expected.item())

    def test_overlap_below_the_threshold_is_ignored(self) -> None:
        similarity, overlap = random_pairs(5)
        expected = contrastive(similarity, overlap, threshold=0.5, temperature=0.2)
        thresholded = overlap.where(overlap >= 0.5, 0)
        assert torch.equal(contrastive(similarity, thresholded, threshold=0.5, temperature=0.2), expected)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_low_temperature_does_not_overflow(self, dtype: torch.dtype) -> None:
        similarity = torch.eye(4).roll(1, 0).to(dtype).requires_grad_()
        value = contrastive(similarity, torch.ones(4, 4), threshold=0.5, temperature=1e-5)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(2 / 3 * 1e5)  # two of three positives are 1/τ below the best
        assert torch.autograd.grad(value, similarity)[0].isfinite().all()

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
    def test_half_precision_is_converted_to_float32(self, half: torch.dtype) -> None:
        similarity, overlap = (x.to(half) for x in random_pairs(6))
        assert torch.equal(
            contrastive(similarity, overlap, threshold=0.5, temperature=0.1),
            contrastive(similarity.float(), overlap.float(), threshold=0.5, temperature=0.1),
        )

    def test_autocast_does_not_change_the_result(self) -> None:
        similarity, overlap = (x.float() for x in random_pairs(6))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast_result = contrastive(similarity, overlap, threshold=0.5, temperature=0.1)
        assert torch.equal(autocast_result, contrastive(similarity, overlap, threshold=0.5, temperature=0.1))

    @pytest.mark.parametrize("temperature", [0.0, -0.1])
    def test_temperature_must_be_positive(self, temperature: float) -> None:
        with pytest.raises(ValueError, match="temperature"):
            contrastive(torch.rand(2, 2), torch.ones(2, 2), threshold=0.5, temperature=temperature)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_gradients(threshold: float) -> None:
    similarity, overlap = random_pairs(5)
    overlap[3] = 0.1

    def square(x: Tensor) -> Tensor:
        return contrastive(x, overlap, threshold=threshold, temperature=0.3)

    def rectangle(x: Tensor) -> Tensor:
        self_column = torch.tensor([4, 0])
        return contrastive(
            x, overlap[:2], threshold=threshold, temperature=0.3, self_column=self_column, reduction="sum"
        )

    assert torch.autograd.gradcheck(square, similarity.requires_grad_())
    assert torch.autograd.gradcheck(rectangle, similarity[:2].detach().requires_grad_())


@given(seed=st.integers(0, 999), shift=st.floats(-5, 5), order=st.permutations(range(6)))
@settings(max_examples=50)
def test_invariance_to_row_order_and_row_shift(seed: int, shift: float, order: list[int]) -> None:
    similarity, overlap = random_pairs(6, seed=seed)
    expected = contrastive(similarity, overlap, threshold=0.5, temperature=0.2)
    shuffled = contrastive(similarity[order][:, order], overlap[order][:, order], threshold=0.5, temperature=0.2)
    torch.testing.assert_close(shuffled, expected)
    shifts = shift * torch.arange(6)[:, None]
    torch.testing.assert_close(contrastive(similarity + shifts, overlap, threshold=0.5, temperature=0.2), expected)


@pytest.mark.parametrize("weight", [0.3, torch.tensor(0.3)], ids=["number", "tensor"])
def test_objective_matches_eq_4(weight: float | Tensor) -> None:
    measured = objective(torch.tensor(2.0), torch.tensor(5.0), contrastive_weight=weight)
    assert measured.shape == ()
    assert measured.item() == pytest.approx(3.5)


def test_gradients_of_the_objective() -> None:
    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2.0, -5.0)]
    assert torch.autograd.gradcheck(lambda a, b: objective(a, b, contrastive_weight=0.3), inputs)


class SmallModel:
    """Small network with both loss terms of ProbMCL."""

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

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, self.features, retain_graph=True)[0]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_balanced_weight_equalizes_gradient_norms(reduction: Reduction) -> None:
    model = SmallModel(reduction)
    weight = balanced_weight(model.likelihood, model.contrast, model.features)
    assert weight.shape == ()
    likelihood, contrast = (
        model.gradient(model.likelihood).norm().item(),
        model.gradient(weight * model.contrast).norm().item(),
    )
    assert contrast == pytest.approx(likelihood, rel=1e-5)
    assert abs(weight.item() - 1) > 0.1  # the gradients differ without it


def test_balanced_weight_is_detached() -> None:
    model = SmallModel()
    weight = balanced_weight(model.likelihood, model.contrast, model.features)
    assert not weight.requires_grad
    total = objective(model.likelihood, model.contrast, contrastive_weight=weight)
    expected = model.gradient(model.likelihood) + weight * model.gradient(model.contrast)
    torch.testing.assert_close(model.gradient(total), expected)


def test_balanced_weight_keeps_the_graph_and_leaves_no_gradients() -> None:
    model = SmallModel()
    weight = balanced_weight(model.likelihood, model.contrast, model.features)
    parameters = [*model.encoder.parameters(), *model.network.parameters()]
    assert all(x.grad is None for x in parameters)
    torch.autograd.backward(objective(model.likelihood, model.contrast, contrastive_weight=weight))
    assert all(x.grad is not None and x.grad.isfinite().all() for x in parameters)


def test_contrastive_loss_without_gradient_has_weight_zero() -> None:
    h = torch.ones(2, 3, requires_grad=True)
    weight = balanced_weight(h.sum(), (0 * h).sum(), h)
    assert weight == 0
    no_positives = contrastive(torch.ones(2, 2) * h.sum(), torch.eye(2), threshold=0.5, temperature=0.1)  # no positives
    assert balanced_weight(h.sum(), no_positives, h) == 0


def test_likelihood_without_gradient_has_weight_zero() -> None:
    h = torch.ones(2, 3, requires_grad=True)
    assert balanced_weight((0 * h).sum(), h.sum(), h) == 0


@pytest.mark.parametrize("likelihood", [1.0, 1e30])
def test_balanced_weight_is_bounded(likelihood: float) -> None:
    h = torch.ones(2, 3, requires_grad=True)
    assert balanced_weight(likelihood * h.sum(), 1e-15 * h.sum(), h) == LARGEST_WEIGHT


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_gradient_norms_are_computed_in_float32(half: torch.dtype) -> None:
    h = torch.ones(100, 100, dtype=half, requires_grad=True)
    weight = balanced_weight(
        (2048 * h.float()).sum(), (2 * h.float()).sum(), h
    )  # the norm 204,800 overflows in float16
    assert weight.dtype == torch.float32
    assert weight.item() == pytest.approx(1024)


def test_balanced_weight_without_gradients_is_an_error() -> None:
    with torch.no_grad():
        model = SmallModel()
    with pytest.raises(ValueError, match="no_grad"):
        balanced_weight(model.likelihood, model.contrast, model.features)


ROWS, COMPONENTS, DIM = 4, 3, 5


def random_mixture(*, vector: bool) -> list[Tensor]:
    """Return random logits, means, unconstrained variances and z."""
    generator = torch.Generator().manual_seed(int(vector))
    mean = (ROWS, COMPONENTS, DIM) if vector else (ROWS, COMPONENTS)
    shapes = [(ROWS, COMPONENTS), mean, (ROWS, COMPONENTS), (ROWS, DIM)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def build(logit: Tensor, mean: Tensor, raw: Tensor) -> IsotropicMixture:
    return IsotropicMixture(logit.log_softmax(1), mean, elu(raw) + 2, DIM)


def reference_likelihoods(p: IsotropicMixture, z: Tensor) -> list[float]:
    """Compute the negative logarithm of Eq. 1 as printed, in loops over coordinates."""
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
def test_likelihood_matches_eq_2(reduction: Reduction, per_dimension: bool, vector: bool) -> None:
    logit, mean, raw, z = random_mixture(vector=vector)
    p = build(logit, mean, raw)
    measured = negative_log_likelihood(p, z, reduction=reduction, per_dimension=per_dimension)
    expected = sum(reference_likelihoods(p, z)) / (ROWS if reduction == "mean" else 1) / (DIM if per_dimension else 1)
    assert measured.shape == ()
    assert measured.item() == pytest.approx(expected, rel=1e-12)


def test_likelihood_defaults() -> None:
    logit, mean, raw, z = random_mixture(vector=False)
    p = build(logit, mean, raw)
    assert negative_log_likelihood(p, z).item() == pytest.approx(sum(reference_likelihoods(p, z)) / ROWS, rel=1e-12)


@pytest.mark.parametrize("vector", [False, True])
def test_gradients_of_the_likelihood(vector: bool) -> None:
    inputs = [x.requires_grad_() for x in random_mixture(vector=vector)]
    assert torch.autograd.gradcheck(lambda a, m, v, z: negative_log_likelihood(build(a, m, v), z), inputs)


def test_likelihood_of_one_component_at_its_mean() -> None:
    one = IsotropicMixture(torch.zeros(1, 1), torch.full((1, 1), 3.0), torch.full((1, 1), 2.0), dim=2048)
    expected = 1024 * math.log(2 * math.pi * 2)
    assert negative_log_likelihood(one, torch.full((1, 2048), 3.0)).item() == pytest.approx(expected, rel=1e-6)


def test_target_of_wrong_size_is_an_error() -> None:
    logit, mean, raw, z = random_mixture(vector=False)
    with pytest.raises(ValueError, match="z has 4 dimensions"):
        negative_log_likelihood(build(logit, mean, raw), z[:, :4])


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_target_under_autocast(half: torch.dtype) -> None:
    logit, mean, raw, z = (x.to(half) for x in random_mixture(vector=False))
    p = build(logit.float(), mean.float(), raw.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_result = negative_log_likelihood(p, z, per_dimension=True)
    assert torch.equal(autocast_result, negative_log_likelihood(p, z.float(), per_dimension=True))
