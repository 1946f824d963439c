import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probmcl.heads.sequence import AdditiveAttention, LabelDecoder, emitted_labels, set_logits

END = 3


def small(**other: Any) -> LabelDecoder:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden": 6, "embedding": 4, "attention": 5}
    return LabelDecoder(8, END, **(sizes | other)).double().eval()


def images(number: int = 4) -> Tensor:
    return 3 * torch.randn(number, 8, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    y = layer.weight @ x
    return y if layer.bias is None else y + layer.bias


def slow_context(attention: AdditiveAttention, positions: Tensor, query: Tensor) -> Tensor:
    """Position by position."""
    fits = [
        linear(attention.weight, (linear(attention.keys, x) + linear(attention.query, query)).clamp(min=0))[0]
        for x in positions
    ]
    shares = [math.exp(fit) / sum(math.exp(other) for other in fits) for fit in fits]
    return sum((share * x for share, x in zip(shares, positions, strict=True)), torch.zeros_like(positions[0]))


def slow_decoder(d: LabelDecoder, image: Tensor, steps: int, allowed: set[int]) -> Tensor:
    """One image, one step at a time, the LSTM gate by gate."""
    positions = torch.stack([image[:, i, j] for i in range(image.shape[1]) for j in range(image.shape[2])])
    if d.normalize:
        positions = positions / math.sqrt(float((positions**2).sum()) / positions.numel())
    h, c = linear(d.first_hidden, positions.mean(0)), linear(d.first_cell, positions.mean(0))
    said, last, possible = [], END + 1, allowed | {END}
    for _ in range(steps):
        context = linear(d.gate, h).sigmoid() * slow_context(d.attention, positions, h)
        x = torch.cat([d.embedding.weight[last], context])
        gates = d.cell.weight_ih @ x + d.cell.bias_ih + d.cell.weight_hh @ h + d.cell.bias_hh
        let_in, keep, new, out = gates.chunk(4)
        c = keep.sigmoid() * c + let_in.sigmoid() * new.tanh()
        h = out.sigmoid() * c.tanh()
        scores = {k: float(linear(d.answer, h)[k]) for k in possible}
        total = sum(math.exp(score) for score in scores.values())
        said.append([scores[k] - math.log(total) if k in scores else -math.inf for k in range(END + 1)])
        last = max(scores, key=lambda k: scores[k])
        if not d.repeats and last != END:
            possible = possible - {last}
    return torch.tensor(said, dtype=torch.float64)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("allowed", [{0, 1, 2}, {1}, set()])
@torch.no_grad()
def test_the_decoder_is_what_its_formula_says(published: bool, allowed: set[int]) -> None:
    decoder, maps = small(repeats=published, normalize=not published), images()
    mask = torch.tensor([[k in allowed for k in range(END)]] * len(maps))
    found = decoder(maps, 5, mask)
    for row, image in enumerate(maps):
        torch.testing.assert_close(found[row], slow_decoder(decoder, image, 5, allowed))
    if len(allowed) == END:
        assert torch.equal(decoder(maps, 5), found)


def answers_of(decoder: LabelDecoder, maps: Tensor, steps: int) -> list[list[int]]:
    found: list[list[int]] = decoder(maps, steps).argmax(2).tolist()
    return found


@torch.no_grad()
def test_no_label_is_emitted_twice_unless_it_may_be() -> None:
    once, again = small(), small(repeats=True)
    for decoder in (once, again):
        decoder.answer.bias[0] = 50.0  # always the most probable where it is possible
        decoder.answer.bias[END] = -50.0
    assert [sorted(row[:3]) for row in answers_of(once, images(), 4)] == [[0, 1, 2]] * 4
    assert [row[0] for row in answers_of(once, images(), 4)] == [0] * 4
    assert [row[3] for row in answers_of(once, images(), 4)] == [END] * 4  # there is nothing else left to say
    assert answers_of(again, images(), 4) == [[0] * 4] * 4


@torch.no_grad()
def test_what_it_emits_is_what_its_log_probabilities_say_where_they_round_to_the_same() -> None:
    decoder, level = small().float(), torch.tensor(0.01)
    decoder.answer.weight.zero_()
    decoder.answer.bias[:] = torch.stack([level, level.nextafter(torch.tensor(1.0)), -level, -level])
    said = decoder(images().float(), 2)
    assert (said[:, 0, 0] == said[:, 0, 1]).all()
    assert (said[:, 0].argmax(1) == 0).all()
    assert said[:, 1].isneginf().nonzero().tolist() == [[row, 0] for row in range(4)]  # it cannot be said again


@torch.no_grad()
def test_longer_sequences_begin_as_shorter_ones() -> None:
    decoder = small()
    torch.testing.assert_close(decoder(images(), 5)[:, :2], decoder(images(), 2))


@torch.no_grad()
def test_what_was_emitted_decides_what_comes_next() -> None:
    decoder, maps = small(repeats=True), images()
    before = decoder(maps, 3)
    decoder.embedding.weight[: END + 1] += 1.0  # of everything but the start
    after = decoder(maps, 3)
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 1], after[:, 1])


@torch.no_grad()
def test_the_scale_of_the_maps_matters_only_where_they_are_not_normalized() -> None:
    torch.testing.assert_close(small()(images(), 3), small()(100 * images(), 3))
    plain = small(normalize=False)
    assert not torch.allclose(plain(images(), 3), plain(100 * images(), 3), rtol=0.1, atol=0.1)


def test_empty_maps_are_no_division_by_zero() -> None:
    decoder, maps = small(), torch.zeros(1, 8, 2, 3, dtype=torch.float64, requires_grad=True)
    said = decoder(maps, 2)
    assert said[:, 0].isfinite().all()
    (gradient,) = torch.autograd.grad(said[:, 0].sum(), maps)
    assert gradient.isfinite().all()


@torch.no_grad()
def test_dropout_is_for_training_alone() -> None:
    decoder = small(dropout=0.5)
    assert torch.equal(decoder(images(), 3), decoder(images(), 3))
    decoder.train()
    assert not torch.equal(decoder(images(), 3), decoder(images(), 3))


def test_half_precision_is_raised_and_autocast_has_no_say() -> None:
    decoder, maps = small().float(), images().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = decoder(maps, 3)
    assert torch.equal(found, decoder(maps, 3))
    assert decoder(maps.bfloat16(), 3).dtype == torch.float32


def test_the_gradient_is_right() -> None:
    decoder, maps = small(), images(2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: decoder(x, 2).exp(), maps)


def test_every_parameter_learns_from_a_single_step() -> None:
    decoder = small()
    decoder(images(), 1)[:, 0, END].sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in decoder.parameters())


# The set, and what it is worth.


def steps_that_say(*answers: int, steps: int = 4, seed: int = 0) -> Tensor:
    """Log-probabilities of which these answers are the most probable, then any."""
    scores = torch.randn(steps, END + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for step, answer in enumerate(answers):
        scores[step, answer] = scores[step].max() + 0.1
    return scores.log_softmax(1)[None]


@pytest.mark.parametrize(
    ("answers", "emitted"),
    [
        ((END, 0, 1, 2), set()),
        ((1, END, 0, 2), {1}),
        ((2, 0, END, 1), {0, 2}),
        ((0, 1, 2, END), {0, 1, 2}),
        ((0, 0, 2, 2), {0, 2}),
        ((2, 1, 0, 2), {0, 1, 2}),  # never ended
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_decisions_at_any_usual_threshold_are_the_labels_that_were_emitted(
    answers: tuple[int, ...], emitted: set[int], seed: int
) -> None:
    steps = steps_that_say(*answers, seed=seed)
    assert set(torch.nonzero(emitted_labels(steps)[0]).flatten().tolist()) == emitted
    probabilities = set_logits(steps).float().sigmoid()[0]
    for threshold in (0.11, 0.5, 0.8, 0.89):
        assert set(torch.nonzero(probabilities > threshold).flatten().tolist()) == emitted


def slow_set_logits(steps: Tensor) -> list[float]:
    probabilities, found = steps[0].exp().tolist(), []
    ends = [step for step, row in enumerate(probabilities) if max(row) == row[END]]
    until = (ends or [len(probabilities) - 1])[0]
    for k in range(END):
        q = max(row[k] for row in probabilities[: until + 1])
        emitted = any(max(row) == row[k] for row in probabilities[: until + 1])
        found.append(math.log(9 / (1 - q) if emitted else q / 9))
    return found


@pytest.mark.parametrize("answers", [(END,), (1, END), (2, 0, 1, END), (0, 0, 2, 1), (1, 2, 0, 1)])
def test_logits_are_what_their_formula_says(answers: tuple[int, ...]) -> None:
    steps = steps_that_say(*answers)
    torch.testing.assert_close(set_logits(steps)[0].tolist(), slow_set_logits(steps))


def test_what_is_said_after_the_end_counts_for_nothing() -> None:
    steps = steps_that_say(1, END, 0, 2)
    other = torch.cat([steps[:, :2], steps_that_say(2, 0, seed=5)[:, :2]], 1)
    assert torch.equal(set_logits(steps), set_logits(other))


def test_a_decoder_that_is_certain_has_finite_logits_and_keeps_its_order() -> None:
    second = [-torch.inf, -150.0, -160.0, 40.0]
    sure, surer = (torch.tensor([[[x, -190.0, -199.0, 0.0], second]]).requires_grad_() for x in (80.0, 95.0))
    logits, higher = (set_logits(x.log_softmax(2))[0] for x in (sure, surer))
    assert logits.isfinite().all()
    assert higher[0] > logits[0] > 0 > logits[1] > logits[2]
    torch.testing.assert_close(logits[0].item(), 80.0 + math.log(9))
    (gradient,) = torch.autograd.grad(logits.sum(), sure)
    assert gradient.isfinite().all()


def test_all_labels_and_then_only_the_end_is_no_special_case() -> None:
    steps = torch.full((1, 4, 4), 0.0, requires_grad=True)
    ruled_out = torch.tensor([[[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]], dtype=torch.bool)
    logits = set_logits((steps + torch.tensor([0.3, 0.2, 0.1, 0.0])).masked_fill(ruled_out, -torch.inf).log_softmax(2))
    assert (logits > math.log(9)).all()
    (gradient,) = torch.autograd.grad(logits.sum(), steps)
    assert gradient.isfinite().all()


def test_the_gradient_of_the_logits_is_right() -> None:
    raw = torch.randn(2, 3, END + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: set_logits(x.log_softmax(2)), raw)
