import os
import pickle
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image, ImageFile, ImageOps

from probmcl.data.images import MAX_JPEG_BYTES, MAX_SCANS, Interpolation, Preprocessing, read_image, stored_image
from probmcl.errors import ImageError

PLAIN = Preprocessing(size=8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))

# Where the stored first row and first column are in the upright image, by EXIF orientation (tag 274).
FIRST_ROW_AND_COLUMN = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def smooth(width: int, height: int) -> Image.Image:
    coarse = np.random.default_rng(5).integers(0, 256, size=(6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def pixels(image: Image.Image) -> UInt8[ndarray, "H W 3"]:
    return np.asarray(image)


def png(width: int, height: int, bits: int, color_type: int, scanlines: bytes) -> bytes:
    """Return the bytes of a PNG in a format that Pillow reads but does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(scanlines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def stored(upright: UInt8[ndarray, "H W 3"], first_row: str, first_column: str) -> UInt8[ndarray, "h w 3"]:
    sides = {"top": upright, "bottom": upright[::-1]}
    transposed = upright.transpose(1, 0, 2)
    sides |= {"left": transposed, "right": transposed[::-1]}
    rows = sides[first_row]
    return rows[:, ::-1] if first_column in ("right", "bottom") else rows


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif"])
@pytest.mark.parametrize("orientation", FIRST_ROW_AND_COLUMN)
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, name: str) -> None:
    colors = np.random.default_rng(1).integers(0, 256, size=(3, 5, 3), dtype=np.uint8)
    upright = colors.repeat(16, axis=0).repeat(16, axis=1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = Image.fromarray(np.ascontiguousarray(stored(upright, *FIRST_ROW_AND_COLUMN[orientation])))
    file.save(tmp_path / name, exif=exif, quality=100, subsampling=0)  # the last two arguments are only for JPEG
    read = read_image(tmp_path / name)
    assert read.size == (80, 48)
    assert np.abs(pixels(read).astype(int) - upright).max() <= (6 if name == "a.jpg" else 0)
    assert ImageOps.exif_transpose(read).size == read.size  # not rotated a second time
    assert np.array_equal(pixels(ImageOps.exif_transpose(read)), pixels(read))


def test_invalid_exif_orientation_is_ignored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 9
    smooth(20, 10).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(pixels(read_image(tmp_path / "a.png")), pixels(smooth(20, 10)))


@pytest.mark.parametrize("mode", ["L", "1"])
def test_gray_image_has_three_equal_channels(tmp_path: Path, mode: str) -> None:
    gray = smooth(20, 10).convert(mode)
    gray.save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png")
    assert read.mode == "RGB"
    for channel in range(3):
        assert np.array_equal(pixels(read)[..., channel], np.asarray(gray.convert("L")))


def test_cmyk_jpeg_keeps_its_colors(tmp_path: Path) -> None:
    colors = Image.new("RGB", (64, 32), (200, 40, 90))
    colors.paste((10, 220, 130), (32, 0, 64, 32))
    colors.convert("CMYK").save(tmp_path / "a.jpg", quality=100)
    with Image.open(tmp_path / "a.jpg") as file:
        assert file.mode == "CMYK"
    read = read_image(tmp_path / "a.jpg")
    assert read.mode == "RGB"
    assert np.abs(pixels(read).astype(int) - pixels(colors).astype(int)).max() <= 4


def test_transparent_palette_colors_become_white(tmp_path: Path) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2])
    image.save(tmp_path / "a.png", transparency=bytes([0, 255, 51]))
    expected = [[255, 255, 255], [40, 50, 60], [218, 220, 222]]  # 51 is a fifth of 255
    assert np.abs(pixels(read_image(tmp_path / "a.png"))[0].astype(int) - expected).max() <= 1


@pytest.mark.parametrize(("mode", "color"), [("LA", (90,)), ("RGBA", (90, 20, 250))])
def test_alpha_channel_is_blended_with_white(tmp_path: Path, mode: str, color: tuple[int, ...]) -> None:
    image = Image.new(mode, (256, 1))
    image.putdata([(*color, alpha) for alpha in range(256)])
    image.save(tmp_path / "a.png")
    share = np.arange(256)[:, None] / 255
    expected = share * np.broadcast_to(color, (256, 3)) + (1 - share) * 255
    assert np.abs(pixels(read_image(tmp_path / "a.png"))[0] - expected).max() <= 1


def test_transparent_color_becomes_white(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    image.putpixel((1, 0), (7, 8, 9))
    image.save(tmp_path / "a.png", transparency=(1, 2, 3))
    assert pixels(read_image(tmp_path / "a.png"))[0].tolist() == [[255, 255, 255], [7, 8, 9]]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "big.tif", "a.pgm"])
def test_16_bit_gray_keeps_the_high_byte(tmp_path: Path, name: str) -> None:
    intensity = np.array([[0, 255, 256, 0x1234, 0x8000, 0xFFFF]], dtype=np.uint16)
    if name == "a.pgm":
        (tmp_path / name).write_bytes(b"P5 6 1 65535\n" + intensity.astype(">u2").tobytes())
    elif name == "big.tif":
        Image.frombytes("I;16B", (6, 1), intensity.astype(">u2").tobytes()).save(tmp_path / name)
    else:
        Image.fromarray(intensity).save(tmp_path / name)
    assert pixels(read_image(tmp_path / name))[0, :, 0].tolist() == [0, 0, 1, 0x12, 0x80, 0xFF]


def test_16_bit_colors_are_scaled_like_16_bit_gray(tmp_path: Path) -> None:
    (tmp_path / "gray.png").write_bytes(png(1, 1, 16, 0, b"\0" + struct.pack(">H", 0xABCD)))
    (tmp_path / "color.png").write_bytes(png(1, 1, 16, 2, b"\0" + struct.pack(">HHH", 0xABCD, 0xABCD, 0xABCD)))
    assert pixels(read_image(tmp_path / "gray.png")).tolist() == [[[0xAB, 0xAB, 0xAB]]]
    assert pixels(read_image(tmp_path / "color.png")).tolist() == [[[0xAB, 0xAB, 0xAB]]]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_without_a_fixed_range_are_an_error(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (2, 2), 70_000).save(tmp_path / "a.tif")
    with pytest.raises(ImageError, match=r"set the option range in training, as in LOW,HIGH"):
        read_image(tmp_path / "a.tif")


def empty(path: Path) -> None:
    path.touch()


def text(path: Path) -> None:
    path.write_text("this is no photograph")


def folder(path: Path) -> None:
    path.mkdir()


def nothing(path: Path) -> None:
    assert not path.exists()


def start_only(path: Path) -> None:
    path.write_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF")


def without_frame(path: Path) -> None:
    path.write_bytes(b"\xff\xd8\xff\xd9")


def large(path: Path) -> None:
    start_only(path)
    os.truncate(path, MAX_JPEG_BYTES + 1)


def many_scans(path: Path) -> None:
    smooth(8, 8).save(path, "JPEG", progressive=True)
    data = path.read_bytes()
    path.write_bytes(data[:-2] + data[data.rindex(b"\xff\xda") : -2] * MAX_SCANS + data[-2:])


def header_only(path: Path) -> None:
    smooth(300, 200).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:700])


def cut(path: Path) -> None:
    smooth(300, 200).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:-500])


def cut_progressive(path: Path) -> None:
    smooth(300, 200).save(path, "JPEG", progressive=True)
    path.write_bytes(path.read_bytes()[:-500])


def zero_filled(path: Path) -> None:
    noise = np.random.default_rng(4).integers(0, 256, size=(200, 300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "JPEG")  # Pillow decodes the zeros as a gray area without an error
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def cut_png(path: Path) -> None:
    smooth(300, 200).save(path, "PNG")
    path.write_bytes(path.read_bytes()[:-500])


def corrupted_png(path: Path) -> None:
    smooth(300, 200).save(path, "PNG")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


BAD: dict[Callable[[Path], None], str] = {
    empty: "empty",
    text: "not an image",
    folder: "folder",
    nothing: "does not exist",
    start_only: "image file is truncated",
    without_frame: "not an image",
    large: "1,000,000,001 bytes",
    many_scans: f"{MAX_SCANS + 10} scans",
    header_only: "truncated",
    cut: "truncated",
    cut_progressive: "truncated",
    zero_filled: "truncated",
    cut_png: "truncated",
    corrupted_png: "",
}


@pytest.mark.parametrize("size", [None, 32])
@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_unreadable_file_raises_an_image_error_with_the_reason(
    tmp_path: Path, make: Callable[[Path], None], size: int | None
) -> None:
    path = tmp_path / "bad.jpg"
    make(path)
    with pytest.raises(ImageError) as caught:
        read_image(path, size)
    assert caught.value.path == path
    assert BAD[make] in caught.value.reason
    assert str(caught.value) == f"{path}: {caught.value.reason}"
    assert caught.value.reason


def test_bytes_after_the_end_of_a_jpeg_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "motion.jpg"
    smooth(300, 200).save(path)
    expected = pixels(read_image(path))
    path.write_bytes(path.read_bytes() + b"a film \xff\xda of two seconds" * 50)
    assert np.array_equal(pixels(read_image(path)), expected)


def test_scans_outside_of_the_image_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    smooth(300, 200).save(path, progressive=True, comment=b"\xff\xda" * MAX_SCANS)
    path.write_bytes(path.read_bytes() + b"\xff\xda" * MAX_SCANS)
    assert read_image(path).size == (300, 200)


def test_stored_image_does_not_decode_a_png_again(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    smooth(300, 200).save(path)
    decoded = read_image(path)
    path.write_bytes(path.read_bytes()[:1000])
    assert stored_image(path, decoded) == ((300, 200), "RGB", None)


def test_load_truncated_images_must_be_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(tmp_path / "a.jpg")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(RuntimeError, match="LOAD_TRUNCATED_IMAGES"):
        read_image(tmp_path / "a.jpg")


def test_image_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ImageError(Path("photos/7.jpg"), "the file is empty")))
    assert isinstance(error, ImageError)
    assert (error.path, error.reason) == (Path("photos/7.jpg"), "the file is empty")


def test_file_is_closed_after_reading(tmp_path: Path) -> None:
    smooth(30, 20).save(tmp_path / "a.png")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read = read_image(tmp_path / "a.png")
        (tmp_path / "a.png").unlink()
        assert read.getpixel((29, 19)) is not None
        del read
    assert not [warning for warning in caught if issubclass(warning.category, ResourceWarning)]


def test_jpeg_decoded_at_a_reduced_size_is_nearly_the_same(tmp_path: Path) -> None:
    smooth(640, 480).save(tmp_path / "a.jpg", quality=95)
    full, reduced = read_image(tmp_path / "a.jpg"), read_image(tmp_path / "a.jpg", size=100)
    assert full.size == (640, 480)
    assert reduced.size == (160, 120)
    at_100 = replace(PLAIN, size=100)
    assert (at_100(full) - at_100(reduced)).abs().mean() < 1 / 255
    assert (at_100(full) - at_100(reduced)).abs().max() < 6 / 255


@settings(max_examples=25)
@given(width=st.integers(1, 300), height=st.integers(1, 300), size=st.integers(1, 120), rotated=st.booleans())
def test_jpeg_is_not_decoded_below_the_requested_size(
    tmp_path_factory: pytest.TempPathFactory, width: int, height: int, size: int, rotated: bool
) -> None:
    path = tmp_path_factory.mktemp("draft") / "a.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6 if rotated else 1
    Image.new("RGB", (width, height)).save(path, exif=exif)
    sides = np.array(read_image(path, size).size)
    original = np.array((height, width) if rotated else (width, height))
    assert (sides >= np.minimum(original, size)).all()
    assert any(np.array_equal(sides, -(-original // scale)) for scale in (1, 2, 4, 8))


def triangle(x: float) -> float:
    return max(0.0, 1 - abs(x))


def cubic(x: float) -> float:
    x = abs(x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def downsampled(values: Float[ndarray, "long"], size: int, kernel: Callable[[float], float]) -> Float[ndarray, "short"]:
    """Downsample with antialiasing: the kernel is widened by the scale."""
    scale = len(values) / size
    result = np.zeros(size)
    for i in range(size):
        weights = np.array([kernel((j + 0.5 - (i + 0.5) * scale) / max(scale, 1)) for j in range(len(values))])
        result[i] = (weights * values).sum() / weights.sum()
    return result


@pytest.mark.parametrize(("interpolation", "kernel"), [("bilinear", triangle), ("bicubic", cubic)])
def test_preprocessing_resizes_with_antialiasing_and_normalizes(
    interpolation: Interpolation, kernel: Callable[[float], float]
) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    image = Image.fromarray(np.random.default_rng(2).integers(60, 190, size=(17, 29, 3), dtype=np.uint8))
    result = Preprocessing(8, mean, std, interpolation)(image)
    resized = np.apply_along_axis(downsampled, 0, pixels(image).astype(float), 8, kernel)
    resized = np.apply_along_axis(downsampled, 1, resized, 8, kernel)
    expected = ((resized / 255 - mean) / std).transpose(2, 0, 1)
    assert result.shape == (3, 8, 8)
    assert result.dtype == torch.float32
    assert np.abs(result.numpy() - expected).max() < 1.5 / 255 / min(std)  # Pillow rounds to whole levels


@settings(max_examples=60)
@given(
    sides=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    size=st.integers(1, 90),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    seed=st.integers(0, 99),
)
def test_squash_agrees_with_pillow_up_to_one_level(
    sides: tuple[int, int], size: int, interpolation: Interpolation, seed: int
) -> None:
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, size=(*sides, 3), dtype=np.uint8))
    resized = replace(PLAIN, size=size, interpolation=interpolation).squash(image).permute(1, 2, 0).numpy()
    expected = pixels(image.resize((size, size), Image.Resampling[interpolation.upper()]))
    assert np.abs(resized.astype(int) - expected).max() <= 1


def test_preprocessing_requires_rgb() -> None:
    with pytest.raises(ValueError, match=r"got L; .*image\.convert"):
        PLAIN(Image.new("L", (30, 20)))


def test_image_of_the_right_size_is_only_normalized() -> None:
    intensity = np.random.default_rng(3).integers(0, 256, size=(8, 8, 3), dtype=np.uint8)
    image, preprocessing = Image.fromarray(intensity), Preprocessing(8, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    expected = ((intensity / 255 - (0.5, 0.4, 0.3)) / (0.2, 0.3, 0.4)).transpose(2, 0, 1)
    assert np.allclose(preprocessing(image), expected, atol=1e-6)
    assert torch.equal(preprocessing(image), preprocessing.tensor(image))
    assert preprocessing(image).is_contiguous()


def test_black_is_exactly_0_and_white_exactly_1() -> None:
    assert torch.equal(PLAIN(Image.new("RGB", (8, 8), "black")), torch.zeros(3, 8, 8))
    assert torch.equal(PLAIN(Image.new("RGB", (8, 8), "white")), torch.ones(3, 8, 8))


def test_tensor_does_not_share_memory_with_the_image() -> None:
    image = Image.new("RGB", (8, 8), "white")
    PLAIN(image).zero_()
    assert image.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(("mode", "size"), [("L", (8, 8)), ("RGBA", (8, 8)), ("RGB", (8, 9))])
def test_tensor_rejects_another_mode_or_size(mode: str, size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"8 × 8 pixels, got {mode} with {size[0]} × {size[1]}"):
        PLAIN.tensor(Image.new(mode, size))


@pytest.mark.parametrize(
    ("setting", "value"), [("size", 0), ("std", (1.0, 0.0, 1.0)), ("interpolation", "nearest")], ids=str
)
def test_invalid_settings_are_an_error(setting: str, value: object) -> None:
    known = {"size": 8, "mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bilinear"}
    with pytest.raises(ValueError, match=setting):
        msgspec.convert(known | {setting: value}, Preprocessing)
    msgspec.convert(known, Preprocessing)


def test_preprocessing_round_trips_through_json() -> None:
    preprocessing = Preprocessing(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bicubic")
    assert msgspec.json.decode(msgspec.json.encode(preprocessing), type=Preprocessing) == preprocessing


def test_reading_data_does_not_import_torch_or_scikit_learn() -> None:
    code = "import sys, probmcl.data; sys.exit(bool({'torch', 'torchvision', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
