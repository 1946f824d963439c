"""Reads DICOM files as 8-bit images; requires `pip install 'probmcl[dicom]'`.

The modality LUT or rescale is applied to the stored values, then the first VOI LUT or window (NEMA PS3.3, C.11.1 and
C.11.2). Without a VOI LUT or window, the given intensity range is used or, by default, the full range of the bits.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from jaxtyping import Shaped, UInt8
from numpy import ndarray
from PIL import Image

from probmcl.data.pixels import PIXELS_PER_STRIP, IntensityRange

if TYPE_CHECKING:
    from pydicom import Dataset

MAX_FRAME_BYTES = 6  # per pixel: 16-bit RGB
COLORS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "YBR_PARTIAL_420", "YBR_PARTIAL_422")


def read_dicom(file: BinaryIO, intensity: IntensityRange | None = None) -> Image.Image:
    """Decode the first frame into an RGB image, or raise `ValueError`."""
    data, stored = _read(file)
    interpretation = data.PhotometricInterpretation
    if interpretation == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        return Image.fromarray(_in_strips(stored, lambda strip: _color_bytes(apply_color_lut(strip, data))))
    if interpretation in COLORS:
        return Image.fromarray(_in_strips(stored, lambda strip: _eight_bits(strip, data.BitsStored)))
    if not interpretation.startswith("MONOCHROME"):
        raise ValueError(f"photometric interpretation {interpretation} is not supported; use MONOCHROME2 or RGB")
    gray = _in_strips(stored, lambda strip: _gray(data, strip, intensity))
    if interpretation == "MONOCHROME1":  # the lowest value is white
        gray = 255 - gray
    return Image.fromarray(gray).convert("RGB")


def _in_strips(
    stored: Shaped[ndarray, "*frame"], convert: Callable[[Shaped[ndarray, "*strip"]], UInt8[ndarray, "*converted"]]
) -> UInt8[ndarray, "*image"]:
    """Convert a frame in strips, so that the memory of intermediate results does not depend on its size."""
    height, width = stored.shape[:2]
    rows = max(1, PIXELS_PER_STRIP // width)
    return np.concatenate([convert(stored[top : top + rows]) for top in range(0, height, rows)])


def dicom_values(file: BinaryIO) -> Shaped[ndarray, "H W"] | None:
    """Return the gray values of the first frame, or None if the file defines how they are displayed."""
    data, stored = _read(file)
    is_gray = data.PhotometricInterpretation.startswith("MONOCHROME")
    if not is_gray or not _needs_range(data):
        return None
    return _modality(data, stored)


def _read(file: BinaryIO) -> tuple[Dataset, Shaped[ndarray, "*frame"]]:
    """Return the attributes of a DICOM file and the stored values of its first frame."""
    try:
        import pydicom
        from pydicom.pixels.utils import pixel_array
    except ImportError as error:
        raise ValueError("is a DICOM file, which requires pydicom; run pip install 'probmcl[dicom]'") from error
    _refuse_inflated(file)
    data = pydicom.dcmread(file)
    if "PixelData" not in data:
        raise ValueError("is a DICOM file without an image; remove it")
    if Image.MAX_IMAGE_PIXELS is not None and data.Rows * data.Columns > Image.MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError(f"{data.Columns:,} × {data.Rows:,} pixels")
    _copy_frame_attributes(data)
    try:
        return data, pixel_array(data, index=0)
    except RuntimeError as error:  # no decoder for this compression
        name = data.file_meta.TransferSyntaxUID.name
        remedy = "run pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg, or save it uncompressed"
        raise ValueError(f"is compressed as {name}, which pydicom cannot decode by itself; {remedy}") from error


def _refuse_inflated(file: BinaryIO) -> None:
    """Raise an error if a deflated file inflates to more than an image within the pixel limit; rewind the file.

    pydicom would inflate it in one step. The functions of pydicom that skip the header are private.
    """
    from pydicom.filereader import _read_command_set_elements, _read_file_meta_info, read_preamble
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    read_preamble(file, force=False)
    syntax = _read_file_meta_info(file).get("TransferSyntaxUID")
    if syntax == DeflatedExplicitVRLittleEndian and Image.MAX_IMAGE_PIXELS is not None:
        _read_command_set_elements(file)  # `dcmread` skips them too
        _refuse_inflated_rest(file, MAX_FRAME_BYTES * Image.MAX_IMAGE_PIXELS)
    file.seek(0)


def _refuse_inflated_rest(file: BinaryIO, max_bytes: int) -> None:
    """Raise an error if the rest of a file, which is deflated, inflates to more than `max_bytes`."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)  # negative: without a zlib header
    size = 0
    while not stream.eof:
        chunk = file.read(2**14)
        if not chunk:
            return
        size += len(stream.decompress(chunk))
        if size > max_bytes:
            raise Image.DecompressionBombError(f"{size:,} bytes")


def _copy_frame_attributes(data: Dataset) -> None:
    """Copy the first frame's rescale and window to the top level of a multi-frame file."""
    for groups in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        frames = data.get(groups)
        if not frames:
            continue
        first_frame = frames[0]
        for sequence in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
            if sequence in first_frame:
                attributes = first_frame[sequence].value[0]
                data.update({element.tag: element for element in attributes})


def _gray(data: Dataset, stored: Shaped[ndarray, "H W"], intensity: IntensityRange | None) -> UInt8[ndarray, "H W"]:
    """Return the gray levels in which the file wants its values shown: by its VOI LUT, its window, or the range."""
    values = _modality(data, stored)
    if data.get("VOILUTSequence"):
        from pydicom.pixels.processing import apply_voi

        bits = int(data.VOILUTSequence[0].LUTDescriptor[2])  # the third value is the number of bits of an entry
        return _eight_bits(apply_voi(values, data, index=0), bits)
    if _has_window(data):
        return _window(values, data)
    if intensity is not None and _needs_range(data):
        return intensity.gray(values)
    return _full_range(data).gray(values)


def _modality(data: Dataset, stored: Shaped[ndarray, "H W"]) -> Shaped[ndarray, "H W"]:
    """Return the stored values after the modality LUT or rescale."""
    from pydicom.pixels.processing import apply_modality_lut

    return apply_modality_lut(stored, data)


def _has_window(data: Dataset) -> bool:
    """Return whether the file has a window, which maps gray values to what is displayed."""
    return data.get("WindowCenter") is not None and data.get("WindowWidth") is not None


def _needs_range(data: Dataset) -> bool:
    """Return whether a gray image is deep and the file does not define how it is displayed."""
    return data.BitsStored > 8 and not data.get("VOILUTSequence") and not _has_window(data)


def _window(values: Shaped[ndarray, "H W"], data: Dataset) -> UInt8[ndarray, "H W"]:
    """Map values to gray levels by the first window of the file (DICOM PS3.3, C.11.2.1.2 and C.11.2.1.3).

    A window has a center and a width: the values around the center, in about this width, become 0 to 255.
    """
    from pydicom import Dataset
    from pydicom.pixels.processing import apply_windowing

    center = float(np.ravel(data.WindowCenter)[0])  # a file may have several windows
    width = float(np.ravel(data.WindowWidth)[0])
    if not width > 0 or not math.isfinite(center):
        raise ValueError(f"has a window with center {center:g} and width {width:g}; the width must be above 0")
    function = data.get("VOILUTFunction") or "LINEAR"
    if function == "LINEAR":
        width = max(width, 1.0)  # a threshold; pydicom refuses narrower windows

    # With the attributes of the file itself, pydicom would map the window to the range of the rescaled values, which is
    # reversed for a negative slope. With these attributes of an 8-bit image, it maps the window to 0 to 255.
    window = Dataset()
    window.PhotometricInterpretation = "MONOCHROME2"
    window.BitsStored = 8
    window.PixelRepresentation = 0  # unsigned
    window.WindowCenter = center
    window.WindowWidth = width
    window.VOILUTFunction = function
    gray: ndarray = np.rint(apply_windowing(values, window)).astype(np.uint8)
    return gray


def _full_range(data: Dataset) -> IntensityRange:
    """Return the range that the stored bits can represent, after the modality LUT or rescale."""
    if data.get("ModalityLUTSequence"):
        bits = data.ModalityLUTSequence[0].LUTDescriptor[2]  # the third value is the number of bits of an entry
        return IntensityRange(0.0, 2.0**bits - 1)
    half = 2.0 ** (data.BitsStored - 1)
    is_signed = bool(data.PixelRepresentation)
    ends = (-half, half - 1) if is_signed else (0.0, 2 * half - 1)
    slope = float(data.get("RescaleSlope", 1))
    intercept = float(data.get("RescaleIntercept", 0))
    low, high = sorted(slope * end + intercept for end in ends)  # a negative slope swaps the ends
    return IntensityRange(low, high)


def _color_bytes(colors: Shaped[ndarray, "H W C"]) -> UInt8[ndarray, "H W 3"]:
    """Return the colors of a palette, with or without an alpha channel and with 8 or 16 bits, as 8-bit RGB."""
    bits = 8 * colors.dtype.itemsize
    return _eight_bits(colors[..., :3], bits)


def _eight_bits(values: Shaped[ndarray, "*shape"], bits: int) -> UInt8[ndarray, "*shape"]:
    """Scale unsigned values with this number of bits to 0 to 255."""
    return IntensityRange(0.0, 2.0**bits - 1).gray(values)
