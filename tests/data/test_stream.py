import itertools
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.images import colored_records
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.stream import Decoded, decode, find
from probmcl.errors import DataError

PLAIN = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear")


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
    return list(decode(photos, PLAIN, batch_size=batch_size, workers=workers, start=start))


def expected(path: str) -> torch.Tensor:
    return PLAIN(read_image(Path(path), PLAIN.size))


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
def test_global_generator_is_unchanged(photos: Path, workers: int) -> None:
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
    (batch,) = decode([photos / "nowhere.jpg", photos / "notes.md"], PLAIN, batch_size=4, workers=0)
    assert (batch.rows, len(batch.images), len(batch.errors)) == ([], 0, 2)


def test_pil_image_with_a_truncated_file_is_an_error(photos: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(photos / "cut.png")
    complete = (photos / "cut.png").read_bytes()
    (photos / "cut.png").write_bytes(complete[: len(complete) // 2])
    with Image.open(photos / "cut.png") as cut:
        (batch,) = decode(cut, PLAIN, batch_size=1)
    assert [error.path.name for error in batch.errors] == ["image 0"]
    assert batch.rows == []


@pytest.mark.parametrize(("batch_size", "workers", "message"), [(0, 0, "`batch_size=0`"), (1, -1, "`workers=-1`")])
def test_invalid_batch_size_or_workers_is_an_error(photos: Path, batch_size: int, workers: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(photos, PLAIN, batch_size=batch_size, workers=workers)


@pytest.mark.slow
def test_workers_do_not_require_a_main_guard(photos: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from probmcl.data.images import Preprocessing\n"
        "from probmcl.data.stream import decode\n"
        "plain = Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))\n"
        f"print(sum(len(batch.rows) for batch in decode({str(photos)!r}, plain, batch_size=2, workers=2)))\n"
    )
    answer = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "9\n"), answer.stderr
