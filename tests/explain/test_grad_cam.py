import copy
from typing import Any

import pytest
import torch
from captum.attr import LayerGradCam  # type: ignore[import-untyped]
from torch import Tensor, nn

from helpers.images import label_space
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.errors import ProbmclError
from probmcl.explain import forward_pass, grad_cam
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier
from probmcl.methods.bce import BCE
from probmcl.methods.probe import Probe

CLASSES = 4
CLASSIFIERS = {
    f"{name}-{preset}": (name, config)
    for name in METHODS
    for preset, config in find_method(name).presets.items()
    if find_method(name).has_own_head(config)
}
COLUMNS = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])


def build(name: str, encoder: str = "test_resnet", config: object = None, size: int = 96) -> Classifier:
    torch.manual_seed(0)
    classifier = find_method(name)(Encoder(encoder, image_size=size), label_space(CLASSES), config)
    assert isinstance(classifier, Classifier)
    if isinstance(classifier, Probe):
        nn.init.normal_(classifier.linear.weight)
    return classifier.eval()


def images(size: int = 96) -> Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(1))


class FromMaps(nn.Module):
    """A classifier whose feature maps pass through a module, which captum can hook."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier, self.layer = classifier, nn.Identity()
        assert isinstance(classifier.encoder, Encoder)
        model, to_maps = classifier.encoder.model, classifier.encoder.to_maps
        forward_features, from_maps = model.forward_features, classifier.encoder.from_maps

        def through_layer(x: Tensor) -> Tensor:
            activation = forward_features(x)
            return from_maps(self.layer(to_maps(activation)), activation)

        model.forward_features = through_layer

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.classifier, Probe):
            return self.classifier.logits(x)
        logits: Tensor = self.classifier.linear(self.classifier.encoder(x))
        return logits


def captum_maps(classifier: Classifier, x: Tensor) -> Tensor:
    network = FromMaps(copy.deepcopy(classifier))
    attribution = LayerGradCam(network, network.layer)
    by_class = [attribution.attribute(x, target=c, relu_attributions=True) for c in range(CLASSES)]
    return torch.cat(by_class, 1).detach()  # (N, C, h, w)


@pytest.mark.parametrize("encoder", ["test_resnet", "test_convnext", "test_mambaout"])
@pytest.mark.parametrize("name", ["probe", "asl", "csra", "kmcl", "ml_decoder", "tdrg", "pla"])
def test_maps_equal_those_of_captum(name: str, encoder: str) -> None:
    classifier = build(name, encoder)
    columns = torch.arange(CLASSES).expand(2, -1)
    maps = forward_pass(classifier, images()).maps(columns)
    expected = captum_maps(classifier, images())
    assert expected.any()
    torch.testing.assert_close(maps, expected, rtol=1e-5, atol=1e-5 * float(expected.max()))


@pytest.mark.slow
@pytest.mark.parametrize("case", CLASSIFIERS)
@pytest.mark.parametrize("encoder", ["test_resnet", "test_vit"])
@pytest.mark.filterwarnings("ignore:probmcl with target")
def test_maps_of_every_method(case: str, encoder: str) -> None:
    classifier = build(CLASSIFIERS[case][0], encoder, CLASSIFIERS[case][1])
    assert isinstance(classifier.encoder, Encoder)
    before = [(p.requires_grad, p.grad, p.clone()) for p in classifier.parameters()]
    expected = classifier.logits(images())
    result = forward_pass(classifier, images())
    maps = result.maps(COLUMNS)
    side = classifier.encoder.maps(images()).shape[-1]
    assert maps.shape == (2, 4, side, side)
    assert maps.dtype == torch.float32
    assert maps.isfinite().all()
    assert (maps >= 0).all()
    torch.testing.assert_close(result.logits, expected)
    assert not maps.requires_grad
    for parameter, (trainable, gradient, value) in zip(classifier.parameters(), before, strict=True):
        assert parameter.requires_grad == trainable
        assert parameter.grad is gradient is None
        assert torch.equal(parameter, value)
    assert_released(classifier)


def assert_released(classifier: Classifier) -> None:
    assert isinstance(classifier.encoder, Encoder)
    assert "forward_features" not in vars(classifier.encoder.model)
    for module in classifier.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks


@pytest.mark.parametrize("encoder", ["test_resnet", "test_vit"])
def test_an_exception_releases_the_hooks(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = build("bce", encoder)
    trainable = [p.requires_grad for p in classifier.parameters()]
    with monkeypatch.context() as patch:
        patch.setattr(classifier.linear, "forward", lambda x: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            forward_pass(classifier, images())
    assert_released(classifier)
    assert [p.requires_grad for p in classifier.parameters()] == trainable


def test_linear_form_equals_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = build("probe", "test_efficientnet")
    assert isinstance(probe, Probe)
    probe.shift, probe.scale = torch.rand(probe.linear.in_features), 0.5 + torch.rand(probe.linear.in_features)
    linear = forward_pass(probe, images())
    assert linear.weight is not None
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", None)  # the linear form needs no gradient
        maps = linear.maps(COLUMNS)
    monkeypatch.setattr(grad_cam, "_is_mean", lambda *_: False)
    by_gradient = forward_pass(probe, images())
    assert by_gradient.weight is None
    torch.testing.assert_close(maps, by_gradient.maps(COLUMNS), rtol=1e-4, atol=1e-5 * float(maps.max()))


def test_linear_maps_are_the_contributions_of_positions() -> None:
    classifier = build("bce")
    assert isinstance(classifier, BCE)
    with torch.no_grad():
        classifier.linear.weight.abs_()  # after the last ReLU of the encoder, all contributions are then positive
        classifier.linear.bias.normal_()
    result = forward_pass(classifier, images())
    sums = result.maps(torch.arange(CLASSES).expand(2, -1)).sum((2, 3))
    torch.testing.assert_close(sums + classifier.linear.bias, result.logits, rtol=1e-4, atol=1e-4)


def test_class_token_models_are_explained_before_the_last_attention() -> None:
    classifier = build("bce", "test_vit")
    assert isinstance(classifier.encoder, Encoder)
    result = forward_pass(classifier, images())
    last, before = result.layers
    (gradient,) = torch.autograd.grad(result.logits[:, 0].sum(), last, retain_graph=True)
    assert not classifier.encoder.to_maps(gradient).any()
    (gradient,) = torch.autograd.grad(result.logits[:, 0].sum(), before, retain_graph=True)
    importance = classifier.encoder.to_maps(gradient).mean((2, 3))
    expected = torch.einsum("nk,nkhw->nhw", importance, classifier.encoder.to_maps(before.detach())).relu()
    torch.testing.assert_close(result.maps(torch.zeros(2, 1, dtype=torch.long))[:, 0], expected)
    assert expected.any()


def test_all_methods_of_gradients_and_blocks_of_labels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    result = forward_pass(build("ml_decoder", "test_convnext"), images())
    together = result.maps(COLUMNS)
    assert together.any()
    monkeypatch.setattr(grad_cam, "MAX_GRADIENTS", 1)
    torch.testing.assert_close(result.maps(COLUMNS), together)
    batched = torch.autograd.grad

    def without_vmap(*arguments: Any, is_grads_batched: bool = False, **options: Any) -> Any:
        if is_grads_batched:
            raise RuntimeError("vmap is not supported")
        return batched(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", without_vmap)
    torch.testing.assert_close(result.maps(COLUMNS), together)


def test_maps_of_an_image_do_not_depend_on_the_other_images() -> None:
    classifier = build("csra")
    both = forward_pass(classifier, images()).maps(COLUMNS)
    alone = forward_pass(classifier, images()[1:]).maps(COLUMNS[1:])
    torch.testing.assert_close(both[1:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bce", "csra"])
def test_randomized_layers_change_the_maps(name: str) -> None:
    """Maps that do not depend on the weights explain nothing (Adebayo et al., Sanity Checks, NeurIPS 2018)."""
    classifier = build(name)
    assert isinstance(classifier.encoder, Encoder)
    layers = [module for module in classifier.modules() if isinstance(module, nn.Conv2d)][::-1]
    head = next(p for key, p in classifier.named_parameters() if not key.startswith("encoder.") and p.ndim > 1)
    for norm in classifier.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)  # residual branches start at 0, and then nothing in them matters
    previous = forward_pass(classifier, images()).maps(COLUMNS)
    for parameter in (head, *(layer.weight for layer in layers)):
        nn.init.normal_(parameter, std=float(parameter.detach().std()))
        maps = forward_pass(classifier, images()).maps(COLUMNS)
        assert (maps - previous).norm() > 1e-2 * previous.norm() > 0
        previous = maps


def test_all_zero_maps_have_no_nan() -> None:
    classifier = build("bce")
    assert isinstance(classifier, BCE)
    nn.init.zeros_(classifier.linear.weight)
    assert torch.equal(forward_pass(classifier, images()).maps(COLUMNS), torch.zeros(2, 4, 3, 3))


def test_works_within_inference_mode() -> None:
    classifier = build("csra")
    expected = forward_pass(classifier, images()).maps(COLUMNS)
    with torch.inference_mode():
        assert torch.equal(forward_pass(classifier, images()).maps(COLUMNS), expected)


def test_no_label_gives_no_map() -> None:
    for name in ("bce", "csra"):
        assert forward_pass(build(name), images()).maps(COLUMNS[:, :0]).shape == (2, 0, 3, 3)


@pytest.mark.usefixtures("without_type_checks")
def test_an_encoder_without_maps_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = build("bce")
    assert isinstance(classifier.encoder, Encoder)
    with pytest.raises(ProbmclError, match="stored features have no feature maps"):
        forward_pass(BCE(PrecomputedFeatures(8), label_space(2)), torch.rand(2, 8))
    model = classifier.encoder.model
    monkeypatch.setattr(type(model), "forward_features", lambda self, x: x.flatten(1)[:, :96])
    monkeypatch.setattr(type(model), "forward_head", lambda self, x: x)
    with pytest.raises(ProbmclError, match="test_resnet has no feature maps at 96 pixels"):
        forward_pass(classifier, images())
    assert_released(classifier)
