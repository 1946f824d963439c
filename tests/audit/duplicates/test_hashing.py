"""Fingerprints of image files: digests, perceptual hashes, small images, and their cache."""

import math
import os
import pickle
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from helpers.scenes import scene
from probmcl.audit.duplicates import comparison, hashing
from probmcl.audit.duplicates.comparison import Correlations, registered_correlation
from probmcl.audit.duplicates.hashing import (
    FLIP_MASK,
    NO_CACHE,
    Fingerprint,
    ResultCache,
    SearchSettings,
    fingerprints,
    image_fingerprint,
    open_results,
)
from probmcl.audit.duplicates.search import Duplicates, find_duplicates
from probmcl.audit.prepare import audit_data, prepare_data
from probmcl.console import Console
from probmcl.data.images import read_image
from probmcl.data.pixels import IntensityRange
from probmcl.readers.options import DataSource

SCENES = 6


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an empty cache in the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "probmcl" / "duplicates.sqlite"


@pytest.fixture
def paths(tmp_path: Path, file: Path) -> list[Path]:
    """Files of different scenes, and a cropped copy of the first."""
    (tmp_path / "images").mkdir()
    images = [tmp_path / "images" / f"{seed}.png" for seed in range(SCENES)]
    for seed, path in enumerate(images):
        scene(seed).save(path)
    scene(0).crop((6, 5, 153, 116)).save(tmp_path / "images" / "copy.jpg")
    return [*images, tmp_path / "images" / "copy.jpg"]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded, and `compared` for each batch of pairs that is registered."""
    log: list[str] = []

    def read(path: Path, *args: int, intensity: IntensityRange | None) -> object:
        log.append(path.name)
        return read_image(path, *args, intensity=intensity)

    def register(*args: Any) -> Correlations:
        log.append("compared")
        return registered_correlation(*args)

    monkeypatch.setattr(hashing, "read_image", read)
    monkeypatch.setattr(comparison, "registered_correlation", register)
    return log


def find(paths: list[Path], intensity: IntensityRange | None = None, workers: int = 0) -> Duplicates:
    return find_duplicates(paths, intensity=intensity, workers=workers, console=Console.quiet())


def test_second_search_decodes_and_compares_nothing(paths: list[Path], work: list[str]) -> None:
    first = find(paths)
    assert work == [*(path.name for path in paths), "compared"]
    assert [(pair.one, pair.other, pair.confirmed) for pair in first.near] == [(0, SCENES, True)]
    work.clear()
    assert find(paths) == first
    assert work == []


@pytest.mark.parametrize("workers", [0, 2])
def test_result_is_the_same_without_a_cache(paths: list[Path], workers: int) -> None:
    expected = hashing.fingerprints(paths)
    assert find(paths, workers=workers).fingerprints == expected
    assert find(paths, workers=workers).fingerprints == expected


def test_training_reuses_the_results_of_check(paths: list[Path], work: list[str]) -> None:
    table = paths[0].with_name("labels.csv")
    splits = ["train", "val", "test", *["train"] * (len(paths) - 3)]
    rows = [f"{path.name},{'ab'[row % 2]},{splits[row]}\n" for row, path in enumerate(paths)]
    table.write_text("path,labels,split\n" + "".join(rows))
    source = DataSource(table)
    audit_data(source, console=Console.quiet())
    assert work
    work.clear()
    prepare_data(source, console=Console.quiet())
    assert work == []


def test_content_decides_not_the_name(paths: list[Path], work: list[str]) -> None:
    before = find(paths)
    status = paths[1].stat()
    scene(17).save(paths[1])
    os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    moved = paths[2].rename(paths[2].with_name("moved.png"))
    work.clear()
    after = find([*paths[:2], moved, *paths[3:]])
    assert work == ["1.png"]
    assert after.fingerprints[1] != before.fingerprints[1]
    assert after.fingerprints[2:] == before.fingerprints[2:]


def test_intensity_range_is_part_of_the_key(paths: list[Path], work: list[str]) -> None:
    find(paths)
    work.clear()
    find(paths, IntensityRange(0.0, 100.0))
    assert set(work) == {*(path.name for path in paths), "compared"}


def test_unreadable_files_are_tried_again(paths: list[Path], work: list[str]) -> None:
    content = paths[3].read_bytes()
    paths[3].write_bytes(content[: len(content) // 2])
    assert find(paths).fingerprints[3].reason
    work.clear()
    assert find(paths).fingerprints[3].reason
    assert work == ["3.png"]


def damage_header(file: Path) -> None:
    file.write_bytes(b"not a database" + file.read_bytes()[14:])


def damage_pages(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096:] = bytes(byte ^ 0x55 for byte in data[4096:])
    file.write_bytes(data)


def damage_values(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE results SET value = zeroblob(length(value))")


def truncate(file: Path) -> None:
    os.truncate(file, 5000)


@pytest.mark.parametrize("damage", [damage_header, damage_pages, damage_values, truncate])
def test_damaged_cache_is_replaced(
    paths: list[Path], file: Path, work: list[str], damage: Callable[[Path], None]
) -> None:
    first = find(paths)
    damage(file)
    assert find(paths) == first
    work.clear()
    assert find(paths) == first
    assert work == []


def test_without_a_writable_folder_every_image_is_still_decoded_once(
    paths: list[Path], file: Path, work: list[str]
) -> None:
    file.parent.parent.write_text("a file instead of a folder")
    assert [(pair.one, pair.other) for pair in find(paths).near] == [(0, SCENES)]
    assert work == [*(path.name for path in paths), "compared"]


def test_user_without_a_home_folder(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert len(find(paths).near) == 1


def test_only_the_user_can_read_the_thumbnails(paths: list[Path], file: Path) -> None:
    find(paths)
    assert file.stat().st_mode & 0o077 == 0


def test_oldest_results_are_deleted_when_the_cache_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ResultCache(tmp_path / "results.sqlite")
    monkeypatch.setattr(hashing, "MAX_BYTES", 100_000)
    monkeypatch.setattr(hashing, "DELETED_AT_ONCE", 20)
    keys = [cache.key(bytes([number])) for number in range(100)]
    for key in keys:
        assert cache.put({key: bytes(4000)})
    kept = len(cache.get(keys))
    assert 10 < kept < 30
    assert set(cache.get(keys)) == set(keys[:kept])  # results of the last day are not deleted
    with sqlite3.connect(cache.file or "") as connection:
        connection.execute("UPDATE results SET stored = stored - ?", (2 * hashing.MIN_AGE,))
    assert cache.put({keys[99]: b"new"})
    assert set(cache.get(keys)) == {*keys[20:kept], keys[99]}
    assert (tmp_path / "results.sqlite").stat().st_size < 130_000


def test_full_cache_is_still_read(paths: list[Path], work: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = find(paths)
    monkeypatch.setattr(hashing, "MAX_BYTES", 0)
    work.clear()
    assert find(paths) == first
    assert work == []
    scene(17).save(paths[1])
    assert [(pair.one, pair.other) for pair in find(paths).near] == [(0, SCENES)]


def store(file: Path, start: int) -> bool:
    cache = ResultCache(file)
    return all(cache.put({cache.key(bytes([start + number])): bytes([start])}) for number in range(20))


def test_several_processes_can_write(tmp_path: Path) -> None:
    file = tmp_path / "results.sqlite"
    with get_context("fork").Pool(3) as pool:
        assert pool.starmap(store, [(file, start) for start in (0, 20, 40)]) == [True, True, True]
    cache = ResultCache(file)
    values = cache.get([cache.key(bytes([number])) for number in range(60)]).values()
    assert list(values) == [bytes([start]) for start in (0, 20, 40) for _ in range(20)]


def test_keys_depend_on_the_context_and_the_order() -> None:
    cache, other = ResultCache(context=b"1"), ResultCache(context=b"2")
    assert len({cache.key(b"a", b"b"), cache.key(b"b", b"a"), other.key(b"a", b"b"), cache.key(b"a")}) == 4


def test_no_cache_stores_nothing() -> None:
    assert not NO_CACHE.put({b"key": b"value"})
    assert NO_CACHE.get([b"key"]) == {}


def test_version_is_part_of_the_key(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_results(None) as cache:
        cache.put({cache.key(b"a"): b"value"})
    monkeypatch.setattr(hashing, "VERSION", hashing.VERSION + 1)
    with open_results(None) as cache:
        assert cache.file == file
        assert cache.get([cache.key(b"a")]) == {}


def bits(one: int, other: int) -> int:
    return (one ^ other).bit_count()


def saved(path: Path, image: Image.Image) -> Fingerprint:
    image.save(path)
    return image_fingerprint(path)


def test_fingerprint_of_an_unreadable_file_has_only_a_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").write_bytes(b"")
    assert image_fingerprint(tmp_path / "empty.jpg") == Fingerprint("the file is empty")
    assert image_fingerprint(tmp_path / "none.jpg") == Fingerprint("does not exist")
    scene(0).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:-300])
    assert "truncated" in (image_fingerprint(tmp_path / "cut.jpg").reason or "")
    assert not image_fingerprint(tmp_path / "none.jpg").nearly_constant


def test_size_is_that_of_the_upright_full_image(tmp_path: Path) -> None:
    assert saved(tmp_path / "large.jpg", scene(0, (640, 480))).size == (640, 480)  # decoded at 1/8 of its size
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for name in ("exif.jpg", "exif.png", "exif.tif", "exif.webp"):
        scene(0, (60, 40)).save(tmp_path / name, exif=exif)
        assert image_fingerprint(tmp_path / name).size == (40, 60)
    exif[ExifTags.Base.Orientation] = 3
    scene(0, (60, 40)).save(tmp_path / "upside down.jpg", exif=exif)
    assert image_fingerprint(tmp_path / "upside down.jpg").size == (60, 40)


@pytest.mark.parametrize(
    ("mode", "suffix"), [("L", "png"), ("P", "png"), ("RGBA", "png"), ("L", "jpg"), ("CMYK", "jpg")]
)
def test_mode_is_the_stored_mode(tmp_path: Path, mode: str, suffix: str) -> None:
    assert saved(tmp_path / f"image.{suffix}", scene(0).convert(mode)).mode == mode


def test_spread_is_the_standard_deviation_of_gray_levels(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain.png", Image.new("RGB", (50, 40), (9, 9, 9)))
    assert plain.spread == 0
    assert plain.nearly_constant
    halves = np.zeros((64, 64), dtype=np.uint8)
    halves[:, 32:] = 100
    result = saved(tmp_path / "halves.png", Image.fromarray(halves))
    assert result.spread == pytest.approx(50, abs=1.5)  # the edge is blurred
    assert not result.nearly_constant


def test_intensity_range_is_applied(tmp_path: Path) -> None:
    deep = np.linspace(1000, 1200, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert image_fingerprint(tmp_path / "deep.png").nearly_constant
    assert image_fingerprint(tmp_path / "deep.png", IntensityRange(1000.0, 1200.0)).spread > 60
    assert fingerprints([tmp_path / "deep.png"], SearchSettings(IntensityRange(1000.0, 1200.0)))[0].spread > 60
    assert image_fingerprint(tmp_path / "deep.png").mode == "I;16"


def test_content_is_a_digest_of_the_bytes(tmp_path: Path) -> None:
    result = saved(tmp_path / "one.png", scene(0))
    assert result.content == sha256((tmp_path / "one.png").read_bytes()).digest()
    again = saved(tmp_path / "same pixels.jpg", scene(0))
    assert again.content != result.content


def test_phash_has_the_signs_of_the_lowest_frequencies(tmp_path: Path) -> None:
    gray = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    phash = saved(tmp_path / "noise.png", Image.fromarray(gray)).phash
    waves = sorted((v * v + u * u, v, u) for v in range(12) for u in range(12))[1:65]
    for index, (_, v, u) in enumerate(waves):
        strength = sum(
            float(gray[y, x]) * math.cos(math.pi * v * (y + 0.5) / 32) * math.cos(math.pi * u * (x + 0.5) / 32)
            for y in range(32)
            for x in range(32)
        )
        assert (phash >> (63 - index)) & 1 == (strength > 0)


def test_hash_of_a_flipped_image(tmp_path: Path) -> None:
    small = scene(1).resize((32, 32))
    one = saved(tmp_path / "one.png", small)
    other = saved(tmp_path / "other.png", small.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert one.phash ^ FLIP_MASK == other.phash
    assert one.inner_phash ^ FLIP_MASK == other.inner_phash
    assert bits(one.phash, other.phash) > 10


def test_hashes_of_copies_are_close(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole.png", scene(2))
    darker = saved(tmp_path / "darker.png", scene(2).point(lambda level: level // 2 + 20))
    smaller = saved(tmp_path / "smaller.jpg", scene(2).resize((90, 70)))
    cropped = saved(tmp_path / "cropped.png", scene(2).crop((6, 5, 154, 115)))
    assert bits(whole.phash, darker.phash) <= 3
    assert bits(whole.phash, smaller.phash) <= 3
    assert bits(whole.inner_phash, cropped.phash) <= 4 < bits(whole.phash, cropped.phash)
    assert min(bits(whole.phash, saved(tmp_path / "x.png", scene(seed)).phash) for seed in range(3, 23)) > 14


@pytest.mark.parametrize("workers", [0, 2])
def test_fingerprints_are_in_order_and_report_progress(tmp_path: Path, workers: int) -> None:
    paths = [tmp_path / f"{seed}.png" for seed in range(19)]
    expected = [saved(path, scene(seed, (40, 30))) for seed, path in enumerate(paths)]
    paths[7].unlink()
    expected[7] = Fingerprint("does not exist")
    steps: list[int] = []
    assert fingerprints(paths, SearchSettings(workers=workers), advance=steps.append) == expected
    assert steps == [8, 8, 3]
    assert pickle.loads(pickle.dumps(expected)) == expected
