"""A folder of broken and odd files: what is odd is read in a defined way, what is broken is named, nothing is changed.

Paths that lead out of the image folder by `../` are a matter of tables, which refuse them; see their own tests.
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
from PIL import Image

from probmcl.data.findings import find_bad_images, without_bad
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.records import Records
from probmcl.data.stream import decode
from probmcl.errors import DataError, ImageError

RED, BLUE, WHITE = (230, 20, 30), (20, 30, 220), (255, 255, 255)


class Odd(NamedTuple):
    """A file: its name, how it is made, and what comes of it: the color of its middle, or words of the reason."""

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


def zeros_at_the_end(path: Path) -> None:
    noise().save(path, "JPEG")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))


def animated(kind: str) -> Callable[[Path], object]:
    return lambda path: plain(RED).save(path, kind, save_all=True, append_images=[plain(BLUE)] * 3, lossless=True)


def lying(path: Path) -> None:
    """Its left half is red; turned as its orientation says, the upper half is."""
    image = plain(BLUE, (96, 48))
    image.paste(RED, (0, 0, 48, 48))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(path, exif=exif)


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def jpeg_that_claims(path: Path, width: int, height: int) -> None:
    plain().save(path, "JPEG", progressive=True)
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\xc2") + 5  # progressive start of frame: length, precision, then height and width
    data[at : at + 4] = struct.pack(">HH", height, width)
    path.write_bytes(data)


def linked(path: Path) -> None:
    outside = path.parent.parent / "outside.png"
    plain(BLUE).save(outside)
    path.symlink_to(outside)


ODD = [
    Odd("empty.jpg", Path.touch, "the file is empty"),
    Odd("cut.jpg", cut("JPEG"), "truncated"),
    Odd("cut.png", cut("PNG"), "truncated"),
    Odd("cut.webp", cut("WEBP"), ""),
    Odd("cut.gif", cut("GIF"), "truncated"),
    Odd("cut.tif", cut("TIFF"), ""),
    Odd("zeros.jpg", zeros_at_the_end, "truncated (its end is missing)"),
    Odd("text.jpg", lambda path: path.write_text("no picture"), "not an image in any format that Pillow reads"),
    Odd("start.jpg", lambda path: path.write_bytes(b"\xff\xd8\xff\xe0"), ""),
    Odd("page.jpg", lambda path: path.write_text("<html>404 not found</html>"), "not an image"),
    Odd("folder.jpg", Path.mkdir, "is a folder, not a file"),
    Odd("pipe.jpg", os.mkfifo, "is not a regular file"),
    Odd("lost.jpg", lambda path: path.symlink_to("nowhere"), "does not exist"),
    Odd("circle.jpg", lambda path: path.symlink_to(path.name), "symbolic links"),
    Odd("bomb.png", lambda path: path.write_bytes(png_that_claims(20_000, 20_000)), "pixels of memory to decode"),
    Odd("large.png", lambda path: path.write_bytes(png_that_claims(12_000, 12_000)), "pixels of memory to decode"),
    Odd("bomb.jpg", lambda path: jpeg_that_claims(path, 20_000, 20_000), "pixels of memory to decode"),
    Odd("float.tif", lambda path: Image.new("F", (4, 4), 0.5).save(path), "`range=LOW,HIGH`"),
    Odd("png.jpg", lambda path: plain().save(path, "PNG"), RED),
    Odd("jpg.png", lambda path: plain().save(path, "JPEG"), RED),
    Odd("no suffix", lambda path: plain().save(path, "BMP"), RED),
    Odd("cmyk.jpg", lambda path: plain().convert("CMYK").save(path), RED),
    Odd("16bit.png", lambda path: Image.new("I;16", (8, 8), 0x8000).save(path), (128, 128, 128)),
    Odd("palette.png", lambda path: plain().convert("P", palette=Image.Palette.ADAPTIVE).save(path), RED),
    Odd("alpha.png", lambda path: Image.new("RGBA", (8, 8), (*BLUE, 0)).save(path), WHITE),
    Odd("animated.gif", animated("GIF"), RED),
    Odd("animated.webp", animated("WEBP"), RED),
    Odd("lying.jpg", lying, RED),
    Odd("two\nlines.png", lambda path: plain(BLUE).save(path), BLUE),
    Odd("not utf-8 \udce9.png", lambda path: plain(BLUE).save(path), BLUE),
    Odd("..png", lambda path: plain(BLUE).save(path, "PNG"), BLUE),
    Odd("linked.png", linked, BLUE),
]
BAD = [odd for odd in ODD if isinstance(odd.outcome, str)]
GOOD = [odd for odd in ODD if not isinstance(odd.outcome, str)]


def color(image: Image.Image) -> tuple[int, ...]:
    """Of the middle of the upper half, where one that lies on its side tells how it was turned."""
    found = image.getpixel((image.width // 2, image.height // 4))
    assert isinstance(found, tuple)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them in one folder, beside a file that one of them is linked to."""
    place = tmp_path_factory.mktemp("torture") / "images"
    place.mkdir()
    for odd in ODD:
        odd.make(place / odd.name)
    return place


def state_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Names, times and contents of all that lies there."""
    found = {}
    for path in sorted(folder.parent.rglob("*")):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (facts.st_mtime_ns, hashlib.sha256(content).hexdigest())
    return found


def records(folder: Path) -> Records:
    paths = [folder / odd.name for odd in ODD]
    return Records.from_labels(["odd"], paths, ["train"] * len(paths), np.ones((len(paths), 1), dtype=np.float32))


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("odd", GOOD, ids=lambda odd: ascii(odd.name))
def test_what_is_odd_is_read_in_a_defined_way(folder: Path, odd: Odd, size: int | None) -> None:
    read = read_image(folder / odd.name, size)
    assert read.mode == "RGB"
    assert np.abs(np.subtract(color(read), odd.outcome)).max() <= 4  # JPEG is not exact


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("odd", BAD, ids=lambda odd: odd.name)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # whatever Python does with warnings
def test_what_is_broken_is_named_with_the_reason(folder: Path, odd: Odd, size: int | None) -> None:
    with pytest.raises(ImageError) as caught:
        read_image(folder / odd.name, size)
    assert caught.value.path == folder / odd.name
    assert caught.value.reason
    assert str(odd.outcome) in caught.value.reason


def test_where_warnings_are_errors_a_large_image_is_refused_alike(folder: Path) -> None:
    with pytest.raises(ImageError, match="pixels of memory to decode; save it smaller"):
        read_image(folder / "large.png")


@pytest.mark.parametrize("name", ["bomb.png", "bomb.jpg"])
def test_a_bomb_is_refused_before_memory_is_taken(folder: Path, name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ImageError):
            read_image(folder / name)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_large_photograph_is_judged_by_what_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain(RED, (400, 300)).save(tmp_path / "a.jpg")
    plain(RED, (400, 300)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 80_000)  # 120,000 are above it, and below twice as many
    assert read_image(tmp_path / "a.jpg", 100).size == (200, 150)
    with pytest.raises(ImageError, match="more than 80,000 pixels of memory to decode; save it smaller"):
        read_image(tmp_path / "a.jpg")
    with pytest.raises(ImageError, match="more than 80,000 pixels"):
        read_image(tmp_path / "a.png", 100)  # of which there is no smaller decoding
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    with pytest.raises(ImageError, match="more than 50,000 pixels"):
        read_image(tmp_path / "a.jpg", 100)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read_image(tmp_path / "a.png").size == (400, 300)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_the_check_names_exactly_the_broken_ones_and_changes_nothing(folder: Path, workers: int) -> None:
    before, everything = state_of(folder), records(folder)
    bad = find_bad_images(everything, workers=workers)
    assert [image.path.name for image in bad] == [odd.name for odd in BAD]
    kept = without_bad(everything, bad, share=0.6)
    assert [path.name for path in kept.paths] == [odd.name for odd in GOOD]
    with pytest.raises(DataError, match=f"{len(BAD)} of {len(ODD)} images .*`skip_bad=0.1`") as e:
        without_bad(everything, bad, share=0.1)
    assert "empty.jpg: the file is empty" in str(e.value)
    assert state_of(folder) == before


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_stream_goes_on_past_the_broken_ones(folder: Path) -> None:
    plain_view = Preprocessing(16, (0.0,) * 3, (1.0,) * 3)
    named = [folder / odd.name for odd in ODD if odd.name != "folder.jpg"]  # which would be searched
    (batch,) = decode(named, plain_view, batch_size=100, workers=0)
    assert len(batch.images) == len(GOOD)
    assert [error.path.name for error in batch.errors] == [odd.name for odd in BAD if odd.name != "folder.jpg"]


def test_a_name_with_a_line_end_stays_in_one_line_of_a_message(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines \udce9.png"
    path.touch()
    with pytest.raises(ImageError) as caught:
        read_image(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).encode()  # can be printed
    assert "two\\nlines \\udce9.png': the file is empty" in str(caught.value)
