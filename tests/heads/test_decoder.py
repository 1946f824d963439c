import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probmcl.heads.decoder import CrossAttention, GroupDecoder, group_logits


def randn64(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def decoder(classes: int = 7, *, groups: int | None = None, learned_queries: bool = False) -> GroupDecoder:
    """Build a small float64 decoder whose parameters are moved away from initial values of 0 and 1."""
    torch.manual_seed(0)
    head = GroupDecoder(
        5, classes, groups=groups, width=6, heads=2, feed_forward=9, dropout=0.5, learned_queries=learned_queries
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return head.double().eval()


def reference_norm(x: Tensor, norm: Any) -> Tensor:
    mean = sum(x.tolist()) / len(x)
    variance = sum((value - mean) ** 2 for value in x.tolist()) / len(x)
    normalized: Tensor = (x - mean) / math.sqrt(variance + 1e-5) * norm.weight + norm.bias
    return normalized


def reference_attention(query: Tensor, tokens: Tensor, attention: nn.MultiheadAttention) -> Tensor:
    """Compute attention of one query in loops over heads and tokens."""
    size = len(query) // attention.num_heads
    query_weight, key_weight, value_weight = attention.in_proj_weight.chunk(3)
    query_bias, key_bias, value_bias = attention.in_proj_bias.chunk(3)
    heads = []
    for head in range(attention.num_heads):
        head_slice = slice(head * size, (head + 1) * size)
        q = (query_weight @ query + query_bias)[head_slice]
        scores = [float(q @ (key_weight @ token + key_bias)[head_slice]) / math.sqrt(size) for token in tokens]
        total = sum(math.exp(score) for score in scores)
        values = [(value_weight @ token + value_bias)[head_slice] for token in tokens]
        heads.append(torch.stack([math.exp(s) / total * v for s, v in zip(scores, values, strict=True)]).sum(0))
    return attention.out_proj.weight @ torch.cat(heads) + attention.out_proj.bias


def reference_layer(query: Tensor, tokens: Tensor, layer: CrossAttention) -> Tensor:
    before, between, after = layer.norms
    first: Any = layer.feed_forward[0]
    second: Any = layer.feed_forward[-1]
    query = reference_norm(query + query, before)
    query = reference_norm(query + reference_attention(query, tokens, layer.attention), between)
    hidden = (first.weight @ query + first.bias).clamp(min=0)
    return reference_norm(query + second.weight @ hidden + second.bias, after)


def reference_logit(head: GroupDecoder, maps: Tensor, image: int, label: int) -> float:
    positions = [maps[image, :, row, column] for row in range(maps.shape[2]) for column in range(maps.shape[3])]
    tokens = torch.stack([(head.embedding.weight @ x + head.embedding.bias).clamp(min=0) for x in positions])
    query, index = divmod(label, head.group_size)
    outputs = reference_layer(head.queries[query], tokens, head.layer)
    return float(outputs @ head.weight[query, :, index] + head.bias[label])


@pytest.mark.parametrize("groups", [None, 7, 4, 3, 1])
@torch.no_grad()
def test_logits_match_loops(groups: int | None) -> None:
    head, maps = decoder(groups=groups), 2 * randn64(2, 5, 2, 3)
    measured = head(maps)
    assert measured.shape == (2, 7)
    for image in range(2):
        for label in range(7):
            assert measured[image, label].item() == pytest.approx(reference_logit(head, maps, image, label), rel=1e-9)


@pytest.mark.parametrize(
    ("classes", "groups", "queries", "size"),
    [(7, 7, 7, 1), (7, 4, 4, 2), (7, 3, 3, 3), (7, 1, 1, 7), (9, 7, 5, 2), (250, None, 84, 3), (100, None, 100, 1)],
)
def test_number_of_queries_and_group_size(classes: int, groups: int | None, queries: int, size: int) -> None:
    head = GroupDecoder(5, classes, groups=groups, width=8)
    assert (len(head.queries), head.group_size) == (queries, size)
    assert (queries - 1) * size < classes <= queries * size


def test_groups_of_one_class() -> None:
    a, b = decoder(groups=7), decoder()
    maps = randn64(2, 5, 3, 3)
    assert a.weight.shape == (7, 6, 1)
    assert torch.equal(a(maps), b(maps))


def test_query_affects_only_its_group() -> None:
    head, maps = decoder(groups=4), randn64(2, 5, 3, 3)  # classes 0 1, 2 3, 4 5, 6
    before = head(maps)
    head.queries[1, 0] += 1
    assert ((head(maps) - before).abs() > 1e-9).any(0).tolist() == [False, False, True, True, False, False, False]


def test_weights_beyond_the_classes_have_no_gradient() -> None:
    head = decoder(groups=4)
    head(randn64(2, 5, 3, 3)).sum().backward()
    assert head.weight.grad is not None
    used = (head.weight.grad != 0).any(1)  # (Q, g)
    assert used.tolist() == [[True, True], [True, True], [True, True], [True, False]]
    assert head.bias.shape == (7,)


def test_order_of_positions_does_not_matter() -> None:
    head, maps = decoder(), randn64(2, 5, 3, 4)
    shuffled = maps.flatten(2)[:, :, torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    torch.testing.assert_close(head(shuffled.reshape(2, 5, 6, 2)), head(maps))
    torch.testing.assert_close(head(maps.transpose(2, 3)), head(maps))
    assert not torch.allclose(head(maps.flip(1)), head(maps))


def test_constant_map_equals_a_single_position() -> None:
    head, position = decoder(), randn64(2, 5, 1, 1)
    torch.testing.assert_close(head(position.expand(-1, -1, 4, 4)), head(position))


def test_fixed_and_learned_queries_have_the_same_state_key() -> None:
    fixed, learned = decoder(), decoder(learned_queries=True)
    assert "queries" not in dict(fixed.named_parameters())
    assert fixed.state_dict().keys() == learned.state_dict().keys()
    learned(randn64(2, 5, 3, 3)).sum().backward()
    assert isinstance(learned.queries, nn.Parameter)
    assert learned.queries.grad is not None
    assert (learned.queries.grad != 0).any(1).all()


@pytest.mark.parametrize("classes", [7, 3])
def test_gradients(classes: int) -> None:
    head = decoder(classes, groups=3, learned_queries=True)
    names, parameters = zip(*head.named_parameters(), strict=True)
    maps = randn64(1, 5, 2, 2).requires_grad_()

    def logits(maps: Tensor, *values: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(head, dict(zip(names, values, strict=True)), (maps,))
        return outputs

    assert torch.autograd.gradcheck(logits, (maps, *parameters))


def test_dropout_only_in_training() -> None:
    head, maps = decoder(), randn64(2, 5, 3, 3)
    assert torch.equal(head(maps), head(maps))
    head.train()
    assert not torch.equal(head(maps), head(maps))


def test_training_on_a_single_image() -> None:
    head = decoder().train()
    assert head(randn64(1, 5, 1, 1)).isfinite().all()


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e4])
def test_maps_of_any_scale_are_finite(scale: float) -> None:
    head = decoder().float()
    maps = (scale * randn64(2, 5, 3, 3).float()).requires_grad_()
    logits = head(maps)
    logits.sum().backward()
    assert maps.grad is not None
    assert logits.isfinite().all()
    assert maps.grad.isfinite().all()


def test_logits_are_float32_under_autocast() -> None:
    torch.manual_seed(0)
    head, maps = GroupDecoder(64, 9, groups=4, width=64).eval(), randn64(2, 64, 7, 7).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_logits = head(maps)
        outputs = torch.ones(1, 2, 4, dtype=torch.bfloat16)
        assert group_logits(outputs, torch.ones(2, 4, 3), torch.zeros(6)).dtype == torch.float32
    assert autocast_logits.dtype == torch.float32
    torch.testing.assert_close(autocast_logits, head(maps), rtol=0.02, atol=0.05)


def test_initial_logits_are_small_and_differ() -> None:
    torch.manual_seed(0)
    logits = GroupDecoder(1280, 20).eval()(randn64(8, 1280, 7, 7).float().relu())
    assert logits.abs().max() < 6
    assert logits.std(0).min() > 1e-3  # over images


def test_initialization_of_group_weights() -> None:
    torch.manual_seed(0)
    weight = GroupDecoder(5, 800, groups=100).weight  # (100, 768, 8)
    assert weight.std().item() == pytest.approx(math.sqrt(2 / ((768 + 100) * 8)), rel=0.02)


@pytest.mark.parametrize("learned_queries", [False, True])
@pytest.mark.parametrize(("classes", "groups"), [(80, None), (80, 30), (1000, 100)])
def test_parameter_count(classes: int, groups: int | None, learned_queries: bool) -> None:
    with torch.device("meta"):
        head = GroupDecoder(2048, classes, groups=groups, learned_queries=learned_queries)
    width, hidden, queries, size = 768, 2048, len(head.queries), head.group_size
    layer = 4 * (width + 1) * width + 3 * 2 * width + (width + 1) * hidden + (hidden + 1) * width
    expected = 2049 * width + layer + queries * width * size + classes + learned_queries * queries * width
    assert sum(p.numel() for p in head.parameters()) == expected


@pytest.mark.parametrize("groups", [0, 8])
def test_invalid_number_of_groups_is_an_error(groups: int) -> None:
    with pytest.raises(ValueError, match=rf"groups.*got {groups}"):
        GroupDecoder(5, 7, groups=groups)
