"""Hostile, broken and unusual image files: each is read, reported with a reason, or reported as damaged."""

import csv
import io
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from faults.conftest import SMALL
from helpers.faults import Commands, Ended
from helpers.photographs import photograph

pytestmark = pytest.mark.slow

Make = Callable[[Path], object]
END = b"\xff\xd9"


def saved(kind: str, mode: str = "RGB", **options: Any) -> Make:
    """Return a function that saves a photograph in a format."""
    return lambda path: photograph(100 + len(path.name)).convert(mode).save(path, kind, **options)


def content(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    photograph(7, (320, 240)).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def written(data: bytes) -> Make:
    return lambda path: path.write_bytes(data)


def cut(kind: str, share: float = 0.6, **options: Any) -> Make:
    def make(path: Path) -> None:
        data = content(kind, **options)
        path.write_bytes(data[: int(share * len(data))])

    return make


def damaged(change: Callable[[bytes, int], bytes], **options: Any) -> Make:
    """Return a function that writes a JPEG changed at the middle of its data."""

    def make(path: Path) -> None:
        data = content("JPEG", **options)
        path.write_bytes(change(data, (data.index(b"\xff\xda") + len(data)) // 2))

    return make


def halved(data: bytes, middle: int) -> bytes:
    return data[:middle] + END


def shortened(data: bytes, middle: int) -> bytes:
    return data[: middle - 400] + data[middle:]


def overwritten(data: bytes, middle: int) -> bytes:
    return data[: middle - 500] + np.random.default_rng(1).integers(0, 255, 500, np.uint8).tobytes() + data[middle:]


def patched(kind: str, old: bytes, new: bytes, **options: Any) -> Make:
    """Return a function that writes an image with some bytes of its header replaced."""

    def make(path: Path) -> None:
        data = content(kind, **options)
        assert old in data
        path.write_bytes(data.replace(old, new))

    return make


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, bits: int, color: int, scanlines: bytes, *others: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *others, chunk(b"IDAT", scanlines), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def text_bomb(path: Path) -> None:
    packed = zlib.compress(bytes(20_000_000), 9)
    path.write_bytes(png(1, 1, 8, 0, zlib.compress(b"\0\0"), chunk(b"zTXt", b"a\0\0" + packed)))


def deflated_bomb(path: Path) -> None:
    """Write a DICOM file of 600 kB that inflates to 600 MB."""
    dicom(path, deflated=True)
    pack = zlib.compressobj(9, wbits=-15)
    megabyte = pack.compress(bytes(2**20)) + pack.flush(zlib.Z_FULL_FLUSH)
    header = path.read_bytes()[:400]
    header = header[: 144 + struct.unpack_from("<I", header, 140)[0]]
    path.write_bytes(header + megabyte * 600 + pack.flush())


def padded_bomb(path: Path) -> None:
    """Write the same file with 3 kB before its transfer syntax."""
    deflated_bomb(path)
    data = path.read_bytes()
    path.write_bytes(data[:144] + struct.pack("<HH2sHI", 2, 0x0102, b"OB", 0, 3000) + bytes(3000) + data[144:])


def many_scans(path: Path) -> None:
    data = content("JPEG", progressive=True)
    path.write_bytes(data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 500 + END)


def dicom(path: Path, *, deflated: bool = False, **attributes: Any) -> None:
    from pydicom import Dataset, FileMetaDataset
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, generate_uid

    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian if deflated else ExplicitVRLittleEndian
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", generate_uid()
    data.Rows, data.Columns, data.BitsAllocated, data.BitsStored, data.HighBit = 30, 40, 8, 8, 7
    data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", 0
    data.PixelData = np.asarray(photograph(len(path.name), (40, 30)).convert("L")).tobytes()
    for name, value in attributes.items():
        setattr(data, name, value)
    data.save_as(path, enforce_file_format=True)


def tiled(width: int, height: int) -> bytes:
    """Return a small TIFF with one large tile."""
    values = {256: 10, 257: 10, 258: 8, 259: 8, 262: 1, 277: 1, 322: width, 323: height, 324: 134, 325: 999}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in values.items())
    return b"II*\0" + struct.pack("<IH", 8, len(values)) + entries + bytes(4) + zlib.compress(bytes(9999))


def linked_to(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def deep(path: Path) -> None:
    Image.fromarray(np.asarray(photograph(33).convert("L")).astype(np.uint16) * 200).save(path, "PNG")


def rotated(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photograph(44).save(path, exif=exif)


FORMAT, PIXELS, LINKS = "is not an image in a supported format", "decodes to more than", "levels of symbolic links"

UNREADABLE: dict[str, tuple[Make, str]] = {
    **{f"{kind}.jpg": (saved(kind), FORMAT) for kind in ("EPS", "ICO", "PDF", "TGA", "PCX", "SGI", "DDS", "ICNS")},
    **{f"{kind}.png": (saved(kind, "1"), FORMAT) for kind in ("XBM", "MSP")},
    "EPS.png": (saved("EPS"), FORMAT),
    "EPS binary.jpg": (written(b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 30, 99) + bytes(22) + b"%!PS-Adobe"), FORMAT),
    "PSD.jpg": (written(b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 30, 40, 8, 3) + bytes(5000)), FORMAT),
    "FLI.jpg": (written(struct.pack("<IHHHHHHI", 9999, 0xAF12, 1, 40, 30, 8, 3, 1) + bytes(9999)), FORMAT),
    "WMF.jpg": (written(b"\xd7\xcd\xc6\x9a\0\0" + bytes(100)), FORMAT),
    "SVG.jpg": (written(b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"), FORMAT),
    "empty.jpg": (Path.touch, "the file is empty"),
    "text.jpg": (written(b"no picture"), FORMAT),
    "page.jpg": (written(b"<html>404 not found</html>"), FORMAT),
    "zeros.jpg": (written(bytes(5000)), FORMAT),
    "start.jpg": (written(b"\xff\xd8\xff\xe0"), FORMAT),
    "start of JFIF.jpg": (written(b"\xff\xd8\xff\xe0\0\x10JFIF"), "image file is truncated"),
    "no frame.jpg": (written(b"\xff\xd8\xff\xd9"), FORMAT),
    "scans.jpg": (many_scans, "510 scans"),
    "folder.jpg": (Path.mkdir, "is a folder, not a file"),
    "pipe.jpg": (os.mkfifo, "is not a regular file"),
    "device.jpg": (linked_to("/dev/zero"), "is not a regular file"),
    "loop.jpg": (linked_to("loop.jpg"), LINKS),
    "loop of two.jpg": (linked_to("loop of three.jpg"), LINKS),
    "loop of three.jpg": (linked_to("loop of two.jpg"), LINKS),
    **{f"cut.{kind}": (cut(kind.upper()), "") for kind in ("png", "webp", "gif", "bmp", "ppm", "avif")},
    "cut.jpg": (cut("JPEG"), "truncated"),
    "cut.tif": (cut("TIFF"), ""),
    "cut progressive.jpg": (cut("JPEG", progressive=True), "truncated"),
    "header only.jpg": (cut("JPEG", 0.03), ""),
    "filled with zeros.jpg": (damaged(lambda data, middle: data[:middle].ljust(len(data), b"\0")), "no end marker"),
    "flipped.png": (patched("PNG", b"IDAT", b"IDAT\x55"), ""),
    "huge.png": (written(png(20_000, 20_000, 8, 2, zlib.compress(b"\0"))), PIXELS),
    "huge 1 bit.png": (written(png(40_000, 40_000, 1, 0, zlib.compress(b"\0"))), PIXELS),
    "huge.jpg": (patched("JPEG", struct.pack(">HH", 240, 320), struct.pack(">HH", 60_000, 60_000)), PIXELS),
    "huge progressive.jpg": (
        patched("JPEG", struct.pack(">HH", 240, 320), struct.pack(">HH", 15_000, 15_000), progressive=True),
        PIXELS,
    ),
    "huge.gif": (patched("GIF", struct.pack("<HH", 320, 240), struct.pack("<HH", 60_000, 60_000)), PIXELS),
    "huge.bmp": (patched("BMP", struct.pack("<II", 320, 240), struct.pack("<II", 20_000, 20_000)), PIXELS),
    "huge.ppm": (written(b"P6 60000 60000 255\n" + bytes(99)), PIXELS),
    "huge.jp2": (patched("JPEG2000", struct.pack(">II", 240, 320), struct.pack(">II", 8_000, 8_000)), PIXELS),
    "huge tile.tif": (written(tiled(26_000, 26_000)), PIXELS),
    "huge.dcm": (lambda path: dicom(path, Rows=20_000, Columns=20_000), PIXELS),
    "deflated.dcm": (deflated_bomb, PIXELS),
    "padded.dcm": (padded_bomb, PIXELS),
    "frames.dcm": (lambda path: dicom(path, NumberOfFrames=2**31 - 1), ""),
    "no pixels.dcm": (lambda path: dicom(path, PixelData=b""), ""),
    "text bomb.png": (text_bomb, "too large"),
}
"""Files that cannot be read, and a part of the reason."""

DAMAGED: dict[str, Make] = {
    "half.jpg": damaged(halved),
    "half gray.jpg": damaged(halved, mode="L"),
    "half restarts.jpg": damaged(halved, restart_marker_rows=1),
    "half progressive.jpg": damaged(halved, progressive=True),
    "removed.jpg": damaged(shortened),
    "removed restarts.jpg": damaged(shortened, restart_marker_rows=1),
    "overwritten.jpg": damaged(overwritten),
    "overwritten restarts.jpg": damaged(overwritten, restart_marker_rows=1),
}
READABLE: dict[str, Make] = {
    "png.jpg": saved("PNG"),
    "jpg.png": saved("JPEG"),
    "webp.tif": saved("WEBP"),
    "gray.jpg": saved("JPEG", "L"),
    "cmyk.jpg": saved("JPEG", "CMYK"),
    "progressive.jpg": saved("JPEG", progressive=True),
    "rgb.jpg": saved("JPEG", keep_rgb=True),
    "narrow.jpg": lambda path: photograph(45, (7, 90)).save(path),
    "restarts.jpg": saved("JPEG", restart_marker_blocks=3),
    "palette.png": saved("PNG", "P"),
    "1 bit.png": saved("PNG", "1"),
    "alpha.png": saved("PNG", "RGBA"),
    "gray alpha.png": saved("PNG", "LA"),
    "deep.png": deep,
    "pages.tif": saved("TIFF", save_all=True, append_images=[photograph(50)]),
    "lzw.tif": saved("TIFF", compression="tiff_lzw"),
    "frames.gif": saved("GIF", save_all=True, append_images=[photograph(51)]),
    "frames.webp": saved("WEBP", save_all=True, append_images=[photograph(52)]),
    "plain.bmp": saved("BMP"),
    "plain.ppm": saved("PPM"),
    "plain.jp2": saved("JPEG2000"),
    "plain.avif": saved("AVIF"),
    "plain.dcm": dicom,
    "rotated.jpg": rotated,
    "film.jpg": damaged(lambda data, middle: data + b"a film of two seconds" * 99, quality=60),
    "two\nlines.png": saved("PNG"),
    "UPPER.JPG": saved("JPEG"),
}


@pytest.fixture(scope="module")
def torture(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs and all files above, and a table of them; read only."""
    pytest.importorskip("pydicom")
    data = Path(shutil.copytree(photos, tmp_path_factory.mktemp("torture") / "images"))
    makes = {name: make for name, (make, _) in UNREADABLE.items()} | DAMAGED | READABLE
    for name, make in makes.items():
        make(data / name)
    with (data / "labels.csv").open("a", newline="") as file:
        csv.writer(file).writerows([name, "roof", "train"] for name in makes)
    return data


@pytest.fixture(scope="module")
def ghost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A file that a false Ghostscript writes, and an environment in which it is found."""
    folder = tmp_path_factory.mktemp("bin")
    script, trace = folder / "gs", folder / "trace"
    script.write_text(f"#!/bin/sh\necho \"$@\" >> '{trace}'\n")
    script.chmod(0o755)
    return trace, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def checked(
    command: Commands, torture: Path, ghost: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Ended, dict[str, Any]]:
    """The result of `check` on the folder, and its report."""
    out = tmp_path_factory.mktemp("checked") / "check.json"
    ended = command("check", torture, "--workers", "0", "--range", "0,65535", "--out", out, env=ghost[1])
    assert "Traceback" not in ended.text
    assert ended.code == 4, ended.text
    return ended, json.loads(out.read_text())


def items(report: dict[str, Any], kind: str) -> dict[str, str]:
    """Return the reasons that a finding lists, by file name."""
    lines = [line for finding in report["findings"] if finding["kind"] == kind for line in finding["items"]]
    return {next(n for n in UNREADABLE | DAMAGED | READABLE if f"/{n}: " in line): line for line in lines}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_file_is_listed_with_its_reason(checked: tuple[Ended, dict[str, Any]], name: str) -> None:
    assert UNREADABLE[name][1] in items(checked[1], "unreadable")[name]


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_a_warning(checked: tuple[Ended, dict[str, Any]], name: str) -> None:
    assert name in items(checked[1], "damaged")
    assert {finding["level"] for finding in checked[1]["findings"] if finding["kind"] == "damaged"} == {"warning"}


def test_no_other_file_is_reported(checked: tuple[Ended, dict[str, Any]]) -> None:
    assert items(checked[1], "unreadable").keys() == UNREADABLE.keys()
    assert items(checked[1], "damaged").keys() == DAMAGED.keys()
    assert checked[1]["images"] == 48 + len(DAMAGED) + len(READABLE)


def test_no_file_starts_ghostscript(
    command: Commands, finished_run: Path, torture: Path, ghost: tuple[Path, dict[str, str]], tmp_path: Path,
    checked: tuple[Ended, dict[str, Any]],
) -> None:  # fmt: skip
    trace, env = ghost
    images = [torture / "EPS.jpg", torture / "EPS.png", torture / "EPS binary.jpg", torture / "half.jpg"]
    assert command("predict", finished_run, *images, "--workers", "0", env=env).code == 0
    assert command("explain", finished_run, *images, "--workers", "0", "--out", tmp_path / "maps", env=env).code == 0
    assert not trace.exists()


def test_predict_reports_every_unreadable_file(
    command: Commands, finished_run: Path, torture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    words = [torture / name for name in UNREADABLE if name != "folder.jpg"]
    ended = command("predict", finished_run, *words, torture / "0.jpg", "--workers", "0", "--out", out)
    assert ended.code == 0, ended.text
    errors = {Path(image["path"]).name for image in json.loads(out.read_text())["images"] if image.get("error")}
    assert errors == UNREADABLE.keys() - {"folder.jpg"}


# Memory


BOMBS = {  # 5 to 145 kB
    "transparent palette": (1, 3, [chunk(b"PLTE", bytes(6)), chunk(b"tRNS", b"\0")]),
    "alpha": (8, 6, []),
    "transparent color": (8, 0, [chunk(b"tRNS", bytes(2))]),
}
SIDE = 6000
CHANNELS = {6: 4}


@pytest.mark.parametrize("name", BOMBS)
def test_small_file_takes_bounded_memory(command: Commands, photos: Path, tmp_path: Path, name: str) -> None:
    bits, color, chunks = BOMBS[name]
    row = bytes(1 + SIDE * CHANNELS.get(color, 1) * bits // 8)
    pack = zlib.compressobj(9)
    scanlines = b"".join([pack.compress(row * 80) for _ in range(SIDE // 80)]) + pack.flush()
    data = Path(shutil.copytree(photos, tmp_path / "photos"))
    options = ("--workers", "0", "--out", tmp_path / "check.json")
    before = command("check", data, *options).peak
    (data / "5.jpg").write_bytes(png(SIDE, SIDE, bits, color, scanlines, *chunks))
    ended = command("check", data, *options)
    assert ended.code == 3, ended.text
    assert ended.peak - before < 12 * SIDE**2


# Symlink loops


@pytest.fixture
def looped(photos: Path, tmp_path: Path) -> Path:
    """A folder of photographs with loops among the training and test images, and folders that link to themselves."""
    data = Path(shutil.copytree(photos, tmp_path / "photos"))
    for name, target in (("5.jpg", "5.jpg"), ("40.jpg", "41.jpg"), ("41.jpg", "40.jpg")):
        (data / name).unlink()
        (data / name).symlink_to(target)
    (data / "again").symlink_to(".")
    (data / "endless").symlink_to("endless")
    return data


def test_check_and_train_report_loops(command: Commands, looped: Path, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    assert command("check", looped, "--workers", "0", "--out", out).code == 4
    report = json.loads(out.read_text())
    assert {Path(image["image"]).name for image in report["unreadable"]} == {"5.jpg", "40.jpg", "41.jpg"}
    assert all(LINKS in image["reason"] for image in report["unreadable"])
    ended = command("train", looped, *SMALL, "--out", tmp_path / "run")
    assert ended.code == 1
    assert f"{looped / '5.jpg'}: Too many {LINKS}" in ended.stderr
    assert "Traceback" not in ended.text
    ended = command("train", looped, *SMALL, "--skip-bad", "0.1", "--out", tmp_path / "run")
    assert ended.code == 0, ended.text


def test_predict_and_explain_report_loops(command: Commands, finished_run: Path, looped: Path, tmp_path: Path) -> None:
    ended = command("predict", finished_run, looped, "--workers", "0", "--format", "short", "--out", tmp_path / "a.csv")
    assert ended.code == 0
    assert "3 of 48 images could not be read" in ended.stderr
    images = [looped / "5.jpg", looped / "6.jpg"]
    ended = command("explain", finished_run, *images, "--workers", "0", "--out", tmp_path / "maps")
    assert ended.code == 0
    assert f"{looped / '5.jpg'}: Too many {LINKS}" in ended.stderr


def test_evaluate_reports_loops(command: Commands, finished_run: Path, looped: Path) -> None:
    ended = command("evaluate", finished_run, looped, "--workers", "0")
    assert ended.code == 1
    assert f"{looped / '40.jpg'}: Too many {LINKS}" in ended.stderr
    assert "Traceback" not in ended.text
    ended = command("evaluate", finished_run, looped, "--workers", "0", "--skip-bad", "0.5")
    assert ended.code == 0, ended.text
