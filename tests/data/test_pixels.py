import dataclasses
import json
import math
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from PIL import Image

from probmcl.data.deep_images import find_intensity_range
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.loader import ImageBatches, decode
from probmcl.data.pixels import IntensityRange, Range, parse_range
from probmcl.data.records import Records
from probmcl.errors import DataError, ImageError, OptionError, keyword

FINITE = st.floats(-1e6, 1e6)
VALUES = FINITE | st.sampled_from([math.inf, -math.inf])


def gray(path: Path, intensity: IntensityRange | None = None) -> list[int]:
    """Return the first row of an image whose three channels are equal."""
    pixels = np.asarray(read_image(path, intensity=intensity))
    assert (pixels == pixels[..., :1]).all()
    first: list[int] = pixels[0, :, 0].tolist()
    return first


def save(path: Path, values: ArrayLike, dtype: str) -> Path:
    """Save an image, for example a single row of 16-bit, 32-bit or float pixels."""
    Image.fromarray(np.atleast_2d(np.array(values, dtype=dtype))).save(path)
    return path


@given(
    values=st.lists(FINITE | st.sampled_from([math.inf, -math.inf]), min_size=1), low=FINITE, width=st.floats(1, 1e6)
)
def test_gray_matches_the_formula(values: list[float], low: float, width: float) -> None:
    levels = IntensityRange(low, low + width).gray(np.array(values))
    for value, level in zip(values, levels.tolist(), strict=True):
        exact = 255 * min(max((value - low) / (low + width - low), 0.0), 1.0)
        assert abs(level - exact) <= 0.5 + 1e-6


def test_nan_becomes_black_and_infinity_is_clipped(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", [math.nan, -math.inf, math.inf, 0.5], "float32")
    assert gray(path, IntensityRange(-1.0, 2.0)) == [0, 0, 255, 128]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "big.tif", "a.pgm"])
def test_range_is_applied_to_16_bit_gray(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 100, 300, 500, 65535]], dtype=np.uint16)
    if name == "a.pgm":
        (tmp_path / name).write_bytes(b"P5 5 1 65535\n" + values.astype(">u2").tobytes())
    elif name == "big.tif":
        Image.frombytes("I;16B", (5, 1), values.astype(">u2").tobytes()).save(tmp_path / name)
    else:
        Image.fromarray(values).save(tmp_path / name)
    assert gray(tmp_path / name, IntensityRange(100.0, 500.0)) == [0, 0, 128, 255, 255]
    assert gray(tmp_path / name) == [0, 0, 1, 1, 255]


def test_range_is_applied_to_32_bit_integers_exactly(tmp_path: Path) -> None:
    base = 2**30
    path = save(tmp_path / "a.tif", [base, base + 1, base + 5, -7], "int32")
    assert gray(path, IntensityRange(float(base), float(base + 5))) == [0, 51, 255, 0]
    with pytest.raises(ImageError, match=r"from -7 to 1073741829, .* option range in training"):
        read_image(path)


def test_range_is_not_applied_to_8_bit_images_or_16_bit_colors(tmp_path: Path) -> None:
    save(tmp_path / "gray.png", [0, 90, 255], "uint8")
    assert gray(tmp_path / "gray.png", IntensityRange(80.0, 100.0)) == [0, 90, 255]
    (tmp_path / "color.ppm").write_bytes(b"P6 1 1 65535\n" + struct.pack(">HHH", 0x0101, 0x8080, 0xFFFF))
    read = read_image(tmp_path / "color.ppm", intensity=IntensityRange(0.0, 10.0))
    assert read.getpixel((0, 0)) == (1, 128, 255)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.inf)])
def test_invalid_range_is_an_error(low: float, high: float) -> None:
    with pytest.raises(ValueError, match=f"low={low:g} .* high={high:g}"):
        IntensityRange(low, high)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("auto", "auto"),
        ("full", "full"),
        ("0,4095", IntensityRange(0.0, 4095.0)),
        (" -1.5 , 2e3", IntensityRange(-1.5, 2000.0)),
    ],
)
def test_parse_range(text: str, rule: Range) -> None:
    assert parse_range(text) == rule


@pytest.mark.parametrize("text", ["", "Auto", "4095", "1,2,3", "5,5", "9,1", "nan,1", "0,inf", "a,b", "0;1"])
def test_parse_range_rejects_invalid_values(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_range(text)
    assert str(caught.value).startswith(f"{keyword('range', text)} must be auto, full or LOW,HIGH")


def test_auto_uses_percentiles_of_all_deep_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    both = [rng.integers(1000, 2000, (40, 50)), rng.integers(2000, 3000, (40, 50))]
    both[0][0, :5], both[1][0, :5] = 0, 65535  # dead and hot pixels
    paths = [tmp_path / "0.png", tmp_path / "1.png", save(tmp_path / "8bit.png", [255], "uint8")]
    for path, values in zip(paths, both, strict=False):
        Image.fromarray(values.astype(np.uint16)).save(path)
    intensity = find_intensity_range(paths, "auto")
    assert intensity is not None
    everything = np.concatenate([values.ravel() for values in both])
    assert intensity.low == np.sort(everything)[int(0.005 * (len(everything) - 1))]
    assert intensity.high == np.sort(everything)[math.ceil(0.995 * (len(everything) - 1))]
    assert f"gray levels {intensity.low:,.0f} to {intensity.high:,.0f} " in str(intensity)
    assert str(intensity).endswith("(0.5 and 99.5 percentiles of 2 images)")


def test_number_of_pixels_per_image_is_limited(tmp_path: Path) -> None:
    large = np.full((400, 400), 9.0, dtype=np.float32)  # 16 times the number of sampled pixels
    small = np.full((100, 100), 4.0, dtype=np.float32)
    small[:2] = 3.0
    paths = [save(tmp_path / "a.tif", large, "float32"), save(tmp_path / "b.tif", small, "float32")]
    assert find_intensity_range([*paths, *(paths[1:] * 210)], "auto", sample=500) == IntensityRange(3.0, 4.0)
    assert find_intensity_range([*paths, *(paths[1:] * 150)], "auto", sample=500) == IntensityRange(3.0, 9.0)


def test_nan_and_unreadable_files_are_ignored(tmp_path: Path) -> None:
    empty = save(tmp_path / "nan.tif", [math.nan, math.inf], "float32")
    good = save(tmp_path / "good.tif", [math.nan, -3.0, 5.0, math.inf], "float32")
    (tmp_path / "broken.tif").write_bytes(good.read_bytes()[:20])
    intensity = find_intensity_range([empty, tmp_path / "broken.tif", tmp_path / "nowhere.tif", good], "auto")
    assert intensity == IntensityRange(-3.0, 5.0)
    assert intensity.source == "0.5 and 99.5 percentiles of 1 image"


def test_sample_depends_on_the_seed_but_not_on_workers(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{number}.tif", [number, number + 0.5], "float32") for number in range(30)]
    ranges = {seed: find_intensity_range(paths, "auto", seed=seed, sample=3) for seed in range(8)}
    assert len({(intensity.low, intensity.high) for intensity in ranges.values() if intensity is not None}) > 1
    assert find_intensity_range(paths, "auto", seed=5, sample=3) == ranges[5]
    assert find_intensity_range(paths, "auto", seed=5, sample=3, workers=2) == ranges[5]


def test_range_is_none_without_deep_images(tmp_path: Path) -> None:
    paths = [save(tmp_path / "a.png", [0, 255], "uint8")]
    assert find_intensity_range(paths, "auto") is None
    assert find_intensity_range(paths, "full") is None
    assert find_intensity_range([], "auto") is None


def test_fixed_range_is_kept_and_notes_if_it_is_unused(tmp_path: Path) -> None:
    deep, flat = save(tmp_path / "a.tif", [7, 7], "uint16"), save(tmp_path / "a.png", [0, 255], "uint8")
    for paths, source in (
        ([flat, deep], "as given"),
        ([flat, Path("nowhere.tif")], "as given; not needed by any of the sampled images"),
        ([], "as given; not needed by any of the sampled images"),
    ):
        intensity = find_intensity_range(paths, IntensityRange(1.0, 2.0))
        assert intensity == IntensityRange(1.0, 2.0)
        assert intensity.source == source


@pytest.mark.parametrize("name", ["a.png", "a.TIF", "a.pgm", "scan"])
def test_deep_image_among_many_jpegs_is_sampled(tmp_path: Path, name: str) -> None:
    """There are more JPEGs than the sample size; the files do not exist."""
    Image.fromarray(np.array([[3, 9]], dtype=np.uint16)).save(
        tmp_path / name, format="PNG" if name == "a.png" else "TIFF"
    )
    jpegs = [tmp_path / f"{number}.{('jpg', 'JPEG', 'webp')[number % 3]}" for number in range(5_000)]
    for seed in range(5):
        assert find_intensity_range([*jpegs, tmp_path / name], "auto", seed=seed, sample=20) == IntensityRange(3.0, 9.0)


def test_deep_image_with_a_jpeg_suffix_has_low_priority(tmp_path: Path) -> None:
    Image.fromarray(np.array([[3, 9]], dtype=np.uint16)).save(tmp_path / "a.jpg", format="PNG")
    flat = save(tmp_path / "b.png", [0, 255], "uint8")
    assert find_intensity_range([tmp_path / "a.jpg", flat], "auto", sample=2) == IntensityRange(3.0, 9.0)
    assert find_intensity_range([tmp_path / "a.jpg", flat], "auto", sample=1) is None


def test_auto_rejects_constant_images(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", [7, 7], "uint16")
    with pytest.raises(DataError, match=rf'`range="auto"`: {path}: .* 7; .*`range="LOW,HIGH"`'):
        find_intensity_range([path], "auto")


def test_full_is_the_range_of_the_pixel_type(tmp_path: Path) -> None:
    assert find_intensity_range([save(tmp_path / "a.png", [3, 9], "uint16")], "full") == IntensityRange(0.0, 65535.0)
    assert find_intensity_range([save(tmp_path / "a.tif", [0.25, 1.0], "float32")], "full") == IntensityRange(0.0, 1.0)


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([0.5, 2.5], "float32", r'from 0\.5 to 2\.5, .*0 to 1 \(`range="full"`\)'),
        ([-4, 70_000], "int32", r'from -4 to 70,000, .*0 to 65,535 \(`range="full"`\)'),
    ],
)
def test_full_rejects_values_outside_the_range(tmp_path: Path, values: list[float], dtype: str, message: str) -> None:
    path = save(tmp_path / "a.tif", values, dtype)
    with pytest.raises(DataError, match=rf'{path}: .*{message}; .*`range="auto"`'):
        find_intensity_range([path], "full")


@pytest.mark.parametrize("rule", ["auto", "full"])
def test_mixed_kinds_are_an_error(tmp_path: Path, rule: Range) -> None:
    paths = [save(tmp_path / f"{number}.tif", [0.25, 0.75], "float32") for number in range(3)]
    paths += [save(tmp_path / f"{number}.png", [3, 9], "uint16") for number in range(3)]
    with pytest.raises(DataError) as caught:
        find_intensity_range(paths, rule)
    for part in (f'`range="{rule}"`', f"{paths[3]} is 16-bit", f"{paths[0]} is float", '`range="LOW,HIGH"`'):
        assert part in str(caught.value)
    assert find_intensity_range(paths, IntensityRange(0.0, 9.0)) == IntensityRange(0.0, 9.0)


def test_decode_and_loader_apply_the_range(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", np.full((8, 8), 3.0), "float32")
    plain = Preprocessing(4, (0.0,) * 3, (1.0,) * 3, intensity=IntensityRange(1.0, 6.0))
    (decoded,) = decode(path, plain, batch_size=1, workers=0)
    assert set((decoded.images * 255).round().flatten().tolist()) == {102}
    records = Records.from_labels(["cat"], [path], ["train"], np.ones((1, 1), dtype=np.float32))
    batches = ImageBatches(
        records, [[(0, 0)]], plain, n_augmented=1, make_view=lambda image, epoch, index, view: image.resize((4, 4))
    )
    (batch,) = batches
    assert batch.views.shape == (2, 1, 3, 4, 4)
    assert set((batch.views * 255).round().flatten().tolist()) == {102}


def test_range_is_optional_in_preprocessing_files() -> None:
    old = {"size": 8, "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0], "interpolation": "bilinear"}
    assert msgspec.json.decode(json.dumps(old), type=Preprocessing).intensity is None
    kept = Preprocessing(8, (0.0,) * 3, (1.0,) * 3, intensity=IntensityRange(0.0, 4095.0, "why"))
    again = msgspec.json.decode(json.dumps(dataclasses.asdict(kept)), type=Preprocessing)
    assert again == kept
    assert again.intensity is not None
    assert again.intensity.source == "why"
