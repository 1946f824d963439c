import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probmcl.heads.decoder import CrossAttention, GroupDecoder, group_logits


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def decoder(classes: int = 7, *, groups: int | None = None, learned_queries: bool = False) -> GroupDecoder:
    """A small one in float64, whose every parameter matters: none is where it started, at 0 or 1."""
    torch.manual_seed(0)
    head = GroupDecoder(
        5, classes, groups=groups, width=6, heads=2, feed_forward=9, dropout=0.5, learned_queries=learned_queries
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return head.double().eval()


def slow_norm(x: Tensor, norm: Any) -> Tensor:
    mean = sum(x.tolist()) / len(x)
    variance = sum((value - mean) ** 2 for value in x.tolist()) / len(x)
    normed: Tensor = (x - mean) / math.sqrt(variance + 1e-5) * norm.weight + norm.bias
    return normed


def slow_attention(query: Tensor, tokens: Tensor, attention: nn.MultiheadAttention) -> Tensor:
    """One query, head by head and token by token."""
    size = len(query) // attention.num_heads
    to_query, to_key, to_value = attention.in_proj_weight.chunk(3)
    for_query, for_key, for_value = attention.in_proj_bias.chunk(3)
    heads = []
    for head in range(attention.num_heads):
        part = slice(head * size, (head + 1) * size)
        q = (to_query @ query + for_query)[part]
        scores = [float(q @ (to_key @ token + for_key)[part]) / math.sqrt(size) for token in tokens]
        total = sum(math.exp(score) for score in scores)
        values = [(to_value @ token + for_value)[part] for token in tokens]
        heads.append(torch.stack([math.exp(s) / total * v for s, v in zip(scores, values, strict=True)]).sum(0))
    return attention.out_proj.weight @ torch.cat(heads) + attention.out_proj.bias


def slow_layer(query: Tensor, tokens: Tensor, layer: CrossAttention) -> Tensor:
    before, between, after = layer.norms
    first: Any = layer.feed_forward[0]
    second: Any = layer.feed_forward[-1]
    query = slow_norm(query + query, before)
    query = slow_norm(query + slow_attention(query, tokens, layer.attention), between)
    hidden = (first.weight @ query + first.bias).clamp(min=0)
    return slow_norm(query + second.weight @ hidden + second.bias, after)


def slow_logit(head: GroupDecoder, maps: Tensor, image: int, label: int) -> float:
    """One class of one image."""
    places = [maps[image, :, row, column] for row in range(maps.shape[2]) for column in range(maps.shape[3])]
    tokens = torch.stack([(head.embedding.weight @ x + head.embedding.bias).clamp(min=0) for x in places])
    query, within = divmod(label, head.group_size)
    found = slow_layer(head.queries[query], tokens, head.layer)
    return float(found @ head.weight[query, :, within] + head.bias[label])


@pytest.mark.parametrize("groups", [None, 7, 4, 3, 1])
@torch.no_grad()
def test_logits_are_those_of_a_loop_over_queries_heads_and_positions(groups: int | None) -> None:
    head, maps = decoder(groups=groups), 2 * drawn(2, 5, 2, 3)
    measured = head(maps)
    assert measured.shape == (2, 7)
    for image in range(2):
        for label in range(7):
            assert measured[image, label].item() == pytest.approx(slow_logit(head, maps, image, label), rel=1e-9)


@pytest.mark.parametrize(
    ("classes", "groups", "queries", "size"),
    [(7, 7, 7, 1), (7, 4, 4, 2), (7, 3, 3, 3), (7, 1, 1, 7), (9, 7, 5, 2), (250, None, 84, 3), (100, None, 100, 1)],
)
def test_every_query_answers_for_a_class_and_every_class_has_one(
    classes: int, groups: int | None, queries: int, size: int
) -> None:
    head = GroupDecoder(5, classes, groups=groups, width=8)
    assert (len(head.queries), head.group_size) == (queries, size)
    assert (queries - 1) * size < classes <= queries * size


def test_groups_of_one_are_one_query_a_class() -> None:
    a, b = decoder(groups=7), decoder()
    maps = drawn(2, 5, 3, 3)
    assert a.weight.shape == (7, 6, 1)
    assert torch.equal(a(maps), b(maps))


def test_a_group_has_its_query_and_no_other() -> None:
    head, maps = decoder(groups=4), drawn(2, 5, 3, 3)  # classes 0 1, 2 3, 4 5, 6
    before = head(maps)
    head.queries[1, 0] += 1
    assert ((head(maps) - before).abs() > 1e-9).any(0).tolist() == [False, False, True, True, False, False, False]


def test_what_goes_beyond_the_classes_is_cut_off_and_learns_nothing() -> None:
    head = decoder(groups=4)
    head(drawn(2, 5, 3, 3)).sum().backward()
    assert head.weight.grad is not None
    used = (head.weight.grad != 0).any(1)  # (Q, g)
    assert used.tolist() == [[True, True], [True, True], [True, True], [True, False]]
    assert head.bias.shape == (7,)


def test_the_order_of_the_positions_does_not_matter() -> None:
    head, maps = decoder(), drawn(2, 5, 3, 4)
    shuffled = maps.flatten(2)[:, :, torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    torch.testing.assert_close(head(shuffled.reshape(2, 5, 6, 2)), head(maps))
    torch.testing.assert_close(head(maps.transpose(2, 3)), head(maps))
    assert not torch.allclose(head(maps.flip(1)), head(maps))


def test_a_map_that_is_the_same_everywhere_is_a_map_of_one_position() -> None:
    head, place = decoder(), drawn(2, 5, 1, 1)
    torch.testing.assert_close(head(place.expand(-1, -1, 4, 4)), head(place))


def test_fixed_queries_are_part_of_the_state_and_learned_ones_have_the_same_place() -> None:
    fixed, learned = decoder(), decoder(learned_queries=True)
    assert "queries" not in dict(fixed.named_parameters())
    assert fixed.state_dict().keys() == learned.state_dict().keys()
    learned(drawn(2, 5, 3, 3)).sum().backward()
    assert isinstance(learned.queries, nn.Parameter)
    assert learned.queries.grad is not None
    assert (learned.queries.grad != 0).any(1).all()


@pytest.mark.parametrize("classes", [7, 3])
def test_gradients(classes: int) -> None:
    head = decoder(classes, groups=3, learned_queries=True)
    names, parameters = zip(*head.named_parameters(), strict=True)
    maps = drawn(1, 5, 2, 2).requires_grad_()

    def logits(maps: Tensor, *values: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(head, dict(zip(names, values, strict=True)), (maps,))
        return found

    assert torch.autograd.gradcheck(logits, (maps, *parameters))


def test_dropout_is_in_training_alone() -> None:
    head, maps = decoder(), drawn(2, 5, 3, 3)
    assert torch.equal(head(maps), head(maps))
    head.train()
    assert not torch.equal(head(maps), head(maps))


def test_one_image_can_be_learned_from() -> None:
    head = decoder().train()
    assert head(drawn(1, 5, 1, 1)).isfinite().all()


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e4])
def test_maps_of_any_size_of_numbers_stay_finite(scale: float) -> None:
    head = decoder().float()
    maps = (scale * drawn(2, 5, 3, 3).float()).requires_grad_()
    logits = head(maps)
    logits.sum().backward()
    assert maps.grad is not None
    assert logits.isfinite().all()
    assert maps.grad.isfinite().all()


def test_logits_are_float32_under_autocast() -> None:
    torch.manual_seed(0)
    head, maps = GroupDecoder(64, 9, groups=4, width=64).eval(), drawn(2, 64, 7, 7).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = head(maps)
        given = torch.ones(1, 2, 4, dtype=torch.bfloat16)
        assert group_logits(given, torch.ones(2, 4, 3), torch.zeros(6)).dtype == torch.float32
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, head(maps), rtol=0.02, atol=0.05)


def test_logits_start_around_zero_and_differ() -> None:
    torch.manual_seed(0)
    logits = GroupDecoder(1280, 20).eval()(drawn(8, 1280, 7, 7).float().relu())
    assert logits.abs().max() < 6
    assert logits.std(0).min() > 1e-3  # between images: there is something to learn from


def test_the_last_weights_start_as_published() -> None:
    torch.manual_seed(0)
    weight = GroupDecoder(5, 800, groups=100).weight  # (100, 768, 8)
    assert weight.std().item() == pytest.approx(math.sqrt(2 / ((768 + 100) * 8)), rel=0.02)


@pytest.mark.parametrize("learned_queries", [False, True])
@pytest.mark.parametrize(("classes", "groups"), [(80, None), (80, 30), (1000, 100)])
def test_the_number_of_parameters(classes: int, groups: int | None, learned_queries: bool) -> None:
    with torch.device("meta"):
        head = GroupDecoder(2048, classes, groups=groups, learned_queries=learned_queries)
    width, hidden, queries, size = 768, 2048, len(head.queries), head.group_size
    layer = 4 * (width + 1) * width + 3 * 2 * width + (width + 1) * hidden + (hidden + 1) * width
    expected = 2049 * width + layer + queries * width * size + classes + learned_queries * queries * width
    assert sum(p.numel() for p in head.parameters()) == expected


@pytest.mark.parametrize("groups", [0, 8])
def test_groups_that_are_none_or_too_many_are_refused(groups: int) -> None:
    with pytest.raises(ValueError, match=rf"^groups={groups}: give a number from 1 to the number of classes, 7$"):
        GroupDecoder(5, 7, groups=groups)
