"""DICOM files as the 8-bit images that their own window shows; needs `pip install 'probmcl[dicom]'`.

Stored values go through the modality LUT or rescale, then through the first VOI LUT or window (NEMA PS3.3, C.11.1 and
C.11.2). A file without a window is scaled by the given intensity range, and without one by that of its stored bits.
"""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Shaped, UInt8
from numpy import ndarray
from PIL import Image

from probmcl.data.intensity import IntensityRange

if TYPE_CHECKING:
    from pydicom import Dataset

HEAD = 132  # bytes: a preamble of 128, then the mark
COLORS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "YBR_PARTIAL_420", "YBR_PARTIAL_422")


def is_dicom(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of DICOM.

    >>> is_dicom(bytes(128) + b"DICM"), is_dicom(b"GIF89a")
    (True, False)
    """
    return head[128:132] == b"DICM"


def read_dicom(file: IO[bytes], intensity: IntensityRange | None = None) -> Image.Image:
    """Decode the first frame into RGB, or raise `ValueError`."""
    data, stored = _read(file)
    kind = data.PhotometricInterpretation
    if kind == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        colors = apply_color_lut(stored, data)
        return Image.fromarray(_eight_bits(colors[..., :3], 8 * colors.dtype.itemsize))
    if kind in COLORS:
        return Image.fromarray(_eight_bits(stored, data.BitsStored))
    if not kind.startswith("MONOCHROME"):
        raise ValueError(f"its photometric interpretation is {kind}; save it as MONOCHROME2 or RGB")
    gray = _gray(data, stored, intensity)
    return Image.fromarray(255 - gray if kind == "MONOCHROME1" else gray).convert("RGB")


def dicom_values(file: IO[bytes]) -> Shaped[ndarray, "H W"] | None:
    """Return the gray values of the first frame; None if the file itself defines how they are displayed."""
    data, stored = _read(file)
    if not data.PhotometricInterpretation.startswith("MONOCHROME") or not _needs_range(data):
        return None
    return _modality(data, stored)


def _read(file: IO[bytes]) -> tuple[Dataset, Shaped[ndarray, "*frame"]]:
    try:
        import pydicom
        from pydicom.pixels.utils import pixel_array
    except ImportError as error:
        raise ValueError("is a DICOM file, which pydicom reads; pip install 'probmcl[dicom]'") from error
    data = pydicom.dcmread(file)
    if "PixelData" not in data:
        raise ValueError("is a DICOM file without an image; leave it out")
    if Image.MAX_IMAGE_PIXELS is not None and data.Rows * data.Columns > Image.MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError(f"{data.Columns:,} × {data.Rows:,} pixels")
    _lift_frame_facts(data)
    try:
        return data, pixel_array(data, index=0)
    except RuntimeError as error:  # no decoder for this compression
        name = data.file_meta.TransferSyntaxUID.name
        remedy = "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg, or save it uncompressed"
        raise ValueError(f"its pixels are stored as {name}, which needs more than pydicom; {remedy}") from error


def _lift_frame_facts(data: Dataset) -> None:
    """Copy the rescale and the window of the first frame of a multi-frame file to the top level."""
    for groups in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        first = (data.get(groups) or [{}])[0]
        for fact in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
            if fact in first:
                data.update({element.tag: element for element in first[fact].value[0]})


def _gray(data: Dataset, stored: Shaped[ndarray, "H W"], intensity: IntensityRange | None) -> UInt8[ndarray, "H W"]:
    values = _modality(data, stored)
    if data.get("VOILUTSequence"):
        from pydicom.pixels.processing import apply_voi

        return _eight_bits(apply_voi(values, data, index=0), int(data.VOILUTSequence[0].LUTDescriptor[2]))
    if _has_window(data):
        return IntensityRange(0.0, 1.0).gray(_window(values.astype(np.float64), data))
    return (intensity if intensity is not None and _needs_range(data) else _full(data)).gray(values)


def _modality(data: Dataset, stored: Shaped[ndarray, "H W"]) -> Shaped[ndarray, "H W"]:
    from pydicom.pixels.processing import apply_modality_lut

    return apply_modality_lut(stored, data)


def _has_window(data: Dataset) -> bool:
    return data.get("WindowCenter") is not None and data.get("WindowWidth") is not None


def _needs_range(data: Dataset) -> bool:
    return data.BitsStored > 8 and not data.get("VOILUTSequence") and not _has_window(data)


def _window(values: Float[ndarray, "H W"], data: Dataset) -> Float[ndarray, "H W"]:
    """Apply the first window (C.11.2.1.2 and C.11.2.1.3); the result is from 0 to 1."""
    center, width = (float(np.ravel(several)[0]) for several in (data.WindowCenter, data.WindowWidth))
    function = data.get("VOILUTFunction") or "LINEAR"
    if not width > 0 or not math.isfinite(center):
        raise ValueError(f"its window has center {center:g} and width {width:g}; give it a width above 0")
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (values - center) / width)))
    if function == "LINEAR_EXACT":
        return np.clip((values - center) / width + 0.5, 0, 1)
    if function != "LINEAR":
        raise ValueError(f"its VOI LUT function is {function}; LINEAR, LINEAR_EXACT and SIGMOID are known")
    if width <= 1:  # a threshold
        return (values > center - 0.5).astype(np.float64)
    return np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0, 1)


def _full(data: Dataset) -> IntensityRange:
    """Return the range of the stored bits, through the modality LUT or rescale."""
    if data.get("ModalityLUTSequence"):
        return IntensityRange(0.0, 2.0 ** data.ModalityLUTSequence[0].LUTDescriptor[2] - 1)
    half = 2.0 ** (data.BitsStored - 1)
    ends = (-half, half - 1) if data.PixelRepresentation else (0.0, 2 * half - 1)
    slope, intercept = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
    low, high = sorted(slope * end + intercept for end in ends)
    return IntensityRange(low, high)


def _eight_bits(values: Shaped[ndarray, "*shape"], bits: int) -> UInt8[ndarray, "*shape"]:
    return IntensityRange(0.0, 2.0**bits - 1).gray(values)
