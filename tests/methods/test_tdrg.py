import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import MultiLabelSoftMarginLoss

from helpers.images import label_space
from probmcl.cost.operations import count_parameters, prediction_operations
from probmcl.encoders import Encoder, two_maps
from probmcl.heads.dual_relation import DualRelation
from probmcl.methods.tdrg import PAPER, TDRG, Config

SMALL = Config(width=8, layers=2, heads=2, feed_forward=16)


def build(config: Config = SMALL, *, name: str = "test_resnet", side: int = 64) -> TDRG:
    torch.manual_seed(0)
    return TDRG(Encoder(name, image_size=side), label_space(), config).eval()


def perturbed(method: TDRG) -> TDRG:
    """Add noise to all parameters, because attention and edges start at 0."""
    with torch.no_grad():
        for parameter in method.relation.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return method


@torch.no_grad()
def test_logits_mix_structural_and_semantic_logits() -> None:
    method, images = build(), torch.rand(2, 3, 64, 64)
    head = DualRelation(192, 96, 3, width=8, layers=2, heads=2, feed_forward=16).eval()
    head.load_state_dict(method.relation.state_dict())
    structural, semantic, _ = head(*two_maps(method.encoder, images))
    torch.testing.assert_close(method.logits(images), 0.7 * structural + 0.3 * semantic)
    only = TDRG(
        method.encoder, label_space(), Config(width=8, layers=2, heads=2, feed_forward=16, structural_share=1.0)
    )
    only.load_state_dict(method.state_dict())
    torch.testing.assert_close(only.eval().logits(images), structural)


def test_settings_reach_the_head() -> None:
    config = Config(width=12, layers=1, heads=3, feed_forward=5, top_share=0.5, batch_attention=True)
    head = build(config).relation
    (layer,) = head.transformer.layers
    assert isinstance(layer, torch.nn.TransformerEncoderLayer)
    assert (layer.self_attn.embed_dim, layer.self_attn.num_heads, layer.linear1.out_features) == (12, 3, 5)
    assert (head.top_share, head.transformer.over_batch) == (0.5, True)
    assert head.scales.normalize
    assert not build(Config(width=8, heads=2, normalize=False)).relation.scales.normalize


def test_loss_is_the_sum_of_four_soft_margin_losses() -> None:
    method, images, labels = build(), torch.rand(4, 3, 64, 64), (torch.rand(4, 3) < 0.5).float()
    loss, terms = method(images[None], labels)
    logits = {"fused": method.logits(images), **method.relations(images)._asdict()}
    assert terms.keys() == {"fused", "structural", "semantic", "constraint"}
    for name, term in terms.items():
        torch.testing.assert_close(term, MultiLabelSoftMarginLoss()(logits[name], labels))
    torch.testing.assert_close(loss, sum(terms.values(), start=torch.zeros(())))


def test_unknown_labels_affect_no_term() -> None:
    method, images = build(), torch.rand(5, 3, 64, 64)
    labels, known = (torch.rand(5, 3) < 0.5).float(), torch.rand(5, 3) < 0.7
    expected = method(images[None], labels, known).terms
    terms_with_nan = method(images[None], labels.where(known, torch.nan), known).terms
    assert all(torch.equal(terms_with_nan[name], expected[name]) for name in expected)
    assert not torch.isclose(method(images[None], labels).loss, method(images[None], labels, known).loss)


def test_two_views_count_as_two_images() -> None:
    method, images, labels = build(), torch.rand(3, 3, 64, 64), (torch.rand(3, 3) < 0.5).float()
    once = method(images[None], labels).loss
    torch.testing.assert_close(method(torch.stack([images, images]), labels).loss, once)


@pytest.mark.parametrize("batch_attention", [False, True])
@torch.no_grad()
def test_predictions_depend_on_the_batch_only_with_batch_attention(batch_attention: bool) -> None:
    config = Config(width=8, layers=2, heads=2, feed_forward=16, batch_attention=batch_attention)
    method, images = perturbed(build(config)), torch.rand(4, 3, 64, 64)
    alone = method.logits(images[:1])
    assert torch.allclose(method.logits(images)[:1], alone, rtol=1e-3, atol=1e-4) is not batch_attention


def test_encoder_runs_once_per_step() -> None:
    method, runs = build(), []
    method.encoder.model.layer4.register_forward_hook(lambda *_: runs.append(1))
    method(torch.rand(1, 2, 3, 64, 64), torch.zeros(2, 3))
    assert runs == [1]


def test_can_train_on_a_single_image() -> None:
    method = build(side=32).train()  # the last maps have one position
    method.encoder.eval()  # its batch norms need more than one position
    method(torch.rand(1, 1, 3, 32, 32), torch.ones(1, 3)).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters() if p.requires_grad)


UNUSED = 2 * 50 * 256 + 512 + 2 * 512
"""Unused parameters of the released code: two position tables, one query, and a norm."""


@pytest.mark.parametrize(("classes", "released"), [(9, 67.79), (80, 68.30)])
def test_number_of_parameters_on_resnet101(classes: int, released: float) -> None:
    with torch.device("meta"):
        encoder = Encoder("resnet101", image_size=448)
        method = TDRG(encoder, label_space(classes), PAPER)
    scales = 1024 * 512 + 512 + 2048 * 512 + 512 + 9 * 2048 * 512 + 512
    layer = 4 * (512 * 512 + 512) + 512 * 2048 + 2048 + 2048 * 512 + 512 + 4 * 512
    nodes = 2048 * 512 + 512 + 512 * 512 + 512
    graph = 1536 * 1536 + 1536 + 2 * 1536 + 1024 * 1024 + 1024
    by_class = (1536 + 1) + 2048 + (2560 + 1) + (1024 + 1)
    head = scales + 3 * layer + nodes + graph + classes * by_class
    assert count_parameters(method) == count_parameters(encoder) + head
    identity = classes**2  # stored as a parameter in the released code, but not trained
    assert round((count_parameters(method) + UNUSED + identity) / 1e6, 2) == released


@pytest.mark.exhaustive  # tests/cost/test_paper.py checks the total in the default run
@pytest.mark.slow
@pytest.mark.parametrize(("batch_attention", "products", "with_others"), [(False, 43.98, 44.21), (True, 41.97, 42.19)])
def test_multiply_adds_on_resnet101(batch_attention: bool, products: float, with_others: float) -> None:
    with torch.device("meta"):
        encoder = Encoder("resnet101", image_size=448)
        method = TDRG(encoder, label_space(9), replace(PAPER, batch_attention=batch_attention))
    operations = prediction_operations(method, 448)
    assert (round(operations.gmac, 2), round(operations.gmac_ptflops, 2)) == (products, with_others)


@pytest.mark.exhaustive  # by default the contract of all methods exports it
@pytest.mark.parametrize("batch_attention", [False, True])
def test_logits_can_be_exported_for_any_number_of_images(batch_attention: bool) -> None:
    class Logits(torch.nn.Module):
        def __init__(self, method: TDRG) -> None:
            super().__init__()
            self.method = method

        def forward(self, images: Tensor) -> Tensor:
            return self.method.logits(images)

    method = build(Config(width=8, layers=1, heads=2, feed_forward=16, batch_attention=batch_attention))
    any_number = ({0: torch.export.Dim("images")},)
    exported = torch.export.export(Logits(method), (torch.rand(2, 3, 64, 64),), dynamic_shapes=any_number)
    images = torch.rand(5, 3, 64, 64)
    torch.testing.assert_close(exported.module()(images), method.logits(images))


def test_settings_of_the_presets() -> None:
    sizes = (PAPER.width, PAPER.layers, PAPER.heads, PAPER.feed_forward)
    assert (*sizes, PAPER.structural_share, PAPER.top_share, PAPER.normalize) == (512, 3, 4, 2048, 0.7, 0.05, False)
    assert (Config().width, Config().feed_forward, Config().normalize) == (128, 512, True)
    assert not Config().batch_attention
    assert not PAPER.batch_attention


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 10},
        {"heads": 0},
        {"layers": 0},
        {"feed_forward": 0},
        {"structural_share": -0.1},
        {"structural_share": 1.1},
        {"top_share": 0.0},
        {"top_share": 1.1},
    ],
)
def test_settings_out_of_range_raise(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=re.escape(f"{name}={value} must be ")):
        Config(**wrong)
