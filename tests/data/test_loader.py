import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.images import colored_records
from probmcl.augment import AUGMENTATIONS, light
from probmcl.data.images import Preprocessing
from probmcl.data.labels import LabelStates, State
from probmcl.data.loader import Batch, ImageBatches, Order, in_order
from probmcl.data.records import Paths, Records, Split
from probmcl.errors import ImageError
from probmcl.run.batches import ImageBatchSource
from probmcl.runtime import workers

PLAIN = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return colored_records(tmp_path)


@pytest.fixture(params=["fork", pytest.param("spawn", marks=pytest.mark.exhaustive)])
def start_method(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the start method of processes during a test."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


def batch_source(records: Records, *, workers: int = 0, seed: int = 0) -> ImageBatchSource:
    return ImageBatchSource(records, PLAIN, light(16), seed=seed, workers=workers)


def same(a: list[Batch], b: list[Batch]) -> bool:
    return all(torch.equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))


def test_every_epoch_has_every_image_once_in_a_new_order() -> None:
    order = Order(np.arange(10, 20), batch_size=5, epochs=3, seed=0)
    batches = list(order)
    assert len(order) == len(batches) == 6
    epochs = [[row for batch in batches[2 * e : 2 * e + 2] for _, row in batch] for e in range(3)]
    assert all(sorted(epoch) == list(range(10, 20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert all(epoch == e for e in range(3) for batch in batches[2 * e : 2 * e + 2] for epoch, _ in batch)


def test_incomplete_last_batch_is_dropped_unless_it_is_the_only_one() -> None:
    assert [len(batch) for batch in Order(np.arange(10), batch_size=4, epochs=1, seed=0)] == [4, 4]
    assert [len(batch) for batch in Order(np.arange(3), batch_size=4, epochs=1, seed=0)] == [3]


def test_order_without_images_is_an_error() -> None:
    with pytest.raises(ValueError, match="no training images"):
        Order(np.arange(0), batch_size=4, epochs=1, seed=0)


def test_images_are_repeated_in_proportion_to_their_weight() -> None:
    weights = np.array([0.0, 1.0, 2.0, 0.5, 1.5])
    order = Order(np.arange(10, 15), batch_size=5, epochs=400, seed=0, weights=weights)
    epochs = [[row for _, row in batch] for batch in order]
    assert all(len(epoch) == 5 for epoch in epochs)
    counts = np.array([[epoch.count(row) for row in range(10, 15)] for epoch in epochs])
    assert (np.abs(counts - weights) < 1).all()
    assert counts.mean(axis=0) == pytest.approx(weights, abs=0.1)


def test_equal_weights_have_no_effect() -> None:
    plain, weighted = (
        [sorted(row for _, row in batch) for batch in Order(np.arange(6), batch_size=6, epochs=3, seed=1, weights=w)]
        for w in (None, np.full(6, 2.5))
    )
    assert plain == weighted


def test_uncertain_labels_are_drawn_per_epoch_independently_of_workers(records: Records) -> None:
    states = records.states.dense()
    states[:, 0] = State.UNCERTAIN
    uncertain = LabelStates.from_states(states, chance=np.array([0.5, np.nan, np.nan], dtype=np.float32))
    soft = replace(records, states=uncertain)
    labels = [
        torch.stack(
            [
                b.labels[b.rows.argsort(), 0]
                for b in batch_source(soft, workers=n).training(n_views=1, batch_size=24, epochs=4)
            ]
        )
        for n in (0, 2)
    ]
    assert torch.equal(*labels)
    assert set(labels[0].flatten().tolist()) == {0.0, 1.0}
    assert not torch.equal(labels[0][0], labels[0][1])
    assert all(b.known[:, 0].all() for b in batch_source(soft).training(n_views=1, batch_size=24, epochs=1))


def test_in_order_covers_every_row() -> None:
    assert [row for batch in in_order(np.arange(7), 3) for _, row in batch] == list(range(7))


def test_batch_has_views_first_and_the_labels_of_its_rows(records: Records) -> None:
    for batch in batch_source(records).training(n_views=2, batch_size=6, epochs=1):
        assert batch.views.shape == (2, 6, 3, 16, 16)
        assert torch.equal(batch.labels, torch.from_numpy(records.labels[batch.rows.numpy()]))
        assert not torch.equal(batch.views[0], batch.views[1])


def test_views_do_not_depend_on_the_number_of_workers(records: Records, start_method: str) -> None:
    in_process = list(batch_source(records).training(n_views=2, batch_size=6, epochs=2))
    in_workers = list(batch_source(records, workers=2).training(n_views=2, batch_size=6, epochs=2))
    assert same(in_process, in_workers)


@pytest.mark.parametrize("augmentation", ["light", "paper", "none"])
def test_batch_source_can_be_pickled_with_every_augmentation(records: Records, augmentation: str) -> None:
    source = ImageBatchSource(records, PLAIN, AUGMENTATIONS[augmentation](16), seed=2)
    sent = pickle.loads(pickle.dumps(source))
    image = Image.open(records.paths[0]).convert("RGB")
    assert sent.view(image, 1, 0, 1).tobytes() == source.view(image, 1, 0, 1).tobytes()


@pytest.mark.parametrize("workers", [0, 1])
def test_global_generator_is_unchanged(records: Records, workers: int) -> None:
    before = torch.get_rng_state()
    batches = list(batch_source(records, workers=workers).training(n_views=2, batch_size=6, epochs=1))
    assert len(batches) == 4
    assert torch.equal(torch.get_rng_state(), before)


SCRIPT = """
from pathlib import Path
import torch
from probmcl.augment import light
from probmcl.data import Preprocessing
from probmcl.readers import read
from probmcl.run.batches import ImageBatchSource

def views(workers):
    records = read(Path(__file__).parent, seed=None)
    plain = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    batches = ImageBatchSource(records, plain, light(16), workers=workers).training(n_views=2, batch_size=4, epochs=1)
    return torch.cat([batch.views for batch in batches], dim=1)

if __name__ == "__mp_main__":
    print("spawned", flush=True)

if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    assert torch.equal(views(workers=1), views(workers=0))
    print("equal")
"""


@pytest.mark.exhaustive
def test_spawned_workers_produce_the_same_views(tmp_path: Path) -> None:
    written = colored_records(tmp_path, train=8, val=0, test=0)
    rows = [f"{path.name},red" for path in written.paths]
    (tmp_path / "labels.csv").write_text("\n".join(["filename,labels", *rows]))
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "spawned\nequal\n"), run.stderr


def test_workers_use_the_configured_start_method(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "start_method", lambda: "backwards")
    assert len(list(batch_source(records).plain("test"))) == 1  # no worker is started
    with pytest.raises(ValueError, match="backwards"):
        list(batch_source(records, workers=1).plain("test"))


def test_order_depends_on_the_seed(records: Records) -> None:
    one, other = (list(batch_source(records, seed=s).training(n_views=1, batch_size=6, epochs=1)) for s in (0, 1))
    assert not torch.equal(one[0].rows, other[0].rows)


def test_views_differ_between_epochs(records: Records) -> None:
    batches = list(batch_source(records).training(n_views=1, batch_size=24, epochs=2))
    views = [batch.views[0][batch.rows.argsort()] for batch in batches]
    assert all(not torch.equal(a, b) for a, b in zip(views[0], views[1], strict=True))


def test_plain_view_is_only_preprocessed(records: Records) -> None:
    batch = next(iter(batch_source(records).plain("test")))
    expected = [PLAIN(Image.open(records.paths[row]).convert("RGB")) for row in records.rows("test")]
    assert torch.equal(batch.views[0], torch.stack(expected))


def test_plain_view_comes_before_augmented_views(records: Records) -> None:
    order = in_order(records.rows("train"), 24)
    batches = ImageBatches(records, order, PLAIN, n_plain=1, n_augmented=2, make_view=batch_source(records).view)
    batch = next(iter(batches))
    assert batch.views.shape[0] == 3
    assert torch.equal(batch.rows, torch.from_numpy(records.rows("train")))
    expected = [PLAIN(Image.open(records.paths[row]).convert("RGB")) for row in records.rows("train")]
    assert torch.equal(batch.views[0], torch.stack(expected))
    assert not torch.equal(batch.views[1], batch.views[2])


def test_pixels_at_once_limits_the_batch_size(records: Records) -> None:
    few = ImageBatchSource(records, PLAIN, light(16), pixels_at_once=4 * 16 * 16)
    assert [len(batch.labels) for batch in few.plain("test")] == [4, 4, 1]
    assert {batch.views.shape[:2] for batch in few.augmented("train", n_views=2)} == {(2, 2)}
    assert sum(len(batch.labels) for batch in few.augmented("train", n_views=9)) == 24  # one image at a time


def test_plain_views_are_the_same_in_training_and_scoring(tmp_path: Path) -> None:
    records = colored_records(tmp_path)
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    paths = tuple(path.with_suffix(".jpg") for path in records.paths)
    for path in paths:  # large enough that it is decoded at different sizes for a crop and for the plain view
        Image.fromarray(noise).save(path)
    train: Split = "train"
    photographs = replace(records, paths=Paths(paths), split=(train,) * len(paths))
    order = in_order(photographs.rows("train"), len(paths))
    mixed = ImageBatches(photographs, order, PLAIN, n_plain=1, n_augmented=1, make_view=batch_source(photographs).view)
    probed = next(iter(mixed)).views[0]
    scored = next(iter(batch_source(photographs).plain("train"))).views[0]
    assert torch.equal(probed, scored)


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_image_raises_an_image_error(records: Records, workers: int) -> None:
    records.paths[1].write_bytes(b"")
    with pytest.raises(ImageError, match=r"1\.png"):
        list(ImageBatches(records, in_order(np.arange(4), 2), PLAIN, workers=workers))
