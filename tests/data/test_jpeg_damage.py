import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from probmcl.audit.duplicates.hashing import ResultCache, SearchSettings, fingerprints, image_fingerprint
from probmcl.data.images import read_image
from probmcl.data.jpeg_damage import jpeg_damage, scan_count

END, SCAN = b"\xff\xd9", b"\xff\xda"
TOO_SHORT = "Corrupt JPEG data: premature end of data segment"
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
    start = data.index(SCAN) + 2
    return start + int.from_bytes(data[start : start + 2], "big")


def middle_of_first_scan(data: bytes) -> int:
    start = first_scan(data)
    end = re.compile(rb"\xff[^\0\xff\xd0-\xd7]").search(data, start)
    assert end is not None
    return (start + end.start()) // 2


def halved(data: bytes) -> bytes:
    return data[: middle_of_first_scan(data)] + END


def shortened(data: bytes) -> bytes:
    middle = middle_of_first_scan(data)
    return data[: middle - 150] + data[middle + 50 :]


def segment(code: int, content: bytes) -> bytes:
    return bytes([0xFF, code]) + (len(content) + 2).to_bytes(2, "big") + content


def after_start(data: bytes, *segments: bytes) -> bytes:
    return data[:2] + b"".join(segments) + data[2:]


def before_scan(data: bytes, added: bytes) -> bytes:
    scan = data.index(SCAN)
    return data[:scan] + added + data[scan:]


def before_end(data: bytes, added: bytes) -> bytes:
    return data[:-2] + added + END


def without_jfif(data: bytes) -> bytes:
    assert data[2:4] == b"\xff\xe0"
    return data[:2] + data[20:]


def sampled(data: bytes, factors: int) -> bytes:
    """Return a gray JPEG with other sampling factors, which do not matter if there is one component."""
    at = data.index(b"\xff\xc0") + 11
    return data[:at] + bytes([factors]) + data[at + 1 :]


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
    assert jpeg_damage(halved(data)) == TOO_SHORT
    assert jpeg_damage(shortened(data)) is not None


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


def test_the_damage_is_the_first_warning_of_the_decoder() -> None:
    data, restarts = encoded(), encoded(restart_marker_rows=1)
    start = first_scan(data)
    assert jpeg_damage(halved(data)) == TOO_SHORT
    too_long = jpeg_damage(before_end(data, data[start : start + 200]))
    assert re.fullmatch("Corrupt JPEG data: 19[0-9] extraneous bytes before marker 0xd9", str(too_long))
    first, second = restarts.index(b"\xff\xd0"), restarts.index(b"\xff\xd1")
    out_of_order = jpeg_damage(restarts[:first] + restarts[second:])
    assert out_of_order == "Corrupt JPEG data: found marker 0xd1 instead of RST0"


def test_a_progressive_file_without_its_first_scan_is_damaged() -> None:
    data = encoded(progressive=True)
    first, second = data.index(SCAN), data.index(SCAN, first_scan(data))
    tables = data.rindex(b"\xff\xc4", first, second)
    damage = jpeg_damage(data[:first] + data[tables:])
    assert damage is not None
    assert damage.startswith("Inconsistent progression sequence")


def test_a_progressive_file_that_ends_after_a_scan_is_not_detected() -> None:
    """The decoder takes it for a complete image of a lower quality."""
    data = encoded(progressive=True)
    assert jpeg_damage(data[: data.rindex(SCAN)] + END) is None


@pytest.mark.parametrize(("kind", "share"), [("baseline", 0.5), ("restarts", 0.9), ("progressive", 0.5)])
def test_most_files_with_random_bytes_in_the_middle_are_detected(kind: str, share: float) -> None:
    detected = []
    for seed in range(50):
        data = encoded(seed=seed, **KINDS[kind])
        middle = (first_scan(data) + len(data)) // 2
        noise = np.random.default_rng(seed).integers(0, 255, 200, dtype=np.uint8).tobytes()
        detected.append(jpeg_damage(data[:middle] + noise + data[middle + 200 :]) is not None)
    assert np.mean(detected) >= share


THUMBNAIL = encoded(size=(40, 30))
FILM = b"\0\0\0\x18ftypmp42" + bytes(500) + b"\xff\xda\xff\xd0 two seconds"
PLAIN, GRAY, RESTARTS = encoded(), encoded("L"), encoded(restart_marker_rows=1)
PROGRESSIVE = encoded(progressive=True)
ODD_FILES = {
    "bytes after the end": PLAIN + b"written by a camera" * 100,
    "zeros after the end": PLAIN + bytes(4096),
    "a second end marker": PLAIN + END,
    "a second image, as of two lenses": PLAIN + THUMBNAIL,
    "a second image after zeros": PLAIN + bytes(300) + THUMBNAIL,
    "a damaged second image": PLAIN + halved(THUMBNAIL),
    "a film after the end, as of telephones": PLAIN + FILM,
    "an index of several images": after_start(PLAIN, segment(0xE2, b"MPF\0II*\0")),
    "a thumbnail": after_start(PLAIN, segment(0xE1, b"Exif\0\0" + THUMBNAIL)),
    "a thumbnail after the frame": before_scan(PLAIN, segment(0xEB, THUMBNAIL)),
    "metadata that are not": after_start(PLAIN, segment(0xE1, b"Exif\0\0 lost")),
    "metadata before JFIF": after_start(without_jfif(PLAIN), segment(0xE1, b"Exif"), PLAIN[2:20]),
    "no JFIF": without_jfif(PLAIN),
    "an unknown version of JFIF": PLAIN.replace(b"JFIF\0\x01", b"JFIF\0\x02"),
    "an unknown transform of colors": after_start(without_jfif(PLAIN), segment(0xEE, b"Adobe\0\x64\0\0\0\0\x05")),
    "CMYK without a transform of colors": encoded("CMYK").replace(b"Adobe", b"adobe"),
    "a damaged color profile": after_start(PLAIN, segment(0xE2, b"ICC_PROFILE\0\x05\x02 lost")),
    "an empty comment": after_start(PLAIN, segment(0xFE, b"")),
    "comments of odd lengths": after_start(PLAIN, *(segment(0xFE, b"\xff" * size) for size in (1, 3, 65_533))),
    "a comment before the scan": before_scan(PLAIN, segment(0xFE, SCAN + END)),
    "a comment after the scan": before_end(PLAIN, segment(0xFE, SCAN + END)),
    "private segments": after_start(PLAIN, *(segment(code, b"\0\xff\xd9") for code in range(0xE3, 0xEE))),
    "fill bytes before the scan": before_scan(PLAIN, b"\xff" * 7),
    "fill bytes before restart markers": RESTARTS.replace(b"\xff\xd1", b"\xff\xff\xff\xd1"),
    "fill bytes before the end": before_end(PLAIN, b"\xff" * 5),
    "a zero before the end": before_end(PLAIN, bytes(1)),
    "zeros before the end": before_end(PLAIN, bytes(1000)),
    "zeros and fill bytes before the end": before_end(PLAIN, bytes(1000) + b"\xff\xff"),
    "zeros before the end, progressive": before_end(PROGRESSIVE, bytes(1000)),
    "zeros before the end, and a film": before_end(PLAIN, bytes(1000)) + FILM,
    "a restart interval of 0": before_scan(PLAIN, segment(0xDD, bytes(2))),
    "an extended frame": PLAIN.replace(b"\xff\xc0", b"\xff\xc1"),
    "wrong parameters of the scan": PLAIN.replace(b"\x03\x11\0\x3f\0", b"\x03\x11\0\0\0"),
    "gray with sampling factors": sampled(GRAY, 0x22),
    "gray with unusual sampling factors": sampled(GRAY, 0x14),
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("name", ODD_FILES)
def test_odd_files_of_cameras_and_editors_are_not_damaged(tmp_path: Path, name: str) -> None:
    data, path = ODD_FILES[name], tmp_path / "a.jpg"
    assert data not in (PLAIN, GRAY, RESTARTS, PROGRESSIVE)
    path.write_bytes(data)
    assert read_image(path).size == (200, 150)
    assert jpeg_damage(data) is None


@pytest.mark.parametrize("name", ["a film after the end, as of telephones", "an empty comment", "a thumbnail"])
def test_damage_of_odd_files_is_detected(name: str) -> None:
    data = ODD_FILES[name]
    start = data.index(PLAIN[first_scan(PLAIN) :]) + 1000
    assert jpeg_damage(data[:start] + data[start + 300 :]) is not None


def test_other_bytes_than_zeros_before_the_end_are_damage() -> None:
    assert jpeg_damage(before_end(PLAIN, bytes(50) + b"\x01" + bytes(50))) is not None


def test_missing_end_marker_is_an_error_and_not_damage(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(PLAIN[:-2])
    assert image_fingerprint(tmp_path / "a.jpg").reason == "image file is truncated (no end marker)"


def test_damage_is_part_of_the_fingerprint_and_cached(tmp_path: Path) -> None:
    paths = [tmp_path / "good.jpg", tmp_path / "bad.jpg", tmp_path / "a.png"]
    paths[0].write_bytes(encoded())
    paths[1].write_bytes(halved(encoded()))
    read_image(paths[0]).save(paths[2])
    cache = ResultCache(tmp_path / "cache.sqlite")
    expected = [None, TOO_SHORT, None]
    assert [image_fingerprint(path).damage for path in paths] == expected
    for _ in range(2):
        assert [found.damage for found in fingerprints(paths, SearchSettings(cache=cache))] == expected
