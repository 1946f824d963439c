import copy
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
from probmcl.run.batches import ActivationCache, ImageBatchSource

SIZE = 32


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return colored_records(tmp_path_factory.mktemp("images"), train=10, val=5, test=4)


class Counting:
    """Counts the stages and their steps."""

    def __init__(self) -> None:
        self.stages: dict[str, int] = {}

    @contextmanager
    def progress(self, name: str, total: int) -> Iterator[ProgressBar]:
        self.stages[name] = total
        with Console(RichConsole(file=StringIO())).progress(name, total) as bar:
            yield bar


def feed(records: Records) -> ImageBatchSource:
    return ImageBatchSource(
        records, Preprocessing(SIZE, (0.5,) * 3, (0.5,) * 3), light(SIZE), pixels_at_once=3 * SIZE**2
    )


def encoder() -> Encoder:
    torch.manual_seed(0)
    made = Encoder("test_resnet", image_size=SIZE).eval()
    for module in made.modules():  # statistics that training mode would change
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.get_buffer("running_mean"), -0.1, 0.1)
    return made


def store(
    records: Records, network: torch.nn.Module, folder: Path, dtype: torch.dtype = torch.float32, stages: object = None
) -> ActivationCache:
    progress = (stages if isinstance(stages, Counting) else Counting()).progress
    return ActivationCache(feed(records), network, folder, n_augmented=2, dtype=dtype, device="cpu", progress=progress)


def in_order(batches: object) -> Tensor:
    return torch.cat([batch.views for batch in batches], dim=1)  # type: ignore[attr-defined]


def test_what_is_stored_is_what_the_network_makes_of_the_same_views(records: Records, tmp_path: Path) -> None:
    network = encoder()
    kept = store(records, network, tmp_path)
    with torch.inference_mode():
        plain = torch.cat([network(batch.views[0]) for batch in feed(records).plain("train")])
        others = torch.cat(
            [
                network(batch.views.flatten(0, 1)).reshape(2, -1, 96)
                for batch in feed(records).augmented("train", n_views=2)
            ],
            dim=1,
        )
    found = in_order(kept.probing(n_augmented=2))
    assert found.shape == (3, 10, 96)
    assert torch.allclose(found[0], plain, atol=1e-5)
    assert torch.allclose(found[1:], others, atol=1e-5)
    rows = torch.cat([batch.rows for batch in kept.plain("val")])
    assert rows.tolist() == records.rows("val").tolist()


def test_nothing_is_computed_twice_and_nothing_before_it_is_needed(records: Records, tmp_path: Path) -> None:
    seen = Counting()
    kept = store(records, encoder(), tmp_path, stages=seen)
    kept.probing(n_augmented=0)
    assert len(seen.stages) == 1
    kept.training(n_views=2, batch_size=4, epochs=1)
    kept.probing(n_augmented=2)
    assert len(seen.stages) == 2
    again = Counting()
    store(records, encoder(), tmp_path, stages=again).probing(n_augmented=2)
    assert again.stages == {}


def test_filling_goes_on_where_it_stopped(records: Records, tmp_path: Path) -> None:
    whole = in_order(store(records, encoder(), tmp_path / "whole").plain("train"))
    store(records, encoder(), tmp_path / "part").plain("train")
    (manifest,) = (tmp_path / "part").glob("*.json")
    entry = json.loads(manifest.read_text())["plain"]
    assert (entry["done"], entry["batches"]) == (4, [4, 3])
    manifest.write_text(json.dumps({"plain": {"done": 2, "batches": [4, 3]}}))
    array = np.load(tmp_path / "part" / "train.npy", mmap_mode="r+")
    array[0, 6:] = 0  # what a kill lost
    array.flush()
    seen = Counting()
    rest = in_order(store(records, encoder(), tmp_path / "part", stages=seen).plain("train"))
    assert list(seen.stages.values()) == [2]  # of four batches
    assert torch.equal(rest, whole)


def test_other_batches_than_before_are_filled_from_the_start(records: Records, tmp_path: Path) -> None:
    """As on another device, whose batches are larger."""
    whole = in_order(store(records, encoder(), tmp_path / "whole").plain("train"))
    store(records, encoder(), tmp_path / "part").plain("train")
    (manifest,) = (tmp_path / "part").glob("*.json")
    manifest.write_text(json.dumps({"plain": {"done": 1, "batches": [2, 5]}}))
    array = np.load(tmp_path / "part" / "train.npy", mmap_mode="r+")
    array[0, 5:] = 0
    array.flush()
    assert torch.equal(in_order(store(records, encoder(), tmp_path / "part").plain("train")), whole)


def test_a_manifest_without_its_file_is_ignored(records: Records, tmp_path: Path) -> None:
    whole = in_order(store(records, encoder(), tmp_path).plain("val"))
    (tmp_path / "val.npy").unlink()
    assert torch.equal(in_order(store(records, encoder(), tmp_path).plain("val")), whole)


def test_a_full_disk_is_said_before_anything_is_written(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(OSError, match="are free; give another folder"):
        store(records, encoder(), tmp_path).plain("val")
    assert not list(tmp_path.glob("*.npy"))


def test_its_size_is_known_before(records: Records, tmp_path: Path) -> None:
    kept = store(records, encoder(), tmp_path, torch.float16)
    for split in ("train", "val", "test"):
        kept.plain(split)
    on_disk = sum(np.load(path, mmap_mode="r").nbytes for path in tmp_path.glob("*.npy"))
    assert kept.bytes() == on_disk == (19 + 2 * 10) * 96 * 2


def test_what_half_precision_cannot_hold_is_an_error_and_not_infinity(records: Records, tmp_path: Path) -> None:
    class Huge(torch.nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :4] * 1e6

    with pytest.raises(ValueError, match="`tune=all`"):
        store(records, Huge(), tmp_path, torch.float16).plain("train")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "probe"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 2e-2)])
def test_training_from_the_store_has_the_loss_and_gradients_of_training_from_images(
    records: Records, tmp_path: Path, name: str, dtype: torch.dtype, tolerance: float
) -> None:
    """With the same views; the uncached path is the whole encoder, frozen before its last stage."""
    network = encoder()
    cut = split_encoder(network)
    assert cut is not None
    kept = store(records, cut.trunk, tmp_path, dtype)
    batch = next(iter(kept.probing(n_augmented=2)))  # three views of every image
    images = torch.cat(
        [
            torch.cat([b.views for b in feed(records).plain("train")], dim=1),
            torch.cat([b.views for b in feed(records).augmented("train", n_views=2)], dim=1),
        ]
    )
    steps = []
    for part, views in ((copy.deepcopy(cut.tail), batch.views), (copy.deepcopy(network), images[:, batch.rows])):
        torch.manual_seed(1)
        part.fixed_statistics = True
        method = find_method(name)(part, records.label_space, None).train()
        loss = method(views, batch.labels, batch.known).loss
        loss.backward()
        steps.append((loss.detach(), {key: p.grad for key, p in method.named_parameters() if p.requires_grad}))
    (stored, some), (direct, everything) = steps
    assert torch.allclose(stored, direct, rtol=tolerance)
    learned = {key for key in some if key.startswith("encoder.")}
    assert learned == {key for key in everything if key.startswith("encoder.model.layer4.")}
    for key, gradient in some.items():
        assert gradient is not None
        other = everything[key]
        assert other is not None
        if (name, dtype) == ("srn", torch.float16):  # its ReLUs follow batch statistics: rounding turns some over
            assert (gradient - other).norm() <= 0.06 * other.norm(), key
        else:
            assert torch.allclose(gradient, other, atol=tolerance * float(other.abs().max()) + 1e-7), key


def test_the_speed_of_filling_is_known_after_a_restart(records: Records, tmp_path: Path) -> None:
    first = store(records, encoder(), tmp_path)
    assert first.seconds_per_view() == 0
    first.plain("train")
    again = store(records, encoder(), tmp_path)
    assert again.seconds_per_view() == first.seconds_per_view() > 0
