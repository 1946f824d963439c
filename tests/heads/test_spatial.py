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


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shifted(head: Head) -> Head:
    """In float64, with every parameter and statistic away from where it started, at 0 or 1."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for name, buffer in head.named_buffers():
            if "running" in name:
                buffer.add_(0.3 * torch.rand_like(buffer))
    return head.double().eval()


def attention(channels: int = 5, classes: int = 4, width: int = 6) -> ClassAttention:
    head = shifted(ClassAttention(channels, classes, width=width))
    assert isinstance(head, ClassAttention)
    return head


def regularization(classes: int = 4, *, side: int = 3, width: int = 6, filters: int = 2) -> SpatialRegularization:
    head = shifted(SpatialRegularization(classes, side=side, width=width, filters=filters))
    assert isinstance(head, SpatialRegularization)
    return head


def slow_softmax(scores: list[float]) -> list[float]:
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


def standardized(value: Tensor, norm: nn.Module, channel: int) -> Tensor:
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    value = (value - norm.running_mean[channel]) / torch.sqrt(norm.running_var[channel] + 1e-5)
    return value * norm.weight[channel] + norm.bias[channel] if norm.affine else value


def slow_layer(image: Tensor, convolution: nn.Module, norm: nn.Module, *, padding: int = 0) -> Tensor:
    """One image, one output at a time: convolution, statistics of the norm, ReLU."""
    kernel = convolution.weight
    assert isinstance(kernel, Tensor)
    outputs, depth, size, _ = kernel.shape
    inputs = nn.functional.pad(image, (padding,) * 4)
    group = outputs // (image.shape[0] // depth)  # outputs for each group of inputs
    found = torch.zeros(outputs, inputs.shape[1] - size + 1, inputs.shape[2] - size + 1, dtype=image.dtype)
    for k in range(outputs):
        seen = inputs[k // group * depth : (k // group + 1) * depth]
        for row in range(found.shape[1]):
            for column in range(found.shape[2]):
                value = (seen[:, row : row + size, column : column + size] * kernel[k]).sum()
                found[k, row, column] = standardized(value, norm, k).clamp(min=0)
    return found


@torch.no_grad()
def test_attention_is_that_of_a_loop_over_positions() -> None:
    head, maps = attention(), drawn(2, 5, 3, 4)
    measured = head(maps).attention
    assert measured.shape == (2, 4, 3, 4)
    first, first_norm, _, second, second_norm, _, _ = head.score
    kernel = head.get_parameter("score.6.weight")
    for image in range(2):
        inputs = torch.stack([standardized(maps[image, k], head.norm, k) for k in range(5)])
        hidden = slow_layer(slow_layer(inputs, first, first_norm), second, second_norm, padding=1)
        for label in range(4):
            scores = [float(kernel[label, :, 0, 0] @ hidden[:, p // 4, p % 4]) for p in range(12)]
            torch.testing.assert_close(measured[image, label].flatten().tolist(), slow_softmax(scores))


@torch.no_grad()
def test_confidence_is_a_linear_classifier_at_each_position() -> None:
    head, maps = attention(), drawn(2, 5, 3, 4)
    weight, bias = head.confidence.weight, head.get_parameter("confidence.bias")
    inputs = torch.stack([standardized(maps[:, k], head.norm, k) for k in range(5)], dim=1)
    for row in range(3):
        for column in range(4):
            expected = inputs[:, :, row, column] @ weight[:, :, 0, 0].T + bias
            torch.testing.assert_close(head(maps).confidence[:, :, row, column], expected)


@pytest.mark.parametrize("side", [3, 2, 1])
@pytest.mark.parametrize("filters", [1, 4])
@torch.no_grad()
def test_regularized_logits_are_those_of_a_loop_over_channels_and_filters(side: int, filters: int) -> None:
    head, maps = regularization(side=side, filters=filters), drawn(2, 4, side, side)
    measured = head(maps)
    assert measured.shape == (2, 4)
    first, first_norm, _, second, second_norm, _ = head.mix
    last, last_norm, _ = head.filters
    for image in range(2):
        mixed = slow_layer(slow_layer(maps[image], first, first_norm), second, second_norm)
        hidden = slow_layer(mixed, last, last_norm)
        assert hidden.shape == (6 * filters, 1, 1)
        expected = head.linear.weight @ hidden.flatten() + head.linear.bias
        torch.testing.assert_close(measured[image], expected)


def test_a_filter_sees_one_channel_and_all_positions() -> None:
    head = regularization(side=3, width=6, filters=4)
    weight = head.get_parameter("filters.0.weight")
    assert weight.shape == (24, 1, 3, 3)
    channels = torch.zeros(1, 6, 3, 3, dtype=torch.float64)
    channels[0, 2] = 1
    seen = conv2d(channels, weight, groups=6).flatten()
    assert (seen != 0).nonzero().flatten().tolist() == [8, 9, 10, 11]
    torch.testing.assert_close(seen[8], weight[8].sum())


def test_where_something_is_matters() -> None:
    head, maps = regularization(), drawn(2, 4, 3, 3)
    assert not torch.allclose(head(maps.flip(3)), head(maps))
    assert not torch.allclose(head(maps.roll(1, 2)), head(maps))


def test_maps_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^maps of 4×3 positions, and filters for 3×3: give images of the size that"):
        regularization(side=3)(drawn(1, 4, 4, 3))


def test_attended_confidence_is_a_sum_over_positions() -> None:
    where, what = spatial_softmax(drawn(2, 3, 2, 4)), drawn(2, 3, 2, 4, seed=1)
    found = attended_confidence(where, what)
    for image in range(2):
        for label in range(3):
            pairs = zip(where[image, label].flatten().tolist(), what[image, label].flatten().tolist(), strict=True)
            assert found[image, label].item() == pytest.approx(sum(a * s for a, s in pairs))


def test_weighted_attention_is_attention_times_probability_and_positions() -> None:
    where, what = spatial_softmax(drawn(2, 3, 2, 4)), drawn(2, 3, 2, 4, seed=1)
    found = weighted_attention(where, what)
    for place in ((0, 0, 0, 0), (1, 2, 1, 3), (0, 1, 1, 2)):
        expected = 8 * float(where[place]) / (1 + math.exp(-float(what[place])))
        assert found[place].item() == pytest.approx(expected)


@pytest.mark.parametrize("side", [1, 7, 14, 28])
def test_even_attention_weighs_the_same_on_maps_of_any_size(side: int) -> None:
    even = spatial_softmax(torch.zeros(1, 2, side, side))
    assert even.sum((2, 3)).tolist() == [[pytest.approx(1.0)] * 2]
    torch.testing.assert_close(weighted_attention(even, torch.zeros_like(even)), torch.full_like(even, 0.5))


def test_huge_scores_stay_finite() -> None:
    scores = torch.tensor([[[[1e30, -1e30, 0.0]]]], requires_grad=True)
    where = spatial_softmax(scores)
    assert where.flatten().tolist() == [1, 0, 0]
    confidence = torch.tensor([[[[200.0, -200.0, 1e30]]]], requires_grad=True)
    total = attended_confidence(where, confidence).sum() + weighted_attention(where, confidence).sum()
    assert total == 200 + 3
    assert all(g.isfinite().all() for g in torch.autograd.grad(total, (scores, confidence)))


def test_confidence_starts_low() -> None:
    bias = ClassAttention(5, 4).get_parameter("confidence.bias")
    assert bias.sigmoid().tolist() == [pytest.approx(0.05)] * 4


def test_a_softmax_notices_no_constant_and_so_attention_has_no_bias() -> None:
    scores = drawn(2, 3, 2, 4)
    torch.testing.assert_close(spatial_softmax(scores + 5), spatial_softmax(scores))
    assert "score.6.bias" not in dict(attention().named_parameters())


@pytest.mark.parametrize("training", [False, True])
def test_gradients(training: bool) -> None:
    where, over = attention(3, 2, 3).train(training), regularization(2, side=2, width=3).train(training)
    for norm in [*where.modules(), *over.modules()]:
        if isinstance(norm, nn.BatchNorm2d):
            norm.track_running_stats = not training  # the same function each time that it is called

    def logits(maps: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
        maps_of_classes = torch.func.functional_call(where, {"score.3.weight": kernel}, maps)
        return attended_confidence(*maps_of_classes), over(weighted_attention(*maps_of_classes))

    kernel = where.get_parameter("score.3.weight")
    assert torch.autograd.gradcheck(logits, (drawn(3, 3, 2, 2).requires_grad_(), kernel))


def test_a_single_position_of_a_single_image_can_be_trained_on() -> None:
    where, over, maps = attention(3, 2, 3), regularization(2, side=1, width=3), drawn(1, 3, 1, 1)

    def logits() -> Tensor:
        found: Tensor = over(weighted_attention(*where(maps)))
        return found

    settled, before = logits(), [buffer.clone() for buffer in over.buffers()]
    where.train()
    over.train()
    assert torch.equal(logits(), settled)
    assert all(torch.equal(a, b) for a, b in zip(before, over.buffers(), strict=True))
    logits().sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in over.parameters())


def test_two_images_are_measured_by_themselves_in_training() -> None:
    over, maps = regularization(2, side=1, width=3), drawn(2, 2, 1, 1)
    settled, before = over(maps), over.get_buffer("filters.1.running_mean").clone()
    over.train()
    assert not torch.allclose(over(maps), settled)
    assert not torch.equal(over.get_buffer("filters.1.running_mean"), before)


def test_maps_of_any_scale_are_the_same_to_attention_in_training() -> None:
    torch.manual_seed(0)
    head, maps = ClassAttention(5, 4, width=6).double(), drawn(3, 5, 4, 4)
    scale = torch.tensor([1.0, 7.0, 0.5, 100.0, 3.0], dtype=torch.float64)[:, None, None]
    for found, expected in zip(head(scale * maps + 2), head(maps), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_attention_is_in_float32_under_autocast() -> None:
    where, over = attention(64, 3, 16).float(), regularization(3, side=7, width=16).float()
    maps = drawn(2, 64, 7, 7).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = where(maps)
        weighted = weighted_attention(*half)
        logits = over(weighted)
    assert half.confidence.dtype == torch.bfloat16
    assert half.attention.dtype == weighted.dtype == attended_confidence(*half).dtype == torch.float32
    torch.testing.assert_close(half.attention.sum((2, 3)), torch.ones(2, 3))
    full = over(weighted_attention(*where(maps)))
    torch.testing.assert_close(logits.float(), full, rtol=0.1, atol=0.1 * float(full.abs().max()))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5, 2), (1, 3, 2, 1)])
def test_more_than_one_position_is_normalized_as_torch_does(shape: tuple[int, ...]) -> None:
    ours, theirs = BatchNorm(3), nn.BatchNorm1d(3) if len(shape) == 2 else nn.BatchNorm2d(3)
    x = torch.randn(shape)
    assert torch.equal(ours(x), theirs(x))
    assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in ours.state_dict().items())
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_a_single_position_is_held_against_the_running_statistics_which_stay(shape: tuple[int, ...]) -> None:
    norm = BatchNorm(3)
    norm(torch.randn(8, 3))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    x = torch.randn(shape)
    assert torch.equal(norm(x), norm.eval()(x))
    assert all(torch.equal(norm.state_dict()[key], value) for key, value in before.items())
