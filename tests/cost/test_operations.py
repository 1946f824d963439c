"""Operation counts, compared with loops over modules and with sums by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers.images import label_space
from probmcl.cost.operations import Operations, count_operations, count_parameters, prediction_operations
from probmcl.encoders import Encoder
from probmcl.methods.bce import BCE

A = torch.zeros(2, 6, 8, 8)
ELEMENTS = A.numel()

OPERATIONS = [
    (lambda: A.relu(), ELEMENTS),
    (lambda: nn.ReLU(inplace=True)(A.clone()), ELEMENTS),
    (lambda: functional.leaky_relu(A), ELEMENTS),
    (lambda: functional.relu6(A), ELEMENTS),
    (lambda: functional.elu(A), ELEMENTS),
    (lambda: nn.PReLU()(A), ELEMENTS),
    (lambda: functional.gelu(A), ELEMENTS),
    (lambda: functional.silu(A), ELEMENTS),
    (lambda: A.softmax(1), ELEMENTS),
    (lambda: nn.BatchNorm2d(6).eval()(A), 2 * ELEMENTS),
    (lambda: nn.BatchNorm2d(6).train()(A), 2 * ELEMENTS),
    (lambda: nn.BatchNorm2d(6, affine=False)(A), ELEMENTS),
    (lambda: nn.LayerNorm(8)(A), 2 * ELEMENTS),
    (lambda: nn.LayerNorm(8, elementwise_affine=False)(A), ELEMENTS),
    (lambda: nn.GroupNorm(3, 6)(A), 2 * ELEMENTS),
    (lambda: functional.max_pool2d(A, 2), ELEMENTS),
    (lambda: functional.avg_pool2d(A, 2), ELEMENTS),
    (lambda: nn.AdaptiveAvgPool2d(1)(A), ELEMENTS),
    (lambda: nn.AdaptiveAvgPool2d(3)(A), ELEMENTS),
    (lambda: nn.AdaptiveMaxPool2d(1)(A), ELEMENTS),
    (lambda: A.mean((2, 3)), ELEMENTS),
    (lambda: A.amax((2, 3)), ELEMENTS),
    (lambda: functional.interpolate(A, scale_factor=2.0), 4 * ELEMENTS),
    (lambda: functional.interpolate(A, size=(4, 4), mode="bilinear"), ELEMENTS // 4),
    (lambda: A + A, 0),
    (lambda: A * A, 0),
    (lambda: A.sigmoid(), 0),
    (lambda: A.flatten(1).mean(1), 0),  # the mean of a matrix is not pooling
]


@pytest.mark.parametrize(("work", "elements"), OPERATIONS)
def test_other_operations_count_per_element(work: Callable[[], object], elements: int) -> None:
    assert count_operations(work) == Operations(products=0, others=elements)


@pytest.mark.parametrize("bias", [True, False])
def test_bias_counts_per_output_element(bias: bool) -> None:
    convolution = nn.Conv2d(6, 4, 3, padding=1, groups=2, bias=bias)
    operations = count_operations(lambda: convolution(A))
    positions = 2 * 8 * 8
    assert operations == Operations(products=positions * 4 * 3 * 9, others=positions * 4 * bias)
    linear = nn.Linear(8, 5, bias=bias)
    assert count_operations(lambda: linear(A)) == Operations(products=ELEMENTS * 5, others=ELEMENTS // 8 * 5 * bias)


def test_bias_counts_for_any_memory_layout() -> None:
    layer, maps = nn.Linear(6, 5), A.flatten(2)
    expected = Operations(products=2 * 64 * 6 * 5, others=2 * 64 * 5)
    assert count_operations(lambda: layer(maps.transpose(1, 2).contiguous())) == expected
    assert count_operations(lambda: layer(maps.transpose(1, 2))) == expected


def test_transformer_layer_has_equal_counts_in_training_and_prediction() -> None:
    layer, tokens = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.zeros(1, 4, 8)
    trained = count_operations(lambda: layer.train()(tokens))
    assert trained.products == 4 * (4 * 8 * 8 + 2 * 4 * 8 + 2 * 8 * 16)
    with torch.no_grad():
        assert count_operations(lambda: layer.eval()(tokens)) == trained
    assert torch.backends.mha.get_fastpath_enabled()


def test_attention_counts_products_and_softmax() -> None:
    tokens, width, heads = 7, 12, 3
    q = torch.zeros(1, heads, tokens, width // heads)
    operations = count_operations(lambda: functional.scaled_dot_product_attention(q, q, q))
    assert operations == Operations(products=2 * tokens**2 * width, others=heads * tokens**2)


def test_meta_tensors_have_the_same_count() -> None:
    layer = nn.Conv2d(6, 4, 3)
    real = count_operations(lambda: layer(A).relu())
    layer.to("meta")
    assert count_operations(lambda: layer(A.to("meta")).relu()) == real


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_vit", "test_convnext"])
def test_products_match_the_torch_counter(name: str) -> None:
    with torch.device("meta"), torch.no_grad():
        encoder = Encoder(name).eval()
        image = torch.empty(1, 3, encoder.image_size, encoder.image_size)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            encoder(image)
        assert count_operations(lambda: encoder(image)).products == counter.get_total_flops() / 2


def test_inference_mode_has_the_same_count() -> None:
    classifier = BCE(Encoder("test_resnet", image_size=64), label_space(9)).eval()
    with torch.inference_mode():
        operations = count_operations(lambda: classifier.logits(torch.zeros(1, 3, 64, 64)))
    assert operations == prediction_operations(classifier, 64)


def test_model_that_the_torch_counter_cannot_handle() -> None:
    """The model passes parameters between modules, and torch's counter tracks modules."""
    classifier = BCE(Encoder("pit_ti_224"), label_space(9))
    assert prediction_operations(classifier, 224).gmac == pytest.approx(0.7, abs=0.1)


def test_operations_add_up() -> None:
    total = Operations(1_000_000_000, 2_000_000) + Operations(500_000_000, 0)
    assert (total.gmac, total.gmac_ptflops) == (1.5, 1.502)


@pytest.mark.slow
def test_resnet101_matches_the_published_counts() -> None:
    """31.20 GMAC for products only; ptflops 0.7.5, which counts by module, reports 31,389,822,985."""
    with torch.device("meta"):
        classifier = BCE(Encoder("resnet101", image_size=448), label_space(9))
    operations = prediction_operations(classifier, 448)
    assert round(operations.gmac, 2) == 31.20
    assert round(operations.gmac_ptflops, 2) == 31.39
    assert operations.products + operations.others == 31_389_822_985


def slow_others(classifier: BCE, size: int) -> int:
    """Count by module on a real image, as ptflops does, for networks of known modules."""
    total = 0

    def count(module: Any, inputs: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.BatchNorm2d):
            total += 2 * math.prod(output.shape)
        elif isinstance(module, nn.MaxPool2d | nn.AdaptiveAvgPool2d):
            total += math.prod(inputs[0].shape)
        elif isinstance(module, nn.ReLU) or module.bias is not None:
            total += math.prod(output.shape)

    module_types = nn.BatchNorm2d | nn.MaxPool2d | nn.AdaptiveAvgPool2d | nn.ReLU | nn.Conv2d | nn.Linear
    handles = [
        module.register_forward_hook(count) for module in classifier.modules() if isinstance(module, module_types)
    ]
    with torch.inference_mode():
        classifier.eval().logits(torch.zeros(1, 3, size, size))
    for handle in handles:
        handle.remove()
    return total


@pytest.mark.parametrize(("name", "size"), [("resnet18", 96), ("resnet26", 64)])
def test_other_operations_match_a_loop_over_modules(name: str, size: int) -> None:
    classifier = BCE(Encoder(name, image_size=size), label_space(9))
    assert prediction_operations(classifier, size).others == slow_others(classifier, size)


def linear_on(name: str, classes: int = 9, image_size: int | None = None) -> BCE:
    return BCE(Encoder(name, image_size=image_size), label_space(classes))


def test_shared_parameters_count_once() -> None:
    shared = nn.Linear(3, 3)
    module = nn.Sequential(shared, nn.BatchNorm1d(3), shared)  # batch norm also has buffers
    module[1].weight.requires_grad_(False)
    assert count_parameters(module) == (9 + 3) + (3 + 3)


@pytest.mark.slow
def test_resnet101_parameters_and_gmac() -> None:
    with torch.device("meta"):
        classifier = linear_on("resnet101", image_size=448)
    assert count_parameters(classifier) == 42_500_160 + 9 * 2049
    assert round(prediction_operations(classifier, 448).gmac, 2) == 31.20


def slow_macs(classifier: BCE, size: int) -> int:
    """Count the products of every convolution and linear layer on a real image."""
    total = 0

    def count(layer: Any, inputs: Any, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * layer.weight[0].numel()

    layers = [m for m in classifier.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    with torch.inference_mode():
        classifier.eval().logits(torch.zeros(1, 3, size, size))
    for handle in handles:
        handle.remove()
    return total


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
@pytest.mark.parametrize("size", [64, 96])
def test_products_match_a_loop_over_layers(name: str, size: int) -> None:
    classifier = linear_on(name)
    assert prediction_operations(classifier, size).gmac == pytest.approx(slow_macs(classifier, size) / 1e9, rel=1e-12)


def test_products_inside_attention_are_counted() -> None:
    classifier = linear_on("test_vit", image_size=160)
    model: Any = classifier.encoder.model
    tokens, width = model.pos_embed.shape[1:]
    attention = len(model.blocks) * 2 * tokens**2 * width
    size = 160
    assert prediction_operations(classifier, size).gmac == pytest.approx(
        (slow_macs(classifier, size) + attention) / 1e9, rel=1e-12
    )


def test_counting_does_not_change_the_model() -> None:
    classifier = linear_on("test_resnet").train()
    before = {key: value.clone() for key, value in classifier.state_dict().items()}
    prediction_operations(classifier, 64)
    assert classifier.training
    assert classifier.encoder.training
    after = classifier.state_dict()
    assert all(type(value) is Tensor and torch.equal(value, after[key]) for key, value in before.items())
    assert type(classifier.logits(torch.zeros(2, 3, 64, 64))) is Tensor


def test_counting_leaves_no_cached_tensors() -> None:
    class Caching(nn.Module):
        cached: Tensor | None = None

        def forward(self, logits: Tensor) -> Tensor:
            self.cached = logits * 2
            return self.cached

    classifier = linear_on("test_resnet")
    caching = Caching()
    classifier.linear = nn.Sequential(classifier.linear, caching)  # type: ignore[assignment]
    prediction_operations(classifier, 64)
    assert caching.cached is None
