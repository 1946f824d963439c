import io
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from probmcl.data.deep_images import find_intensity_range
from probmcl.data.images import read_image
from probmcl.data.loader import find
from probmcl.data.pixels import IntensityRange
from probmcl.errors import DataError, ImageError

pytest.importorskip("pydicom", reason="DICOM files are made with pydicom: pip install 'probmcl[dicom]'")

from pydicom import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import apply_windowing
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    JPEGBaseline8Bit,
    JPEGLSLossless,
    generate_uid,
)

RAMP = np.arange(0, 4096, 273, dtype=np.uint16)[None]  # 0 to 4095 in sixteen steps


def dicom(
    path: Path, pixels: ArrayLike, *, bits: int = 12, syntax: UID = ExplicitVRLittleEndian, **attributes: Any
) -> Path:
    """Write a DICOM file, by default with one gray frame; `attributes` are set on the dataset."""
    stored = np.asarray(pixels)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", generate_uid()
    data.Rows, data.Columns = (
        stored.shape[-2:] if stored.ndim == 2 or "NumberOfFrames" in attributes else stored.shape[:2]
    )
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated = 8 * stored.dtype.itemsize
    data.BitsStored, data.HighBit, data.PixelRepresentation = bits, bits - 1, int(stored.dtype.kind == "i")
    for name, value in attributes.items():
        setattr(data, name, value)
    if "PixelData" not in attributes:
        data.PixelData = stored.tobytes()
    data["PixelData"].VR = "OW" if stored.dtype.itemsize > 1 else "OB"
    data.save_as(path, enforce_file_format=True)
    return path


def gray(path: Path, intensity: IntensityRange | None = None) -> NDArray[np.uint8]:
    pixels = np.asarray(read_image(path, intensity=intensity))
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


def scaled(values: ArrayLike, low: float, high: float) -> NDArray[np.float64]:
    return np.asarray(255 * np.clip((np.asarray(values, dtype=float) - low) / (high - low), 0, 1))


def test_default_range_is_that_of_the_stored_bits(tmp_path: Path) -> None:
    assert np.abs(gray(dicom(tmp_path / "a.dcm", RAMP)) - scaled(RAMP, 0, 4095)).max() <= 0.5
    signed = np.array([[-2048, -1024, 0, 2047]], dtype=np.int16)
    assert np.abs(gray(dicom(tmp_path / "b.dcm", signed)) - scaled(signed, -2048, 2047)).max() <= 0.5
    rescaled = dicom(tmp_path / "c.dcm", RAMP, RescaleSlope="2", RescaleIntercept="-1024")
    assert (
        np.abs(gray(rescaled) - scaled(RAMP, 0, 4095)).max() <= 0.5
    )  # the range of the stored bits, after the rescale
    falling = dicom(tmp_path / "d.dcm", RAMP, RescaleSlope="-1", RescaleIntercept="0")
    assert np.abs(gray(falling) - scaled(RAMP, 0, 4095)[:, ::-1]).max() <= 0.5


def test_range_is_applied_to_rescaled_values(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP, RescaleSlope="2", RescaleIntercept="-1024")
    levels = gray(path, IntensityRange(0.0, 1000.0))
    assert np.abs(levels - scaled(2.0 * RAMP - 1024, 0, 1000)).max() <= 0.5


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID", None])
def test_window_is_applied_to_rescaled_values(tmp_path: Path, function: str | None) -> None:
    attributes: dict[str, Any] = {"RescaleSlope": "1", "RescaleIntercept": "-1024", "WindowCenter": ["40", "600"]}
    attributes |= {"WindowWidth": ["400", "2800"]} | ({} if function is None else {"VOILUTFunction": function})
    path = dicom(tmp_path / "a.dcm", RAMP, **attributes)
    oracle = Dataset()
    oracle.PhotometricInterpretation, oracle.BitsStored, oracle.PixelRepresentation = "MONOCHROME2", 12, 0
    for name, value in attributes.items():
        setattr(oracle, name, value)
    values = RAMP.astype(float) - 1024
    expected = scaled(apply_windowing(values, oracle), -1024, 3071)
    assert np.abs(gray(path) - expected).max() <= 0.5 + 1e-6
    assert np.array_equal(gray(path, IntensityRange(0.0, 1.0)), gray(path))


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID", ""])
@pytest.mark.parametrize("slope", ["1", "-2", "0.001"])
@pytest.mark.parametrize("interpretation", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("signed", [False, True])
def test_window_has_the_values_of_the_standard(
    tmp_path: Path, function: str, slope: str, interpretation: str, signed: bool
) -> None:
    stored = (RAMP.astype(np.int16) - 2048) if signed else RAMP
    values = stored * float(slope) + 7
    center, width = float(np.median(values)) + 0.25, float(np.ptp(values)) / 3 + 1
    attributes: dict[str, Any] = {"RescaleSlope": slope, "RescaleIntercept": "7", "VOILUTFunction": function}
    attributes |= {"WindowCenter": f"{center:.6g}", "WindowWidth": f"{width:.6g}"}
    path = dicom(tmp_path / "a.dcm", stored, PhotometricInterpretation=interpretation, **attributes)
    c, w = float(attributes["WindowCenter"]), float(attributes["WindowWidth"])
    shares = {
        "LINEAR": np.clip((values - (c - 0.5)) / (w - 1) + 0.5, 0, 1),
        "LINEAR_EXACT": np.clip((values - c) / w + 0.5, 0, 1),
        "SIGMOID": 1 / (1 + np.exp(-4 * (values - c) / w)),
    }
    shown = 255 * shares[function or "LINEAR"]
    assert np.abs(gray(path) - (255 - shown if interpretation == "MONOCHROME1" else shown)).max() <= 0.5 + 1e-6


def test_unknown_function_of_a_window_is_an_error(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP, WindowCenter="1000", WindowWidth="10", VOILUTFunction="CUBIC")
    with pytest.raises(ImageError, match="VOI LUT Function value 'CUBIC'"):
        read_image(path)


def test_window_of_width_one_is_a_threshold(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP, WindowCenter="1000", WindowWidth="1")
    assert np.array_equal(gray(path), np.where(RAMP > 999.5, 255, 0))
    narrow = dicom(tmp_path / "c.dcm", RAMP, WindowCenter="1000", WindowWidth="0.5")
    assert np.array_equal(gray(narrow), gray(path))
    with pytest.raises(ImageError, match="center 1000 and width 0"):
        read_image(dicom(tmp_path / "b.dcm", RAMP, WindowCenter="1000", WindowWidth="0"))


def table(values: NDArray[np.uint16], first: int, bits: int) -> Dataset:
    entry = Dataset()
    entry.add_new("LUTDescriptor", "US", [len(values), first, bits])
    entry.add_new("LUTData", "OW", values.tobytes())
    return entry


def test_voi_lut_is_scaled_by_its_bits(tmp_path: Path) -> None:
    values = np.array([1023, 512, 0], dtype=np.uint16)  # ten bits, decreasing
    path = dicom(tmp_path / "a.dcm", np.array([[0, 1, 2, 9]], dtype=np.uint16), VOILUTSequence=[table(values, 0, 10)])
    assert gray(path)[0].tolist() == [255, 128, 0, 0]


def test_modality_lut_is_applied_first(tmp_path: Path) -> None:
    values = np.array([0, 30_000, 65_535], dtype=np.uint16)
    stored = np.array([[0, 1, 2]], dtype=np.uint16)
    path = dicom(tmp_path / "a.dcm", stored, ModalityLUTSequence=[table(values, 0, 16)])
    assert np.abs(gray(path) - scaled(values[None], 0, 65_535)).max() <= 0.5
    assert np.abs(gray(path, IntensityRange(0.0, 40_000.0)) - scaled(values[None], 0, 40_000)).max() <= 0.5


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    plain = gray(dicom(tmp_path / "a.dcm", RAMP))
    inverted = gray(dicom(tmp_path / "b.dcm", RAMP, PhotometricInterpretation="MONOCHROME1"))
    assert np.array_equal(inverted, 255 - plain)


def test_range_is_not_applied_to_8_bit_files(tmp_path: Path) -> None:
    pixels = np.array([[0, 90, 200, 255]], dtype=np.uint8)
    path = dicom(tmp_path / "a.dcm", pixels, bits=8)
    assert np.array_equal(gray(path, IntensityRange(80.0, 100.0)), pixels)
    assert find_intensity_range([path], "auto") is None


def test_color_files_are_decoded(tmp_path: Path) -> None:
    colors = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    attributes: dict[str, Any] = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    assert np.array_equal(np.asarray(read_image(dicom(tmp_path / "a.dcm", colors, bits=8, **attributes))), colors)
    ycc = np.asarray(Image.fromarray(colors).convert("YCbCr"))
    attributes |= {"PhotometricInterpretation": "YBR_FULL"}
    decoded = np.asarray(read_image(dicom(tmp_path / "b.dcm", ycc, bits=8, **attributes))).astype(int)
    assert np.abs(decoded - colors).max() <= 3


def test_palette_is_applied(tmp_path: Path) -> None:
    attributes: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for shift, name in enumerate(["Red", "Green", "Blue"]):
        attributes[f"{name}PaletteColorLookupTableDescriptor"] = [3, 0, 16]
        lookup = np.array([0, 0x8000, 0xFFFF], dtype=np.uint16)
        attributes[f"{name}PaletteColorLookupTableData"] = np.roll(lookup, shift).tobytes()
    path = dicom(tmp_path / "a.dcm", np.array([[0, 1, 2]], dtype=np.uint8), bits=8, **attributes)
    assert np.asarray(read_image(path))[0].tolist() == [[0, 255, 128], [128, 0, 255], [255, 128, 0]]


def test_first_frame_is_read_with_its_window(tmp_path: Path) -> None:
    frames = np.stack([RAMP, RAMP[:, ::-1]])
    window, rescale, shared, first = Dataset(), Dataset(), Dataset(), Dataset()
    window.WindowCenter, window.WindowWidth, window.VOILUTFunction = "1000", "500", "LINEAR_EXACT"
    rescale.RescaleSlope, rescale.RescaleIntercept = "1", "-100"
    shared.PixelValueTransformationSequence, first.FrameVOILUTSequence = [rescale], [window]
    path = dicom(
        tmp_path / "a.dcm",
        frames,
        NumberOfFrames=2,
        SharedFunctionalGroupsSequence=[shared],
        PerFrameFunctionalGroupsSequence=[first, Dataset()],
    )
    assert np.abs(gray(path) - scaled(RAMP.astype(float) - 100, 750, 1250)).max() <= 0.5
    bare = dicom(tmp_path / "b.dcm", frames, NumberOfFrames=2)
    assert np.abs(gray(bare) - scaled(RAMP, 0, 4095)).max() <= 0.5


def test_jpeg_in_dicom_is_decoded_and_unsupported_compression_is_an_error(tmp_path: Path) -> None:
    smooth = np.linspace(0, 255, 64, dtype=np.uint8)[None].repeat(32, axis=0)
    buffer = io.BytesIO()
    Image.fromarray(smooth).save(buffer, "JPEG", quality=95)
    packed = encapsulate([buffer.getvalue()])
    path = dicom(tmp_path / "a.dcm", smooth, bits=8, syntax=JPEGBaseline8Bit, PixelData=packed)
    assert np.abs(gray(path).astype(int) - smooth).max() <= 3
    other = dicom(tmp_path / "b.dcm", smooth, bits=8, syntax=JPEGLSLossless, PixelData=packed)
    with pytest.raises(ImageError, match=r"JPEG-LS Lossless.*pip install pylibjpeg"):
        read_image(other)


def test_invalid_files_are_an_error(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP)
    cut = tmp_path / "cut.dcm"
    cut.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(ImageError):
        read_image(cut)
    report = Dataset()
    report.file_meta = FileMetaDataset()
    report.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    report.SOPClassUID, report.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.88.11", generate_uid()
    report.save_as(tmp_path / "report.dcm", enforce_file_format=True)
    with pytest.raises(ImageError, match=r"report\.dcm: .*without an image"):
        read_image(tmp_path / "report.dcm")
    bomb = dicom(tmp_path / "bomb.dcm", RAMP, Rows=20_000, Columns=20_000)
    with pytest.raises(ImageError, match=r"more than [0-9,]+ pixels"):
        read_image(bomb)


def test_dicom_is_recognized_by_content(tmp_path: Path) -> None:
    path = dicom(tmp_path / "IM0001", RAMP)
    assert gray(path).shape == RAMP.shape
    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "picture.dcm", "PNG")
    assert read_image(tmp_path / "picture.dcm").getpixel((0, 0)) == (1, 2, 3)
    (tmp_path / "text.dcm").write_text("no image")
    with pytest.raises(ImageError, match="not an image"):
        read_image(tmp_path / "text.dcm")


def test_missing_pydicom_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(ImageError, match=r"a\.dcm: .*pip install 'probmcl\[dicom\]'"):
        read_image(path)


def test_dicom_files_are_found_in_folders(tmp_path: Path) -> None:
    for name in ("a.dcm", "b.DICOM", "c.txt"):
        dicom(tmp_path / name, RAMP)
    assert [item.path.name for item in find(tmp_path)] == ["a.dcm", "b.DICOM"]


def test_files_with_a_window_are_ignored_for_the_range(tmp_path: Path) -> None:
    windowed = dicom(tmp_path / "a.dcm", RAMP, WindowCenter="1000", WindowWidth="500")
    bare = dicom(tmp_path / "b.dcm", RAMP, RescaleSlope="1", RescaleIntercept="-1000")
    assert find_intensity_range([windowed], "auto") is None
    assert find_intensity_range([windowed, bare], "auto") == IntensityRange(-1000.0, 3095.0)
    assert find_intensity_range([windowed, bare], "full") is None  # each file has the range of its bits
    Image.fromarray(RAMP).save(tmp_path / "c.png")
    with pytest.raises(DataError, match="16-bit and DICOM images"):
        find_intensity_range([bare, tmp_path / "c.png"], "full")


def test_deflated_file_is_decoded_unless_it_inflates_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP.repeat(500, axis=0), syntax=DeflatedExplicitVRLittleEndian)
    expected = gray(dicom(tmp_path / "b.dcm", RAMP.repeat(500, axis=0)))
    assert np.array_equal(gray(path), expected)
    hidden = dicom(tmp_path / "c.dcm", RAMP, syntax=DeflatedExplicitVRLittleEndian, EncapsulatedDocument=bytes(60_000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8_000)
    assert np.array_equal(gray(path), expected)
    assert hidden.stat().st_size < 2_000
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
    content = hidden.read_bytes()
    end = 144 + int.from_bytes(content[140:144], "little")  # of the file meta information
    padding = struct.pack("<HH2sHI", 0x0002, 0x0102, b"OB", 0, 3000) + bytes(3000)
    command = struct.pack("<HHIH", 0x0000, 0x0900, 2, 0)
    for start, inserted in ((0, b""), (144, padding), (end, command)):  # the length of the first group is then wrong
        hidden.write_bytes(content[:start] + inserted + content[start:])
        with pytest.raises(ImageError, match="decodes to more than 5,000 pixels"):
            read_image(hidden)


def test_conversion_in_strips_gives_the_same_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP.repeat(50, axis=0), WindowCenter=2000, WindowWidth=900)
    expected = gray(path)
    monkeypatch.setattr("probmcl.data.dicom.PIXELS_PER_STRIP", 100)
    assert np.array_equal(gray(path), expected)
