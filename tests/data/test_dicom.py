import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from probmcl.data.images import read_image
from probmcl.data.intensity import IntensityRange, find_intensity_range
from probmcl.data.stream import find
from probmcl.errors import DataError, ImageError

pytest.importorskip("pydicom", reason="DICOM files are made with pydicom: pip install 'probmcl[dicom]'")

from pydicom import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import apply_windowing
from pydicom.uid import UID, ExplicitVRLittleEndian, JPEGBaseline8Bit, JPEGLSLossless, generate_uid

RAMP = np.arange(0, 4096, 273, dtype=np.uint16)[None]  # 0 to 4095 in sixteen steps


def dicom(path: Path, pixels: ArrayLike, *, bits: int = 12, syntax: UID = ExplicitVRLittleEndian, **facts: Any) -> Path:
    """A file of one frame, gray unless its facts say otherwise."""
    stored = np.asarray(pixels)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", generate_uid()
    data.Rows, data.Columns = stored.shape[-2:] if stored.ndim == 2 or "NumberOfFrames" in facts else stored.shape[:2]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated = 8 * stored.dtype.itemsize
    data.BitsStored, data.HighBit, data.PixelRepresentation = bits, bits - 1, int(stored.dtype.kind == "i")
    for name, value in facts.items():
        setattr(data, name, value)
    if "PixelData" not in facts:
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


def test_without_a_window_the_stored_bits_are_the_range(tmp_path: Path) -> None:
    assert np.abs(gray(dicom(tmp_path / "a.dcm", RAMP)) - scaled(RAMP, 0, 4095)).max() <= 0.5
    signed = np.array([[-2048, -1024, 0, 2047]], dtype=np.int16)
    assert np.abs(gray(dicom(tmp_path / "b.dcm", signed)) - scaled(signed, -2048, 2047)).max() <= 0.5
    rescaled = dicom(tmp_path / "c.dcm", RAMP, RescaleSlope="2", RescaleIntercept="-1024")
    assert np.abs(gray(rescaled) - scaled(RAMP, 0, 4095)).max() <= 0.5  # nothing is stretched
    falling = dicom(tmp_path / "d.dcm", RAMP, RescaleSlope="-1", RescaleIntercept="0")
    assert np.abs(gray(falling) - scaled(RAMP, 0, 4095)[:, ::-1]).max() <= 0.5


def test_without_a_window_levels_decide_in_rescaled_values(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP, RescaleSlope="2", RescaleIntercept="-1024")
    found = gray(path, IntensityRange(0.0, 1000.0))
    assert np.abs(found - scaled(2.0 * RAMP - 1024, 0, 1000)).max() <= 0.5


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID", None])
def test_a_window_is_applied_to_rescaled_values_whatever_the_levels(tmp_path: Path, function: str | None) -> None:
    facts: dict[str, Any] = {"RescaleSlope": "1", "RescaleIntercept": "-1024", "WindowCenter": ["40", "600"]}
    facts |= {"WindowWidth": ["400", "2800"]} | ({} if function is None else {"VOILUTFunction": function})
    path = dicom(tmp_path / "a.dcm", RAMP, **facts)
    oracle = Dataset()
    oracle.PhotometricInterpretation, oracle.BitsStored, oracle.PixelRepresentation = "MONOCHROME2", 12, 0
    for name, value in facts.items():
        setattr(oracle, name, value)
    values = RAMP.astype(float) - 1024
    expected = scaled(apply_windowing(values, oracle), -1024, 3071)
    assert np.abs(gray(path) - expected).max() <= 0.5 + 1e-6
    assert np.array_equal(gray(path, IntensityRange(0.0, 1.0)), gray(path))


def test_a_window_of_width_one_is_a_threshold(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP, WindowCenter="1000", WindowWidth="1")
    assert np.array_equal(gray(path), np.where(RAMP > 999.5, 255, 0))
    with pytest.raises(ImageError, match="window has center 1000 and width 0; give it a width above 0"):
        read_image(dicom(tmp_path / "b.dcm", RAMP, WindowCenter="1000", WindowWidth="0"))


def table(values: NDArray[np.uint16], first: int, bits: int) -> Dataset:
    entry = Dataset()
    entry.add_new("LUTDescriptor", "US", [len(values), first, bits])
    entry.add_new("LUTData", "OW", values.tobytes())
    return entry


def test_a_voi_table_is_scaled_by_its_own_bits(tmp_path: Path) -> None:
    values = np.array([1023, 512, 0], dtype=np.uint16)  # of ten bits, and falling
    path = dicom(tmp_path / "a.dcm", np.array([[0, 1, 2, 9]], dtype=np.uint16), VOILUTSequence=[table(values, 0, 10)])
    assert gray(path)[0].tolist() == [255, 128, 0, 0]


def test_a_modality_table_is_applied_first(tmp_path: Path) -> None:
    values = np.array([0, 30_000, 65_535], dtype=np.uint16)
    stored = np.array([[0, 1, 2]], dtype=np.uint16)
    path = dicom(tmp_path / "a.dcm", stored, ModalityLUTSequence=[table(values, 0, 16)])
    assert np.abs(gray(path) - scaled(values[None], 0, 65_535)).max() <= 0.5
    assert np.abs(gray(path, IntensityRange(0.0, 40_000.0)) - scaled(values[None], 0, 40_000)).max() <= 0.5


def test_monochrome1_is_shown_inverted(tmp_path: Path) -> None:
    plain = gray(dicom(tmp_path / "a.dcm", RAMP))
    inverted = gray(dicom(tmp_path / "b.dcm", RAMP, PhotometricInterpretation="MONOCHROME1"))
    assert np.array_equal(inverted, 255 - plain)


def test_eight_bits_are_never_touched_by_levels(tmp_path: Path) -> None:
    pixels = np.array([[0, 90, 200, 255]], dtype=np.uint8)
    path = dicom(tmp_path / "a.dcm", pixels, bits=8)
    assert np.array_equal(gray(path, IntensityRange(80.0, 100.0)), pixels)
    assert find_intensity_range([path], "auto") is None


def test_colors_keep_their_order(tmp_path: Path) -> None:
    colors = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    facts: dict[str, Any] = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    assert np.array_equal(np.asarray(read_image(dicom(tmp_path / "a.dcm", colors, bits=8, **facts))), colors)
    ycc = np.asarray(Image.fromarray(colors).convert("YCbCr"))
    facts |= {"PhotometricInterpretation": "YBR_FULL"}
    found = np.asarray(read_image(dicom(tmp_path / "b.dcm", ycc, bits=8, **facts))).astype(int)
    assert np.abs(found - colors).max() <= 3


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for place, name in enumerate(["Red", "Green", "Blue"]):
        facts[f"{name}PaletteColorLookupTableDescriptor"] = [3, 0, 16]
        lookup = np.array([0, 0x8000, 0xFFFF], dtype=np.uint16)
        facts[f"{name}PaletteColorLookupTableData"] = np.roll(lookup, place).tobytes()
    path = dicom(tmp_path / "a.dcm", np.array([[0, 1, 2]], dtype=np.uint8), bits=8, **facts)
    assert np.asarray(read_image(path))[0].tolist() == [[0, 255, 128], [128, 0, 255], [255, 128, 0]]


def test_of_several_frames_the_first_is_taken_with_its_own_window(tmp_path: Path) -> None:
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


def test_jpeg_within_dicom_is_decoded_and_what_nobody_decodes_is_named(tmp_path: Path) -> None:
    smooth = np.linspace(0, 255, 64, dtype=np.uint8)[None].repeat(32, axis=0)
    buffer = io.BytesIO()
    Image.fromarray(smooth).save(buffer, "JPEG", quality=95)
    packed = encapsulate([buffer.getvalue()])
    path = dicom(tmp_path / "a.dcm", smooth, bits=8, syntax=JPEGBaseline8Bit, PixelData=packed)
    assert np.abs(gray(path).astype(int) - smooth).max() <= 3
    other = dicom(tmp_path / "b.dcm", smooth, bits=8, syntax=JPEGLSLossless, PixelData=packed)
    with pytest.raises(ImageError, match=r"stored as JPEG-LS Lossless.*; pip install pylibjpeg .* or save it uncomp"):
        read_image(other)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
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
    with pytest.raises(ImageError, match=r"report\.dcm: is a DICOM file without an image; leave it out"):
        read_image(tmp_path / "report.dcm")
    bomb = dicom(tmp_path / "bomb.dcm", RAMP, Rows=20_000, Columns=20_000)
    with pytest.raises(ImageError, match="pixels of memory to decode; save it smaller"):
        read_image(bomb)


def test_the_mark_decides_and_not_the_name(tmp_path: Path) -> None:
    path = dicom(tmp_path / "IM0001", RAMP)
    assert gray(path).shape == RAMP.shape
    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "picture.dcm", "PNG")
    assert read_image(tmp_path / "picture.dcm").getpixel((0, 0)) == (1, 2, 3)
    (tmp_path / "text.dcm").write_text("no image")
    with pytest.raises(ImageError, match="not an image"):
        read_image(tmp_path / "text.dcm")


def test_without_pydicom_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(
        ImageError, match=r"a\.dcm: is a DICOM file, which pydicom reads; pip install 'probmcl\[dicom\]'"
    ):
        read_image(path)


def test_a_folder_is_searched_for_them(tmp_path: Path) -> None:
    for name in ("a.dcm", "b.DICOM", "c.txt"):
        dicom(tmp_path / name, RAMP)
    assert [item.path.name for item in find(tmp_path)] == ["a.dcm", "b.DICOM"]


def test_only_files_without_a_window_take_part_in_finding_levels(tmp_path: Path) -> None:
    windowed = dicom(tmp_path / "a.dcm", RAMP, WindowCenter="1000", WindowWidth="500")
    bare = dicom(tmp_path / "b.dcm", RAMP, RescaleSlope="1", RescaleIntercept="-1000")
    assert find_intensity_range([windowed], "auto") is None
    assert find_intensity_range([windowed, bare], "auto") == IntensityRange(-1000.0, 3095.0)
    assert find_intensity_range([windowed, bare], "full") is None  # each says itself what its bits can hold
    Image.fromarray(RAMP).save(tmp_path / "c.png")
    with pytest.raises(DataError, match="there are 16-bit and DICOM images, which have no range in common"):
        find_intensity_range([bare, tmp_path / "c.png"], "full")
