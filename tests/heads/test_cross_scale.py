import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from probmcl.heads.cross_scale import MapTransformer, ThreeScales, cross_scale


def reference_resize(image: Tensor, rows: int, columns: int) -> Tensor:
    """Resize one map (h, w) by bilinear interpolation with aligned corners."""

    def locate(i: int, target: int, source: int) -> tuple[int, int, float]:
        position = i * (source - 1) / (target - 1) if target > 1 else 0.0
        low = min(int(position), source - 1)
        return low, min(low + 1, source - 1), position - low

    resized = image.new_zeros(rows, columns)
    for r in range(rows):
        above, below, row_weight = locate(r, rows, image.shape[0])
        for c in range(columns):
            left, right, column_weight = locate(c, columns, image.shape[1])
            top = (1 - column_weight) * image[above, left] + column_weight * image[above, right]
            bottom = (1 - column_weight) * image[below, left] + column_weight * image[below, right]
            resized[r, c] = (1 - row_weight) * top + row_weight * bottom
    return resized


@pytest.mark.parametrize(
    "sizes",
    [[(4, 4), (2, 2), (1, 1)], [(7, 7), (7, 7), (3, 3)], [(2, 2), (1, 1), (1, 1)], [(1, 1)] * 3, [(2, 5), (4, 3)]],
)
def test_cross_scale_adds_the_product_of_all_scales(sizes: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    maps = [torch.randn(2, 3, *size, dtype=torch.float64) for size in sizes]
    rows, columns = max(size[0] for size in sizes), max(size[1] for size in sizes)
    measured = cross_scale(*maps)
    for n in range(2):
        for k in range(3):
            enlarged = [reference_resize(x[n, k], rows, columns) for x in maps]
            for s, (height, width) in enumerate(sizes):
                added = enlarged[s].clone()
                for r in range(rows):
                    for c in range(columns):
                        product = 1.0
                        for x in enlarged:
                            product *= x[r, c].item()
                        added[r, c] += product
                torch.testing.assert_close(measured[s][n, k], reference_resize(added, height, width))


def test_gradients_of_cross_scale() -> None:
    maps = [torch.randn(1, 2, side, side, dtype=torch.float64, requires_grad=True) for side in (4, 2, 1)]
    assert torch.autograd.gradcheck(cross_scale, maps)


def test_half_precision_is_multiplied_in_float32() -> None:
    halves = torch.randn(1, 2, 4, 4).bfloat16(), torch.randn(1, 2, 2, 2).bfloat16()
    expected = cross_scale(*(x.float() for x in halves))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured = cross_scale(*halves)
    assert all(torch.equal(a, b) for a, b in zip(measured, expected, strict=True))


@pytest.mark.parametrize(("side", "coarse"), [(14, 6), (7, 3), (4, 1), (3, 1), (2, 1), (1, 1)])
def test_sides_of_the_three_scales(side: int, coarse: int) -> None:
    scales = ThreeScales(2, 3, 4)
    shapes = [tuple(x.shape) for x in scales(torch.zeros(1, 2, 2 * side, 2 * side), torch.zeros(1, 3, side, side))]
    assert shapes == [(1, 4, 2 * side, 2 * side), (1, 4, side, side), (1, 4, coarse, coarse)]


@torch.no_grad()
@pytest.mark.parametrize("size", [(5, 5), (2, 2), (1, 1), (2, 3), (6, 1)])
def test_three_scales_match_loops(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    scales = ThreeScales(2, 3, 4, normalize=False).double()
    entering, last = torch.randn(1, 2, 3, 3, dtype=torch.float64), torch.randn(1, 3, *size, dtype=torch.float64)
    fine, middle, coarse = scales(entering, last)
    for convolution, inputs, output in ((scales.fine, entering, fine), (scales.middle, last, middle)):
        assert convolution.bias is not None
        expected = convolution.weight[:, :, 0, 0] @ inputs[0, :, -1, -1] + convolution.bias
        torch.testing.assert_close(output[0, :, -1, -1], expected)
    assert scales.coarse.bias is not None
    padding = [int(side < 3) for side in size]
    for r in range(coarse.shape[2]):
        for c in range(coarse.shape[3]):
            expected = scales.coarse.bias.clone()
            for i in range(3):
                for j in range(3):
                    y, x = 2 * r + i - padding[0], 2 * c + j - padding[1]
                    if 0 <= y < size[0] and 0 <= x < size[1]:
                        expected += scales.coarse.weight[:, :, i, j] @ last[0, :, y, x]
            torch.testing.assert_close(coarse[0, :, r, c], expected)


@torch.no_grad()
def test_normalization_standardizes_each_position() -> None:
    torch.manual_seed(0)
    scales, plain = ThreeScales(2, 3, 4).double(), ThreeScales(2, 3, 4, normalize=False).double()
    plain.load_state_dict(scales.state_dict())
    inputs = 100 * torch.randn(2, 2, 4, 4, dtype=torch.float64), torch.randn(2, 3, 3, 3, dtype=torch.float64)
    for normalized, raw in zip(scales(*inputs), plain(*inputs), strict=True):
        for n in range(2):
            for r in range(raw.shape[2]):
                for c in range(raw.shape[3]):
                    channels = raw[n, :, r, c]
                    deviation = (channels.var(unbiased=False) + 1e-5).sqrt()
                    torch.testing.assert_close(normalized[n, :, r, c], (channels - channels.mean()) / deviation)


def test_normalized_scales_are_finite_for_large_maps() -> None:
    maps = 1e12 * torch.randn(2, 2, 4, 4), 1e12 * torch.randn(2, 3, 3, 3)
    assert all(x.isfinite().all() for x in cross_scale(*ThreeScales(2, 3, 4)(*maps)))
    assert not all(
        x.isfinite().all() for x in cross_scale(*ThreeScales(2, 3, 4, normalize=False)(*(1e3 * x for x in maps)))
    )


@pytest.mark.parametrize("side", [1, 2, 3])
def test_all_positions_of_small_maps_are_used(side: int) -> None:
    last = torch.randn(1, 3, side, side, requires_grad=True)
    ThreeScales(2, 3, 4)(torch.zeros(1, 2, 1, 1), last)[2].square().sum().backward()
    assert last.grad is not None
    assert (last.grad != 0).all()


def build(*, over_batch: bool = False, layers: int = 2) -> MapTransformer:
    """Build a small float64 transformer with random parameters, because new layers only normalize."""
    torch.manual_seed(0)
    transformer = MapTransformer(6, layers=layers, heads=2, feed_forward=5, over_batch=over_batch).double().eval()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.normal_(std=0.5)
    return transformer


def reference_attention(attention: nn.MultiheadAttention, rows: Tensor) -> Tensor:
    """Compute self-attention of rows (L, W) in loops over heads and rows."""
    query, key, value = (rows @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, 1)
    size = rows.shape[1] // attention.num_heads
    output = torch.zeros_like(rows)
    for head in range(attention.num_heads):
        head_slice = slice(head * size, (head + 1) * size)
        for i in range(len(rows)):
            weights = [
                math.exp(float(query[i, head_slice] @ key[j, head_slice]) / math.sqrt(size)) for j in range(len(rows))
            ]
            for j, weight in enumerate(weights):
                output[i, head_slice] += weight / sum(weights) * value[j, head_slice]
    return output @ attention.out_proj.weight.T + attention.out_proj.bias


def reference_layer(layer: nn.Module, rows: Tensor) -> Tensor:
    assert isinstance(layer, nn.TransformerEncoderLayer)
    width = (rows.shape[1],)
    rows = layer_norm(rows + reference_attention(layer.self_attn, rows), width, layer.norm1.weight, layer.norm1.bias)
    hidden = gelu(rows @ layer.linear1.weight.T + layer.linear1.bias)
    rows = rows + hidden @ layer.linear2.weight.T + layer.linear2.bias
    return layer_norm(rows, width, layer.norm2.weight, layer.norm2.bias)


@torch.no_grad()
def test_attention_over_positions_matches_loops() -> None:
    transformer, maps = build(), torch.randn(3, 6, 2, 4, dtype=torch.float64)
    measured = transformer(maps)
    for image in range(3):
        rows = torch.stack([maps[image, :, p // 4, p % 4] for p in range(8)])
        for layer in transformer.layers:
            rows = reference_layer(layer, rows)
        for p in range(8):
            torch.testing.assert_close(measured[image, :, p // 4, p % 4], rows[p])


@torch.no_grad()
def test_attention_over_the_batch_matches_loops() -> None:
    transformer, maps = build(over_batch=True), torch.randn(3, 6, 2, 4, dtype=torch.float64)
    measured = transformer(maps)
    for p in range(8):
        rows = torch.stack([maps[image, :, p // 4, p % 4] for image in range(3)])
        for layer in transformer.layers:
            rows = reference_layer(layer, rows)
        torch.testing.assert_close(measured[:, :, p // 4, p % 4], rows)


@pytest.mark.parametrize("over_batch", [False, True])
@torch.no_grad()
def test_output_depends_on_the_batch_only_with_over_batch(over_batch: bool) -> None:
    transformer, maps = build(over_batch=over_batch), torch.randn(4, 6, 3, 3, dtype=torch.float64)
    batched, single = transformer(maps)[:1], transformer(maps[:1])
    assert torch.allclose(batched, single) is not over_batch


@torch.no_grad()
def test_new_layer_only_normalizes() -> None:
    transformer, maps = MapTransformer(6, layers=3, heads=2, feed_forward=5), 5 * torch.randn(2, 6, 3, 2) + 1
    expected = layer_norm(maps.movedim(1, 3), (6,)).movedim(3, 1)
    torch.testing.assert_close(transformer(maps), expected, rtol=1e-4, atol=1e-4)


def test_every_parameter_changes_in_the_first_steps() -> None:
    torch.manual_seed(0)
    transformer, maps, target = MapTransformer(6, heads=2, feed_forward=5), torch.randn(2, 6, 3, 2), torch.randn(2, 6)
    before = {name: value.clone() for name, value in transformer.state_dict().items()}
    optimizer = torch.optim.SGD(transformer.parameters(), lr=0.5)
    for _ in range(3):
        (transformer(maps).amax((2, 3)) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    unchanged = [name for name, value in transformer.state_dict().items() if torch.equal(value, before[name])]
    assert unchanged == []


@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (2, 6, 1, 1), (1, 6, 2, 3)])
def test_single_image_and_single_position(shape: tuple[int, ...]) -> None:
    for over_batch in (False, True):
        assert build(over_batch=over_batch)(torch.randn(shape, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize("over_batch", [False, True])
def test_gradients(over_batch: bool) -> None:
    maps = torch.randn(2, 6, 1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(build(over_batch=over_batch, layers=1), maps)
