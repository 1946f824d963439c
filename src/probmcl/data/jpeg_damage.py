"""What Pillow does not tell about a JPEG file: whether its data are damaged, and the number of its scans."""

from __future__ import annotations

import re
from collections.abc import Iterator

import simplejpeg

DAMAGE = ("Corrupt JPEG data:", "Premature end of JPEG file", "Inconsistent progression sequence")
"""Starts of libjpeg's warnings about image data; their texts have not changed since 1991. Its other warnings are about
unusual headers that some cameras and editors write, such as an unknown version of JFIF."""

HARMLESS = "Corrupt JPEG data: bad ICC marker"  # a color profile; the image data may be intact
PADDING = re.compile(r"Corrupt JPEG data: (\d+) extraneous bytes before marker 0xd9")

START, END, SCAN, RESTART = 0xD8, 0xD9, 0xDA, range(0xD0, 0xD8)
RESERVED = range(0xC0)  # markers without a segment, like START and RESTART
MARKER = re.compile(rb"\xff([^\x00\xff])")


def jpeg_damage(data: bytes) -> str | None:
    """Return libjpeg's first warning about the image data of a JPEG file that Pillow decodes, or None (decision 0013).

    libjpeg does not stop at damaged data: it fills the rest of the image with gray, or continues with wrong pixels. It
    only warns, and Pillow hides the warnings. Damage that gives a valid file, such as most changes of a single bit, is
    not detected.

    >>> from io import BytesIO
    >>> from PIL import Image
    >>> content = BytesIO()
    >>> Image.effect_noise((64, 64), 50).save(content, "JPEG")
    >>> jpeg_damage(content.getvalue())
    >>> jpeg_damage(content.getvalue()[:1500] + b"\\xff\\xd9")
    'Corrupt JPEG data: premature end of data segment'
    """
    warning = _first_warning(data)
    if warning is None or not warning.startswith(DAMAGE) or warning == HARMLESS:
        return None
    if _is_padding(warning, data):
        return None
    return warning


def _first_warning(data: bytes) -> str | None:
    """Return libjpeg's first warning or its error, or None."""
    try:
        # Gray at 1/8 of the size takes the least time and memory. All data are still decoded.
        simplejpeg.decode_jpeg(data, "GRAY", fastdct=True, min_height=1, min_width=1)
    except ValueError as error:
        return str(error)
    return None


def _is_padding(warning: str, data: bytes) -> bool:
    """Return whether a warning is only about zeros before the end marker, with which cameras fill up a block."""
    padding = PADDING.fullmatch(warning)
    if padding is None:
        return False
    zeros = bytes(int(padding[1]))
    zeros_before_end = re.escape(zeros) + rb"\xff+\xd9"
    return re.search(zeros_before_end, data) is not None


def scan_count(data: bytes) -> int:
    """Return the number of scans of a JPEG file, without those of thumbnails and of images after its end."""
    return sum(code == SCAN for code in _markers(data))


def _markers(data: bytes) -> Iterator[int]:
    """Yield the code of each marker before the end marker, without those inside segments."""
    position = 2  # after the marker at the start of the file
    while marker := MARKER.search(data, position):
        code = marker[1][0]
        if code == END:
            return
        yield code
        position = marker.end()
        has_segment = code not in RESERVED and code not in RESTART and code != START
        if has_segment:  # it starts with its length
            position += int.from_bytes(data[position : position + 2], "big")
