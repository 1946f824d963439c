import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.images import label_space
from probmcl.encoders import Encoder
from probmcl.heads.sequence import LabelDecoder, emitted_labels, set_logits
from probmcl.losses import aligned_targets, sequence_cross_entropy
from probmcl.losses.alignment import IGNORED
from probmcl.methods.pla import PAPER, PLA, Config

SMALL = Config(hidden=16, embedding=8, attention=12)


def build(classes: int = 4, config: Config = SMALL) -> PLA:
    torch.manual_seed(0)
    method = PLA(Encoder("test_resnet", image_size=32), label_space(classes), config)
    return method.double().eval()


def batch(images: int = 5, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    views = torch.randn(2, images, 3, 32, 32, generator=generator, dtype=torch.float64)
    return views, (torch.rand(images, classes, generator=generator) < 0.5).double()


def confident(method: PLA) -> PLA:
    """Scale the output layer, because the answers of a new decoder hardly differ between images."""
    with torch.no_grad():
        method.decoder.answer.weight.mul_(20)
    return method


@pytest.mark.parametrize("config", [SMALL, dataclasses.replace(SMALL, alignment="minimal", repeats=True)])
def test_loss_is_the_mean_over_the_steps_up_to_the_end(config: Config) -> None:
    method, (views, labels) = confident(build(config=config)), batch()
    total, steps = 0.0, 0
    for view in views:  # one image at a time, with the maximum number of steps
        for image, present in zip(view, labels, strict=True):
            log_probabilities = method.decoder(method.encoder.maps(image[None]), 5)
            for step, target in enumerate(
                aligned_targets(log_probabilities, present[None], alignment=config.alignment)[0]
            ):
                if target != IGNORED:
                    total, steps = total - log_probabilities[0, step, target].item(), steps + 1
    assert steps == 2 * (labels.sum() + len(labels))
    torch.testing.assert_close(method(views, labels).loss.item(), total / steps)


def test_minimal_alignment_has_the_smaller_loss() -> None:
    views, labels = batch()[0], torch.ones(5, 4, dtype=torch.float64)
    predicted, minimal = (
        confident(build(config=dataclasses.replace(SMALL, alignment=alignment, repeats=True)))(views, labels).loss
        for alignment in ("predicted", "minimal")
    )
    assert minimal < predicted


def test_unknown_classes_are_not_in_the_softmax() -> None:
    method, (views, labels) = build(), batch()
    known = torch.ones_like(labels, dtype=torch.bool)
    known[:, 2] = False
    before = method(views, labels, known).loss
    with torch.no_grad():
        method.decoder.answer.bias[2] += 30.0
    torch.testing.assert_close(method(views, labels, known).loss, before)
    assert not torch.allclose(method(views, labels).loss, before)


def test_images_without_known_labels_are_ignored() -> None:
    method, (views, labels) = build(), batch()
    known = torch.ones_like(labels, dtype=torch.bool)
    known[3] = False
    others = [0, 1, 2, 4]
    torch.testing.assert_close(method(views, labels, known).loss, method(views[:, others], labels[others]).loss)


def test_maximum_length_of_a_sequence() -> None:
    assert [build(classes, SMALL).steps for classes in (1, 4, 19, 80)] == [2, 5, 20, 20]
    short = build(4, dataclasses.replace(SMALL, steps=2))
    loss = short(batch()[0], torch.ones(5, 4, dtype=torch.float64)).loss
    assert loss.isfinite()
    assert (short.logits(batch()[0][0]).sigmoid() > 0.5).sum(1).max() <= 2


def test_logits_are_those_of_the_emitted_set() -> None:
    method, (views, _) = confident(build()), batch()
    log_probabilities = method.decoder(method.encoder.maps(views[0]), 5)
    logits = method.logits(views[0])
    torch.testing.assert_close(logits, set_logits(log_probabilities))
    for threshold in (0.5, 0.8):
        assert torch.equal(logits.sigmoid() > threshold, emitted_labels(log_probabilities))
    assert 0 < emitted_labels(log_probabilities).sum() < emitted_labels(log_probabilities).numel()


def test_settings_reach_the_decoder() -> None:
    ours, published = build().decoder, build(config=dataclasses.replace(PAPER, dropout=0.3)).decoder
    assert (ours.repeats, published.repeats) == (False, True)
    assert (ours.normalize, published.normalize) == (True, False)
    assert published.dropout.p == 0.3
    assert (published.cell.hidden_size, published.embedding.embedding_dim, published.attention.keys.out_features) == (
        512,
        256,
        512,
    )


def test_decoder_has_the_published_size() -> None:
    with torch.device("meta"):
        method = PLA(Encoder("resnet101", image_size=288), label_space(80))
    parameters = sum(p.numel() for p in method.decoder.parameters())
    lstm = 4 * 512 * (256 + 2048 + 512) + 2 * 4 * 512
    attention = (2048 + 1) * 512 + (512 + 1) * 512 + 512
    starts, gate, answer = 2 * (2048 + 1) * 512, (512 + 1) * 2048, (512 + 1) * 81
    assert parameters == lstm + attention + starts + gate + answer + 82 * 256


@pytest.mark.parametrize(
    ("wrong", "log_probabilities"),
    [({"steps": 0}, "steps=0"), ({"hidden": 0, "embedding": -1}, "hidden=0, embedding=-1"), ({"dropout": 1.0}, "1.0")],
)
def test_settings_out_of_range_raise(wrong: dict[str, Any], log_probabilities: str) -> None:
    with pytest.raises(ValueError, match=log_probabilities):
        Config(**wrong)


@pytest.mark.parametrize("seed", range(4))
def test_rounded_maps_change_answers_but_hardly_the_loss(seed: int) -> None:
    """The contract on bfloat16 holds although the decoder, which computes in float32, receives rounded maps.

    If two answers are almost tied, rounding can change the most probable one, and with it the next input and the
    remaining labels. This changes the loss little while all answers are about equally probable, as before training.
    """
    torch.manual_seed(seed)
    decoder = LabelDecoder(96, 4).eval()
    maps, labels = torch.rand(64, 96, 2, 2), (torch.rand(64, 4) < 0.4).float()
    losses, answers = [], []
    for inputs in (maps, maps + 0.02 * torch.randn(maps.shape)):  # bfloat16 has errors of up to 0.002 here
        log_probabilities = decoder(inputs, 5)
        losses.append(sequence_cross_entropy(log_probabilities, aligned_targets(log_probabilities, labels)))
        answers.append(log_probabilities.argmax(2))
    assert not torch.equal(*answers)
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0.02)
