import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.images import label_space
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.losses import contrastive
from probmcl.methods.supcon import Config, SupCon
from probmcl.overlap import cosine, jaccard


def build(config: Config | None = None) -> SupCon:
    torch.manual_seed(0)
    return SupCon(PrecomputedFeatures(12), label_space(3), config)


def batch(images: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, images, 12, generator=generator), (torch.rand(images, 3, generator=generator) < 0.5).float()


def test_default_settings() -> None:
    c = Config()
    assert (c.projection, c.overlap, c.threshold, c.temperature) == ((128,), "jaccard", 0.5, 0.1)
    assert SupCon.presets["default"] == c


def test_loss_is_equation_3_on_cosines() -> None:
    views, labels = batch()
    method = build()
    weight, bias = method.projection.parameters()
    unit = normalize(views.flatten(0, 1) @ weight.T + bias, dim=1)
    expected = contrastive(unit @ unit.T, jaccard(labels.repeat(2, 1)), threshold=0.5, temperature=0.1)
    torch.testing.assert_close(method(views, labels).loss, expected)
    assert weight.shape == (128, 12)


def test_matches_khosla_with_one_label_per_image() -> None:
    """Loop over anchors, with the mean over the positives outside of the logarithm."""
    views, _ = batch()
    classes = [0, 0, 1, 1, 2]
    labels = torch.eye(3)[classes]
    unit = normalize(views.flatten(0, 1), dim=1).double()
    losses = []
    for i in range(10):
        others = [j for j in range(10) if j != i]
        denominator = sum(math.exp(float(unit[i] @ unit[j]) / 0.1) for j in others)
        logs = [
            float(unit[i] @ unit[j]) / 0.1 - math.log(denominator) for j in others if classes[j % 5] == classes[i % 5]
        ]
        losses.append(-sum(logs) / len(logs))
    assert build(Config(projection=()))(views, labels).loss.item() == pytest.approx(sum(losses) / 10, rel=1e-5)


def test_settings_reach_the_loss() -> None:
    views, labels = batch()
    unit = normalize(views.flatten(0, 1), dim=1)
    settings = Config(projection=(), overlap="cosine", threshold=0.7, temperature=0.3)
    expected = contrastive(unit @ unit.T, cosine(labels.repeat(2, 1)), threshold=0.7, temperature=0.3)
    torch.testing.assert_close(build(settings)(views, labels).loss, expected)


def test_views_are_positives_even_without_known_labels() -> None:
    views, labels = batch()
    loss = build(Config(projection=()))(views, labels, torch.zeros(5, 3, dtype=torch.bool)).loss
    unit = normalize(views.flatten(0, 1), dim=1)
    expected = contrastive(unit @ unit.T, torch.eye(5).repeat(2, 2), threshold=0.5, temperature=0.1)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("setting", "value"), [("temperature", 0.0), ("temperature", -1.0), ("threshold", -0.1), ("threshold", 1.1)]
)
def test_settings_out_of_range_raise(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{setting}={value} must be"):
        Config(**{setting: value})  # type: ignore[arg-type]
    Config(temperature=0.1, threshold=1.0)


def test_projection_adds_only_its_layers() -> None:
    encoder = Encoder("test_resnet", image_size=32)
    count = sum(p.numel() for p in encoder.parameters())
    deep = SupCon(encoder, label_space(3), Config(projection=(96, 128)))
    assert sum(p.numel() for p in deep.parameters()) == count + 96 * 96 + 96 + 96 * 128 + 128
    assert not SupCon.has_own_head(deep.config)
