import os
import sqlite3
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from helpers.scenes import scene
from probmcl.audit.duplicates import comparison, hashing, result_cache
from probmcl.audit.duplicates.registration import Correlations, registered_correlation
from probmcl.audit.duplicates.result_cache import NO_CACHE, ResultCache, open_results
from probmcl.audit.duplicates.search import Duplicates, find_duplicates
from probmcl.audit.prepare import audit_data, prepare_data
from probmcl.console import Console
from probmcl.data.images import read_image
from probmcl.data.intensity import IntensityRange
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
    monkeypatch.setattr(result_cache, "MAX_BYTES", 100_000)
    monkeypatch.setattr(result_cache, "DELETED_AT_ONCE", 20)
    keys = [cache.key(bytes([number])) for number in range(100)]
    for key in keys:
        assert cache.put({key: bytes(4000)})
    kept = len(cache.get(keys))
    assert 10 < kept < 30
    assert set(cache.get(keys)) == set(keys[:kept])  # results of the last day are not deleted
    with sqlite3.connect(cache.file or "") as connection:
        connection.execute("UPDATE results SET stored = stored - ?", (2 * result_cache.MIN_AGE,))
    assert cache.put({keys[99]: b"new"})
    assert set(cache.get(keys)) == {*keys[20:kept], keys[99]}
    assert (tmp_path / "results.sqlite").stat().st_size < 130_000


def test_full_cache_is_still_read(paths: list[Path], work: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = find(paths)
    monkeypatch.setattr(result_cache, "MAX_BYTES", 0)
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
    monkeypatch.setattr(result_cache, "VERSION", result_cache.VERSION + 1)
    with open_results(None) as cache:
        assert cache.file == file
        assert cache.get([cache.key(b"a")]) == {}
