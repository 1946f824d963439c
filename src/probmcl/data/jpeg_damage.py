"""Detection of damaged JPEG files that Pillow decodes without an error (decision 0013).

If image data are missing, libjpeg fills the rest of the image with gray, and if they are corrupted, it continues with
wrong pixels. It only counts warnings, which Pillow does not pass on. But after almost any damage, the decoder completes
the last pixel before or after the end of the data instead of exactly there, which can be observed from outside.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from PIL.JpegImagePlugin import JpegImageFile

TOO_SHORT = "the image data end before the last pixel"
TOO_LONG = "the image data continue after the last pixel"
RESTARTS = "restart markers are missing or out of order"
INCOMPLETE = "scans are missing"
INCONSISTENT = "the markers are inconsistent"
REASONS = (TOO_SHORT, TOO_LONG, RESTARTS, INCOMPLETE, INCONSISTENT)

SEQUENTIAL, PROGRESSIVE = (0xC0, 0xC1), 0xC2  # frames with Huffman coding
START, END, SCAN, INTERVAL, RESTART = 0xD8, 0xD9, 0xDA, 0xDD, range(0xD0, 0xD8)
RESERVED = range(0xC0)  # markers without a segment, like START and RESTART
MARKER = re.compile(rb"\xff([^\x00\xff])")
BIT_BUFFER = 8  # bytes that libjpeg may read ahead
UNWRITTEN, LATE = 7, 248  # values of pixels that the decoder has not written
PADDING = b"\x35\xa6\x1b\x92\x4d\x68\xc7\x59" * 4  # bits that decode to something other than zeros
PROGRESSIVE_SIDE = 1024  # pixels; at 1/8 of its size, an image does not depend on the scans of high frequencies


class Scan(NamedTuple):
    """A scan: its header, its restart interval in units, the end of each piece of its data, and the numbers of the
    restart markers between pieces."""

    header: bytes
    interval: int
    ends: list[int]
    restarts: list[int]


class Structure(NamedTuple):
    """The kind of a JPEG's frame, the header of the frame, and the scans."""

    kind: int
    frame: bytes
    scans: list[Scan]


def jpeg_damage(data: bytes) -> str | None:
    """Return one of `REASONS` if the content of a JPEG file that Pillow decodes is damaged, or None.

    Damage after which the decoder ends at the right byte is not detected, such as most changes of a single bit.

    >>> from PIL import Image
    >>> content = io.BytesIO()
    >>> Image.effect_noise((64, 64), 50).save(content, "JPEG")
    >>> jpeg_damage(content.getvalue())
    >>> jpeg_damage(content.getvalue()[:1500] + b"\\xff\\xd9")
    'the image data end before the last pixel'
    """
    try:
        found = _structure(data)
        if found.kind not in (*SEQUENTIAL, PROGRESSIVE):
            return None
        return _structural_damage(found) or _data_damage(data, found)
    except Exception:  # Pillow's decoders raise almost any exception for a damaged file
        return INCONSISTENT


def scan_count(data: bytes) -> int:
    """Return the number of scans of a JPEG file, without those of thumbnails and of images after its end."""
    return sum(code == SCAN for code, _, _ in _segments(data))


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the code of each marker before the end marker, and where the content of its segment starts and ends."""
    position = 2
    while (marker := MARKER.search(data, position)) and marker[1][0] != END:
        code, start = marker[1][0], marker.end()
        is_bare = code in RESERVED or code in RESTART or code == START
        position = start + (0 if is_bare else int.from_bytes(data[start : start + 2], "big"))
        yield code, start + 2, position


def _structure(data: bytes) -> Structure:
    kind, frame, interval = 0, b"", 0
    scans: list[Scan] = []
    for code, start, end in _segments(data):
        if code in (*SEQUENTIAL, PROGRESSIVE):
            kind, frame = code, data[start:end]
        elif code == INTERVAL:
            interval = int.from_bytes(data[start:end], "big")
        elif code == SCAN:
            scans.append(_scan(data, data[start:end], interval, end))
    return Structure(kind, frame, scans)


def _scan(data: bytes, header: bytes, interval: int, position: int) -> Scan:
    scan = Scan(header, interval, [], [])
    for marker in MARKER.finditer(data, position):
        scan.ends.append(marker.start())
        if marker[1][0] not in RESTART:
            return scan
        scan.restarts.append(marker[1][0] - RESTART.start)
    raise ValueError("the data have no end")


def _structural_damage(found: Structure) -> str | None:
    if not _is_complete(found):
        return INCOMPLETE
    for scan in found.scans:
        across, down = _units(found, scan)
        count = (across * down - 1) // scan.interval if scan.interval else 0
        if scan.restarts != [number % len(RESTART) for number in range(count)]:
            return RESTARTS
    return None


def _is_complete(found: Structure) -> bool:
    """Return whether the scans contain all bits of all 64 coefficients of each component."""
    missing = {component: [True] * 64 for component in found.frame[6::3]}
    for scan in found.scans:
        count = scan.header[0]
        first, last, bits = scan.header[1 + 2 * count : 4 + 2 * count]
        for component in scan.header[1 : 1 + 2 * count : 2]:
            missing[component][first : last + 1] = [bits % 16 > 0] * (last + 1 - first)
    return not any(map(any, missing.values()))


def _units(found: Structure, scan: Scan) -> tuple[int, int]:
    """Return the number of coded units across and down; a unit has one or more blocks of 8 × 8 samples."""
    height, width = _sides(found)
    factors = _sampling_factors(found)
    across, down = (8 * max(factor[axis] for factor in factors.values()) for axis in (0, 1))
    if scan.header[0] == 1:  # one component: a unit is a block
        own = factors[scan.header[1]]
        across, down = across // own[0], down // own[1]
    return -(-width // across), -(-height // down)


def _sides(found: Structure) -> tuple[int, int]:
    """Return the height and the width in pixels."""
    return int.from_bytes(found.frame[1:3], "big"), int.from_bytes(found.frame[3:5], "big")


def _sampling_factors(found: Structure) -> dict[int, tuple[int, int]]:
    """Return the horizontal and vertical sampling factors of each component."""
    return {found.frame[start]: divmod(found.frame[start + 1], 16) for start in range(6, len(found.frame), 3)}


def _data_damage(data: bytes, found: Structure) -> str | None:
    rows = _last_rows(found)
    if rows:
        return _watch(data, found.scans[0].ends, rows)
    side = PROGRESSIVE_SIDE if found.kind == PROGRESSIVE else 1
    return TOO_SHORT if _decoded(data, side) != _decoded(_padded(data, found), side) else None


def _last_rows(found: Structure) -> list[int]:
    """Return the last row that each piece of the data completes in an image decoded at 1/8 of its size.

    The list is empty if the image is not complete before the end of the file, or if pieces end within a row of units.
    """
    scan, factors = found.scans[0], _sampling_factors(found)
    across, down = _units(found, scan)
    interval = scan.interval or across * down
    rows = max(factor[1] for factor in factors.values())
    unusual = rows > scan.header[0]  # libjpeg completes several rows of blocks at once if there is one component
    unusual |= min(_sides(found)) < 8  # Pillow does not reduce it to 1/8
    if found.kind == PROGRESSIVE or len(found.scans) > 1 or interval % across or unusual:
        return []
    return [(piece + 1) * interval // across * rows - 1 for piece in range(len(scan.ends))]


def _watch(data: bytes, ends: list[int], rows: list[int]) -> str | None:
    """Decode a JPEG at 1/8 of its size, and return whether a piece completes its last row too early or too late."""
    image = _WatchedJpeg(io.BytesIO(data))
    image.draft(_coded_mode(image), (1, 1))
    image.rows = [min(row, image.height - 1) for row in rows]
    for start, end in itertools.pairwise([0, *ends]):
        needed = start + len(data[start:end].rstrip(b"\0")) - 1  # zeros after the data are harmless
        image.parts += (data[start:needed], data[needed:end] + bytes(BIT_BUFFER))
    image.parts += (b"\xff\xd9",)
    image.load()
    return image.damage()


class _WatchedJpeg(JpegImageFile):
    """A JPEG that is passed to the decoder in parts, to observe when the last pixel of each piece is written.

    There are two parts per piece: all bytes but the last one, and the last one with padding.
    """

    rows: Sequence[int]
    parts: tuple[bytes, ...] = ()
    read = 0
    early = False
    late: tuple[int, ...] = ()

    def load_read(self, read_bytes: int) -> bytes:
        """Return the next part; Pillow calls this method if the decoder has used the previous one."""
        piece, is_last_byte = divmod(self.read, 2)
        if is_last_byte:
            self.early |= self._pixel(piece) != self._color(UNWRITTEN)
        elif piece and self._pixel(piece - 1) == self._color(UNWRITTEN):
            self._mark(piece - 1, LATE)
            self.late += (piece - 1,)
        if not is_last_byte and piece < len(self.rows):
            self._mark(piece, UNWRITTEN)
        self.read += 1
        return self.parts[self.read - 1]

    def damage(self) -> str | None:
        """Return the reason if the last pixel of a piece was written too early or too late."""
        if self.early or self.read < 2 * len(self.rows):  # Pillow ignores data after the last row
            return TOO_LONG
        return TOO_SHORT if any(self._pixel(piece) != self._color(LATE) for piece in self.late) else None

    def _pixel(self, piece: int) -> object:
        return self.im.getpixel((self.width - 1, self.rows[piece]))

    def _mark(self, piece: int, value: int) -> None:
        self.im.putpixel((self.width - 1, self.rows[piece]), self._color(value))

    def _color(self, value: int) -> int | tuple[int, ...]:
        return value if self.mode == "L" else (value,) * len(self.getbands())


def _decoded(data: bytes, side: int) -> bytes:
    image = JpegImageFile(io.BytesIO(data))
    image.draft(_coded_mode(image), (side, side))
    return image.tobytes()


def _coded_mode(image: JpegImageFile) -> str:
    """Return the mode of the stored colors. libjpeg cannot convert RGB to YCbCr."""
    names = bytes(component for component, *_ in image.layer)
    return "RGB" if image.info.get("adobe_transform") == 0 or names == b"RGB" else "YCbCr"


def _padded(data: bytes, found: Structure) -> bytes:
    """Return a file with additional data in each piece, which change the image only if the piece is too short."""
    ends = [0, *(end for scan in found.scans for end in scan.ends)]
    pieces = [data[start:end] + PADDING for start, end in itertools.pairwise(ends)]
    return b"".join([*pieces, data[ends[-1] :]])
