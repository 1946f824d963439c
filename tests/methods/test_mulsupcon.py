import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.images import label_space
from probmcl.encoders import PrecomputedFeatures
from probmcl.losses.per_label import Average
from probmcl.methods.mulsupcon import Config, MulSupCon

AVERAGES: list[Average] = ["labels", "images"]


def build(config: Config) -> MulSupCon:
    return MulSupCon(PrecomputedFeatures(12), label_space(3), config)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1]])
    known = torch.ones(5, 3, dtype=torch.bool)
    known[0, 1] = known[3, 0] = False
    return torch.randn(2, 5, 12, generator=generator), labels, known


def slow_loss(views: Tensor, labels: Tensor, known: Tensor, average: str, temperature: float) -> float:
    """For each known label of each row, contrast the rows that have the label with all rows."""
    unit = normalize(views.flatten(0, 1), dim=1).double()
    images = len(labels)
    by_row: list[list[float]] = []
    for i in range(len(unit)):
        losses = []
        for k in range(labels.shape[1]):
            if not (known[i % images, k] and labels[i % images, k]):
                continue
            candidates = [j for j in range(len(unit)) if j != i and known[j % images, k]]
            exponents = {j: float(unit[i] @ unit[j]) / temperature for j in candidates}
            positives = [j for j in candidates if labels[j % images, k]]
            assert (i + images) % len(unit) in positives  # the other view
            log_denominator = math.log(sum(math.exp(x) for x in exponents.values()))
            losses.append(sum(log_denominator - exponents[j] for j in positives) / len(positives))
        by_row.append(losses)
    if average == "labels":
        return sum(map(sum, by_row)) / sum(map(len, by_row))
    return sum(sum(row) / len(row) for row in by_row if row) / len(by_row)


def test_default_settings() -> None:
    c = Config()
    assert (c.projection, c.temperature, c.average) == ((128,), 0.1, "labels")


@pytest.mark.parametrize("average", AVERAGES)
def test_loss_matches_a_loop_over_labels(average: Average) -> None:
    views, labels, known = batch()
    method = build(Config(projection=(), average=average, temperature=0.2))
    for mask in (torch.ones_like(known), known):
        measured = method(views, labels, mask).loss.item()
        assert measured == pytest.approx(slow_loss(views, labels, mask, average, 0.2), rel=1e-5)


def test_loss_is_computed_on_projected_features() -> None:
    views, labels, known = batch()
    torch.manual_seed(0)
    method = build(Config(projection=(4,)))
    weight, bias = method.projection.parameters()
    expected = slow_loss((views @ weight.T + bias).detach(), labels, known, "labels", 0.1)
    assert method(views, labels, known).loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("average", AVERAGES)
def test_images_without_labels_have_zero_loss(average: Average) -> None:
    views, labels, known = batch()
    views.requires_grad_()
    method = build(Config(projection=(), average=average))
    loss = method(views, torch.zeros_like(labels), known).loss
    (gradient,) = torch.autograd.grad(loss, views)
    assert loss == 0
    assert (gradient == 0).all()


def test_zero_temperature_raises() -> None:
    with pytest.raises(ValueError, match=r"temperature=0\.0 must be above 0"):
        Config(temperature=0.0)
