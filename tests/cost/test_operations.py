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
NUMBERS = A.numel()

EACH = [
    (lambda: A.relu(), NUMBERS),
    (lambda: nn.ReLU(inplace=True)(A.clone()), NUMBERS),
    (lambda: functional.leaky_relu(A), NUMBERS),
    (lambda: functional.relu6(A), NUMBERS),
    (lambda: functional.elu(A), NUMBERS),
    (lambda: nn.PReLU()(A), NUMBERS),
    (lambda: functional.gelu(A), NUMBERS),
    (lambda: functional.silu(A), NUMBERS),
    (lambda: A.softmax(1), NUMBERS),
    (lambda: nn.BatchNorm2d(6).eval()(A), 2 * NUMBERS),
    (lambda: nn.BatchNorm2d(6).train()(A), 2 * NUMBERS),
    (lambda: nn.BatchNorm2d(6, affine=False)(A), NUMBERS),
    (lambda: nn.LayerNorm(8)(A), 2 * NUMBERS),
    (lambda: nn.LayerNorm(8, elementwise_affine=False)(A), NUMBERS),
    (lambda: nn.GroupNorm(3, 6)(A), 2 * NUMBERS),
    (lambda: functional.max_pool2d(A, 2), NUMBERS),
    (lambda: functional.avg_pool2d(A, 2), NUMBERS),
    (lambda: nn.AdaptiveAvgPool2d(1)(A), NUMBERS),
    (lambda: nn.AdaptiveAvgPool2d(3)(A), NUMBERS),
    (lambda: nn.AdaptiveMaxPool2d(1)(A), NUMBERS),
    (lambda: A.mean((2, 3)), NUMBERS),
    (lambda: A.amax((2, 3)), NUMBERS),
    (lambda: functional.interpolate(A, scale_factor=2.0), 4 * NUMBERS),
    (lambda: functional.interpolate(A, size=(4, 4), mode="bilinear"), NUMBERS // 4),
    (lambda: A + A, 0),
    (lambda: A * A, 0),
    (lambda: A.sigmoid(), 0),
    (lambda: A.flatten(1).mean(1), 0),  # the mean of a matrix is not pooling
]


@pytest.mark.parametrize(("work", "numbers"), EACH)
def test_what_counts_beside_products_counts_as_often_as_it_has_numbers(
    work: Callable[[], object], numbers: int
) -> None:
    assert count_operations(work) == Operations(products=0, others=numbers)


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_counts_for_each_number_that_it_is_added_to(bias: bool) -> None:
    convolution = nn.Conv2d(6, 4, 3, padding=1, groups=2, bias=bias)
    found = count_operations(lambda: convolution(A))
    positions = 2 * 8 * 8
    assert found == Operations(products=positions * 4 * 3 * 9, others=positions * 4 * bias)
    linear = nn.Linear(8, 5, bias=bias)
    assert count_operations(lambda: linear(A)) == Operations(products=NUMBERS * 5, others=NUMBERS // 8 * 5 * bias)


def test_a_bias_counts_whatever_the_layout_of_the_rows() -> None:
    layer, maps = nn.Linear(6, 5), A.flatten(2)
    expected = Operations(products=2 * 64 * 6 * 5, others=2 * 64 * 5)
    assert count_operations(lambda: layer(maps.transpose(1, 2).contiguous())) == expected
    assert count_operations(lambda: layer(maps.transpose(1, 2))) == expected


def test_a_layer_of_torch_predicts_with_the_products_that_it_trains_with() -> None:
    layer, tokens = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.zeros(1, 4, 8)
    trained = count_operations(lambda: layer.train()(tokens))
    assert trained.products == 4 * (4 * 8 * 8 + 2 * 4 * 8 + 2 * 8 * 16)
    with torch.no_grad():
        assert count_operations(lambda: layer.eval()(tokens)) == trained
    assert torch.backends.mha.get_fastpath_enabled()


def test_attention_has_its_products_and_its_softmax() -> None:
    tokens, width, heads = 7, 12, 3
    q = torch.zeros(1, heads, tokens, width // heads)
    found = count_operations(lambda: functional.scaled_dot_product_attention(q, q, q))
    assert found == Operations(products=2 * tokens**2 * width, others=heads * tokens**2)


def test_work_on_no_numbers_takes_as_much_as_work_on_numbers() -> None:
    layer = nn.Conv2d(6, 4, 3)
    real = count_operations(lambda: layer(A).relu())
    layer.to("meta")
    assert count_operations(lambda: layer(A.to("meta")).relu()) == real


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_vit", "test_convnext"])
def test_products_are_those_of_the_counter_of_torch(name: str) -> None:
    with torch.device("meta"), torch.no_grad():
        encoder = Encoder(name).eval()
        image = torch.empty(1, 3, encoder.image_size, encoder.image_size)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            encoder(image)
        assert count_operations(lambda: encoder(image)).products == counter.get_total_flops() / 2


def test_inference_mode_changes_nothing() -> None:
    classifier = BCE(Encoder("test_resnet", image_size=64), label_space(9)).eval()
    with torch.inference_mode():
        found = count_operations(lambda: classifier.logits(torch.zeros(1, 3, 64, 64)))
    assert found == prediction_operations(classifier, 64)


def test_a_model_over_which_the_counter_of_torch_stumbles() -> None:
    """The model passes parameters between modules, and torch's counter tracks modules."""
    classifier = BCE(Encoder("pit_ti_224"), label_space(9))
    assert prediction_operations(classifier, 224).gmac == pytest.approx(0.7, abs=0.1)


def test_operations_add_up() -> None:
    total = Operations(1_000_000_000, 2_000_000) + Operations(500_000_000, 0)
    assert (total.gmac, total.gmac_ptflops) == (1.5, 1.502)


def test_resnet_101_has_the_two_costs_that_are_known_of_it() -> None:
    """31.20 GMAC for products only; ptflops 0.7.5, which counts by module, reports 31,389,822,985."""
    with torch.device("meta"):
        classifier = BCE(Encoder("resnet101", image_size=448), label_space(9))
    found = prediction_operations(classifier, 448)
    assert round(found.gmac, 2) == 31.20
    assert round(found.gmac_ptflops, 2) == 31.39
    assert found.products + found.others == 31_389_822_985


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

    kinds = nn.BatchNorm2d | nn.MaxPool2d | nn.AdaptiveAvgPool2d | nn.ReLU | nn.Conv2d | nn.Linear
    handles = [module.register_forward_hook(count) for module in classifier.modules() if isinstance(module, kinds)]
    with torch.inference_mode():
        classifier.eval().logits(torch.zeros(1, 3, size, size))
    for handle in handles:
        handle.remove()
    return total


@pytest.mark.parametrize(("name", "size"), [("resnet18", 96), ("resnet26", 64)])
def test_a_network_of_plain_modules_has_what_a_loop_over_them_finds(name: str, size: int) -> None:
    classifier = BCE(Encoder(name, image_size=size), label_space(9))
    assert prediction_operations(classifier, size).others == slow_others(classifier, size)


def linear_on(name: str, classes: int = 9, image_size: int | None = None) -> BCE:
    return BCE(Encoder(name, image_size=image_size), label_space(classes))


def test_parameters_are_weights_and_biases_each_once() -> None:
    shared = nn.Linear(3, 3)
    module = nn.Sequential(shared, nn.BatchNorm1d(3), shared)  # batch norm also has buffers
    module[1].weight.requires_grad_(False)
    assert count_parameters(module) == (9 + 3) + (3 + 3)


def test_resnet_101_has_the_cost_that_is_known_of_it() -> None:
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
def test_convolutions_count_with_their_groups_at_any_size(name: str, size: int) -> None:
    classifier = linear_on(name)
    assert prediction_operations(classifier, size).gmac == pytest.approx(slow_macs(classifier, size) / 1e9, rel=1e-12)


def test_the_products_inside_attention_count() -> None:
    classifier = linear_on("test_vit", image_size=160)
    model: Any = classifier.encoder.model
    tokens, width = model.pos_embed.shape[1:]
    attention = len(model.blocks) * 2 * tokens**2 * width
    size = 160
    assert prediction_operations(classifier, size).gmac == pytest.approx(
        (slow_macs(classifier, size) + attention) / 1e9, rel=1e-12
    )


def test_counting_leaves_the_model_as_it_was() -> None:
    classifier = linear_on("test_resnet").train()
    before = {key: value.clone() for key, value in classifier.state_dict().items()}
    prediction_operations(classifier, 64)
    assert classifier.training
    assert classifier.encoder.training
    after = classifier.state_dict()
    assert all(type(value) is Tensor and torch.equal(value, after[key]) for key, value in before.items())
    assert type(classifier.logits(torch.zeros(2, 3, 64, 64))) is Tensor


def test_a_model_that_keeps_what_it_computes_keeps_nothing_of_the_count() -> None:
    class Keeping(nn.Module):
        kept: Tensor | None = None

        def forward(self, logits: Tensor) -> Tensor:
            self.kept = logits * 2
            return self.kept

    classifier = linear_on("test_resnet")
    keeping = Keeping()
    classifier.linear = nn.Sequential(classifier.linear, keeping)  # type: ignore[assignment]
    prediction_operations(classifier, 64)
    assert keeping.kept is None
