"""Contract tests of all classifiers on different encoders, both complete encoders and tails."""

import pytest
import torch
from torch import Tensor
from torch.optim import Adam

from helpers.images import label_space
from probmcl.encoders import Encoder, PrecomputedFeatures, split_encoder
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier

CLASSIFIERS = [
    name
    for name, method_class in ((name, find_method(name)) for name in METHODS)
    if method_class.has_own_head(method_class.presets["default"])
]
CLASSIFIERS.remove("probe")  # its encoder is frozen


def classifier(name: str, encoder: Encoder | PrecomputedFeatures) -> Classifier:
    torch.manual_seed(0)
    method = find_method(name)(encoder, label_space(4), None)
    assert isinstance(method, Classifier)
    return method


def example(method: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images as every view, with one label per image."""
    return images.repeat(method.n_views, *[1] * images.ndim), torch.eye(4)[torch.arange(len(images)) % 4]


def has_gradients(method: Classifier) -> bool:
    return all(p.grad is not None and bool(p.grad.isfinite().all()) for p in method.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("encoder", "side"),
    [("test_resnet", 64), ("test_resnet", 96), ("test_vit", 64), ("test_mambaout", 96), ("test_efficientnet", 64)],
)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_all_trainable_parameters_have_gradients(name: str, encoder: str, side: int) -> None:
    method, images = classifier(name, Encoder(encoder, image_size=side)), torch.rand(3, 3, side, side)
    assert method.eval().logits(images).shape == (3, 4)
    method.train()(*example(method, images)).loss.backward()
    assert has_gradients(method)
    assert any(p.requires_grad for p in method.encoder.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["test_resnet", "test_convnext", "test_mambaout"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_trained_tail_gives_the_same_logits_on_the_full_encoder(name: str, encoder: str) -> None:
    network = Encoder(encoder, image_size=96).eval()
    cut = split_encoder(network)
    assert cut is not None
    images = torch.rand(4, 3, 96, 96)
    activations = cut.trunk(images)
    tail, full = (classifier(name, part) for part in (cut.tail, network))
    optimizer = Adam([p for p in tail.train().parameters() if p.requires_grad], lr=1e-3)
    before = full.eval().logits(images)
    for _ in range(2):
        optimizer.zero_grad()
        tail(*example(tail, activations)).loss.backward()
        assert has_gradients(tail)
        optimizer.step()
    learned = tail.state_dict()
    assert learned.keys() <= full.state_dict().keys()
    full.load_state_dict(full.state_dict() | learned)
    after = full.eval().logits(images)
    torch.testing.assert_close(after, tail.eval().logits(activations), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(after, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_can_train_on_one_image_with_one_position(name: str) -> None:
    encoder = Encoder("test_resnet", image_size=32)
    encoder.fixed_statistics = True  # batch normalization rejects a single position
    method = classifier(name, encoder).train()
    method(*example(method, torch.rand(1, 3, 32, 32))).loss.backward()
    assert has_gradients(method)


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_need_maps_reject_precomputed_features(name: str) -> None:
    if not find_method(name).needs_maps:
        find_method(name)(PrecomputedFeatures(5), label_space(4), None)
        return
    with pytest.raises(ValueError, match=rf"^{name} needs feature maps.*`tune"):
        find_method(name)(PrecomputedFeatures(5), label_space(4), None)
