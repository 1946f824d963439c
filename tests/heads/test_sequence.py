import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probmcl.heads.sequence import AdditiveAttention, LabelDecoder, emitted_labels, set_logits

END = 3


def small_decoder(**options: Any) -> LabelDecoder:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden": 6, "embedding": 4, "attention": 5}
    return LabelDecoder(8, END, **(sizes | options)).double().eval()


def images(number: int = 4) -> Tensor:
    return 3 * torch.randn(number, 8, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    y = layer.weight @ x
    return y if layer.bias is None else y + layer.bias


def reference_context(attention: AdditiveAttention, positions: Tensor, query: Tensor) -> Tensor:
    scores = [
        linear(attention.weight, (linear(attention.keys, x) + linear(attention.query, query)).clamp(min=0))[0]
        for x in positions
    ]
    shares = [math.exp(score) / sum(math.exp(other) for other in scores) for score in scores]
    return sum((share * x for share, x in zip(shares, positions, strict=True)), torch.zeros_like(positions[0]))


def reference_decoder(d: LabelDecoder, image: Tensor, steps: int, allowed: set[int]) -> Tensor:
    """Decode one image in a loop over steps, with the LSTM gates written out."""
    positions = torch.stack([image[:, i, j] for i in range(image.shape[1]) for j in range(image.shape[2])])
    if d.normalize:
        positions = positions / math.sqrt(float((positions**2).sum()) / positions.numel())
    h, c = linear(d.first_hidden, positions.mean(0)), linear(d.first_cell, positions.mean(0))
    log_probabilities, emitted, available = [], END + 1, allowed | {END}
    for _ in range(steps):
        context = linear(d.gate, h).sigmoid() * reference_context(d.attention, positions, h)
        x = torch.cat([d.embedding.weight[emitted], context])
        gates = d.cell.weight_ih @ x + d.cell.bias_ih + d.cell.weight_hh @ h + d.cell.bias_hh
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4)
        c = forget_gate.sigmoid() * c + input_gate.sigmoid() * candidate.tanh()
        h = output_gate.sigmoid() * c.tanh()
        scores = {k: float(linear(d.answer, h)[k]) for k in available}
        total = sum(math.exp(score) for score in scores.values())
        log_probabilities.append([scores[k] - math.log(total) if k in scores else -math.inf for k in range(END + 1)])
        emitted = max(scores, key=lambda k: scores[k])
        if not d.repeats and emitted != END:
            available = available - {emitted}
    return torch.tensor(log_probabilities, dtype=torch.float64)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("allowed", [{0, 1, 2}, {1}, set()])
@torch.no_grad()
def test_decoder_matches_loops(published: bool, allowed: set[int]) -> None:
    decoder, maps = small_decoder(repeats=published, normalize=not published), images()
    mask = torch.tensor([[k in allowed for k in range(END)]] * len(maps))
    output = decoder(maps, 5, mask)
    for row, image in enumerate(maps):
        torch.testing.assert_close(output[row], reference_decoder(decoder, image, 5, allowed))
    if len(allowed) == END:
        assert torch.equal(decoder(maps, 5), output)


def decode(decoder: LabelDecoder, maps: Tensor, steps: int) -> list[list[int]]:
    output: list[list[int]] = decoder(maps, steps).argmax(2).tolist()
    return output


@torch.no_grad()
def test_labels_are_repeated_only_if_allowed() -> None:
    unique, repeating = small_decoder(), small_decoder(repeats=True)
    for decoder in (unique, repeating):
        decoder.answer.bias[0] = 50.0  # most probable whenever it is available
        decoder.answer.bias[END] = -50.0
    assert [sorted(row[:3]) for row in decode(unique, images(), 4)] == [[0, 1, 2]] * 4
    assert [row[0] for row in decode(unique, images(), 4)] == [0] * 4
    assert [row[3] for row in decode(unique, images(), 4)] == [END] * 4  # no other token is left
    assert decode(repeating, images(), 4) == [[0] * 4] * 4


@torch.no_grad()
def test_emitted_label_follows_rounded_log_probabilities() -> None:
    decoder, level = small_decoder().float(), torch.tensor(0.01)
    decoder.answer.weight.zero_()
    decoder.answer.bias[:] = torch.stack([level, level.nextafter(torch.tensor(1.0)), -level, -level])
    log_probabilities = decoder(images().float(), 2)
    assert (log_probabilities[:, 0, 0] == log_probabilities[:, 0, 1]).all()
    assert (log_probabilities[:, 0].argmax(1) == 0).all()
    # Label 0 cannot be emitted again.
    assert log_probabilities[:, 1].isneginf().nonzero().tolist() == [[row, 0] for row in range(4)]


@torch.no_grad()
def test_shorter_sequence_is_a_prefix() -> None:
    decoder = small_decoder()
    torch.testing.assert_close(decoder(images(), 5)[:, :2], decoder(images(), 2))


@torch.no_grad()
def test_emitted_label_affects_the_next_step() -> None:
    decoder, maps = small_decoder(repeats=True), images()
    before = decoder(maps, 3)
    decoder.embedding.weight[: END + 1] += 1.0  # all embeddings except the start token
    after = decoder(maps, 3)
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 1], after[:, 1])


@torch.no_grad()
def test_scale_of_maps_matters_only_without_normalization() -> None:
    torch.testing.assert_close(small_decoder()(images(), 3), small_decoder()(100 * images(), 3))
    plain = small_decoder(normalize=False)
    assert not torch.allclose(plain(images(), 3), plain(100 * images(), 3), rtol=0.1, atol=0.1)


def test_zero_maps_are_finite() -> None:
    decoder, maps = small_decoder(), torch.zeros(1, 8, 2, 3, dtype=torch.float64, requires_grad=True)
    log_probabilities = decoder(maps, 2)
    assert log_probabilities[:, 0].isfinite().all()
    (gradient,) = torch.autograd.grad(log_probabilities[:, 0].sum(), maps)
    assert gradient.isfinite().all()


@torch.no_grad()
def test_dropout_only_in_training() -> None:
    decoder = small_decoder(dropout=0.5)
    assert torch.equal(decoder(images(), 3), decoder(images(), 3))
    decoder.train()
    assert not torch.equal(decoder(images(), 3), decoder(images(), 3))


def test_decoder_runs_in_float32_under_autocast() -> None:
    decoder, maps = small_decoder().float(), images().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = decoder(maps, 3)
    assert torch.equal(output, decoder(maps, 3))
    assert decoder(maps.bfloat16(), 3).dtype == torch.float32


def test_gradients_of_the_decoder() -> None:
    decoder, maps = small_decoder(), images(2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: decoder(x, 2).exp(), maps)


def test_every_parameter_gets_a_gradient_from_one_step() -> None:
    decoder = small_decoder()
    decoder(images(), 1)[:, 0, END].sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in decoder.parameters())


def steps_with_tokens(*tokens: int, steps: int = 4, seed: int = 0) -> Tensor:
    """Return random log-probabilities in which the given tokens are the most probable."""
    scores = torch.randn(steps, END + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for step, answer in enumerate(tokens):
        scores[step, answer] = scores[step].max() + 0.1
    return scores.log_softmax(1)[None]


@pytest.mark.parametrize(
    ("tokens", "emitted"),
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
def test_decisions_equal_the_emitted_labels(tokens: tuple[int, ...], emitted: set[int], seed: int) -> None:
    steps = steps_with_tokens(*tokens, seed=seed)
    assert set(torch.nonzero(emitted_labels(steps)[0]).flatten().tolist()) == emitted
    probabilities = set_logits(steps).float().sigmoid()[0]
    for threshold in (0.11, 0.5, 0.8, 0.89):
        assert set(torch.nonzero(probabilities > threshold).flatten().tolist()) == emitted


def reference_set_logits(steps: Tensor) -> list[float]:
    probabilities, output = steps[0].exp().tolist(), []
    ends = [step for step, row in enumerate(probabilities) if max(row) == row[END]]
    last_step = (ends or [len(probabilities) - 1])[0]
    for k in range(END):
        q = max(row[k] for row in probabilities[: last_step + 1])
        emitted = any(max(row) == row[k] for row in probabilities[: last_step + 1])
        output.append(math.log(9 / (1 - q) if emitted else q / 9))
    return output


@pytest.mark.parametrize("tokens", [(END,), (1, END), (2, 0, 1, END), (0, 0, 2, 1), (1, 2, 0, 1)])
def test_set_logits_match_loops(tokens: tuple[int, ...]) -> None:
    steps = steps_with_tokens(*tokens)
    torch.testing.assert_close(set_logits(steps)[0].tolist(), reference_set_logits(steps))


def test_steps_after_the_end_are_ignored() -> None:
    steps = steps_with_tokens(1, END, 0, 2)
    other = torch.cat([steps[:, :2], steps_with_tokens(2, 0, seed=5)[:, :2]], 1)
    assert torch.equal(set_logits(steps), set_logits(other))


def test_logits_of_certain_predictions_are_finite_and_ordered() -> None:
    second = [-torch.inf, -150.0, -160.0, 40.0]
    sure, surer = (torch.tensor([[[x, -190.0, -199.0, 0.0], second]]).requires_grad_() for x in (80.0, 95.0))
    logits, higher = (set_logits(x.log_softmax(2))[0] for x in (sure, surer))
    assert logits.isfinite().all()
    assert higher[0] > logits[0] > 0 > logits[1] > logits[2]
    torch.testing.assert_close(logits[0].item(), 80.0 + math.log(9))
    (gradient,) = torch.autograd.grad(logits.sum(), sure)
    assert gradient.isfinite().all()


def test_logits_if_all_labels_are_emitted() -> None:
    steps = torch.full((1, 4, 4), 0.0, requires_grad=True)
    excluded = torch.tensor([[[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]], dtype=torch.bool)
    logits = set_logits((steps + torch.tensor([0.3, 0.2, 0.1, 0.0])).masked_fill(excluded, -torch.inf).log_softmax(2))
    assert (logits > math.log(9)).all()
    (gradient,) = torch.autograd.grad(logits.sum(), steps)
    assert gradient.isfinite().all()


def test_gradients_of_set_logits() -> None:
    raw = torch.randn(2, 3, END + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: set_logits(x.log_softmax(2)), raw)
