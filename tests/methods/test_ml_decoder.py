import re
from typing import Any

import pytest
import torch

from helpers.images import label_space
from probmcl.encoders import Encoder
from probmcl.heads.decoder import GroupDecoder
from probmcl.losses import asymmetric
from probmcl.methods.ml_decoder import PAPER, Config, MLDecoder

SMALL = Config(groups=2, width=8, heads=2, feed_forward=16)


def build(config: Config = SMALL, *, name: str = "test_resnet", side: int = 64) -> MLDecoder:
    torch.manual_seed(0)
    return MLDecoder(Encoder(name, image_size=side), label_space(), config).eval()


def test_logits_apply_the_decoder_to_the_maps() -> None:
    method, images = build(), torch.rand(2, 3, 64, 64)
    head = GroupDecoder(96, 3, groups=2, width=8, heads=2, feed_forward=16).eval()
    head.load_state_dict(method.decoder.state_dict())
    torch.testing.assert_close(method.logits(images), head(method.encoder.maps(images)))


def test_settings_reach_the_decoder() -> None:
    layer = build(Config(width=12, heads=3, feed_forward=5, dropout=0.25, learned_queries=True)).decoder.layer
    assert (layer.attention.embed_dim, layer.attention.num_heads, layer.attention.dropout) == (12, 3, 0.25)
    assert layer.feed_forward[0].out_features == 5
    assert layer.dropout.p == 0.25
    assert isinstance(build(Config(learned_queries=True)).decoder.queries, torch.nn.Parameter)
    assert not isinstance(build().decoder.queries, torch.nn.Parameter)
    assert len(build().decoder.queries) == 2
    assert len(build(Config()).decoder.queries) == 3


def test_loss_is_the_asymmetric_loss_summed_over_known_labels() -> None:
    config = Config(width=8, heads=2, gamma_negative=3.0, gamma_positive=1.0, clip=0.1)
    method, images = build(config), torch.rand(5, 3, 64, 64)
    labels, known = (torch.rand(5, 3) < 0.5).float(), torch.rand(5, 3) < 0.7
    expected = asymmetric(
        method.logits(images), labels, known, gamma_negative=3.0, gamma_positive=1.0, clip=0.1, reduction="sum"
    )
    torch.testing.assert_close(method(images[None], labels, known).loss, expected)
    assert not torch.isclose(method(images[None], labels).loss, expected)


def test_two_views_count_twice() -> None:
    method, images, labels = build(), torch.rand(3, 3, 64, 64), (torch.rand(3, 3) < 0.5).float()
    once = method(images[None], labels).loss
    torch.testing.assert_close(method(torch.stack([images, images]), labels).loss, 2 * once)


def test_encoder_runs_once_per_step() -> None:
    method, runs = build(), []
    method.encoder.model.layer4.register_forward_hook(lambda *_: runs.append(1))
    method(torch.rand(1, 2, 3, 64, 64), torch.zeros(2, 3))
    assert runs == [1]


def test_number_of_parameters_on_resnet101() -> None:
    with torch.device("meta"):
        encoder = Encoder("resnet101", image_size=448)
        method = MLDecoder(encoder, label_space(80), PAPER)
    trunk = sum(p.numel() for p in encoder.parameters())
    tokens, attention, norms = 2048 * 768 + 768, 4 * (768 * 768 + 768), 3 * 2 * 768
    feed_forward, groups = 768 * 2048 + 2048 + 2048 * 768 + 768, 80 * 768 + 80
    head = tokens + attention + norms + feed_forward + groups
    assert sum(p.numel() for p in method.parameters()) == trunk + head == 42_500_160 + 7_150_672


def test_paper_preset_has_the_published_settings() -> None:
    assert MLDecoder.origin.published == ("paper",)
    assert (PAPER.groups, PAPER.width, PAPER.heads, PAPER.feed_forward, PAPER.dropout) == (None, 768, 8, 2048, 0.1)
    assert (PAPER.gamma_negative, PAPER.gamma_positive, PAPER.clip) == (4.0, 0.0, 0.05)
    assert not PAPER.learned_queries


def test_more_groups_than_classes_raise() -> None:
    with pytest.raises(ValueError, match=r"`groups`.*got 4"):
        build(Config(groups=4))


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": 0},
        {"width": 0},
        {"width": 100},
        {"heads": 0},
        {"feed_forward": 0},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"gamma_negative": -1.0},
        {"gamma_positive": -1.0},
        {"clip": 1.0},
    ],
)
def test_settings_out_of_range_raise(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=re.escape(f"{name}={value} must be ")):
        Config(**wrong)
