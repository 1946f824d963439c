import dataclasses
import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu, normalize

from helpers.images import label_space
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.losses import contrastive, negative_log_likelihood
from probmcl.methods.probe import Probe
from probmcl.methods.probmcl import PAPER, Config, ProbMCL
from probmcl.mixture import IsotropicMixture, aligned_correlation, correlation
from probmcl.mixture.aligned import ComponentWeight
from probmcl.overlap import jaccard


def paper(**changes: object) -> Config:
    return dataclasses.replace(PAPER, **changes)  # type: ignore[arg-type]


def build(config: Config, *, features: int = 12, classes: int = 3) -> ProbMCL:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ProbMCL(PrecomputedFeatures(features), label_space(classes), config)


def batch(images: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, images, 12, generator=generator), (torch.rand(images, 3, generator=generator) < 0.5).float()


def test_settings_of_the_presets() -> None:
    d = Config()
    assert (d.similarity, d.mean_size, d.component_weight, d.hidden) == ("aligned", 16, "l2", ())
    assert (d.feature_norm, d.target, d.temperature, d.threshold) == ("root", "none", 0.1, 0.5)
    assert (PAPER.similarity, PAPER.mean_size, PAPER.target, PAPER.dim) == ("all_pairs", None, "feature", None)
    assert (PAPER.hidden, PAPER.initialization, PAPER.floor) == ((2048, 128), "paper", "variance")
    assert (PAPER.temperature, PAPER.threshold, PAPER.contrastive_weight) == (0.2, 0.6, 0.3)
    assert (PAPER.reduction, PAPER.likelihood_per_dimension, PAPER.overlap) == ("sum", False, "jaccard")


def test_paper_preset_is_equation_4() -> None:
    views, labels = batch()
    method = build(PAPER)
    step = method(views, labels)
    h = normalize(views.flatten(0, 1), dim=1)
    mixture = method.network(h)
    row_labels = labels.repeat(2, 1)
    contrast = contrastive(correlation(mixture), jaccard(row_labels), threshold=0.6, temperature=0.2, reduction="sum")
    expected = negative_log_likelihood(mixture, h, reduction="sum") + 0.3 * contrast
    torch.testing.assert_close(step.loss, expected)
    assert mixture.dim == 12


def test_default_is_the_aligned_contrastive_loss() -> None:
    views, labels = batch()
    method = build(Config())
    mixture = method.network(normalize(views.flatten(0, 1), dim=1) * 12**0.5)
    shared = jaccard(labels.repeat(2, 1))
    expected = contrastive(aligned_correlation(mixture), shared, threshold=0.5, temperature=0.1)
    torch.testing.assert_close(method(views, labels).loss, expected)


def test_views_are_positives_even_without_known_labels() -> None:
    views, labels = batch()
    method = build(Config())
    unknown = method(views, labels, torch.zeros(5, 3, dtype=torch.bool))
    mixture = method.network(normalize(views.flatten(0, 1), dim=1) * 12**0.5)
    same = torch.eye(5).repeat(2, 2)
    expected = contrastive(aligned_correlation(mixture), same, threshold=0.5, temperature=0.1)
    torch.testing.assert_close(unknown.loss, expected)
    assert unknown.loss > 0
    assert unknown.terms["rows_without_positives"] == 1


def test_views_are_positives_with_the_literal_cosine() -> None:
    views, labels = batch()
    step = build(Config(overlap="cosine_literal"))(views, torch.ones_like(labels))
    assert step.loss > 0  # as printed, three equal labels have D = 1/3, below any threshold used


@pytest.mark.parametrize("target", ["feature", "detached"])
def test_detached_target_removes_only_the_gradient_of_z(target: str) -> None:
    views, labels = batch()
    views.requires_grad_()
    method = build(paper(target=target, contrastive_weight=0.0))
    (gradient,) = torch.autograd.grad(method(views, labels).loss, views)
    h = normalize(views.flatten(0, 1), dim=1)
    z = h if target == "feature" else h.detach()
    (expected,) = torch.autograd.grad(negative_log_likelihood(method.network(h), z, reduction="sum"), views)
    torch.testing.assert_close(gradient, expected)


def test_hidden_target_has_the_size_of_the_last_hidden_layer() -> None:
    method = build(paper(target="hidden", hidden=(16, 7)))
    assert method.network.dim == 7
    assert method(*batch()).loss.isfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 5}, "target 'feature' has 12 dimensions"),
        ({"target": "hidden", "dim": 12}, "target 'hidden' has 128 dimensions"),
    ],
)
def test_dimension_must_match_the_target(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(paper(**settings))


def test_dimension_is_free_without_a_target() -> None:
    assert build(paper(target="none", dim=128)).network.dim == 128


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"similarity": "all_pairs"}, "mean_size"),
        ({"contrastive_weight": "balanced"}, "contrastive_weight 'balanced'"),
        ({"target": "hidden"}, "target 'hidden'"),
        ({"similarity": "all_pairs", "mean_size": None, "anchors": "labels"}, "anchors 'labels'"),
        ({"temperature": 0.0}, "above 0"),
        ({"threshold": 1.5}, "at least 0 and at most 1"),
    ],
)
def test_incompatible_settings_raise(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Config(), **settings)  # type: ignore[arg-type]


def test_balanced_contrastive_weight() -> None:
    views, labels = batch()
    views.requires_grad_()
    step = build(paper(contrastive_weight="balanced"))(views, labels)
    likelihood, contrast, weight = (step.terms[key] for key in ("likelihood", "contrastive", "contrastive_weight"))
    torch.testing.assert_close(step.loss, likelihood + weight * contrast)
    assert weight > 1  # far above the fixed 0.3, since the likelihood has the larger gradient


def test_only_the_paper_preset_warns_about_a_collapse() -> None:
    with pytest.warns(UserWarning, match="target 'feature' .* collapsed"):
        ProbMCL(PrecomputedFeatures(4), label_space(), PAPER)
    ProbMCL(PrecomputedFeatures(4), label_space(), Config())


def test_probe_has_the_parameters_of_encoder_and_linear_layer() -> None:
    encoder, space = Encoder("test_resnet", image_size=32), label_space(5)
    trunk = sum(p.numel() for p in encoder.parameters())
    stage_1 = ProbMCL(encoder, space)
    assert sum(p.numel() for p in stage_1.parameters()) > trunk
    fitted = Probe(PrecomputedFeatures(96), space)
    fitted.standardize(torch.randn(20, 96))
    predicts = fitted.on(encoder, space)
    assert sum(p.numel() for p in predicts.parameters()) == trunk + 96 * 5 + 5
    assert set(predicts.state_dict()) == {f"encoder.{key}" for key in encoder.state_dict()} | {
        "linear.weight",
        "linear.bias",
    }


class TestAnchors:
    @pytest.mark.parametrize("component_weight", ["l2", "density"])
    def test_label_sets_add_a_contrastive_term(self, component_weight: ComponentWeight) -> None:
        views, labels = batch(6)
        labels[2] = 0  # an empty label set has no mixture
        method = build_with_anchors(Config(anchors="labels", component_weight=component_weight))
        step = method(views, labels)
        row_labels = labels.repeat(2, 1)
        nonempty = row_labels.any(1)
        mixture = method.network(normalize(views.flatten(0, 1), dim=1) * 12**0.5)
        similarity = aligned_correlation(
            mixture, label_set_mixtures(method, row_labels[nonempty]), component_weight=component_weight
        )
        no_column = torch.full((12,), -1)
        shared = jaccard(row_labels, row_labels[nonempty])
        anchor_loss = contrastive(similarity, shared, threshold=0.5, temperature=0.1, self_column=no_column)
        without = build(Config(component_weight=component_weight))(views, labels).loss
        torch.testing.assert_close(step.terms["anchored"], anchor_loss, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(step.loss, without + anchor_loss, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(step.terms["contrastive"], step.loss)

    def test_contrastive_weight_applies_to_both_terms(self) -> None:
        views, labels = batch()
        full = build_with_anchors(Config(anchors="labels"))(views, labels).loss
        half = build_with_anchors(Config(anchors="labels", contrastive_weight=0.5))(views, labels).loss
        torch.testing.assert_close(half, full / 2)

    def test_unknown_labels_are_not_in_label_sets(self) -> None:
        views, labels = batch()
        labels[:] = torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
        known = torch.ones(5, 3, dtype=torch.bool)
        known[0, 1] = known[4, 2] = False
        method = build_with_anchors(Config(anchors="labels"))
        visible = labels.where(known, 0).repeat(2, 1)
        nonempty = torch.tensor([True, True, True, True, False]).repeat(2)
        mixture = method.network(normalize(views.flatten(0, 1), dim=1) * 12**0.5)
        similarity = aligned_correlation(mixture, label_set_mixtures(method, visible[nonempty]))
        shared = jaccard(labels, known_a=known).fill_diagonal_(1).repeat(2, 2)[:, nonempty]
        no_column = torch.full((10,), -1)
        expected = contrastive(similarity, shared, threshold=0.5, temperature=0.1, self_column=no_column)
        measured = method(views, labels, known).terms["anchored"]
        torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("case", ["no labels", "nothing known"])
    def test_term_is_zero_without_label_sets(self, case: str) -> None:
        views, labels = batch()
        known = torch.full((5, 3), case == "no labels")
        labels = torch.zeros_like(labels) if case == "no labels" else labels
        step = build_with_anchors(Config(anchors="labels"))(views, labels, known)
        step.loss.backward()
        assert step.terms["anchored"] == 0
        torch.testing.assert_close(step.loss, build(Config())(views, labels, known).loss)

    @pytest.mark.parametrize("mean_size", [16, None])
    def test_anchors_add_a_mean_and_a_variance_per_class(self, mean_size: int | None) -> None:
        plain = build(Config(mean_size=mean_size))
        method = build(Config(mean_size=mean_size, anchors="labels"))
        added = set(method.state_dict()) - set(plain.state_dict())
        assert added == {"anchors.mean", "anchors.variance"}
        shapes = [tuple(method.state_dict()[key].shape) for key in sorted(added)]
        assert shapes == [(3,) if mean_size is None else (3, 16), (3,)]
        for key, value in plain.state_dict().items():
            assert torch.equal(method.state_dict()[key], value)  # from the same random numbers
        assert method(*batch()).loss.isfinite()

    def test_scores_are_correlations_with_the_class_anchors(self) -> None:
        views, _ = batch()
        method = build_with_anchors(Config(anchors="labels"))
        mixture = method.network(normalize(views[0], dim=1) * 12**0.5)
        expected = aligned_correlation(mixture, label_set_mixtures(method, torch.eye(3)))
        torch.testing.assert_close(method.logits(views[0]).sigmoid(), expected, rtol=1e-4, atol=1e-6)

    def test_logits_require_anchors(self) -> None:
        assert ProbMCL.has_own_head(Config(anchors="labels"))
        assert not any(map(ProbMCL.has_own_head, (Config(), PAPER)))
        with pytest.raises(ValueError, match="anchors 'labels'"):
            build(Config()).logits(torch.randn(2, 12))

    def test_anchors_learn_to_classify(self) -> None:
        """The features encode three classes. Training makes the mixture rank them correctly.

        The scores are not calibrated probabilities: with two labels, 0.3 is a high score here.
        """
        torch.manual_seed(0)
        labels = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1]]).repeat(3, 1)
        views = torch.cat([labels, -labels], 1).repeat(1, 2) + 0.1 * torch.randn(2, 18, 12)
        method = build(Config(anchors="labels"))
        before = method.logits(views[0])
        optimizer = torch.optim.Adam(method.parameters(), lr=0.03)
        for _ in range(60):
            optimizer.zero_grad()
            method(views, labels).loss.backward()
            optimizer.step()
        after = method.logits(views[0])
        assert before[labels == 1].min() < before[labels == 0].max()
        assert after[labels == 1].min() > after[labels == 0].max()


def build_with_anchors(config: Config) -> ProbMCL:
    """Build the method with random, distinct anchors."""
    method = build(config)
    assert method.anchors is not None
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in method.anchors.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return method


def label_set_mixtures(method: ProbMCL, labels: Tensor) -> IsotropicMixture:
    """Return q_y = Σ_{k∈y} N(m_k, v_k)/|y| as mixtures of all components, with weight 0 outside of y."""
    assert method.anchors is not None
    mean, variance = method.anchors.mean, elu(method.anchors.variance) + 2
    rows = len(labels)
    log_weight = (labels / labels.sum(1, keepdim=True)).log()
    return IsotropicMixture(
        log_weight.clamp(min=-1e3), mean.expand(rows, *mean.shape), variance.expand(rows, -1), dim=method.network.dim
    )


def test_more_than_two_views_work() -> None:
    views, labels = batch()
    assert build(Config())(torch.cat([views, views[:1] + 1]), labels).loss.isfinite()
