import math
import pickle
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from helpers.scenes import scene
from probmcl.audit.duplicates.hashing import FLIP_MASK, Fingerprint, fingerprints, image_fingerprint
from probmcl.data.intensity import IntensityRange


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
    assert fingerprints([tmp_path / "deep.png"], intensity=IntensityRange(1000.0, 1200.0))[0].spread > 60
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
    assert fingerprints(paths, workers=workers, advance=steps.append) == expected
    assert steps == [8, 8, 3]
    assert pickle.loads(pickle.dumps(expected)) == expected
