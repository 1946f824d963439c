import multiprocessing
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from probmcl.data import image_cache as module
from probmcl.data.image_cache import ImageCache, default_folder, open_cache
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.loader import ImageBatches, in_order
from probmcl.data.pixels import IntensityRange
from probmcl.data.records import Records
from probmcl.errors import ImageError, OptionError


class Disk(NamedTuple):
    """The result of `shutil.disk_usage`."""

    total: int
    used: int
    free: int


def photo(path: Path, seed: int = 0, size: tuple[int, int] = (200, 160)) -> Path:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> ImageCache:
    return open_cache(tmp_path / "cache", apart_from=[tmp_path / "photos"], keep_free=0)


def entries(cache: ImageCache) -> list[Path]:
    return sorted(path for path in cache.folder.rglob("*") if path.is_file())


def same(first: Image.Image, second: Image.Image) -> bool:
    return (first.mode, first.size, first.tobytes()) == (second.mode, second.size, second.tobytes())


def refuse(*_: object, **__: object) -> Image.Image:
    raise AssertionError("the image was decoded again")


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
@pytest.mark.parametrize("size", [None, 32])
def test_cached_pixels_are_the_same_and_decoded_once(
    tmp_path: Path, cache: ImageCache, monkeypatch: pytest.MonkeyPatch, name: str, size: int | None
) -> None:
    path = photo(tmp_path / "photos" / name)
    expected = read_image(path, size)
    assert same(cache.read(path, size), expected)
    monkeypatch.setattr(module, "read_image", refuse)
    again = cache.read(path, size)
    assert same(again, expected)
    assert again.info == {}


def test_sizes_and_ranges_have_separate_entries(tmp_path: Path, cache: ImageCache) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.array([[0, 100, 4000]], dtype=np.uint16)).save(path)
    for intensity in (
        None,
        IntensityRange(0.0, 200.0),
        IntensityRange(0.0, 8000.0),
        IntensityRange(0.0, 200.0, "another source"),
    ):
        assert same(cache.read(path, intensity=intensity), read_image(path, intensity=intensity))
    assert len(entries(cache)) == 3
    large = photo(tmp_path / "a.jpg", size=(400, 400))
    sides = [cache.read(large, size).width for size in (None, 200, 100, 100)]
    assert sides == [400, 200, 100, 100]
    assert len(entries(cache)) == 6


def test_modified_file_is_decoded_again(tmp_path: Path, cache: ImageCache) -> None:
    path = photo(tmp_path / "a.png", seed=1)
    first = cache.read(path)
    photo(path, seed=2)
    os.utime(path, ns=(1, 1))
    assert same(cache.read(path), read_image(path))
    assert not same(cache.read(path), first)


def test_symlink_shares_the_entry_of_its_target(tmp_path: Path, cache: ImageCache) -> None:
    path = photo(tmp_path / "a.png")
    (tmp_path / "link.png").symlink_to(path)
    assert same(cache.read(path), cache.read(tmp_path / "link.png"))
    assert len(entries(cache)) == 1


def cut(data: bytes) -> bytes:
    return data[:-1]


def nothing(data: bytes) -> bytes:
    return b""


def head_only(data: bytes) -> bytes:
    return data[:12]


def other_pixel(data: bytes) -> bytes:
    return data[:500] + bytes([data[500] ^ 1]) + data[501:]


def other_magic(data: bytes) -> bytes:
    return b"another!" + data[8:]


def other_shape(data: bytes) -> bytes:
    return data[:8] + data[12:16] + data[8:12] + data[16:-3]


@pytest.mark.parametrize("damage", [cut, nothing, head_only, other_pixel, other_magic, other_shape])
def test_damaged_entry_is_replaced(tmp_path: Path, cache: ImageCache, damage: Callable[[bytes], bytes]) -> None:
    path = photo(tmp_path / "a.png")
    expected = cache.read(path)
    (entry,) = entries(cache)
    intact = entry.read_bytes()
    entry.write_bytes(damage(intact))
    assert same(cache.read(path), expected)
    assert entry.read_bytes() == intact


def test_entries_may_be_deleted_at_any_time(tmp_path: Path, cache: ImageCache) -> None:
    paths = [photo(tmp_path / f"{number}.png", seed=number) for number in range(3)]
    expected = [cache.read(path) for path in paths]
    entries(cache)[0].unlink()
    assert all(same(cache.read(path), image) for path, image in zip(paths, expected, strict=True))
    shutil.rmtree(cache.folder)
    assert all(same(cache.read(path), image) for path, image in zip(paths, expected, strict=True))
    assert len(entries(cache)) == 3


def test_images_are_decoded_if_nothing_can_be_stored(tmp_path: Path, cache: ImageCache) -> None:
    path = photo(tmp_path / "a.png")
    shutil.rmtree(cache.folder)
    cache.folder.write_text("a file instead of a folder")
    assert same(cache.read(path), read_image(path))
    assert cache.folder.read_text() == "a file instead of a folder"


def test_failed_write_leaves_no_files(tmp_path: Path, cache: ImageCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    path = photo(tmp_path / "a.png")
    monkeypatch.setattr(Path, "replace", full)
    assert same(cache.read(path), read_image(path))
    assert entries(cache) == []


def test_decoding_errors_are_raised_and_not_cached(tmp_path: Path, cache: ImageCache) -> None:
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ImageError, match=r"empty\.jpg: the file is empty"):
        cache.read(tmp_path / "empty.jpg")
    with pytest.raises(ImageError, match="does not exist"):
        cache.read(tmp_path / "nowhere.jpg")
    assert entries(cache) == []


def test_nothing_is_stored_on_a_nearly_full_disk(
    tmp_path: Path, cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = photo(tmp_path / "a.png")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Disk(1000, 901, 99))
    tenth = ImageCache(cache.folder)
    assert not tenth.has_room()
    assert same(tenth.read(path), read_image(path))
    assert entries(cache) == []
    assert ImageCache(cache.folder, keep_free=99).has_room()
    assert not ImageCache(cache.folder, keep_free=100).has_room()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Disk(1000, 900, 100))
    assert tenth.has_room()


@pytest.mark.parametrize("inside", ["photos", "photos/deep/cache", "link/cache"])
def test_cache_inside_an_image_folder_is_an_error(tmp_path: Path, inside: str) -> None:
    photo(tmp_path / "photos" / "a.png")
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    with pytest.raises(OptionError) as caught:
        open_cache(tmp_path / inside, apart_from=[tmp_path / "elsewhere", tmp_path / "photos"])
    assert f'`cache="{tmp_path / inside}"`' in str(caught.value)
    assert f" {tmp_path / 'photos'};" in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == ["a.png"]
    open_cache(tmp_path / "photos of mine", apart_from=[tmp_path / "photos"])


def test_cache_folder_must_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r'`cache=".*file/cache"` .*\(Not a directory\)'):
        open_cache(tmp_path / "file" / "cache")


def test_default_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "probmcl" / "images"
    assert open_cache().folder == (tmp_path / "probmcl" / "images").resolve()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "probmcl" / "images"


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_with_a_cache(tmp_path: Path, cache: ImageCache, workers: int) -> None:
    paths = [photo(tmp_path / "photos" / f"{number}.jpg", seed=number) for number in range(4)]
    records = Records.from_labels(["cat"], paths, ["train"] * 4, np.ones((4, 1), dtype=np.float32))
    plain, order = Preprocessing(16, (0.5,) * 3, (0.5,) * 3), in_order(np.arange(4), 2)
    expected = [batch.views for batch in ImageBatches(records, order, plain)]
    for _ in range(2):
        cached = [batch.views for batch in ImageBatches(records, order, plain, workers=workers, cache=cache)]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(cached, expected, strict=True))
    assert len(entries(cache)) == 4


def digest(cache: ImageCache, path: Path) -> bytes:
    return b"".join(cache.read(path).tobytes() for _ in range(20))


def test_several_processes_share_a_cache(tmp_path: Path, cache: ImageCache) -> None:
    path = photo(tmp_path / "a.png")
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("fork")) as pool:
        results = set(pool.map(digest, [cache] * 6, [path] * 6))
    assert results == {read_image(path).tobytes() * 20}
    assert len(entries(cache)) == 1
