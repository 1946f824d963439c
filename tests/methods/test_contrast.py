from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from helpers.images import label_space
from probmcl import overlap
from probmcl.encoders import PrecomputedFeatures
from probmcl.methods.collapse import STATISTICS
from probmcl.methods.contrast import (
    Overlap,
    ProjectedContrast,
    ProjectionHead,
    gather_rows,
    label_overlap,
    self_columns,
)


class TestProjection:
    def test_layers_have_relu_between_them_and_none_after_the_last(self) -> None:
        torch.manual_seed(0)
        head, features = ProjectionHead(6, (5, 4, 3)), torch.randn(7, 6)
        parameters, x = list(head.parameters()), features
        for i, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
            x = x @ weight.T + bias
            x = x.clamp(min=0) if i < 2 else x
        assert (x < 0).any()
        torch.testing.assert_close(head(features), x / x.norm(dim=1, keepdim=True))

    def test_one_size_is_one_linear_layer(self) -> None:
        head = ProjectionHead(6, (4,))
        assert [tuple(p.shape) for p in head.parameters()] == [(4, 6), (4,)]

    def test_no_sizes_leave_the_direction_of_the_feature(self) -> None:
        head, x = ProjectionHead(6, ()), torch.randn(7, 6)
        assert not list(head.parameters())
        torch.testing.assert_close(head(x), x / x.norm(dim=1, keepdim=True))

    def test_it_runs_in_full_precision_and_a_feature_of_zero_has_a_finite_gradient(self) -> None:
        head, x = ProjectionHead(6, (4,)), torch.randn(7, 6)
        expected = head(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(head(x), expected)
        nothing = torch.zeros(1, 6, requires_grad=True)
        (gradient,) = torch.autograd.grad(ProjectionHead(6, ())(nothing).sum(), nothing)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("n_views", [1, 2, 3])
@pytest.mark.parametrize("kind", ["jaccard", "cosine", "cosine_literal"])
def test_rows_share_what_their_images_share_and_views_of_one_image_everything(kind: Overlap, n_views: int) -> None:
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


def test_columns_are_the_rows_in_their_order() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert torch.equal(gather_rows(labels, n_views=2), torch.cat([labels, labels]))
    assert gather_rows(labels > 0, n_views=2).dtype == torch.bool
    assert self_columns(torch.zeros(4, 4)).tolist() == [0, 1, 2, 3]


@dataclass(frozen=True)
class Config:
    projection: tuple[int, ...] = (5,)


class Own(ProjectedContrast):
    """A contrast of one's own: what is given to it is kept."""

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
def test_a_contrast_is_given_the_cosines_of_all_rows(n_views: int) -> None:
    torch.manual_seed(0)
    method = Own(PrecomputedFeatures(12), label_space(3))
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


def test_it_watches_for_collapse_without_a_mixture() -> None:
    torch.manual_seed(0)
    method = Own(PrecomputedFeatures(12), label_space(3))
    views, labels, known = batch()
    step = method(views, labels, known)
    assert set(step.terms) == {"contrastive", *STATISTICS} - {"effective_components"}
    similarity = method.given[0]
    alike = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]])
    positive = alike.bool().repeat(2, 2)
    itself = torch.eye(10, dtype=torch.bool)
    torch.testing.assert_close(step.terms["similarity_positive"], similarity[positive & ~itself].mean())
    torch.testing.assert_close(step.terms["similarity_negative"], similarity[~positive].mean())
    assert step.terms["rows_without_positives"] == 0
    nothing = method(views, labels, torch.zeros_like(known))
    assert nothing.terms["rows_without_positives"] == 1
    assert nothing.terms["similarity_positive"].isfinite()  # the other view


def test_equal_images_collapse_in_the_signs() -> None:
    method = Own(PrecomputedFeatures(12), label_space(3))
    terms = method(torch.ones(2, 5, 12), *batch()[1:]).terms
    assert terms["similarity_negative"].item() == pytest.approx(1)
    assert terms["feature_cosine"].item() == pytest.approx(1)
