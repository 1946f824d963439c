import re

import pytest
import torch
from torch.optim import Adam

from helpers.images import label_space
from probmcl.encoders import Encoder, split_encoder, two_maps
from probmcl.heads.spatial import attended_confidence, weighted_attention
from probmcl.losses import binary_cross_entropy
from probmcl.methods.srn import SRN, Config

SMALL = Config(width=6, filters=2)


def build(config: Config = SMALL, *, name: str = "test_resnet", side: int = 64) -> SRN:
    torch.manual_seed(0)
    return SRN(Encoder(name, image_size=side), label_space(), config).eval()


def test_logits_mix_plain_and_regularized_logits() -> None:
    method, images = build(Config(width=6, regularized_share=0.3)), torch.rand(2, 3, 64, 64)
    entering = two_maps(method.encoder, images).entering
    assert entering.shape == (2, 192, 4, 4)
    attention, confidence = method.attention(entering)
    plain = method.linear(method.encoder(images))
    regularized = method.regularization(weighted_attention(attention, confidence))
    torch.testing.assert_close(method.logits(images), 0.7 * plain + 0.3 * regularized)
    torch.testing.assert_close(method.branches(images).attended, attended_confidence(attention, confidence))


def test_loss_is_the_weighted_sum_of_three_losses() -> None:
    method, images = build(Config(width=6, branch_weight=0.4)), torch.rand(5, 3, 64, 64)
    labels, known = (torch.rand(5, 3) < 0.5).float(), torch.rand(5, 3) < 0.7
    branches, step = method.branches(images), method(images[None], labels, known)
    prediction = binary_cross_entropy(method.logits(images), labels, known)
    plain, attended = (binary_cross_entropy(x, labels, known) for x in (branches.plain, branches.attended))
    torch.testing.assert_close(step.terms, {"classification": prediction, "plain": plain, "attended": attended})
    torch.testing.assert_close(step.loss, prediction + 0.4 * (plain + attended))


def test_two_views_count_as_two_images() -> None:
    method, views = build(), torch.rand(2, 3, 3, 64, 64)
    labels, known = (torch.rand(3, 3) < 0.5).float(), torch.rand(3, 3) < 0.7
    together = method(views.flatten(0, 1)[None], labels.repeat(2, 1), known.repeat(2, 1))
    torch.testing.assert_close(method(views, labels, known).loss, together.loss)


def test_without_regularized_share_logits_are_linear() -> None:
    method, images = build(Config(width=6, regularized_share=0.0)), torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(method.logits(images), method.linear(method.encoder(images)))


def test_encoder_runs_once_per_step() -> None:
    method, runs = build(), []
    method.encoder.model.layer4.register_forward_hook(lambda *_: runs.append(1))
    method(torch.rand(1, 2, 3, 64, 64), torch.zeros(2, 3))
    assert runs == [1]


def test_prediction_has_gradients_at_attention_and_confidence() -> None:
    method = build(Config(width=6, branch_weight=0.0))
    method(torch.rand(1, 3, 3, 64, 64), torch.ones(3, 3)).loss.backward()
    for name in ("score.0.weight", "score.6.weight", "confidence.weight"):
        gradient = method.attention.get_parameter(name).grad
        assert gradient is not None
        assert (gradient != 0).any()


@pytest.mark.slow
def test_sizes_on_resnet101_are_as_published() -> None:
    with torch.device("meta"):
        method = SRN(Encoder("resnet101", image_size=224), label_space(80))
    shapes = {key: tuple(value.shape) for key, value in method.named_parameters() if not key.startswith("encoder")}
    assert shapes["attention.score.0.weight"] == (512, 1024, 1, 1)
    assert shapes["attention.score.3.weight"] == (512, 512, 3, 3)
    assert shapes["attention.score.6.weight"] == (80, 512, 1, 1)
    assert shapes["attention.confidence.weight"] == (80, 1024, 1, 1)
    assert shapes["regularization.mix.0.weight"] == (512, 80, 1, 1)
    assert shapes["regularization.mix.3.weight"] == (512, 512, 1, 1)
    assert shapes["regularization.filters.0.weight"] == (2048, 1, 14, 14)
    assert shapes["regularization.linear.weight"] == (80, 2048)
    assert shapes["linear.weight"] == (80, 2048)
    assert sum(p.numel() for p in method.parameters()) == 46_547_248


@pytest.mark.parametrize("side", [64, 160])
@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_mambaout", "test_convnext", "test_efficientnet"])
def test_any_encoder_with_stages_at_any_size(name: str, side: int) -> None:
    method = build(name=name, side=side)
    images, labels = torch.rand(1, 2, 3, side, side), torch.ones(2, 3)
    assert method.logits(images[0]).shape == (2, 3)
    method(images, labels).loss.backward()
    assert all(p.grad is not None for p in method.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_mambaout"])
def test_trained_tail_gives_the_same_logits_on_the_full_encoder(name: str) -> None:
    encoder = Encoder(name, image_size=96).eval()
    cut = split_encoder(encoder)
    assert cut is not None
    torch.manual_seed(0)
    tail, full = (SRN(part, label_space(), SMALL) for part in (cut.tail, encoder))
    images = torch.rand(4, 3, 96, 96)
    activations, labels = cut.trunk(images), (torch.rand(4, 3) < 0.5).float()
    optimizer = Adam([p for p in tail.train().parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        tail(activations[None], labels).loss.backward()
        optimizer.step()
    learned = tail.state_dict()
    assert learned.keys() <= full.state_dict().keys()
    full.load_state_dict(full.state_dict() | learned)
    torch.testing.assert_close(full.eval().logits(images), tail.eval().logits(activations), rtol=1e-4, atol=1e-4)


def test_image_size_is_fixed() -> None:
    small, large = build(side=64), build(side=96)
    with pytest.raises(RuntimeError, match=r"size mismatch for regularization\.filters\.0\.weight"):
        large.load_state_dict(small.state_dict())
    with pytest.raises(ValueError, match=r"4×4.*6×6"):
        small.logits(torch.rand(1, 3, 96, 96))


@pytest.mark.parametrize(
    ("setting", "value"), [("width", 0), ("filters", 0), ("regularized_share", 1.5), ("branch_weight", -1.0)]
)
def test_settings_out_of_range_raise(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{setting}={value} must be ")):
        Config(**{setting: value})  # type: ignore[arg-type]
