"""Random bytes and random damage to image files: reading them gives an image or an `ImageError`, in bounded memory."""

import contextlib
import io
import resource
import signal
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.photographs import photograph
from probmcl.audit.duplicates.hashing import image_fingerprint
from probmcl.data.images import gray_values, read_image
from probmcl.data.jpeg_damage import DAMAGE, jpeg_damage
from probmcl.data.pixels import IntensityRange
from probmcl.errors import ImageError

pytestmark = pytest.mark.fuzz

SECONDS = 120  # a case that takes longer hangs
MAX_GROWTH = 1.2e9
"""Bytes that the peak memory may grow: 12 bytes per pixel of the largest image, and some for everything else."""

FILES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "baseline JPEG": ("JPEG", "RGB", {}),
    "JPEG with restarts": ("JPEG", "RGB", {"restart_marker_blocks": 4}),
    "progressive JPEG": ("JPEG", "CMYK", {"progressive": True}),
    "gray JPEG": ("JPEG", "L", {"quality": 30}),
    "PNG": ("PNG", "RGBA", {}),
    "palette PNG": ("PNG", "P", {"transparency": 3}),
    "WebP": ("WEBP", "RGB", {}),
    "lossless WebP": ("WEBP", "RGBA", {"lossless": True}),
    "TIFF": ("TIFF", "RGB", {}),
    "LZW TIFF": ("TIFF", "CMYK", {"compression": "tiff_lzw"}),
    "JPEG TIFF": ("TIFF", "RGB", {"compression": "jpeg"}),
    "fax TIFF": ("TIFF", "1", {"compression": "group4"}),
    "float TIFF": ("TIFF", "F", {}),
    "BMP": ("BMP", "P", {}),
    "GIF": ("GIF", "P", {}),
    "PPM": ("PPM", "RGB", {}),
    "PGM": ("PPM", "I", {}),
    "JPEG 2000": ("JPEG2000", "RGB", {}),
    "AVIF": ("AVIF", "RGB", {"speed": 10}),
    "DICOM": ("DICOM", "L", {}),
    "deflated DICOM": ("DICOM", "L", {"deflated": True}),
}


@cache
def content(name: str) -> bytes:
    """Return a valid file."""
    kind, mode, options = FILES[name]
    buffer, image = io.BytesIO(), photograph(3, (60, 45)).convert(mode)
    if kind == "DICOM":
        write_dicom(buffer, image, **options)
    else:
        frames = {"save_all": True, "append_images": [image.rotate(90)]} if name in ("GIF", "lossless WebP") else {}
        image.save(buffer, kind, **options, **frames)
    return buffer.getvalue()


def write_dicom(buffer: io.BytesIO, image: Image.Image, *, deflated: bool = False) -> None:
    from pydicom import Dataset, FileMetaDataset
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian if deflated else ExplicitVRLittleEndian
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3"
    data.Rows, data.Columns, data.BitsAllocated, data.BitsStored, data.HighBit = *image.size[::-1], 16, 12, 11
    data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", 0
    data.WindowCenter, data.WindowWidth, data.RescaleSlope, data.RescaleIntercept = 100, 90, 1, -10
    data.PixelData = np.asarray(image).astype(np.uint16).tobytes()
    data.save_as(buffer, enforce_file_format=True)


place = st.floats(0, 1, exclude_max=True) | st.integers(0, 200)  # a share of the file, or a byte of its header
Change = Callable[[bytes], bytes]


def position(data: bytes, at: float) -> int:
    return min(at, len(data)) if isinstance(at, int) else int(at * len(data))


def replaced(at: float, new: bytes) -> Change:
    return lambda data: data[: position(data, at)] + new + data[position(data, at) + len(new) :]


def inserted(at: float, new: bytes) -> Change:
    return lambda data: data[: position(data, at)] + new + data[position(data, at) :]


def removed(at: float, size: int) -> Change:
    return lambda data: data[: position(data, at)] + data[position(data, at) + size :]


def cut(at: float, ending: bytes) -> Change:
    return lambda data: data[: position(data, at)] + ending


def joined(at: float, other: str) -> Change:
    return lambda data: data[: position(data, at)] + content(other)


numbers = st.sampled_from([b"\xff\xff", b"\0\0", b"\x7f\xff\xff\xff", b"\xff" * 4, b"\0\0\x40\0", b"\x40\0", b"\x80"])
changes = st.one_of(
    st.builds(replaced, place, st.binary(min_size=1, max_size=4) | numbers),
    st.builds(replaced, place, st.binary(min_size=1, max_size=300)),
    st.builds(inserted, place, st.binary(min_size=1, max_size=8) | numbers),
    st.builds(removed, place, st.integers(1, 500)),
    st.builds(cut, place, st.sampled_from([b"", b"\xff\xd9", bytes(1000)])),
    st.builds(joined, place, st.sampled_from(list(FILES))),
)


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """Return a valid file with one to three changes."""
    data = content(draw(st.sampled_from(list(FILES))))
    for change in draw(st.lists(changes, min_size=1, max_size=3)):
        data = change(data)
    return data


starts = st.sampled_from(
    [b"", b"\xff\xd8\xff", b"II*\0", b"BM", b"GIF89a", b"P6 ", b"\x89PNG\r\n\x1a\n", bytes(128) + b"DICM"]
)
files = damaged_files() | st.builds(bytes.__add__, starts, st.binary(max_size=400))


def read_in_every_way(path: Path) -> None:
    """Read a file with every function that does."""
    intensity = IntensityRange(0.0, 100.0)
    ways: list[Callable[[], object]] = [
        lambda: read_image(path, intensity=intensity),
        lambda: read_image(path, 16),
        lambda: gray_values(path),
    ]
    for way in ways:
        with contextlib.suppress(ImageError):
            way()
    found = image_fingerprint(path, intensity)
    assert found.reason != ""
    event("error" if found.reason else "damaged" if found.damage else "image")


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=2000, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(files)
def test_damaged_file_gives_an_image_or_an_error(data: bytes) -> None:
    pytest.importorskip("pydicom")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "a.jpg"
        path.write_bytes(data)
        signal.alarm(SECONDS)
        read_in_every_way(path)
        damage = jpeg_damage(data) if data else None
        assert damage is None or damage.startswith(DAMAGE)
        signal.alarm(0)
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MAX_GROWTH
