import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from probmcl.heads.spatial import (
    BatchNorm,
    ClassAttention,
    SpatialRegularization,
    attended_confidence,
    spatial_softmax,
    weighted_attention,
)

Head = ClassAttention | SpatialRegularization


def randn64(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomize(head: Head) -> Head:
    """Convert a head to float64 and move its parameters and statistics away from 0 and 1."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for name, buffer in head.named_buffers():
            if "running" in name:
                buffer.add_(0.3 * torch.rand_like(buffer))
    return head.double().eval()


def attention(channels: int = 5, classes: int = 4, width: int = 6) -> ClassAttention:
    head = randomize(ClassAttention(channels, classes, width=width))
    assert isinstance(head, ClassAttention)
    return head


def regularization(classes: int = 4, *, side: int = 3, width: int = 6, filters: int = 2) -> SpatialRegularization:
    head = randomize(SpatialRegularization(classes, side=side, width=width, filters=filters))
    assert isinstance(head, SpatialRegularization)
    return head


def reference_softmax(scores: list[float]) -> list[float]:
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


def standardize(value: Tensor, norm: nn.Module, channel: int) -> Tensor:
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    value = (value - norm.running_mean[channel]) / torch.sqrt(norm.running_var[channel] + 1e-5)
    return value * norm.weight[channel] + norm.bias[channel] if norm.affine else value


def reference_layer(image: Tensor, convolution: nn.Module, norm: nn.Module, *, padding: int = 0) -> Tensor:
    """Compute convolution, batch normalization and ReLU of one image in loops."""
    kernel = convolution.weight
    assert isinstance(kernel, Tensor)
    outputs, depth, size, _ = kernel.shape
    inputs = nn.functional.pad(image, (padding,) * 4)
    group = outputs // (image.shape[0] // depth)  # outputs for each group of inputs
    output = torch.zeros(outputs, inputs.shape[1] - size + 1, inputs.shape[2] - size + 1, dtype=image.dtype)
    for k in range(outputs):
        channel_inputs = inputs[k // group * depth : (k // group + 1) * depth]
        for row in range(output.shape[1]):
            for column in range(output.shape[2]):
                value = (channel_inputs[:, row : row + size, column : column + size] * kernel[k]).sum()
                output[k, row, column] = standardize(value, norm, k).clamp(min=0)
    return output


@torch.no_grad()
def test_attention_matches_loops() -> None:
    head, maps = attention(), randn64(2, 5, 3, 4)
    measured = head(maps).attention
    assert measured.shape == (2, 4, 3, 4)
    first, first_norm, _, second, second_norm, _, _ = head.score
    kernel = head.get_parameter("score.6.weight")
    for image in range(2):
        inputs = torch.stack([standardize(maps[image, k], head.norm, k) for k in range(5)])
        hidden = reference_layer(reference_layer(inputs, first, first_norm), second, second_norm, padding=1)
        for label in range(4):
            scores = [float(kernel[label, :, 0, 0] @ hidden[:, p // 4, p % 4]) for p in range(12)]
            torch.testing.assert_close(measured[image, label].flatten().tolist(), reference_softmax(scores))


@torch.no_grad()
def test_confidence_is_a_linear_classifier_at_each_position() -> None:
    head, maps = attention(), randn64(2, 5, 3, 4)
    weight, bias = head.confidence.weight, head.get_parameter("confidence.bias")
    inputs = torch.stack([standardize(maps[:, k], head.norm, k) for k in range(5)], dim=1)
    for row in range(3):
        for column in range(4):
            expected = inputs[:, :, row, column] @ weight[:, :, 0, 0].T + bias
            torch.testing.assert_close(head(maps).confidence[:, :, row, column], expected)


@pytest.mark.parametrize("side", [3, 2, 1])
@pytest.mark.parametrize("filters", [1, 4])
@torch.no_grad()
def test_regularized_logits_match_loops(side: int, filters: int) -> None:
    head, maps = regularization(side=side, filters=filters), randn64(2, 4, side, side)
    measured = head(maps)
    assert measured.shape == (2, 4)
    first, first_norm, _, second, second_norm, _ = head.mix
    last, last_norm, _ = head.filters
    for image in range(2):
        mixed = reference_layer(reference_layer(maps[image], first, first_norm), second, second_norm)
        hidden = reference_layer(mixed, last, last_norm)
        assert hidden.shape == (6 * filters, 1, 1)
        expected = head.linear.weight @ hidden.flatten() + head.linear.bias
        torch.testing.assert_close(measured[image], expected)


def test_filter_covers_one_channel_and_all_positions() -> None:
    head = regularization(side=3, width=6, filters=4)
    weight = head.get_parameter("filters.0.weight")
    assert weight.shape == (24, 1, 3, 3)
    channels = torch.zeros(1, 6, 3, 3, dtype=torch.float64)
    channels[0, 2] = 1
    channel_inputs = conv2d(channels, weight, groups=6).flatten()
    assert (channel_inputs != 0).nonzero().flatten().tolist() == [8, 9, 10, 11]
    torch.testing.assert_close(channel_inputs[8], weight[8].sum())


def test_positions_matter() -> None:
    head, maps = regularization(), randn64(2, 4, 3, 3)
    assert not torch.allclose(head(maps.flip(3)), head(maps))
    assert not torch.allclose(head(maps.roll(1, 2)), head(maps))


def test_maps_of_wrong_size_are_an_error() -> None:
    with pytest.raises(ValueError, match="3×3 positions, got 4×3"):
        regularization(side=3)(randn64(1, 4, 4, 3))


def test_attended_confidence_is_a_sum_over_positions() -> None:
    weights, confidence = spatial_softmax(randn64(2, 3, 2, 4)), randn64(2, 3, 2, 4, seed=1)
    output = attended_confidence(weights, confidence)
    for image in range(2):
        for label in range(3):
            pairs = zip(
                weights[image, label].flatten().tolist(),
                confidence[image, label].flatten().tolist(),
                strict=True,
            )
            assert output[image, label].item() == pytest.approx(sum(a * s for a, s in pairs))


def test_weighted_attention_matches_the_formula() -> None:
    weights, confidence = spatial_softmax(randn64(2, 3, 2, 4)), randn64(2, 3, 2, 4, seed=1)
    output = weighted_attention(weights, confidence)
    for index in ((0, 0, 0, 0), (1, 2, 1, 3), (0, 1, 1, 2)):
        expected = 8 * float(weights[index]) / (1 + math.exp(-float(confidence[index])))
        assert output[index].item() == pytest.approx(expected)


@pytest.mark.parametrize("side", [1, 7, 14, 28])
def test_uniform_attention_does_not_depend_on_the_map_size(side: int) -> None:
    uniform = spatial_softmax(torch.zeros(1, 2, side, side))
    assert uniform.sum((2, 3)).tolist() == [[pytest.approx(1.0)] * 2]
    torch.testing.assert_close(weighted_attention(uniform, torch.zeros_like(uniform)), torch.full_like(uniform, 0.5))


def test_huge_scores_are_finite() -> None:
    scores = torch.tensor([[[[1e30, -1e30, 0.0]]]], requires_grad=True)
    weights = spatial_softmax(scores)
    assert weights.flatten().tolist() == [1, 0, 0]
    confidence = torch.tensor([[[[200.0, -200.0, 1e30]]]], requires_grad=True)
    total = attended_confidence(weights, confidence).sum() + weighted_attention(weights, confidence).sum()
    assert total == 200 + 3
    assert all(g.isfinite().all() for g in torch.autograd.grad(total, (scores, confidence)))


def test_initial_confidence_is_the_prior() -> None:
    bias = ClassAttention(5, 4).get_parameter("confidence.bias")
    assert bias.sigmoid().tolist() == [pytest.approx(0.05)] * 4


def test_attention_has_no_bias() -> None:
    scores = randn64(2, 3, 2, 4)
    torch.testing.assert_close(spatial_softmax(scores + 5), spatial_softmax(scores))
    assert "score.6.bias" not in dict(attention().named_parameters())


@pytest.mark.parametrize("training", [False, True])
def test_gradients(training: bool) -> None:
    attention_head, regularizer = attention(3, 2, 3).train(training), regularization(2, side=2, width=3).train(training)
    for norm in [*attention_head.modules(), *regularizer.modules()]:
        if isinstance(norm, nn.BatchNorm2d):
            norm.track_running_stats = not training  # gradcheck needs a deterministic function

    def logits(maps: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
        maps_of_classes = torch.func.functional_call(attention_head, {"score.3.weight": kernel}, maps)
        return attended_confidence(*maps_of_classes), regularizer(weighted_attention(*maps_of_classes))

    kernel = attention_head.get_parameter("score.3.weight")
    assert torch.autograd.gradcheck(logits, (randn64(3, 3, 2, 2).requires_grad_(), kernel))


def test_training_on_a_single_position() -> None:
    attention_head, regularizer, maps = attention(3, 2, 3), regularization(2, side=1, width=3), randn64(1, 3, 1, 1)

    def logits() -> Tensor:
        output: Tensor = regularizer(weighted_attention(*attention_head(maps)))
        return output

    expected, before = logits(), [buffer.clone() for buffer in regularizer.buffers()]
    attention_head.train()
    regularizer.train()
    assert torch.equal(logits(), expected)
    assert all(torch.equal(a, b) for a, b in zip(before, regularizer.buffers(), strict=True))
    logits().sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in regularizer.parameters())


def test_two_images_use_batch_statistics() -> None:
    regularizer, maps = regularization(2, side=1, width=3), randn64(2, 2, 1, 1)
    expected, before = regularizer(maps), regularizer.get_buffer("filters.1.running_mean").clone()
    regularizer.train()
    assert not torch.allclose(regularizer(maps), expected)
    assert not torch.equal(regularizer.get_buffer("filters.1.running_mean"), before)


def test_attention_does_not_depend_on_the_scale_of_maps() -> None:
    torch.manual_seed(0)
    head, maps = ClassAttention(5, 4, width=6).double(), randn64(3, 5, 4, 4)
    scale = torch.tensor([1.0, 7.0, 0.5, 100.0, 3.0], dtype=torch.float64)[:, None, None]
    for output, expected in zip(head(scale * maps + 2), head(maps), strict=True):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_attention_is_float32_under_autocast() -> None:
    attention_head, regularizer = attention(64, 3, 16).float(), regularization(3, side=7, width=16).float()
    maps = randn64(2, 64, 7, 7).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_maps = attention_head(maps)
        weighted = weighted_attention(*autocast_maps)
        logits = regularizer(weighted)
    assert autocast_maps.confidence.dtype == torch.bfloat16
    assert autocast_maps.attention.dtype == weighted.dtype == attended_confidence(*autocast_maps).dtype == torch.float32
    torch.testing.assert_close(autocast_maps.attention.sum((2, 3)), torch.ones(2, 3))
    full = regularizer(weighted_attention(*attention_head(maps)))
    torch.testing.assert_close(logits.float(), full, rtol=0.1, atol=0.1 * float(full.abs().max()))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5, 2), (1, 3, 2, 1)])
def test_batch_norm_matches_torch(shape: tuple[int, ...]) -> None:
    ours, reference = BatchNorm(3), nn.BatchNorm1d(3) if len(shape) == 2 else nn.BatchNorm2d(3)
    x = torch.randn(shape)
    assert torch.equal(ours(x), reference(x))
    assert all(torch.equal(value, reference.state_dict()[key]) for key, value in ours.state_dict().items())
    assert torch.equal(ours.eval()(x), reference.eval()(x))


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_single_position_uses_running_statistics(shape: tuple[int, ...]) -> None:
    norm = BatchNorm(3)
    norm(torch.randn(8, 3))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    x = torch.randn(shape)
    assert torch.equal(norm(x), norm.eval()(x))
    assert all(torch.equal(norm.state_dict()[key], value) for key, value in before.items())
