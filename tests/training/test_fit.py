import errno
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from helpers.images import label_space
from probmcl.data.loader import Batch
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.errors import RunError
from probmcl.methods.bce import BCE
from probmcl.methods.probe import Probe
from probmcl.training import Checkpoint, FeatureBatches, StepEvent, Training, fit
from probmcl.training.features import StoredFeatures
from probmcl.training.fit import DivergedError, check_weights


def separable(images: int = 64, *, seed: int = 0) -> StoredFeatures:
    features = torch.randn(1, images, 8, generator=torch.Generator().manual_seed(seed))
    return StoredFeatures(features, (features[0, :, :3] > 0).float(), torch.ones(images, 3, dtype=torch.bool))


def batches(epochs: int = 20) -> FeatureBatches:
    return FeatureBatches(separable(), batch_size=16, epochs=epochs, seed=0)


def test_fit_learns_and_ends_in_eval_mode() -> None:
    method = BCE(PrecomputedFeatures(8), label_space())
    fit(method, batches(epochs=60), Training(learning_rate=0.05))
    data = separable()
    assert not method.training
    assert ((method.logits(data.features[0]) > 0).float() == data.labels).float().mean() > 0.95


def test_the_same_seed_gives_the_same_weights() -> None:
    ends = []
    for _ in range(2):
        torch.manual_seed(3)
        method = BCE(PrecomputedFeatures(8), label_space())
        fit(method, batches(), Training())
        ends.append(method.linear.weight)
    assert torch.equal(*ends)


def test_callbacks_receive_every_step() -> None:
    events: list[StepEvent] = []
    fit(BCE(PrecomputedFeatures(8), label_space()), batches(epochs=3), Training(), callbacks=(events.append,))
    assert [event.step for event in events] == list(range(1, 13))
    assert [event.epoch for event in events] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(event.images == 16 and event.steps == 12 for event in events)


def test_interrupt_leaves_the_averaged_weights() -> None:
    method = BCE(PrecomputedFeatures(8), label_space())
    start = method.linear.weight.detach().clone()

    def interrupt(event: StepEvent) -> None:
        if event.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(method, batches(), Training(), callbacks=(interrupt,))
    assert not method.training
    assert not torch.equal(method.linear.weight, start)


def test_frozen_encoder_does_not_change() -> None:
    encoder = Encoder("test_resnet", image_size=32)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    probe = Probe(encoder, label_space())

    class Images:
        steps_per_epoch = 2

        def __len__(self) -> int:
            return 4

        def starting(self, step: int) -> Iterator[Batch]:
            for _ in range(step, 4):
                labels = torch.ones(4, 3)
                yield Batch(torch.randn(1, 4, 3, 32, 32), labels, labels > 0, torch.arange(4))

    fit(probe, Images(), Training(learning_rate=0.1))
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert (probe.linear.bias > 0).all()


def test_feature_batches_contain_each_image_once_per_epoch() -> None:
    features = torch.arange(12.0).reshape(2, 6, 1)  # two views of six images
    labels = torch.arange(6.0)[:, None].expand(6, 3)
    all_batches = FeatureBatches(StoredFeatures(features, labels, labels >= 0), batch_size=3, epochs=20, seed=0)
    shown = torch.cat([batch.views[0, :, 0] for batch in all_batches.starting(0)]).reshape(20, 6)
    matching = torch.cat([batch.labels[:, 0] for batch in all_batches.starting(0)]).reshape(20, 6)
    assert torch.equal(shown % 6, matching)
    assert all(sorted(epoch.tolist()) == list(range(6)) for epoch in matching)
    assert set(shown.flatten().tolist()) == set(range(12))  # each view occurs within twenty epochs


def test_order_of_feature_batches_depends_on_the_seed() -> None:
    one, same, other = (
        [batch.rows.tolist() for batch in FeatureBatches(separable(), batch_size=16, epochs=1, seed=seed).starting(0)]
        for seed in (0, 0, 1)
    )
    assert one == same != other
    assert np.unique(np.concatenate(one)).size == 64


def test_views_of_an_image_differ_within_a_step_and_between_epochs() -> None:
    features = torch.arange(12.0).reshape(4, 3, 1)  # four views of three images
    labels = torch.ones(3, 3)
    stored = StoredFeatures(features, labels, labels > 0)
    drawn = FeatureBatches(stored, n_views=2, batch_size=3, epochs=20, seed=0)
    pairs = {tuple((batch.views[:, batch.rows == 0, 0] // 3).flatten().tolist()) for batch in drawn.starting(0)}
    assert all(one != other for one, other in pairs)
    assert len(pairs) > 4


def test_more_views_than_stored_raise() -> None:
    with pytest.raises(ValueError, match="2 required, but only 1 stored"):
        FeatureBatches(separable(), n_views=2, batch_size=8, epochs=1, seed=0)


def test_batches_can_start_at_any_step() -> None:
    full = list(batches(epochs=3).starting(0))
    for step in (1, 4, 7, 11):
        rest = list(batches(epochs=3).starting(step))
        assert len(rest) == 12 - step
        assert all(torch.equal(a.views, b.views) for a, b in zip(full[step:], rest, strict=True))


class Killed(BaseException):
    """An exception that no handler catches."""


@pytest.mark.parametrize("ema", [0.0, 0.9997])
def test_resumed_training_matches_uninterrupted_training(tmp_path: Path, ema: float) -> None:
    training = Training(learning_rate=0.05, ema=ema)

    def method() -> BCE:
        torch.manual_seed(5)
        return BCE(DropoutFeatures(), label_space())

    full = method()
    fit(full, batches(), training)
    killed, checkpoint = method(), Checkpoint(tmp_path / "x.safetensors", seconds_apart=0.0)

    def kill(event: StepEvent) -> None:
        if event.step == 33:
            raise Killed

    with pytest.raises(Killed):
        fit(killed, batches(), training, callbacks=(kill,), checkpoint=checkpoint)
    resumed, events = method(), list[StepEvent]()
    torch.manual_seed(99)
    fit(resumed, batches(), training, callbacks=(events.append,), checkpoint=Checkpoint(tmp_path / "x.safetensors"))
    assert events[0].step == 33  # the killed step is repeated
    assert torch.equal(resumed.linear.weight, full.linear.weight)


class DropoutFeatures(PrecomputedFeatures):
    """Features with dropout, so that results depend on the random state."""

    def __init__(self) -> None:
        super().__init__(8)

    def forward(self, features: Tensor) -> Tensor:
        return torch.nn.functional.dropout(features, 0.3, self.training)


def test_checkpoint_is_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    fit(
        BCE(PrecomputedFeatures(8), label_space()),
        batches(),
        Training(),
        checkpoint=Checkpoint(path, seconds_apart=0.0),
    )
    assert "optimizer.0.exp_avg" in load_file(path)


def with_nan(images: int, *, epochs: int, batch_size: int = 16) -> FeatureBatches:
    """Return batches of 64 images, the first of which are NaN."""
    stored = separable()
    stored.features[0, :images] = float("nan")
    return FeatureBatches(stored, batch_size=batch_size, epochs=epochs, seed=0)


@pytest.mark.parametrize(("epochs", "count"), [(30, "5 batches"), (2, "2 batches"), (1, "1 batch")])
def test_a_method_without_a_finite_batch_stops_unchanged(epochs: int, count: str) -> None:
    method = BCE(PrecomputedFeatures(8), label_space())
    before = {key: value.clone() for key, value in method.state_dict().items()}
    message = rf"{count} is NaN or inf, the last at step {count[0]}; .*learning rate"
    with pytest.raises(DivergedError, match=message) as stopped:
        fit(method, with_nan(1, epochs=epochs, batch_size=64), Training())
    assert stopped.value.steps == 0
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())


class NormalizedFeatures(PrecomputedFeatures):
    """Features with batch normalization, whose statistics a forward pass changes."""

    def __init__(self) -> None:
        super().__init__(8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, features: Tensor) -> Tensor:
        normalized: Tensor = self.norm(features)
        return normalized


@pytest.mark.parametrize("ema", [0.0, 0.9997])
def test_a_batch_with_nan_is_skipped_and_named(ema: float) -> None:
    method, events = BCE(NormalizedFeatures(), label_space()), list[StepEvent]()
    stored = replace(with_nan(1, epochs=4).stored, rows=np.arange(100, 164))
    named = FeatureBatches(stored, batch_size=16, epochs=4, seed=0)
    skipped = fit(method, named, Training(learning_rate=0.05, ema=ema), callbacks=(events.append,))
    assert len(skipped) == 4  # one in each epoch
    assert [event.step for event in events if event.skipped is not None] == skipped
    assert all(100 in event.skipped.tolist() for event in events if event.skipped is not None)
    assert [event.step for event in events] == list(range(1, 17))
    check_weights(method)


def test_training_stops_after_five_skipped_batches_with_the_last_good_weights() -> None:
    method, events = BCE(NormalizedFeatures(), label_space()), list[StepEvent]()
    start = method.linear.weight.detach().clone()
    with pytest.raises(DivergedError) as stopped:
        fit(method, with_nan(1, epochs=40), Training(learning_rate=0.05), callbacks=(events.append,))
    assert sum(event.skipped is not None for event in events) == 5
    assert stopped.value.steps == len(events) - 5 > 10
    check_weights(method)
    assert not torch.equal(method.linear.weight, start)


def test_skipped_batches_before_a_kill_count(tmp_path: Path) -> None:
    def method() -> BCE:
        torch.manual_seed(5)
        return BCE(NormalizedFeatures(), label_space())

    full, events = method(), list[StepEvent]()
    with pytest.raises(DivergedError):
        fit(full, with_nan(1, epochs=40), Training(learning_rate=0.05), callbacks=(events.append,))

    def kill(event: StepEvent) -> None:
        if event.step == 13:
            raise Killed

    resumed, path = method(), tmp_path / "x.safetensors"
    checkpoint = Checkpoint(path, seconds_apart=0.0)
    with pytest.raises(Killed):
        fit(method(), with_nan(1, epochs=40), Training(learning_rate=0.05), callbacks=(kill,), checkpoint=checkpoint)
    for _ in range(2):  # the second time, training has already stopped
        checkpoint = Checkpoint(path, seconds_apart=0.0)
        with pytest.raises(DivergedError, match=f"the last at step {len(events)};"):
            fit(resumed, with_nan(1, epochs=40), Training(learning_rate=0.05), checkpoint=checkpoint)
        assert all(torch.equal(value, full.state_dict()[key]) for key, value in resumed.state_dict().items())


def interrupted_checkpoint(path: Path) -> None:
    """Train for a while with a checkpoint after every step."""

    def kill(event: StepEvent) -> None:
        if event.step == 33:
            raise Killed

    torch.manual_seed(5)
    checkpoint = Checkpoint(path, seconds_apart=0.0)
    with pytest.raises(Killed):
        fit(BCE(DropoutFeatures(), label_space()), batches(), Training(), callbacks=(kill,), checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("damaged", "first", "note"),
    [(("",), 32, "previous checkpoint, step 31"), (("", "previous."), 1, "training starts over")],
)
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(
    tmp_path: Path, damaged: tuple[str, ...], first: int, note: str
) -> None:
    torch.manual_seed(5)
    full = BCE(DropoutFeatures(), label_space())
    fit(full, batches(), Training())
    interrupted_checkpoint(tmp_path / "x.safetensors")
    for prefix in damaged:
        os.truncate(tmp_path / f"{prefix}x.safetensors", 500)
    torch.manual_seed(5)
    resumed, events = BCE(DropoutFeatures(), label_space()), list[StepEvent]()
    checkpoint = Checkpoint(tmp_path / "x.safetensors")
    with pytest.warns(UserWarning, match=note) as caught:
        fit(resumed, batches(), Training(), callbacks=(events.append,), checkpoint=checkpoint)
    assert events[0].step == first
    assert str(tmp_path / "x.safetensors") in str(caught[0].message)
    assert torch.equal(resumed.linear.weight, full.linear.weight)
    checkpoint.delete()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [OSError(errno.EIO, "cannot be read"), MemoryError()])
def test_a_checkpoint_that_cannot_be_read_now_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = tmp_path / "x.safetensors"
    interrupted_checkpoint(path)

    def failing(*_: object) -> object:
        raise error

    monkeypatch.setattr("safetensors.torch.load", failing)
    with pytest.raises((OSError, RunError)):
        fit(BCE(PrecomputedFeatures(8), label_space()), batches(), Training(), checkpoint=Checkpoint(path))
    assert {file.name for file in tmp_path.iterdir()} == {"x.safetensors", "previous.x.safetensors"}


def test_a_checkpoint_of_another_schedule_is_not_used(tmp_path: Path) -> None:
    path, events = tmp_path / "x.safetensors", list[StepEvent]()
    interrupted_checkpoint(path)
    method = BCE(PrecomputedFeatures(8), label_space())
    with pytest.warns(UserWarning, match=r"x\.safetensors: the training had \d+ steps, and now has 8; .* starts over"):
        fit(method, batches(epochs=2), Training(), callbacks=(events.append,), checkpoint=Checkpoint(path))
    assert events[0].step == 1


def test_nan_weights_raise() -> None:
    method = BCE(PrecomputedFeatures(8), label_space())
    check_weights(method)
    with torch.no_grad():
        method.linear.weight[1, 2] = float("nan")
    with pytest.raises(FloatingPointError, match="weight is NaN or inf"):
        check_weights(method)


def test_seconds_include_the_time_before_a_resume(tmp_path: Path) -> None:
    path, start = tmp_path / "x.safetensors", time.monotonic()
    first = Checkpoint(path, seconds_apart=0.0)
    first.started -= 100.0  # as if it had started earlier
    fit(BCE(PrecomputedFeatures(8), label_space()), batches(epochs=2), Training(epochs=2), checkpoint=first)
    second = Checkpoint(path)
    fit(BCE(PrecomputedFeatures(8), label_space()), batches(epochs=2), Training(epochs=2), checkpoint=second)
    assert 100.0 < second.seconds() < 100.0 + time.monotonic() - start


def test_training_ends_at_the_image_limit() -> None:
    events: list[StepEvent] = []
    limited = FeatureBatches(separable(), batch_size=16, epochs=3, seed=0, images=100)  # of 192
    fit(BCE(PrecomputedFeatures(8), label_space()), limited, Training(), callbacks=(events.append,))
    assert [event.epoch for event in events] == [0, 0, 0, 0, 1, 1]
    assert sum(event.images for event in events) == 96
