"""A folder of broken and unusual files. Unusual ones are read correctly, broken ones are reported, none is changed.

Paths that leave the image folder by `../` are rejected by the table reader and tested there.
"""

import hashlib
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy import ndarray
from PIL import Image

from probmcl.audit.duplicates.hashing import SearchSettings, fingerprints
from probmcl.audit.findings import bad_images, without_bad
from probmcl.data import pixels
from probmcl.data.image_files import FORMATS, IMAGE_SUFFIXES
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.loader import decode
from probmcl.data.pixels import IntensityRange
from probmcl.data.records import Records
from probmcl.errors import DataError, ImageError

RED, BLUE, WHITE = (230, 20, 30), (20, 30, 220), (255, 255, 255)


class File(NamedTuple):
    """A file: its name, a function that writes it, and the expected color or a part of the expected error."""

    name: str
    make: Callable[[Path], object]
    outcome: tuple[int, int, int] | str


def plain(color: tuple[int, int, int] = RED, size: tuple[int, int] = (64, 48)) -> Image.Image:
    return Image.new("RGB", size, color)


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8))


def cut(kind: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        noise().save(path, kind)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])

    return make


def zero_filled(path: Path) -> None:
    noise().save(path, "JPEG")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))


def animated(kind: str) -> Callable[[Path], object]:
    return lambda path: plain(RED).save(path, kind, save_all=True, append_images=[plain(BLUE)] * 3, lossless=True)


def rotated(path: Path) -> None:
    """Save an image whose left half is red; after the EXIF rotation, it is the upper half."""
    image = plain(BLUE, (96, 48))
    image.paste(RED, (0, 0, 48, 48))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(path, exif=exif)


def png_with_declared_size(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def jpeg_with_declared_size(path: Path, width: int, height: int) -> None:
    plain().save(path, "JPEG", progressive=True)
    data = bytearray(path.read_bytes())
    start = data.index(b"\xff\xc2") + 5  # progressive start of frame: length, precision, height, width
    data[start : start + 4] = struct.pack(">HH", height, width)
    path.write_bytes(data)


def linked(path: Path) -> None:
    outside = path.parent.parent / "outside.png"
    plain(BLUE).save(outside)
    path.symlink_to(outside)


FILES = [
    File("empty.jpg", Path.touch, "the file is empty"),
    File("cut.jpg", cut("JPEG"), "truncated"),
    File("cut.png", cut("PNG"), "truncated"),
    File("cut.webp", cut("WEBP"), ""),
    File("cut.gif", cut("GIF"), "truncated"),
    File("cut.tif", cut("TIFF"), ""),
    File("zeros.jpg", zero_filled, "truncated"),
    File("text.jpg", lambda path: path.write_text("no picture"), "not an image"),
    File("start.jpg", lambda path: path.write_bytes(b"\xff\xd8\xff\xe0"), ""),
    File("page.jpg", lambda path: path.write_text("<html>404 not found</html>"), "not an image"),
    File("folder.jpg", Path.mkdir, "is a folder, not a file"),
    File("pipe.jpg", os.mkfifo, "is not a regular file"),
    File("lost.jpg", lambda path: path.symlink_to("nowhere"), "does not exist"),
    File("circle.jpg", lambda path: path.symlink_to(path.name), "symbolic links"),
    File("bomb.png", lambda path: path.write_bytes(png_with_declared_size(20_000, 20_000)), "decodes to more than"),
    File("large.png", lambda path: path.write_bytes(png_with_declared_size(12_000, 12_000)), "decodes to more than"),
    File("bomb.jpg", lambda path: jpeg_with_declared_size(path, 20_000, 20_000), "decodes to more than"),
    File("float.tif", lambda path: Image.new("F", (4, 4), 0.5).save(path), "set the option range in training"),
    File("png.jpg", lambda path: plain().save(path, "PNG"), RED),
    File("jpg.png", lambda path: plain().save(path, "JPEG"), RED),
    File("no suffix", lambda path: plain().save(path, "BMP"), RED),
    File("cmyk.jpg", lambda path: plain().convert("CMYK").save(path), RED),
    File("16bit.png", lambda path: Image.new("I;16", (8, 8), 0x8000).save(path), (128, 128, 128)),
    File("palette.png", lambda path: plain().convert("P", palette=Image.Palette.ADAPTIVE).save(path), RED),
    File("alpha.png", lambda path: Image.new("RGBA", (8, 8), (*BLUE, 0)).save(path), WHITE),
    File("animated.gif", animated("GIF"), RED),
    File("animated.webp", animated("WEBP"), RED),
    File("rotated.jpg", rotated, RED),
    File("two\nlines.png", lambda path: plain(BLUE).save(path), BLUE),
    File("not utf-8 \udce9.png", lambda path: plain(BLUE).save(path), BLUE),
    File("..png", lambda path: plain(BLUE).save(path, "PNG"), BLUE),
    File("linked.png", linked, BLUE),
]
BAD = [file for file in FILES if isinstance(file.outcome, str)]
GOOD = [file for file in FILES if not isinstance(file.outcome, str)]


def color(image: Image.Image) -> tuple[int, ...]:
    """Return the color at the center of the upper half, which depends on the rotation of rotated.jpg."""
    pixel = image.getpixel((image.width // 2, image.height // 4))
    assert isinstance(pixel, tuple)
    return pixel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files; the target of a symlink is next to the folder."""
    images = tmp_path_factory.mktemp("torture") / "images"
    images.mkdir()
    for file in FILES:
        file.make(images / file.name)
    return images


def state_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the modification time and a digest of every file, by name."""
    state = {}
    for path in sorted(folder.parent.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        state[str(path)] = (status.st_mtime_ns, hashlib.sha256(content).hexdigest())
    return state


def records(folder: Path) -> Records:
    paths = [folder / file.name for file in FILES]
    return Records.from_labels(["file"], paths, ["train"] * len(paths), np.ones((len(paths), 1), dtype=np.float32))


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("file", GOOD, ids=lambda file: ascii(file.name))
def test_unusual_files_are_read(folder: Path, file: File, size: int | None) -> None:
    read = read_image(folder / file.name, size)
    assert read.mode == "RGB"
    assert np.abs(np.subtract(color(read), file.outcome)).max() <= 4  # JPEG is lossy


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("file", BAD, ids=lambda file: file.name)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # pytest turns warnings into errors
def test_broken_files_are_an_error_with_the_reason(folder: Path, file: File, size: int | None) -> None:
    with pytest.raises(ImageError) as caught:
        read_image(folder / file.name, size)
    assert caught.value.path == folder / file.name
    assert caught.value.reason
    assert str(file.outcome) in caught.value.reason


def test_huge_image_is_an_error_if_warnings_are_errors(folder: Path) -> None:
    with pytest.raises(ImageError, match="decodes to more than"):
        read_image(folder / "large.png")


@pytest.mark.parametrize("name", ["bomb.png", "bomb.jpg"])
def test_decompression_bomb_is_rejected_before_allocating_memory(folder: Path, name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ImageError):
            read_image(folder / name)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_pixel_limit_applies_to_the_decoded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain(RED, (400, 300)).save(tmp_path / "a.jpg")
    plain(RED, (400, 300)).save(tmp_path / "a.png")
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", 80_000
    )  # the images have 120,000 pixels: more than the limit, less than twice the limit
    assert read_image(tmp_path / "a.jpg", 100).size == (200, 150)
    with pytest.raises(ImageError, match="more than 80,000 pixels"):
        read_image(tmp_path / "a.jpg")
    with pytest.raises(ImageError, match="more than 80,000 pixels"):
        read_image(tmp_path / "a.png", 100)  # a PNG cannot be decoded at a reduced size
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 39_000)
    with pytest.raises(ImageError, match="more than 117,000 pixels"):
        read_image(tmp_path / "a.jpg", 100)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read_image(tmp_path / "a.png").size == (400, 300)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_exactly_the_broken_files_are_bad_images(folder: Path, workers: int) -> None:
    before, everything = state_of(folder), records(folder)
    bad = bad_images(everything, fingerprints(everything.paths, SearchSettings(workers=workers)))
    assert [image.path.name for image in bad] == [file.name for file in BAD]
    kept = without_bad(everything, bad, share=0.6)
    assert [path.name for path in kept.paths] == [file.name for file in GOOD]
    with pytest.raises(DataError, match=f"{len(BAD)} of {len(FILES)} images .*`skip_bad=0.1`") as e:
        without_bad(everything, bad, share=0.1)
    assert "empty.jpg: the file is empty" in str(e.value)
    assert state_of(folder) == before


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_stream_continues_after_broken_files(folder: Path) -> None:
    plain_view = Preprocessing(16, (0.0,) * 3, (1.0,) * 3)
    sources = [folder / file.name for file in FILES if file.name != "folder.jpg"]  # a folder would be searched
    (batch,) = decode(sources, plain_view, batch_size=100, workers=0)
    assert len(batch.images) == len(GOOD)
    assert [error.path.name for error in batch.errors] == [file.name for file in BAD if file.name != "folder.jpg"]


def test_file_name_with_a_newline_is_escaped_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines \udce9.png"
    path.touch()
    with pytest.raises(ImageError) as caught:
        read_image(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).encode()  # can be printed
    assert "two\\nlines \\xe9.png: the file is empty" in str(caught.value)


def test_formats_correspond_to_the_suffixes() -> None:
    registered = Image.registered_extensions()
    formats = {registered.get(suffix) for suffix in IMAGE_SUFFIXES if suffix not in (".dcm", ".dicom")}
    assert formats == set(FORMATS)


@pytest.mark.parametrize("kind", ["EPS", "ICO", "PDF", "TGA", "PCX", "SGI", "DDS", "XBM"])
def test_other_formats_are_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jpg"
    (plain().convert("1") if kind == "XBM" else plain()).save(path, kind)
    with pytest.raises(ImageError, match="not an image in a supported format"):
        read_image(path)


@pytest.mark.parametrize(("kind", "share"), [("PNG", 1.0), ("WEBP", 12 / 18), ("AVIF", 12 / 14), ("JPEG2000", 12 / 26)])
def test_pixel_limit_depends_on_the_memory_of_the_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, share: float
) -> None:
    plain().save(tmp_path / "a", kind)
    pixels = 64 * 48
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(pixels / share) + 1)
    assert read_image(tmp_path / "a").size == (64, 48)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(pixels / share) - 1)
    with pytest.raises(ImageError, match=r"decodes to more than [0-9,]+ pixels; resize it"):
        read_image(tmp_path / "a")


@pytest.mark.parametrize(
    ("mode", "progressive", "times"), [("RGB", False, 3), ("L", True, 3), ("RGB", True, 2), ("CMYK", True, 1.5)]
)
def test_stored_size_of_a_jpeg_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, progressive: bool, times: float
) -> None:
    path, pixels = tmp_path / "a.jpg", 400 * 300
    plain(RED, (400, 300)).convert(mode).save(path, progressive=progressive)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(pixels / times) + 1)
    assert read_image(path, 30).size == (50, 38)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(pixels / times) - 1)
    with pytest.raises(ImageError, match="decodes to more than"):
        read_image(path, 30)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "I", "F"])
def test_conversion_in_strips_gives_the_same_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    path, exif = tmp_path / "a.tif", Image.Exif()
    exif[0x0112] = 6
    gray = np.asarray(noise().convert("L"))
    deep: dict[str, ndarray] = {
        "I;16": gray.astype(np.uint16) * 200,
        "I": gray.astype(np.int32) * 200,
        "F": gray.astype(np.float32),
    }
    image = Image.fromarray(deep[mode]) if mode in deep else noise().convert(mode)
    image.save(path, exif=exif)
    intensity = IntensityRange(10.0, 200.0) if mode == "F" else None
    expected = read_image(path, intensity=intensity)
    monkeypatch.setattr(pixels, "PIXELS_PER_STRIP", 500)
    strips = read_image(path, intensity=intensity)
    assert strips.size == (96, 128)
    assert strips.tobytes() == expected.tobytes()
