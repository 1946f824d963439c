from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from made import label_space
from probmcl.data.loader import Batch
from probmcl.encoders import Encoder, Extracted
from probmcl.methods.bce import BCE
from probmcl.methods.probe import Probe
from probmcl.training import Event, FeatureBatches, Training, fit


def separable(images: int = 64, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    features = torch.randn(1, images, 8, generator=torch.Generator().manual_seed(seed))
    return features, (features[0, :, :3] > 0).float(), torch.ones(images, 3, dtype=torch.bool)


def batches(epochs: int = 20) -> FeatureBatches:
    return FeatureBatches(*separable(), batch_size=16, epochs=epochs, seed=0)


def test_fitting_learns_and_ends_in_eval_mode() -> None:
    method = BCE(Extracted(8), label_space())
    fit(method, batches(epochs=60), Training(learning_rate=0.05))
    features, labels, _ = separable()
    assert not method.training
    assert ((method.logits(features[0]) > 0).float() == labels).float().mean() > 0.95


def test_the_same_seed_gives_the_same_weights() -> None:
    ends = []
    for _ in range(2):
        torch.manual_seed(3)
        method = BCE(Extracted(8), label_space())
        fit(method, batches(), Training())
        ends.append(method.linear.weight)
    assert torch.equal(*ends)


def test_watchers_see_every_step() -> None:
    seen: list[Event] = []
    fit(BCE(Extracted(8), label_space()), batches(epochs=3), Training(), watchers=(seen.append,))
    assert [event.step for event in seen] == list(range(1, 13))
    assert [event.epoch for event in seen] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(event.images == 16 and event.steps == 12 for event in seen)


def test_an_interrupt_leaves_the_average_that_was_reached() -> None:
    method = BCE(Extracted(8), label_space())
    start = method.linear.weight.detach().clone()

    def interrupt(event: Event) -> None:
        if event.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(method, batches(), Training(), watchers=(interrupt,))
    assert not method.training
    assert not torch.equal(method.linear.weight, start)


def test_a_frozen_encoder_keeps_its_weights_and_its_statistics() -> None:
    encoder = Encoder("test_resnet", image_size=32)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    probe = Probe(encoder, label_space())

    class Images:
        steps_per_epoch = 2

        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Iterator[Batch]:
            for _ in range(4):
                labels = torch.ones(4, 3)
                yield Batch(torch.randn(1, 4, 3, 32, 32), labels, labels > 0, torch.arange(4))

    fit(probe, Images(), Training(learning_rate=0.1))
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert (probe.linear.bias > 0).all()


def test_feature_batches_show_every_image_once_an_epoch_in_one_of_its_views() -> None:
    features = torch.arange(12.0).reshape(2, 6, 1)  # two views of six images
    labels = torch.arange(6.0)[:, None].expand(6, 3)
    all_batches = FeatureBatches(features, labels, labels >= 0, batch_size=3, epochs=20, seed=0)
    shown = torch.cat([batch.views[0, :, 0] for batch in all_batches]).reshape(20, 6)
    matching = torch.cat([batch.labels[:, 0] for batch in all_batches]).reshape(20, 6)
    assert torch.equal(shown % 6, matching)
    assert all(sorted(epoch.tolist()) == list(range(6)) for epoch in matching)
    assert set(shown.flatten().tolist()) == set(range(12))  # in twenty epochs each view comes up


def test_order_of_feature_batches_is_seeded() -> None:
    one, same, other = (
        [batch.rows.tolist() for batch in FeatureBatches(*separable(), batch_size=16, epochs=1, seed=seed)]
        for seed in (0, 0, 1)
    )
    assert one == same != other
    assert np.unique(np.concatenate(one)).size == 64
