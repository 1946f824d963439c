from typing import Literal

import pytest
import torch
from torch import Tensor

from helpers.images import label_space
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.losses import asymmetric, binary_cross_entropy
from probmcl.methods.base import LinearClassifier
from probmcl.methods.contrast import STATISTICS
from probmcl.methods.joint import Config, Joint
from probmcl.methods.probmcl import ProbMCL
from probmcl.methods.supcon import SupCon

PAIRS = [
    pytest.param("asl", "supcon"),
    pytest.param("asl", "probmcl"),
    pytest.param("bce", "supcon"),
    pytest.param("bce", "probmcl"),
]
Classification = Literal["asl", "bce"]
Contrast = Literal["supcon", "probmcl"]


def build(config: Config, classes: int = 3) -> Joint:
    torch.manual_seed(0)
    return Joint(PrecomputedFeatures(12), label_space(classes), config)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(5, 3, generator=generator) < 0.5).float()
    known = torch.rand(5, 3, generator=generator) < 0.8
    return torch.randn(2, 5, 12, generator=generator), labels, known


def test_default_settings() -> None:
    c = Config()
    assert (c.classification, c.contrast, c.contrast_weight) == ("bce", "supcon", 0.3)


@pytest.mark.parametrize(("classification", "contrast"), PAIRS)
def test_loss_is_the_weighted_sum_of_both_losses(classification: Classification, contrast: Contrast) -> None:
    views, labels, known = batch()
    method = build(Config(classification, contrast, contrast_weight=0.7))
    step = method(views, labels, known)
    loss = {"asl": asymmetric, "bce": binary_cross_entropy}[classification]
    logits = views.flatten(0, 1) @ method.linear.weight.T + method.linear.bias
    entries = loss(logits, labels.repeat(2, 1), known.repeat(2, 1), reduction="sum") / (2 * known.sum())
    contrastive = {"supcon": SupCon, "probmcl": ProbMCL}[contrast](PrecomputedFeatures(12), label_space(3))
    contrastive.load_state_dict(method.contrast.state_dict())
    torch.testing.assert_close(step.loss, 3 * entries + 0.7 * contrastive(views, labels, known).loss)
    torch.testing.assert_close(step.terms["classification"], 3 * entries)
    torch.testing.assert_close(step.terms["contrastive"], contrastive(views, labels, known).loss)


@pytest.mark.parametrize("contrast", ["supcon", "probmcl"])
def test_terms_are_both_losses_and_the_collapse_statistics(contrast: Contrast) -> None:
    statistics = set(STATISTICS) if contrast == "probmcl" else set(STATISTICS) - {"effective_components"}
    assert set(build(Config(contrast=contrast))(*batch()).terms) == {"classification", "contrastive", *statistics}


def test_easy_classes_do_not_change_the_loss() -> None:
    """Add 17 classes that no image has and that the layer predicts as absent."""
    views, labels, _ = batch()
    few, many = build(Config()), build(Config(), classes=20)
    many.contrast.load_state_dict(few.contrast.state_dict())
    with torch.no_grad():
        many.linear.weight.zero_()
        many.linear.bias.fill_(-30)
        many.linear.weight[:3], many.linear.bias[:3] = few.linear.weight, few.linear.bias
    more = torch.cat([labels, torch.zeros(5, 17)], 1)
    torch.testing.assert_close(many(views, more).loss, few(views, labels).loss)


def test_encoder_runs_once_and_is_stored_once() -> None:
    encoder = Encoder("test_resnet", image_size=32)
    method = Joint(encoder, label_space(3))
    runs: list[int] = []
    encoder.register_forward_hook(lambda _, inputs, __: runs.append(len(inputs[0])))
    method(torch.randn(2, 4, 3, 32, 32), torch.eye(4, 3))
    assert runs == [8]
    assert not [key for key in method.state_dict() if key.startswith("contrast.encoder")]


def test_logits_are_those_of_the_linear_layer() -> None:
    views, _, _ = batch()
    method = build(Config())
    assert isinstance(method, LinearClassifier)
    assert Joint.has_own_head(method.config)
    torch.testing.assert_close(method.logits(views[0]), views[0] @ method.linear.weight.T + method.linear.bias)


def test_both_losses_have_gradients_at_the_features() -> None:
    views, labels, known = batch()
    views.requires_grad_()
    step = build(Config(contrast_weight=0.5))(views, labels, known)
    total, classification, contrast = (
        torch.autograd.grad(x, views, retain_graph=True)[0]
        for x in (step.loss, step.terms["classification"], step.terms["contrastive"])
    )
    torch.testing.assert_close(total, classification + 0.5 * contrast)
    assert classification.abs().max() > 0
    assert contrast.abs().max() > 0


def test_negative_weight_raises() -> None:
    with pytest.raises(ValueError, match="contrast_weight=-1"):
        Config(contrast_weight=-1.0)
