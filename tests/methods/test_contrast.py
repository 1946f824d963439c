import math
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from helpers.images import label_space
from probmcl import overlap
from probmcl.encoders import PrecomputedFeatures
from probmcl.methods.contrast import (
    SMALLEST_GAP,
    STATISTICS,
    Overlap,
    ProjectedContrast,
    ProjectionHead,
    collapse_statistics,
    collapse_warning,
    gather_rows,
    label_overlap,
    self_columns,
)
from probmcl.mixture import IsotropicMixture


class TestProjection:
    def test_projection_has_relu_between_layers_only(self) -> None:
        torch.manual_seed(0)
        head, features = ProjectionHead(6, (5, 4, 3)), torch.randn(7, 6)
        parameters, x = list(head.parameters()), features
        for i, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
            x = x @ weight.T + bias
            x = x.clamp(min=0) if i < 2 else x
        assert (x < 0).any()
        torch.testing.assert_close(head(features), x / x.norm(dim=1, keepdim=True))

    def test_one_size_gives_one_linear_layer(self) -> None:
        head = ProjectionHead(6, (4,))
        assert [tuple(p.shape) for p in head.parameters()] == [(4, 6), (4,)]

    def test_without_sizes_features_are_normalized(self) -> None:
        head, x = ProjectionHead(6, ()), torch.randn(7, 6)
        assert not list(head.parameters())
        torch.testing.assert_close(head(x), x / x.norm(dim=1, keepdim=True))

    def test_projection_uses_full_precision_and_handles_zero_features(self) -> None:
        head, x = ProjectionHead(6, (4,)), torch.randn(7, 6)
        expected = head(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(head(x), expected)
        nothing = torch.zeros(1, 6, requires_grad=True)
        (gradient,) = torch.autograd.grad(ProjectionHead(6, ())(nothing).sum(), nothing)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("n_views", [1, 2, 3])
@pytest.mark.parametrize("kind", ["jaccard", "cosine", "cosine_literal"])
def test_label_overlap_of_rows_is_that_of_their_images(kind: Overlap, n_views: int) -> None:
    labels = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    known = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    measured = label_overlap(labels, known, n_views=n_views, kind=kind)
    if kind == "jaccard":
        between = overlap.jaccard(labels, known_a=known)
    else:
        between = overlap.cosine(labels, known_a=known, literal=kind == "cosine_literal")
    for row in range(3 * n_views):
        for column in range(3 * n_views):
            expected = 1 if row % 3 == column % 3 else between[row % 3, column % 3]
            assert measured[row, column] == expected


def test_gathered_rows_are_in_row_order() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert torch.equal(gather_rows(labels, n_views=2), torch.cat([labels, labels]))
    assert gather_rows(labels > 0, n_views=2).dtype == torch.bool
    assert self_columns(torch.zeros(4, 4)).tolist() == [0, 1, 2, 3]


@dataclass(frozen=True)
class Config:
    projection: tuple[int, ...] = (5,)


class RecordingContrast(ProjectedContrast):
    """A contrastive loss that records its arguments."""

    presets = {"default": Config()}  # noqa: RUF012

    def contrast(
        self,
        similarity: Float[Tensor, "M P"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"] | None,
        n_views: int,
    ) -> Float[Tensor, ""]:
        self.given = similarity, labels, known, n_views
        return similarity.square().mean()


def batch(n_views: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]])
    return torch.randn(n_views, 5, 12, generator=generator), labels, torch.ones(5, 3, dtype=torch.bool)


@pytest.mark.parametrize("n_views", [2, 3])
def test_contrast_receives_the_cosines_of_all_rows(n_views: int) -> None:
    torch.manual_seed(0)
    method = RecordingContrast(PrecomputedFeatures(12), label_space(3))
    views, labels, known = batch(n_views)
    step = method(views, labels, known)
    similarity, *rest = method.given
    (weight, bias) = method.projection.parameters()
    unit = normalize(views.flatten(0, 1) @ weight.T + bias, dim=1)
    for i in range(5 * n_views):
        for j in range(5 * n_views):
            assert similarity[i, j].item() == pytest.approx((unit[i] * unit[j]).sum().item(), abs=1e-6)
    assert rest == [labels, known, n_views]
    assert torch.equal(step.loss, similarity.square().mean())
    assert torch.equal(step.terms["contrastive"], step.loss)


def test_projected_contrast_reports_collapse_statistics() -> None:
    torch.manual_seed(0)
    method = RecordingContrast(PrecomputedFeatures(12), label_space(3))
    views, labels, known = batch()
    step = method(views, labels, known)
    assert set(step.terms) == {"contrastive", *STATISTICS} - {"effective_components"}
    similarity = method.given[0]
    positives = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]])
    positive = positives.bool().repeat(2, 2)
    itself = torch.eye(10, dtype=torch.bool)
    torch.testing.assert_close(step.terms["similarity_positive"], similarity[positive & ~itself].mean())
    torch.testing.assert_close(step.terms["similarity_negative"], similarity[~positive].mean())
    assert step.terms["rows_without_positives"] == 0
    nothing = method(views, labels, torch.zeros_like(known))
    assert nothing.terms["rows_without_positives"] == 1
    assert nothing.terms["similarity_positive"].isfinite()  # the other view


def test_statistics_of_equal_images_show_a_collapse() -> None:
    method = RecordingContrast(PrecomputedFeatures(12), label_space(3))
    terms = method(torch.ones(2, 5, 12), *batch()[1:]).terms
    assert terms["similarity_negative"].item() == pytest.approx(1)
    assert terms["feature_cosine"].item() == pytest.approx(1)


N, C, D = 5, 4, 7
ALL_STATISTICS = {
    "effective_components",
    "mean_coordinate",
    "feature_cosine",
    "similarity_positive",
    "similarity_negative",
    "rows_without_positives",
}


def mixture(log_weight: Tensor) -> IsotropicMixture:
    return IsotropicMixture(log_weight, torch.zeros_like(log_weight), torch.ones_like(log_weight), dim=1)


def step(n_views: int) -> tuple[Tensor, IsotropicMixture, Tensor, Tensor]:
    """Return a random step in which image 2 has no positive, and image 4 only its own other views."""
    generator = torch.Generator().manual_seed(n_views)
    rows = n_views * N
    features = torch.randn(rows, D, generator=generator)
    weights = torch.randn(rows, C, generator=generator).log_softmax(1)
    similarity = torch.rand(rows, rows, generator=generator)
    images = torch.zeros(N, N, dtype=torch.bool)
    images[[0, 1, 0, 3, 4], [1, 0, 3, 0, 4]] = True
    positive = images.repeat(n_views, n_views).fill_diagonal_(False)
    return features, mixture(weights), similarity, positive


def slow_statistics(
    features: Tensor, mixed: IsotropicMixture, similarity: Tensor, positive: Tensor, n_views: int
) -> dict[str, float]:
    rows = [x.tolist() for x in features.double()]
    lengths = [math.sqrt(sum(a * a for a in row)) for row in rows]
    unit = [[a / length for a in row] for row, length in zip(rows, lengths, strict=True)]
    image = [i for _ in range(n_views) for i in range(len(rows) // n_views)]
    weights = mixed.log_weight.double().exp().tolist()
    cosines, positives, negatives, lonely_rows = [], [], [], 0
    for i, first in enumerate(unit):
        for j, second in enumerate(unit):
            if image[i] != image[j]:
                cosines.append(sum(a * b for a, b in zip(first, second, strict=True)))
            if positive[i, j]:
                positives.append(similarity[i, j].item())
            elif i != j:
                negatives.append(similarity[i, j].item())
        lonely_rows += not any(positive[i, j] and image[i] != image[j] for j in range(len(rows)))
    return {
        "effective_components": sum(1 / sum(w * w for w in row) for row in weights) / len(rows),
        "mean_coordinate": sum(abs(sum(row)) / math.sqrt(len(row)) for row in unit) / len(rows),
        "feature_cosine": sum(cosines) / len(cosines),
        "similarity_positive": sum(positives) / len(positives),
        "similarity_negative": sum(negatives) / len(negatives),
        "rows_without_positives": lonely_rows / len(rows),
    }


@pytest.mark.parametrize("n_views", [2, 3])
@pytest.mark.parametrize("statistic", sorted(ALL_STATISTICS))
def test_statistics_match_a_loop(statistic: str, n_views: int) -> None:
    assert collapse_statistics(*step(n_views), n_views=n_views)[statistic].item() == pytest.approx(
        slow_statistics(*step(n_views), n_views)[statistic], rel=1e-5
    )


def test_statistics_are_scalars_without_gradient() -> None:
    features, mixed, similarity, positive = step(2)
    statistics = collapse_statistics(features.requires_grad_(), mixed, similarity.requires_grad_(), positive, n_views=2)
    assert set(statistics) == ALL_STATISTICS
    assert all(x.shape == () and not x.requires_grad for x in statistics.values())


def test_statistics_without_a_mixture() -> None:
    features, mixed, similarity, positive = step(2)
    expected = collapse_statistics(features, mixed, similarity, positive, n_views=2)
    statistics = collapse_statistics(features, None, similarity, positive, n_views=2)
    assert set(statistics) == ALL_STATISTICS - {"effective_components"}
    assert all(torch.equal(x, expected[name]) for name, x in statistics.items())


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_mean_coordinate_of_constant_features_is_one(direction: float) -> None:
    _, mixed, similarity, positive = step(2)
    features = direction * torch.linspace(1, 9, 2 * N)[:, None].expand(-1, D)  # of different norms
    statistics = collapse_statistics(features.contiguous(), mixed, similarity, positive, n_views=2)
    assert statistics["mean_coordinate"].item() == pytest.approx(1, abs=1e-6)
    assert statistics["feature_cosine"].item() == pytest.approx(1, abs=1e-6)


def test_feature_cosine_of_orthogonal_images_is_zero() -> None:
    _, mixed, similarity, positive = step(2)
    statistics = collapse_statistics(
        torch.eye(N, D).repeat(2, 1), mixed, similarity, positive, n_views=2
    )  # views agree, images do not
    assert statistics["feature_cosine"] == 0


@pytest.mark.parametrize(
    ("log_weight", "expected"),
    [
        (torch.full((2 * N, C), -math.log(C)), C),
        (torch.tensor([0.0] + [-math.inf] * (C - 1)).repeat(2 * N, 1), 1),
        (torch.tensor([-math.log(2), -math.log(2)] + [-math.inf] * (C - 2)).repeat(2 * N, 1), 2),
    ],
    ids=["even", "one", "two"],
)
def test_effective_components_counts_components_with_weight(log_weight: Tensor, expected: int) -> None:
    features, _, similarity, positive = step(2)
    statistics = collapse_statistics(features, mixture(log_weight), similarity, positive, n_views=2)
    assert statistics["effective_components"].item() == pytest.approx(expected, rel=1e-6)


def test_own_views_do_not_count_as_positives() -> None:
    features, mixed, similarity, _ = step(2)
    own_views = torch.eye(N, dtype=torch.bool).repeat(2, 2).fill_diagonal_(False)
    assert collapse_statistics(features, mixed, similarity, own_views, n_views=2)["rows_without_positives"] == 1
    own_views[0, N + 1] = True
    assert collapse_statistics(features, mixed, similarity, own_views, n_views=2)[
        "rows_without_positives"
    ].item() == pytest.approx(1 - 1 / (2 * N))


def test_a_single_image_has_no_negatives_and_no_warning() -> None:
    twins = torch.tensor([[False, True], [True, False]])
    statistics = collapse_statistics(torch.randn(2, D), mixture(torch.zeros(2, 1)), torch.ones(2, 2), twins, n_views=2)
    assert statistics["feature_cosine"].isnan()
    assert statistics["similarity_negative"].isnan()
    assert collapse_warning({name: x.item() for name, x in statistics.items()}) is None


def test_statistics_do_not_change_under_autocast() -> None:
    features, mixed, similarity, positive = step(2)
    expected = collapse_statistics(features.bfloat16().float(), mixed, similarity, positive, n_views=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        statistics = collapse_statistics(features.bfloat16(), mixed, similarity, positive, n_views=2)
    for name, x in expected.items():
        assert torch.equal(statistics[name], x), name


def statistics(positive: float, negative: float) -> dict[str, float]:
    return {"similarity_positive": positive, "similarity_negative": negative, "effective_components": 3.25}


class TestCollapseWarning:
    @pytest.mark.parametrize("negative", [0.0, 0.4, 0.9])
    def test_warns_only_below_the_smallest_gap(self, negative: float) -> None:
        assert collapse_warning(statistics(negative + SMALLEST_GAP - 1e-4, negative))
        assert collapse_warning(statistics(negative + SMALLEST_GAP + 1e-4, negative)) is None

    def test_does_not_warn_at_exactly_the_smallest_gap(self) -> None:
        assert collapse_warning(statistics(SMALLEST_GAP, 0.0)) is None

    def test_smallest_gap_is_that_of_the_pilot_runs(self) -> None:
        assert pytest.approx(0.02) == SMALLEST_GAP

    def test_warns_if_all_similarities_are_equal(self) -> None:
        assert collapse_warning(statistics(1.0, 1.0))
        assert collapse_warning(statistics(0.0, 0.0))

    def test_warns_if_negatives_are_more_similar_than_positives(self) -> None:
        assert collapse_warning(statistics(0.2, 0.7))

    @pytest.mark.parametrize(("positive", "negative"), [(math.nan, 0.3), (0.3, math.nan), (math.nan, math.nan)])
    def test_does_not_warn_without_positives_or_negatives(self, positive: float, negative: float) -> None:
        assert collapse_warning(statistics(positive, negative)) is None

    def test_warning_mentions_components_only_with_a_mixture(self) -> None:
        warning = collapse_warning({"similarity_positive": 0.9051, "similarity_negative": 0.9004})
        assert warning is not None
        assert "0.905" in warning
        assert "0.900" in warning
        assert "mixture" not in warning
        assert "component" not in warning

    def test_does_not_warn_without_similarities(self) -> None:
        assert collapse_warning({"loss": 1.0}) is None

    def test_warning_contains_the_statistics(self) -> None:
        warning = collapse_warning(statistics(0.9051, 0.9004))
        assert warning is not None
        assert warning.startswith("collapsed: ")
        for part in ("0.905", "0.900", "3.2 effective components"):
            assert part in warning
