import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from probmcl.heads import MapTransformer


def build(*, over_batch: bool = False, layers: int = 2) -> MapTransformer:
    """Small, in float64, with every number drawn: as it starts, a layer only normalizes."""
    torch.manual_seed(0)
    transformer = MapTransformer(6, layers=layers, heads=2, feed_forward=5, over_batch=over_batch).double().eval()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.normal_(std=0.5)
    return transformer


def slow_attention(attention: nn.MultiheadAttention, rows: Tensor) -> Tensor:
    """Rows (L, W) that see each other, head by head and row by row."""
    query, key, value = (rows @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, 1)
    size = rows.shape[1] // attention.num_heads
    found = torch.zeros_like(rows)
    for head in range(attention.num_heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(len(rows)):
            fits = [math.exp(float(query[i, part] @ key[j, part]) / math.sqrt(size)) for j in range(len(rows))]
            for j, fit in enumerate(fits):
                found[i, part] += fit / sum(fits) * value[j, part]
    return found @ attention.out_proj.weight.T + attention.out_proj.bias


def slow_layer(layer: nn.Module, rows: Tensor) -> Tensor:
    assert isinstance(layer, nn.TransformerEncoderLayer)
    width = (rows.shape[1],)
    rows = layer_norm(rows + slow_attention(layer.self_attn, rows), width, layer.norm1.weight, layer.norm1.bias)
    hidden = gelu(rows @ layer.linear1.weight.T + layer.linear1.bias)
    rows = rows + hidden @ layer.linear2.weight.T + layer.linear2.bias
    return layer_norm(rows, width, layer.norm2.weight, layer.norm2.bias)


@torch.no_grad()
def test_the_positions_of_an_image_see_each_other() -> None:
    transformer, maps = build(), torch.randn(3, 6, 2, 4, dtype=torch.float64)
    measured = transformer(maps)
    for image in range(3):
        rows = torch.stack([maps[image, :, p // 4, p % 4] for p in range(8)])
        for layer in transformer.layers:
            rows = slow_layer(layer, rows)
        for p in range(8):
            torch.testing.assert_close(measured[image, :, p // 4, p % 4], rows[p])


@torch.no_grad()
def test_over_the_batch_the_images_see_each_other_at_each_position() -> None:
    transformer, maps = build(over_batch=True), torch.randn(3, 6, 2, 4, dtype=torch.float64)
    measured = transformer(maps)
    for p in range(8):
        rows = torch.stack([maps[image, :, p // 4, p % 4] for image in range(3)])
        for layer in transformer.layers:
            rows = slow_layer(layer, rows)
        torch.testing.assert_close(measured[:, :, p // 4, p % 4], rows)


@pytest.mark.parametrize("over_batch", [False, True])
@torch.no_grad()
def test_whether_an_image_depends_on_the_others_in_its_batch(over_batch: bool) -> None:
    transformer, maps = build(over_batch=over_batch), torch.randn(4, 6, 3, 3, dtype=torch.float64)
    together, alone = transformer(maps)[:1], transformer(maps[:1])
    assert torch.allclose(together, alone) is not over_batch


@torch.no_grad()
def test_at_first_a_layer_only_normalizes() -> None:
    transformer, maps = MapTransformer(6, layers=3, heads=2, feed_forward=5), 5 * torch.randn(2, 6, 3, 2) + 1
    expected = layer_norm(maps.movedim(1, 3), (6,)).movedim(3, 1)
    torch.testing.assert_close(transformer(maps), expected, rtol=1e-4, atol=1e-4)


def test_everything_in_it_learns_from_the_first_steps() -> None:
    torch.manual_seed(0)
    transformer, maps, target = MapTransformer(6, heads=2, feed_forward=5), torch.randn(2, 6, 3, 2), torch.randn(2, 6)
    before = {name: value.clone() for name, value in transformer.state_dict().items()}
    moves = torch.optim.SGD(transformer.parameters(), lr=0.5)
    for _ in range(3):
        (transformer(maps).amax((2, 3)) - target).square().mean().backward()
        moves.step()
        moves.zero_grad()
    still = [name for name, value in transformer.state_dict().items() if torch.equal(value, before[name])]
    assert still == []


@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (2, 6, 1, 1), (1, 6, 2, 3)])
def test_one_image_and_one_position_are_enough(shape: tuple[int, ...]) -> None:
    for over_batch in (False, True):
        assert build(over_batch=over_batch)(torch.randn(shape, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize("over_batch", [False, True])
def test_gradients(over_batch: bool) -> None:
    maps = torch.randn(2, 6, 1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(build(over_batch=over_batch, layers=1), maps)
