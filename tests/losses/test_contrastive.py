import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import contrastive, positives
from probmcl.losses.reduction import Reduction
from probmcl.overlap import jaccard

FRACTIONS = sorted({Fraction(p, q) for q in range(1, 13) for p in range(q + 1)})


def drawn(rows: int, columns: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Similarities, and overlaps of which some reach any threshold and some none; both in float64."""
    generator = torch.Generator().manual_seed(seed)
    similarity, overlap = torch.rand(2, rows, columns or rows, generator=generator, dtype=torch.float64)
    return similarity, (overlap * 4).round() / 4


def slow_rows(
    similarity: Tensor, overlap: Tensor, threshold: float, temperature: float, own: list[int] | None = None
) -> list[float]:
    """Eq. 3 as printed, one anchor after the other."""
    rows, columns = similarity.shape
    losses = []
    for i in range(rows):
        itself = own[i] if own else i
        others = [j for j in range(columns) if j != itself]
        chosen = [j for j in others if overlap[i, j].item() >= threshold]
        total = 0.0
        for j in chosen:
            numerator = math.exp(similarity[i, j].item() / temperature)
            denominator = sum(math.exp(similarity[i, other].item() / temperature) for other in others)
            total += overlap[i, j].item() * math.log(numerator / denominator)
        losses.append(-total / len(chosen) if chosen else 0.0)
    return losses


@given(
    rows=st.integers(1, 6),
    seed=st.integers(0, 999),
    threshold=st.sampled_from([0.0, 0.25, 0.5, 0.6, 1.0]),
    temperature=st.floats(0.05, 2),
)
def test_it_is_eq_3(rows: int, seed: int, threshold: float, temperature: float) -> None:
    similarity, overlap = drawn(rows, seed=seed)
    expected = slow_rows(similarity, overlap, threshold, temperature)
    reductions: list[Reduction] = ["sum", "mean"]
    for reduction in reductions:
        measured = contrastive(similarity, overlap, threshold=threshold, temperature=temperature, reduction=reduction)
        assert measured.shape == ()
        total = sum(expected) / (rows if reduction == "mean" else 1)
        assert measured.item() == pytest.approx(total, rel=1e-10, abs=1e-12)


def test_by_default_it_is_the_mean_over_all_rows() -> None:
    similarity, overlap = drawn(5)
    overlap[2] = 0  # a row without positives counts, too
    expected = sum(slow_rows(similarity, overlap, 0.5, 0.2)) / 5
    assert contrastive(similarity, overlap, threshold=0.5, temperature=0.2).item() == pytest.approx(expected)


def test_by_hand() -> None:
    """Anchor 0: positives 1 (D 1) and 2 (D ½), denominator e² + e + 1 without itself."""
    similarity = torch.tensor([[9.0, 2.0, 1.0, 0.0]]).repeat(4, 1)
    overlap = torch.tensor([[1.0, 1.0, 0.5, 0.25], *[[0.0] * 4] * 3])
    log_denominator = math.log(math.exp(2) + math.exp(1) + 1)
    expected = -(1 * (2 - log_denominator) + 0.5 * (1 - log_denominator)) / 2
    measured = contrastive(similarity, overlap, threshold=0.5, temperature=1.0, reduction="sum")
    assert measured.item() == pytest.approx(expected, rel=1e-6)


def test_with_labels_that_agree_or_not_it_is_the_supervised_contrastive_loss() -> None:
    similarity, _ = drawn(6)
    group = torch.tensor([0, 0, 0, 1, 1, 2])
    same = (group[:, None] == group).double()
    off = ~torch.eye(6, dtype=torch.bool)
    log_share = torch.stack([(similarity[i][off[i]] / 0.1).log_softmax(0) for i in range(6)])
    rows = [-log_share[i][same[i][off[i]] == 1] for i in range(6)]
    expected = sum(row.mean().item() for row in rows if len(row)) / 6
    assert contrastive(similarity, same, threshold=0.5, temperature=0.1).item() == pytest.approx(expected)


class TestPositives:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_an_overlap_equal_to_the_threshold_is_positive_for_every_fraction(self, dtype: torch.dtype) -> None:
        for fraction in FRACTIONS:
            overlap = torch.tensor(fraction.numerator, dtype=dtype) / torch.tensor(fraction.denominator, dtype=dtype)
            matrix = overlap.expand(2, 2)
            assert positives(matrix, threshold=fraction.numerator / fraction.denominator).sum() == 2, fraction

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_so_it_is_when_the_overlap_comes_from_labels(self, dtype: torch.dtype) -> None:
        for fraction in FRACTIONS:
            labels = torch.zeros(2, fraction.denominator)
            labels[0], labels[1, : fraction.numerator] = 1, 1
            overlap = jaccard(labels.to(dtype))
            assert positives(overlap, threshold=float(fraction)).sum() == 2, fraction
            assert positives(overlap, threshold=float(fraction) + 1e-6).sum() == 0, fraction

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_neighboring_fractions_are_told_apart(self, dtype: torch.dtype) -> None:
        column = torch.tensor([x.numerator for x in FRACTIONS], dtype=dtype)
        column /= torch.tensor([x.denominator for x in FRACTIONS], dtype=dtype)
        for place, fraction in enumerate(FRACTIONS):
            chosen = positives(column[None], threshold=float(fraction), self_column=torch.tensor([-1]))
            assert chosen.sum() == len(FRACTIONS) - place

    def test_an_image_is_no_positive_of_itself(self) -> None:
        assert torch.equal(positives(torch.ones(3, 3), threshold=0.5), ~torch.eye(3, dtype=torch.bool))
        own = torch.tensor([3, 0])
        assert positives(torch.ones(2, 4), threshold=0.5, self_column=own).tolist() == [
            [True, True, True, False],
            [False, True, True, True],
        ]

    @pytest.mark.parametrize("n_views", [2, 3])
    def test_the_other_views_of_an_image_are_positives(self, n_views: int) -> None:
        labels = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0]])
        overlap = jaccard(labels.repeat(n_views, 1))
        chosen = positives(overlap, threshold=0.6)
        for row in range(3 * n_views):
            assert chosen[row].nonzero().flatten().tolist() == [
                j for j in range(3 * n_views) if j != row and j % 3 == row % 3
            ]

    def test_images_of_which_nothing_is_known_are_drawn_to_their_own_views_once_these_overlap_by_one(self) -> None:
        known = torch.tensor([[True, True], [False, False]])
        overlap = jaccard(torch.tensor([[1.0, 0.0], [math.nan, math.nan]]), known_a=known)
        views = overlap.fill_diagonal_(1).repeat(2, 2)
        similarity = torch.rand(4, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(contrastive(similarity, views, threshold=0.5, temperature=0.1), similarity)
        assert gradient[1, 3] < 0
        assert gradient[1, [0, 2]].min() > 0


class TestRectangle:
    @pytest.mark.parametrize("rows", [[0], [3, 1], [5, 0, 2]])
    def test_anchors_against_all_columns_are_rows_of_the_square(self, rows: list[int]) -> None:
        similarity, overlap = drawn(6)
        expected = slow_rows(similarity, overlap, 0.5, 0.2)
        measured = contrastive(
            similarity[rows],
            overlap[rows],
            threshold=0.5,
            temperature=0.2,
            self_column=torch.tensor(rows),
            reduction="sum",
        )
        assert measured.item() == pytest.approx(sum(expected[i] for i in rows))

    def test_two_halves_make_the_whole_with_its_gradient(self) -> None:
        similarity, overlap = drawn(6)
        similarity.requires_grad_()
        whole = contrastive(similarity, overlap, threshold=0.5, temperature=0.2)
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
        torch.testing.assert_close(joined, whole)
        torch.testing.assert_close(torch.autograd.grad(joined, similarity), torch.autograd.grad(whole, similarity))

    def test_columns_of_the_paper_s_formula_with_any_own_column(self) -> None:
        similarity, overlap = drawn(3, 7)
        expected = slow_rows(similarity, overlap, 0.5, 0.2, [6, 2, 0])
        measured = contrastive(similarity, overlap, threshold=0.5, temperature=0.2, self_column=torch.tensor([6, 2, 0]))
        assert measured.item() == pytest.approx(sum(expected) / 3)

    def test_without_a_diagonal_the_own_column_must_be_said(self) -> None:
        with pytest.raises(ValueError, match="2 rows and 3 columns has no diagonal; give self_column"):
            contrastive(torch.rand(2, 3), torch.ones(2, 3), threshold=0.5, temperature=0.1)


class TestEdges:
    @pytest.mark.parametrize("rows", [1, 4])
    def test_without_positives_loss_and_gradient_are_zero(self, rows: int) -> None:
        similarity = torch.rand(rows, rows, requires_grad=True)
        value = contrastive(similarity, torch.eye(rows), threshold=0.5, temperature=0.01)
        assert value == 0
        assert torch.equal(torch.autograd.grad(value, similarity)[0], torch.zeros(rows, rows))

    def test_two_rows_have_nothing_to_choose_from(self) -> None:
        assert contrastive(torch.rand(2, 2), torch.ones(2, 2), threshold=0.5, temperature=0.1) == 0

    def test_what_stands_on_the_diagonal_does_not_matter(self) -> None:
        similarity, overlap = drawn(5)
        expected = contrastive(similarity, overlap, threshold=0.5, temperature=0.2)
        for here in (-1e6, 0.0, 1e6):
            changed = similarity.clone().fill_diagonal_(here)
            other = overlap.clone().fill_diagonal_(0)
            assert contrastive(changed, other, threshold=0.5, temperature=0.2).item() == pytest.approx(expected.item())

    def test_an_overlap_below_the_threshold_does_not_matter(self) -> None:
        similarity, overlap = drawn(5)
        expected = contrastive(similarity, overlap, threshold=0.5, temperature=0.2)
        cut = overlap.where(overlap >= 0.5, 0)
        assert torch.equal(contrastive(similarity, cut, threshold=0.5, temperature=0.2), expected)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_a_low_temperature_overflows_nothing(self, dtype: torch.dtype) -> None:
        similarity = torch.eye(4).roll(1, 0).to(dtype).requires_grad_()
        value = contrastive(similarity, torch.ones(4, 4), threshold=0.5, temperature=1e-5)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(2 / 3 * 1e5)  # two of three positives lie 1/τ below the best
        assert torch.autograd.grad(value, similarity)[0].isfinite().all()

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
    def test_half_precision_is_raised_first(self, half: torch.dtype) -> None:
        similarity, overlap = (x.to(half) for x in drawn(6))
        assert torch.equal(
            contrastive(similarity, overlap, threshold=0.5, temperature=0.1),
            contrastive(similarity.float(), overlap.float(), threshold=0.5, temperature=0.1),
        )

    def test_autocast_around_the_call_changes_nothing(self) -> None:
        similarity, overlap = (x.float() for x in drawn(6))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = contrastive(similarity, overlap, threshold=0.5, temperature=0.1)
        assert torch.equal(inside, contrastive(similarity, overlap, threshold=0.5, temperature=0.1))

    @pytest.mark.parametrize("temperature", [0.0, -0.1])
    def test_a_temperature_of_zero_or_less_is_an_error(self, temperature: float) -> None:
        with pytest.raises(ValueError, match=f"temperature={temperature} must be above 0"):
            contrastive(torch.rand(2, 2), torch.ones(2, 2), threshold=0.5, temperature=temperature)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_gradients(threshold: float) -> None:
    similarity, overlap = drawn(5)
    overlap[3] = 0.1

    def square(x: Tensor) -> Tensor:
        return contrastive(x, overlap, threshold=threshold, temperature=0.3)

    def rectangle(x: Tensor) -> Tensor:
        own = torch.tensor([4, 0])
        return contrastive(x, overlap[:2], threshold=threshold, temperature=0.3, self_column=own, reduction="sum")

    assert torch.autograd.gradcheck(square, similarity.requires_grad_())
    assert torch.autograd.gradcheck(rectangle, similarity[:2].detach().requires_grad_())


@given(seed=st.integers(0, 999), shift=st.floats(-5, 5), order=st.permutations(range(6)))
@settings(max_examples=50)
def test_order_of_rows_and_a_common_shift_of_a_row_change_nothing(seed: int, shift: float, order: list[int]) -> None:
    similarity, overlap = drawn(6, seed=seed)
    expected = contrastive(similarity, overlap, threshold=0.5, temperature=0.2)
    shuffled = contrastive(similarity[order][:, order], overlap[order][:, order], threshold=0.5, temperature=0.2)
    torch.testing.assert_close(shuffled, expected)
    shifts = shift * torch.arange(6)[:, None]
    torch.testing.assert_close(contrastive(similarity + shifts, overlap, threshold=0.5, temperature=0.2), expected)
