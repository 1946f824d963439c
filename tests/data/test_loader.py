"""Batches of views for training, and streams of images for prediction. Worker processes decode the images."""

import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.images import colored_records
from probmcl.augment import AUGMENTATIONS, light
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.labels import LabelStates, State
from probmcl.data.loader import Batch, Decoded, ImageBatches, Order, decode, find, in_order
from probmcl.data.records import Paths, Records, Split
from probmcl.errors import DataError, ImageError
from probmcl.run.activation_cache import ImageBatchSource
from probmcl.runtime import workers

PLAIN = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear")

PLAIN_VIEWS = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear")


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
from probmcl.run.activation_cache import ImageBatchSource

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


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder tree with nine images and other files."""
    folder = tmp_path / "photos"
    paths = colored_records(folder, train=9, val=0, test=0).paths
    for number, name in enumerate(["b.PNG", "a.png", "z/10.png", "z/9.png", "c/deep/1.png", "c/2.png"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        paths[number].rename(folder / name)
    (folder / "notes.md").write_text("not an image")
    (folder / ".hidden.png").write_bytes(b"")
    (folder / "empty").mkdir()
    return folder


def found_paths(*sources: str | Path) -> list[str]:
    return [str(item.path) for item in find(sources)]


def under(folder: Path, *names: str) -> list[str]:
    return [str(folder / name) for name in names]


IN_PHOTOS = ("6.png", "7.png", "8.png", "a.png", "b.PNG", "c/2.png", "c/deep/1.png", "z/10.png", "z/9.png")


def test_folder_is_searched_recursively_in_sorted_order(photos: Path) -> None:
    assert found_paths(photos) == under(photos, *IN_PHOTOS)
    assert found_paths(str(photos / "z")) == under(photos, "z/10.png", "z/9.png")


def test_pattern_matches_files_and_searches_matching_folders(photos: Path) -> None:
    assert found_paths(f"{photos}/*.png") == under(photos, "6.png", "7.png", "8.png", "a.png")
    assert found_paths(f"{photos}/[cz]") == under(photos, "c/2.png", "c/deep/1.png", "z/10.png", "z/9.png")


@pytest.mark.parametrize("pattern", ["**", "**/*", "**/*.[pP][nN][gG]"])
def test_recursive_pattern_finds_each_image_once(photos: Path, pattern: str) -> None:
    assert sorted(found_paths(f"{photos}/{pattern}")) == sorted(under(photos, *IN_PHOTOS))


def test_existing_file_has_priority_over_a_pattern(photos: Path) -> None:
    (photos / "a.png").rename(photos / "a[1].png")
    assert found_paths(photos / "a[1].png") == under(photos, "a[1].png")


def test_list_paths_are_relative_to_the_working_directory_or_the_list(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos / "z")
    (photos / "list.txt").write_text("\ufeffa.png\r\n\n  9.png  \nz\nnowhere.png\n", encoding="utf-8")
    z = photos / "z"
    assert found_paths(photos / "list.txt") == [
        str(photos / "a.png"),
        "9.png",
        str(z / "10.png"),
        str(z / "9.png"),
        "nowhere.png",
    ]


def test_sources_keep_their_order_and_may_repeat(photos: Path) -> None:
    sources = (photos / "b.PNG", photos / "z", photos / "b.PNG")
    assert found_paths(*sources) == under(photos, "b.PNG", "z/10.png", "z/9.png", "b.PNG")


def test_symlinks_are_followed_without_cycles(photos: Path) -> None:
    (photos / "z" / "up").symlink_to(photos)
    (photos / "c" / "other").symlink_to(photos / "z")
    assert found_paths(photos / "c") == [
        *under(photos, "c/2.png", "c/deep/1.png", "c/other/10.png", "c/other/9.png"),
        *under(photos / "c/other/up", "6.png", "7.png", "8.png", "a.png", "b.PNG"),
    ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("empty", "no images"),
        ("*.gif", "pattern"),
        ("list.txt", "list contains no images"),
        ("fotos", "does not exist"),
        ("other.txt", "does not exist"),
    ],
)
def test_source_without_images_is_an_error(photos: Path, source: str, message: str) -> None:
    (photos / "list.txt").write_text("\n")
    with pytest.raises(DataError, match=message) as caught:
        find([photos / "a.png", photos / source])
    assert str(photos / source) in str(caught.value)


def test_no_source_is_an_error() -> None:
    with pytest.raises(DataError, match="no images given"):
        find([])


def test_folders_are_listed_lazily(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is opened only after the images before it were consumed."""
    opened: list[str] = []
    scandir = os.scandir

    def watched(path: Path) -> "os._ScandirIterator[str]":
        opened.append(str(path))
        return scandir(str(path))

    items = find(photos)
    monkeypatch.setattr(os, "scandir", watched)
    assert [item.path.name for item in itertools.islice(items, 5)] == ["6.png", "7.png", "8.png", "a.png", "b.PNG"]
    assert opened == [str(photos)]
    assert next(items).path == photos / "c/2.png"
    assert opened == [str(photos), str(photos / "c")]


@pytest.mark.slow
def test_many_files_need_little_memory(tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    with listed.open("w") as file:
        file.writelines(f"nowhere/{number}.jpg\n" for number in range(20_000))
    assert sum(1 for _ in find([listed])) == 20_000
    # The minimum of two runs, because Python's table of interned strings occasionally grows by several MB.
    # A list of the names would take more than 1 MB.
    assert min(peak_of_finding(listed), peak_of_finding(listed)) < 500_000


def peak_of_finding(listed: Path) -> int:
    tracemalloc.start()
    try:
        for _ in find([listed]):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def decoded(photos: Path, *, batch_size: int = 4, workers: int | None = 0, start: str | None = None) -> list[Decoded]:
    return list(decode(photos, PLAIN_VIEWS, batch_size=batch_size, workers=workers, start=start))


def expected(path: str) -> torch.Tensor:
    return PLAIN_VIEWS(read_image(Path(path), PLAIN_VIEWS.size))


@pytest.mark.parametrize(
    ("workers", "start"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow), (None, None)]
)
def test_decoded_images_do_not_depend_on_workers(photos: Path, workers: int | None, start: str | None) -> None:
    batches = decoded(photos, workers=workers, start=start)
    assert [len(batch.paths) for batch in batches] == [4, 4, 1]
    assert [str(path) for batch in batches for path in batch.paths] == under(photos, *IN_PHOTOS)
    assert torch.equal(
        torch.cat([batch.images for batch in batches]), torch.stack(list(map(expected, under(photos, *IN_PHOTOS))))
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_leave_the_global_generator_unchanged(photos: Path, workers: int) -> None:
    before = torch.get_rng_state()
    assert len(decoded(photos, workers=workers)) == 3
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_reported_and_others_keep_their_rows(photos: Path, workers: int) -> None:
    (photos / "7.png").write_bytes(b"")
    (photos / "8.png").write_bytes(b"no image")
    (photos / "c/deep/1.png").unlink()
    (photos / "c/deep/1.png").symlink_to("nowhere")
    first, second, _ = decoded(photos, workers=workers)
    assert first.rows == [0, 3]
    assert torch.equal(first.images, torch.stack([expected(str(photos / name)) for name in ("6.png", "a.png")]))
    assert {error.path.name: error.reason for error in first.errors} == {
        "7.png": "the file is empty",
        "8.png": "is not an image in a supported format (JPEG, PNG, WEBP, TIFF, BMP, GIF, PPM, JPEG2000, AVIF, DICOM)",
    }
    assert second.rows == [0, 1, 3]
    assert [error.reason for error in second.errors] == ["does not exist"]


def test_batch_of_unreadable_images_is_empty(photos: Path) -> None:
    (batch,) = decode([photos / "nowhere.jpg", photos / "notes.md"], PLAIN_VIEWS, batch_size=4, workers=0)
    assert (batch.rows, len(batch.images), len(batch.errors)) == ([], 0, 2)


def test_pil_image_with_a_truncated_file_is_an_error(photos: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(photos / "cut.png")
    complete = (photos / "cut.png").read_bytes()
    (photos / "cut.png").write_bytes(complete[: len(complete) // 2])
    with Image.open(photos / "cut.png") as cut:
        (batch,) = decode(cut, PLAIN_VIEWS, batch_size=1)
    assert [error.path.name for error in batch.errors] == ["image 0"]
    assert batch.rows == []


@pytest.mark.parametrize(("batch_size", "workers", "message"), [(0, 0, "`batch_size=0`"), (1, -1, "`workers=-1`")])
def test_invalid_batch_size_or_workers_is_an_error(photos: Path, batch_size: int, workers: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(photos, PLAIN_VIEWS, batch_size=batch_size, workers=workers)


@pytest.mark.slow
def test_workers_do_not_require_a_main_guard(photos: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from probmcl.data.images import Preprocessing\n"
        "from probmcl.data.loader import decode\n"
        "plain = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))\n"
        f"print(sum(len(batch.rows) for batch in decode({str(photos)!r}, plain, batch_size=2, workers=2)))\n"
    )
    answer = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "9\n"), answer.stderr
