import itertools
import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from probmcl.heads.pooling import TEMPERATURES, Heads, ResidualAttention, residual_attention, softmax_mean


def randn64(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference_softmax_mean(scores: list[float], temperature: float) -> float:
    if temperature == math.inf:
        return max(scores)
    weights = [math.exp(temperature * score) for score in scores]
    return sum(weight * score for weight, score in zip(weights, scores, strict=True)) / sum(weights)


def reference_logit(head: ResidualAttention, maps: Tensor, image: int, label: int) -> float:
    logit = 0.0
    for vectors, temperature in zip(head.weight, head.temperatures, strict=True):
        vector = vectors[label].tolist()
        length = math.sqrt(sum(x * x for x in vector)) if head.normalize else 1.0
        scores = []
        for row in range(maps.shape[2]):
            for column in range(maps.shape[3]):
                position = maps[image, :, row, column].tolist()
                scores.append(sum(w * x for w, x in zip(vector, position, strict=True)) / length)
        logit += sum(scores) / len(scores) + head.attention_weight * reference_softmax_mean(scores, temperature)
    return logit


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("heads", get_args(Heads))
def test_logits_match_loops(heads: Heads, normalize: bool) -> None:
    head = ResidualAttention(5, 4, heads=heads, attention_weight=0.3, normalize=normalize).double()
    maps = 2 * randn64(3, 5, 2, 3)
    measured = head(maps)
    assert measured.shape == (3, 4)
    for image in range(3):
        for label in range(4):
            assert measured[image, label].item() == pytest.approx(reference_logit(head, maps, image, label), rel=1e-9)


def test_published_temperatures() -> None:
    assert {
        1: (1,),
        2: (1, math.inf),
        4: (1, 2, 4, math.inf),
        6: (1, 2, 3, 4, 5, math.inf),
        8: (1, 2, 3, 4, 5, 6, 7, math.inf),
    } == TEMPERATURES
    assert all(len(temperatures) == heads for heads, temperatures in TEMPERATURES.items())


def test_attention_ranges_from_mean_to_maximum() -> None:
    scores = randn64(2, 3, 6)
    torch.testing.assert_close(softmax_mean(scores, 0.0), scores.mean(2))
    assert torch.equal(softmax_mean(scores, math.inf), scores.amax(2))
    torch.testing.assert_close(softmax_mean(scores, 1e4), scores.amax(2))
    rising = [softmax_mean(scores, temperature) for temperature in (0.0, 1.0, 2.0, 7.0, math.inf)]
    assert all((a < b).all() for a, b in itertools.pairwise(rising))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 7.0, math.inf])
def test_single_position(temperature: float) -> None:
    scores = randn64(2, 3, 1)
    torch.testing.assert_close(softmax_mean(scores, temperature), scores[:, :, 0])
    torch.testing.assert_close(residual_attention(scores, temperature=temperature, weight=0.5), 1.5 * scores[:, :, 0])


@pytest.mark.parametrize("temperature", [1.0, 7.0, math.inf])
def test_huge_scores_are_finite(temperature: float) -> None:
    scores = torch.tensor([[[1e30, -1e30, 0.0]]], requires_grad=True)
    value = softmax_mean(scores, temperature)
    assert value == 1e30
    assert torch.autograd.grad(value.sum(), scores)[0].isfinite().all()


def test_equal_maxima_share_the_gradient() -> None:
    scores = torch.tensor([[[3.0, 1.0, 3.0]]], requires_grad=True)
    (gradient,) = torch.autograd.grad(softmax_mean(scores, math.inf).sum(), scores)
    assert gradient.flatten().tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("normalize", [True, False])
def test_gradients(heads: Heads, normalize: bool) -> None:
    head = ResidualAttention(3, 2, heads=heads, attention_weight=0.4, normalize=normalize).double()
    maps = randn64(2, 3, 2, 2).requires_grad_()

    def logits(maps: Tensor, weight: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(head, {"weight": weight}, maps)
        return output

    assert torch.autograd.gradcheck(logits, (maps, head.weight))


def test_norm_of_class_vectors_matters_only_without_normalization() -> None:
    maps = randn64(2, 5, 3, 3)
    for normalize in (True, False):
        head = ResidualAttention(5, 4, heads=2, normalize=normalize).double()
        before = head(maps)
        with torch.no_grad():
            head.weight.mul_(3)
        assert torch.allclose(head(maps), before) is normalize


def test_order_of_positions_does_not_matter() -> None:
    head, maps = ResidualAttention(5, 4, heads=4).double(), randn64(2, 5, 3, 4)
    torch.testing.assert_close(head(maps.flip(2, 3)), head(maps))
    torch.testing.assert_close(head(maps.transpose(2, 3)), head(maps))


def test_pooling_is_float32_under_autocast() -> None:
    head, maps = ResidualAttention(64, 4, heads=4), randn64(2, 64, 7, 7).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head.scores(maps).dtype == torch.bfloat16
        autocast_logits = head(maps)
        pooled = residual_attention(head.scores(maps)[:, 1].flatten(2), temperature=2.0, weight=0.5)
    assert autocast_logits.dtype == pooled.dtype == torch.float32
    torch.testing.assert_close(autocast_logits, head(maps), rtol=0.02, atol=0.05)


def test_initialization_matches_a_convolution() -> None:
    torch.manual_seed(0)
    weight = ResidualAttention(400, 50, heads=2).weight
    assert weight.abs().max() <= 0.05
    assert weight.std().item() == pytest.approx(0.05 / math.sqrt(3), rel=0.05)


def test_scores_keep_their_position() -> None:
    head, maps = ResidualAttention(5, 4, heads=2).double(), torch.zeros(1, 5, 3, 4, dtype=torch.float64)
    maps[0, :, 1, 2] = 1
    scores = head.scores(maps)
    assert scores.shape == (1, 2, 4, 3, 4)
    assert (scores[..., 1, 2] != 0).all()
    assert (scores.flatten(3) != 0).sum() == 2 * 4
