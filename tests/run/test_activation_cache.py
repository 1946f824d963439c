import copy
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console as RichConsole
from torch import Tensor

from helpers.images import colored_records
from probmcl.augment import light
from probmcl.console import Console, ProgressBar
from probmcl.data.images import Preprocessing
from probmcl.data.records import Records
from probmcl.encoders import Encoder, split_encoder
from probmcl.methods import METHODS, find_method
from probmcl.run.activation_cache import ActivationCache, ImageBatchSource
from probmcl.runtime.tensor_files import ArrayFile
from probmcl.store.decoding import SCHEMA

SIZE = 32


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return colored_records(tmp_path_factory.mktemp("images"), train=10, val=5, test=4)


class Counting:
    """Records the stages and their numbers of steps."""

    def __init__(self) -> None:
        self.stages: dict[str, int] = {}

    @contextmanager
    def progress(self, name: str, total: int) -> Iterator[ProgressBar]:
        self.stages[name] = total
        with Console(RichConsole(file=StringIO())).progress(name, total) as bar:
            yield bar


def image_source(records: Records) -> ImageBatchSource:
    return ImageBatchSource(
        records, Preprocessing(SIZE, (0.5,) * 3, (0.5,) * 3), light(SIZE), pixels_at_once=3 * SIZE**2
    )


def encoder() -> Encoder:
    torch.manual_seed(0)
    network = Encoder("test_resnet", image_size=SIZE).eval()
    for module in network.modules():  # batch statistics that training mode would change
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.get_buffer("running_mean"), -0.1, 0.1)
    return network


def open_cache(
    records: Records, network: torch.nn.Module, folder: Path, dtype: torch.dtype = torch.float32, stages: object = None
) -> ActivationCache:
    progress = (stages if isinstance(stages, Counting) else Counting()).progress
    return ActivationCache(
        image_source(records), network, folder, n_augmented=2, dtype=dtype, device="cpu", progress=progress
    )


def in_order(batches: object) -> Tensor:
    return torch.cat([batch.views for batch in batches], dim=1)  # type: ignore[attr-defined]


def test_the_cache_has_the_outputs_of_the_network(records: Records, tmp_path: Path) -> None:
    network = encoder()
    cache = open_cache(records, network, tmp_path)
    with torch.inference_mode():
        plain = torch.cat([network(batch.views[0]) for batch in image_source(records).plain("train")])
        others = torch.cat(
            [
                network(batch.views.flatten(0, 1)).reshape(2, -1, 96)
                for batch in image_source(records).augmented("train", n_views=2)
            ],
            dim=1,
        )
    outputs = in_order(cache.probing(n_augmented=2))
    assert outputs.shape == (3, 10, 96)
    assert torch.allclose(outputs[0], plain, atol=1e-5)
    assert torch.allclose(outputs[1:], others, atol=1e-5)
    rows = torch.cat([batch.rows for batch in cache.plain("val")])
    assert rows.tolist() == records.rows("val").tolist()


def test_views_are_computed_once_when_they_are_needed(records: Records, tmp_path: Path) -> None:
    counting = Counting()
    cache = open_cache(records, encoder(), tmp_path, stages=counting)
    cache.probing(n_augmented=0)
    assert len(counting.stages) == 1
    cache.training(n_views=2, batch_size=4, epochs=1)
    cache.probing(n_augmented=2)
    assert len(counting.stages) == 2
    again = Counting()
    open_cache(records, encoder(), tmp_path, stages=again).probing(n_augmented=2)
    assert again.stages == {}


def test_filling_continues_after_an_interrupt(records: Records, tmp_path: Path) -> None:
    complete = in_order(open_cache(records, encoder(), tmp_path / "complete").plain("train"))
    open_cache(records, encoder(), tmp_path / "part").plain("train")
    (manifest,) = (tmp_path / "part").glob("*.json")
    content = json.loads(manifest.read_text())
    assert (content["plain"]["batch_size"], len(content["plain"]["checksums"])) == (3, 4)
    content["plain"]["checksums"][2:] = [None, None]
    manifest.write_text(json.dumps(content))
    array = np.load(tmp_path / "part" / "train.npy", mmap_mode="r+")
    array[0, 6:] = 0  # lost in a kill
    array.flush()
    counting = Counting()
    rest = in_order(open_cache(records, encoder(), tmp_path / "part", stages=counting).plain("train"))
    assert list(counting.stages.values()) == [2]  # of four batches
    assert torch.equal(rest, complete)


def test_filling_restarts_if_the_batch_size_changes(records: Records, tmp_path: Path) -> None:
    """The batch size depends on the device."""
    complete = in_order(open_cache(records, encoder(), tmp_path / "complete").plain("train"))
    open_cache(records, encoder(), tmp_path / "part").plain("train")
    (manifest,) = (tmp_path / "part").glob("*.json")
    manifest.write_text(json.dumps({"schema": SCHEMA, "plain": {"batch_size": 5, "checksums": [1, None]}}))
    array = np.load(tmp_path / "part" / "train.npy", mmap_mode="r+")
    array[0, 5:] = 0
    array.flush()
    assert torch.equal(in_order(open_cache(records, encoder(), tmp_path / "part").plain("train")), complete)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "flipped": (lambda folder: flip(folder / "train.npy", -5), "activations of 1 image were", 1),
    "truncated": (lambda folder: os.truncate(folder / "train.npy", 128 + 4 * 96 * 4), "of 7 images were", 3),
    "emptied": (lambda folder: os.truncate(folder / "train.npy", 0), "of 10 images were", 4),
    "longer": (lambda folder: os.truncate(folder / "train.npy", 100_000), "", 0),
    "header": (lambda folder: flip(folder / "train.npy", 30), "", 0),
    "checksum": (lambda folder: change_checksum(folder / "train.0-of-1.json"), "of 3 images were", 1),
    "manifest emptied": (lambda folder: os.truncate(folder / "train.0-of-1.json", 0), "json is damaged", 4),
    "manifest deleted": (lambda folder: (folder / "train.0-of-1.json").unlink(), "", 4),
    "manifest of another kind": (
        lambda folder: (folder / "train.0-of-1.json").write_text('{"plain": {"checksums": 3}}'),
        "json is damaged",
        4,
    ),
    "manifest of another version": (
        lambda folder: (folder / "train.0-of-1.json").write_text('{"plain": {"batches": [4, 3], "done": 4}}'),
        "json is damaged",
        4,
    ),
}


def change_checksum(path: Path) -> None:
    content = json.loads(path.read_text())
    content["plain"]["checksums"][1] += 1
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_batches_are_computed_again(records: Records, tmp_path: Path, damage: str) -> None:
    apply, note, batches = DAMAGES[damage]
    network = encoder()
    cache = ActivationCache(image_source(records), network, tmp_path, 0, torch.float32, "cpu", Counting().progress)
    complete = in_order(cache.plain("train"))
    apply(tmp_path)
    counting = Counting()
    again = replace(cache, progress=counting.progress)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(in_order(again.plain("train")), complete)
    assert counting.stages == ({"plain views of train": batches} if batches else {})
    assert [note in str(warning.message) for warning in caught] == ([True] if note else [])
    assert np.array_equal(np.load(tmp_path / "train.npy")[0], complete[0].numpy())


def test_a_file_is_verified_once(records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(records, encoder(), tmp_path)
    cache.plain("train")
    again = open_cache(records, encoder(), tmp_path)
    again.plain("train")
    monkeypatch.setattr(ArrayFile, "checksums", lambda self, blocks: 1 / 0)
    again.plain("train")


def test_a_deleted_file_is_computed_again(records: Records, tmp_path: Path) -> None:
    complete = in_order(open_cache(records, encoder(), tmp_path).plain("val"))
    (tmp_path / "val.npy").unlink()
    with pytest.warns(UserWarning, match="of 5 images were damaged"):
        again = open_cache(records, encoder(), tmp_path).plain("val")
    assert torch.equal(in_order(again), complete)


def test_a_full_disk_is_an_error_before_anything_is_written(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(OSError, match="bytes are free"):
        open_cache(records, encoder(), tmp_path).plain("val")
    assert not list(tmp_path.glob("*.npy"))


def test_bytes_is_the_size_on_disk(records: Records, tmp_path: Path) -> None:
    cache = open_cache(records, encoder(), tmp_path, torch.float16)
    for split in ("train", "val", "test"):
        cache.plain(split)
    on_disk = sum(np.load(path, mmap_mode="r").nbytes for path in tmp_path.glob("*.npy"))
    assert cache.bytes() == on_disk == (19 + 2 * 10) * 96 * 2


def test_overflow_in_half_precision_is_an_error(records: Records, tmp_path: Path) -> None:
    class Huge(torch.nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :4] * 1e6

    with pytest.raises(ValueError, match='`tune="all"`'):
        open_cache(records, Huge(), tmp_path, torch.float16).plain("train")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name != "probe"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 2e-2)])
def test_training_from_the_cache_has_the_loss_and_gradients_of_training_from_images(
    records: Records, tmp_path: Path, name: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Both use the same views. The uncached path is the complete encoder, frozen before its last stage."""
    network = encoder()
    parts = split_encoder(network)
    assert parts is not None
    cache = open_cache(records, parts.trunk, tmp_path, dtype)
    batch = next(iter(cache.probing(n_augmented=2)))  # three views of every image
    images = torch.cat(
        [
            torch.cat([b.views for b in image_source(records).plain("train")], dim=1),
            torch.cat([b.views for b in image_source(records).augmented("train", n_views=2)], dim=1),
        ]
    )
    steps = []
    for part, views in ((copy.deepcopy(parts.tail), batch.views), (copy.deepcopy(network), images[:, batch.rows])):
        torch.manual_seed(1)
        part.fixed_statistics = True
        method = find_method(name)(part, records.label_space, None).train()
        loss = method(views, batch.labels, batch.known).loss
        loss.backward()
        steps.append((loss.detach(), {key: p.grad for key, p in method.named_parameters() if p.requires_grad}))
    (loss, gradients), (direct_loss, direct_gradients) = steps
    assert torch.allclose(loss, direct_loss, rtol=tolerance)
    trained = {key for key in gradients if key.startswith("encoder.")}
    assert trained == {key for key in direct_gradients if key.startswith("encoder.model.layer4.")}
    for key, gradient in gradients.items():
        assert gradient is not None
        other = direct_gradients[key]
        assert other is not None
        if (name, dtype) == (
            "srn",
            torch.float16,
        ):  # rounding changes the sign before some ReLUs that follow batch statistics
            assert (gradient - other).norm() <= 0.06 * other.norm(), key
        else:
            assert torch.allclose(gradient, other, atol=tolerance * float(other.abs().max()) + 1e-7), key


def test_the_measured_speed_survives_a_restart(records: Records, tmp_path: Path) -> None:
    first = open_cache(records, encoder(), tmp_path)
    assert first.seconds_per_view() == 0
    first.plain("train")
    again = open_cache(records, encoder(), tmp_path)
    assert again.seconds_per_view() == first.seconds_per_view() > 0
