import dataclasses
import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from made import label_space
from probmcl.encoders import Encoder, Extracted
from probmcl.losses import contrastive, negative_log_likelihood
from probmcl.methods.probe import Probe
from probmcl.methods.probmcl import PAPER, Config, ProbMCL
from probmcl.mixture import aligned_correlation, correlation
from probmcl.overlap import jaccard


def paper(**changes: object) -> Config:
    return dataclasses.replace(PAPER, **changes)  # type: ignore[arg-type]


def build(config: Config, *, features: int = 12, classes: int = 3) -> ProbMCL:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ProbMCL(Extracted(features), label_space(classes), config)


def batch(images: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, images, 12, generator=generator), (torch.rand(images, 3, generator=generator) < 0.5).float()


def test_the_presets_are_what_the_documents_say() -> None:
    d = Config()
    assert (d.similarity, d.mean_size, d.component_weight, d.hidden) == ("aligned", 16, "l2", ())
    assert (d.feature_norm, d.target, d.temperature, d.threshold) == ("root", "none", 0.1, 0.5)
    assert (PAPER.similarity, PAPER.mean_size, PAPER.target, PAPER.dim) == ("all_pairs", None, "feature", None)
    assert (PAPER.hidden, PAPER.initialisation, PAPER.floor) == ((2048, 128), "paper", "variance")
    assert (PAPER.temperature, PAPER.threshold, PAPER.contrastive_weight) == (0.2, 0.6, 0.3)
    assert (PAPER.reduction, PAPER.likelihood_per_dimension, PAPER.overlap) == ("sum", False, "jaccard")


def test_the_paper_preset_is_equation_4_written_out() -> None:
    views, labels = batch()
    method = build(PAPER)
    step = method(views, labels)
    h = normalize(views.flatten(0, 1), dim=1)
    mixture = method.network(h)
    twice = labels.repeat(2, 1)
    contrast = contrastive(correlation(mixture), jaccard(twice), threshold=0.6, temperature=0.2, reduction="sum")
    expected = negative_log_likelihood(mixture, h, reduction="sum") + 0.3 * contrast
    torch.testing.assert_close(step.loss, expected)
    assert mixture.dim == 12


def test_the_default_is_the_aligned_contrast_alone_on_features_of_length_root_d() -> None:
    views, labels = batch()
    method = build(Config())
    mixture = method.network(normalize(views.flatten(0, 1), dim=1) * 12**0.5)
    shared = jaccard(labels.repeat(2, 1))
    expected = contrastive(aligned_correlation(mixture), shared, threshold=0.5, temperature=0.1)
    torch.testing.assert_close(method(views, labels).loss, expected)


def test_views_of_an_image_are_positives_whatever_is_known() -> None:
    views, labels = batch()
    method = build(Config())
    nothing = method(views, labels, torch.zeros(5, 3, dtype=torch.bool))
    mixture = method.network(normalize(views.flatten(0, 1), dim=1) * 12**0.5)
    same = torch.eye(5).repeat(2, 2)
    expected = contrastive(aligned_correlation(mixture), same, threshold=0.5, temperature=0.1)
    torch.testing.assert_close(nothing.loss, expected)
    assert nothing.loss > 0
    assert nothing.terms["rows_without_positives"] == 1


def test_the_literal_cosine_still_has_the_other_view_as_a_positive() -> None:
    views, labels = batch()
    step = build(Config(overlap="cosine_literal"))(views, torch.ones_like(labels))
    assert step.loss > 0  # as printed, three equal labels have D = 1/3, below any threshold used


@pytest.mark.parametrize("target", ["feature", "detached"])
def test_a_detached_target_takes_only_the_gradient_of_z_away(target: str) -> None:
    views, labels = batch()
    views.requires_grad_()
    method = build(paper(target=target, contrastive_weight=0.0))
    (gradient,) = torch.autograd.grad(method(views, labels).loss, views)
    h = normalize(views.flatten(0, 1), dim=1)
    z = h if target == "feature" else h.detach()
    (expected,) = torch.autograd.grad(negative_log_likelihood(method.network(h), z, reduction="sum"), views)
    torch.testing.assert_close(gradient, expected)


def test_the_hidden_target_lives_in_the_last_hidden_layer() -> None:
    method = build(paper(target="hidden", hidden=(16, 7)))
    assert method.network.dim == 7
    assert method(*batch()).loss.isfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 5}, "target 'feature' has 12 dimensions, the mixture 5"),
        ({"target": "hidden", "dim": 12}, "has 128 dimensions"),
    ],
)
def test_another_dimension_than_the_targets_is_an_error(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(paper(**settings))


def test_without_a_target_the_dimension_is_free() -> None:
    assert build(paper(target="none", dim=128)).network.dim == 128


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"similarity": "all_pairs"}, "mean_size"),
        ({"contrastive_weight": "balanced"}, "balances against the likelihood"),
        ({"target": "hidden"}, "needs hidden layers"),
    ],
)
def test_settings_that_cannot_go_together_say_so(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Config(), **settings)  # type: ignore[arg-type]


def test_balanced_weight_makes_both_gradients_equal_at_the_features() -> None:
    views, labels = batch()
    views.requires_grad_()
    step = build(paper(contrastive_weight="balanced"))(views, labels)
    likelihood, contrast, weight = (step.terms[key] for key in ("likelihood", "contrastive", "contrastive_weight"))
    torch.testing.assert_close(step.loss, likelihood + weight * contrast)
    assert weight > 1  # far above the fixed 0.3: the likelihood pulls harder


def test_the_papers_preset_warns_in_plain_words_and_the_default_does_not() -> None:
    with pytest.warns(UserWarning, match="collapsed in every trial"):
        ProbMCL(Extracted(4), label_space(), PAPER)
    ProbMCL(Extracted(4), label_space(), Config())


def test_what_predicts_has_the_parameters_of_the_encoder_and_a_linear_layer() -> None:
    encoder, space = Encoder("test_resnet", image_size=32), label_space(5)
    trunk = sum(p.numel() for p in encoder.parameters())
    stage_1 = ProbMCL(encoder, space)
    assert sum(p.numel() for p in stage_1.parameters()) > trunk
    fitted = Probe(Extracted(96), space)
    fitted.standardise(torch.randn(20, 96))
    predicts = fitted.on(encoder, space)
    assert sum(p.numel() for p in predicts.parameters()) == trunk + 96 * 5 + 5
    assert set(predicts.state_dict()) == {f"encoder.{key}" for key in encoder.state_dict()} | {
        "linear.weight",
        "linear.bias",
    }


def test_more_than_two_views_work() -> None:
    views, labels = batch()
    assert build(Config())(torch.cat([views, views[:1] + 1]), labels).loss.isfinite()
