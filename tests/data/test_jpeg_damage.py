import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from probmcl.audit.duplicates.hashing import fingerprint, fingerprints
from probmcl.audit.duplicates.result_cache import ResultCache
from probmcl.data.images import read_image
from probmcl.data.jpeg_damage import INCOMPLETE, REASONS, RESTARTS, TOO_LONG, TOO_SHORT, jpeg_damage, scan_count

END = b"\xff\xd9"
KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "not subsampled": {"subsampling": 0},
    "restarts": {"restart_marker_rows": 1},
    "restarts every 3 rows": {"restart_marker_rows": 3},
    "restarts within rows": {"restart_marker_blocks": 5},
    "optimized": {"optimize": True},
    "progressive": {"progressive": True},
    "progressive with restarts": {"progressive": True, "restart_marker_rows": 1},
    "stored as RGB": {"keep_rgb": True},
    "progressive, stored as RGB": {"keep_rgb": True, "progressive": True},
}


def encoded(mode: str = "RGB", size: tuple[int, int] = (200, 150), *, seed: int = 0, **options: Any) -> bytes:
    """Return a JPEG of a smooth image with some noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(coarse) + rng.normal(0, 12, (size[1], size[0], 3))
    content = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(content, "JPEG", **options)
    return content.getvalue()


def first_scan(data: bytes) -> int:
    """Return the start of the data of the first scan."""
    start = data.index(b"\xff\xda") + 2
    return start + int.from_bytes(data[start : start + 2], "big")


def halved(data: bytes) -> bytes:
    return data[: (first_scan(data) + len(data)) // 2] + END


def shortened(data: bytes) -> bytes:
    middle = (first_scan(data) + len(data)) // 2
    return data[: middle - 300] + data[middle:]


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize(
    "size", [(1, 1), (8, 8), (17, 33), (200, 150), (161, 20), (20, 161), (16, 400), (7, 40), (40, 7)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_intact_file_is_not_damaged(kind: str, size: tuple[int, int], mode: str) -> None:
    assert jpeg_damage(encoded(mode, size, **KINDS[kind])) is None


@pytest.mark.parametrize("color", [0, 7, 100, 127, 128, 129, 248, 255])
@pytest.mark.parametrize("kind", ["baseline", "restarts", "progressive"])
def test_image_of_one_color_is_not_damaged(kind: str, color: int) -> None:
    """This includes the color that libjpeg uses for missing data, and those of pixels that have not been written."""
    content = io.BytesIO()
    Image.new("L", (80, 80), color).save(content, "JPEG", quality=100, **KINDS[kind])
    assert jpeg_damage(content.getvalue()) is None


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("kind", KINDS)
def test_missing_data_are_detected(kind: str, mode: str) -> None:
    data = encoded(mode, **KINDS[kind])
    assert jpeg_damage(halved(data)) in REASONS
    if kind not in ("progressive", "progressive, stored as RGB"):  # the data of a progressive scan may end anywhere
        assert jpeg_damage(shortened(data)) in REASONS


def test_pillow_decodes_files_that_are_detected(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(halved(encoded()))
    assert read_image(tmp_path / "a.jpg").size == (200, 150)


def test_rgb_is_recognized_by_the_names_of_its_components() -> None:
    data = encoded(keep_rgb=True)
    adobe = data.index(b"\xff\xee")
    data = data[:adobe] + data[adobe + 16 :]
    assert b"Adobe" not in data
    assert jpeg_damage(data) is None
    assert jpeg_damage(halved(data)) == TOO_SHORT


def test_scans_are_counted_without_thumbnails_and_data_after_the_end() -> None:
    data, false = encoded(progressive=True), b"\xff\xda\xff\xd9"
    comment = b"\xff\xfe\0\x06" + false
    last = data.rindex(b"\xff\xda")
    assert scan_count(data) == data.count(b"\xff\xda") == 10
    assert scan_count(data[:2] + comment + data[2:last] + comment + data[last:] + false) == 10
    assert scan_count(data[:last] + b"\xff\x01" + data[last:]) == 10  # a marker without a length


def test_reasons() -> None:
    data, progressive = encoded(), encoded(progressive=True)
    start, end = first_scan(data), len(data) - len(END)
    assert jpeg_damage(halved(data)) == TOO_SHORT
    assert jpeg_damage(data[:end] + data[start : start + 200] + END) == TOO_LONG
    assert jpeg_damage(progressive[: progressive.rindex(b"\xff\xda")] + END) == INCOMPLETE
    restarts = encoded(restart_marker_rows=1)
    first, second = restarts.index(b"\xff\xd0"), restarts.index(b"\xff\xd1")
    assert jpeg_damage(restarts[:first] + restarts[second:]) == RESTARTS
    assert jpeg_damage(restarts[: first + 10] + restarts[first + 60 :]) == TOO_SHORT
    assert jpeg_damage(restarts[:first] + restarts[second - 99 : second] + restarts[first:]) == TOO_LONG


@pytest.mark.parametrize(("kind", "share"), [("baseline", 0.5), ("restarts", 0.9), ("progressive with restarts", 0.9)])
def test_most_files_with_random_bytes_in_the_middle_are_detected(kind: str, share: float) -> None:
    detected = []
    for seed in range(50):
        data = encoded(seed=seed, **KINDS[kind])
        middle = (first_scan(data) + len(data)) // 2
        noise = np.random.default_rng(seed).integers(0, 255, 200, dtype=np.uint8).tobytes()
        detected.append(jpeg_damage(data[:middle] + noise + data[middle + 200 :]) is not None)
    assert np.mean(detected) >= share


def test_data_after_the_end_and_thumbnails_are_ignored() -> None:
    data, thumbnail = encoded(), encoded(size=(40, 30))
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    assert jpeg_damage(data[:2] + segment + data[2:]) is None
    assert jpeg_damage(data + thumbnail + b"a film \xff\xda of two seconds") is None
    assert jpeg_damage(data[:-2] + bytes(100) + END) is None  # zeros before the end marker are harmless
    assert jpeg_damage(data[:-2] + b"\xff" + END) is None  # so are fill bytes


def test_damage_is_part_of_the_fingerprint_and_cached(tmp_path: Path) -> None:
    paths = [tmp_path / "good.jpg", tmp_path / "bad.jpg", tmp_path / "a.png"]
    paths[0].write_bytes(encoded())
    paths[1].write_bytes(halved(encoded()))
    read_image(paths[0]).save(paths[2])
    cache = ResultCache(tmp_path / "cache.sqlite")
    expected = [None, TOO_SHORT, None]
    assert [fingerprint(path).damage for path in paths] == expected
    for _ in range(2):
        assert [found.damage for found in fingerprints(paths, cache=cache)] == expected
