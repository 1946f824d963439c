"""Arrays and tensors on disk: safetensors files, files written in blocks, and their digests and checksums.

Everything that compares contents, or notices damage, uses one of them.

Blocks are written to the file and not to mapped memory, where a full disk would end the process with a signal and no
message. Reading uses mapped memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Shaped
from numpy import ndarray
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from probmcl.errors import RunError, WeightsError, plain
from probmcl.runtime.files import atomic_write, json_line, open_file, open_for_update, parse_json
from probmcl.runtime.folders import explained_no_space

if TYPE_CHECKING:
    from torch import Tensor

Content = bytes | bytearray | memoryview

SIZE_BYTES = 8
"""Length of the number at the beginning of a safetensors file, which is the size of its JSON header."""

MAX_HEADER = 100_000_000
"""Largest size of the JSON header of a safetensors file, in bytes."""

DTYPES = {1: "BOOL U8 I8 F8_E4M3 F8_E5M2", 2: "U16 I16 F16 BF16", 4: "U32 I32 F32", 8: "U64 I64 F64 C64"}
ITEM_SIZES = {dtype: size for size, dtypes in DTYPES.items() for dtype in dtypes.split()}
"""Bytes per element of each data type of a safetensors file."""

MAX_DIMENSIONS = 64
"""Largest number of dimensions of a tensor in PyTorch."""

HEADER = "probmcl"  # the key of our metadata in the header of a safetensors file


def content_digest(parts: Iterable[Content]) -> bytes:
    """Return the SHA-256 of some parts of content, one after the other.

    Equal digests mean equal content. With the SHA instructions of present CPUs, it is faster than BLAKE2.

    >>> content_digest([b"a", b"bc"]) == content_digest([b"abc"])
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def stream_digest(file: io.BufferedReader) -> bytes:
    """Return the digest of the rest of an open file."""
    return hashlib.file_digest(file, "sha256").digest()


def block_checksum(block: Content, before: int = 0) -> int:
    """Return the CRC-32 of a block, or of several, given the checksum of those before.

    It is four times as fast as a digest, and notices damage, but does not identify content.

    >>> block_checksum(b"bc", before=block_checksum(b"a")) == block_checksum(b"abc")
    True
    """
    return zlib.crc32(block, before)


class Block(NamedTuple):
    """Some views of consecutive rows."""

    views: range
    rows: range


@dataclass(frozen=True)
class ArrayFile:
    """A .npy file with an array of shape (views, rows, ...); below the folder `root`, symlinks are not followed."""

    path: Path
    root: Path
    shape: tuple[int, ...]
    dtype: type[np.generic]

    def prepare(self) -> None:
        """Create the file at its full size, as a sparse file on most file systems.

        If an existing file has a damaged header or was truncated, both are repaired; checksums show what was lost.
        """
        header = self._header()
        views = self.shape[0]
        size = self._offset(views, 0)  # the end of the last view
        existing_size = self.path.stat().st_size if self.path.is_file() else 0
        self._refuse_small_disk(size - existing_size)
        with explained_no_space(self.path, size), open_for_update(self.path, root=self.root) as file:
            if file.read(len(header)) != header:
                file.seek(0)
                file.write(header)
            if existing_size != size:
                file.truncate(size)

    def write(self, block: Block, values: Shaped[ndarray, "V n *rest"]) -> int:
        """Write a block and return its checksum."""
        checksum = 0
        with explained_no_space(self.path, values.nbytes), open_for_update(self.path, root=self.root) as file:
            for view, rows_of_view in zip(block.views, values, strict=True):
                content = np.ascontiguousarray(rows_of_view, dtype=self.dtype).data.cast("B")
                file.seek(self._offset(view, block.rows.start))
                file.write(content)
                checksum = block_checksum(content, before=checksum)
        return checksum

    def checksums(self, blocks: list[Block]) -> list[int]:
        """Return the checksum of each block in the file."""
        with open_file(self.path, root=self.root) as file:
            return [self._checksum(file, block) for block in blocks]

    def mapped(self) -> Shaped[ndarray, "V N *rest"]:
        """Return the array; its pages are read when they are used."""
        return np.memmap(self.path, self.dtype, mode="r+", offset=len(self._header()), shape=self.shape)

    def _checksum(self, file: IO[bytes], block: Block) -> int:
        """Return the checksum of a block in the file, equal to the result of `write`."""
        checksum = 0
        for view in block.views:
            start = self._offset(view, block.rows.start)
            end = self._offset(view, block.rows.stop)
            file.seek(start)
            checksum = block_checksum(file.read(end - start), before=checksum)
        return checksum

    def _header(self) -> bytes:
        """Return the header of the .npy file, which gives the data type and the shape."""
        header = io.BytesIO()
        content = {"descr": dtype_to_descr(np.dtype(self.dtype)), "fortran_order": False, "shape": self.shape}
        write_array_header_1_0(header, content)
        return header.getvalue()

    def _offset(self, view: int, row: int) -> int:
        """Return the position in the file at which a row of a view begins, in bytes."""
        _, rows_per_view, *row_shape = self.shape
        bytes_per_row = int(np.prod(row_shape)) * np.dtype(self.dtype).itemsize
        rows_before = view * rows_per_view + row
        return len(self._header()) + rows_before * bytes_per_row

    def _refuse_small_disk(self, needed: int) -> None:
        """Raise an error now if the disk has too little space, instead of after computing a part of the array."""
        free = shutil.disk_usage(self.root).free
        if needed > free:
            raise OSError(
                f"{self.path}: the activation cache needs {needed:,} bytes, but {free:,} bytes are free; "
                'choose another folder with `out`, or use `tune="all"`, which needs less space'
            )


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: object = None, *, root: Path | None = None
) -> None:
    """Write tensors to a safetensors file, with metadata as JSON and a checksum of both in its header."""
    from safetensors.torch import save

    state = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    facts = json_line(metadata)
    header = {"checksum": _checksum(state, facts), "facts": facts}
    # A single entry, because safetensors writes several in random order.
    atomic_write(path, save(state, metadata={HEADER: json.dumps(header)}), root=root)


_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _Tensor(msgspec.Struct):
    """The entry of a tensor in the header of a safetensors file."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    data_offsets: tuple[_Size, _Size]

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZES:
            raise ValueError(f"the data type {self.dtype!r} is not supported")
        start, end = self.data_offsets
        size = end - start
        strides_overflow = math.prod(filter(None, self.shape)) >= 2**62  # even if there are no elements
        if strides_overflow or math.prod(self.shape) * ITEM_SIZES[self.dtype] != size:
            raise ValueError(f"a tensor of shape {list(self.shape)} and type {self.dtype} has {size:,} bytes")


class _Header(NamedTuple):
    """The header of a safetensors file; `facts` is our metadata as JSON."""

    tensors: dict[str, _Tensor]
    facts: str
    checksum: str | None


def load_tensors(path: Path, *, root: Path | None = None) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and metadata from a file written by `save_tensors`; the metadata may be None.

    A file that is truncated, damaged or does not match its checksum raises `RunError`. Files from elsewhere have no
    checksum.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    with open_file(path, root=root) as file:
        header = _read_header(file, path)
        file.seek(0)
        try:
            tensors = load(file.read())
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise RunError(f"{path}: is damaged or is not a safetensors file ({error})") from error
        except MemoryError as error:
            raise RunError(f"{path}: does not fit into memory") from error
    if header.checksum is not None and header.checksum != _checksum(tensors, header.facts):
        raise RunError(f"{path}: is damaged: its content does not match its checksum")
    return tensors, parse_json(header.facts.encode(), path)


def read_metadata(path: Path, *, root: Path | None = None) -> Any:
    """Return the metadata from a file written by `save_tensors`, without its tensors; None if there is no file."""
    if not path.is_file():
        return None
    with open_file(path, root=root) as file:
        header = _read_header(file, path)
        return parse_json(header.facts.encode(), path)


def read_shapes(path: Path, *, root: Path | None = None) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in a safetensors file, without reading the tensors."""
    with open_file(path, root=root) as file:
        header = _read_header(file, path)
        return {name: tensor.shape for name, tensor in header.tensors.items()}


def _read_header(file: io.BufferedReader, path: Path) -> _Header:
    """Read the header of a safetensors file, whose size comes first; the tensors must fill the rest of the file."""
    header_size = int.from_bytes(file.read(SIZE_BYTES), "little")
    if header_size > MAX_HEADER:
        raise RunError(f"{path}: its header has {header_size:,} bytes, more than {MAX_HEADER:,}; the file is damaged")
    try:
        entries = msgspec.json.decode(file.read(header_size), type=dict[str, msgspec.Raw])
        raw_metadata = entries.pop("__metadata__", msgspec.Raw(b"{}"))
        metadata = msgspec.json.decode(raw_metadata, type=dict[str, str])
        if HEADER in metadata:  # otherwise `save_tensors` has not written the file
            metadata = msgspec.json.decode(metadata[HEADER], type=dict[str, str])
        tensors = {name: msgspec.json.decode(entry, type=_Tensor) for name, entry in entries.items()}
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise RunError(f"{path}: its header is damaged ({plain(error)})") from error
    end_of_tensors = max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    expected_size = SIZE_BYTES + header_size + end_of_tensors
    actual_size = os.fstat(file.fileno()).st_size
    if actual_size != expected_size:
        raise RunError(f"{path}: is damaged: it has {actual_size:,} bytes instead of {expected_size:,}")
    return _Header(tensors, metadata.get("facts", "null"), metadata.get("checksum"))


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return the digest of tensors and of our metadata as JSON, in hexadecimal digits."""
    return content_digest(_content(tensors, facts)).hex()


def _content(tensors: Mapping[str, Tensor], facts: str) -> Iterator[Content]:
    """Yield the bytes of our metadata, then the name, type and shape of each tensor and its values, by name."""
    import torch

    yield facts.encode()
    for name, tensor in sorted(tensors.items()):
        yield f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
        flat = tensor.contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def refuse_non_finite(path: Path, state: Mapping[str, Tensor]) -> None:
    """Raise an error if a tensor has NaN or infinite values: all outputs of the model would be NaN."""
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise WeightsError(
                f"{path}: tensor {name!r} has NaN or infinite values; copy the file again, or train again"
            )
