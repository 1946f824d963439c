"""An array on disk that is written in blocks with checksums, for results that take long to compute.

Blocks are written to the file and not to mapped memory, where a full disk would end the process with a signal and no
message. Reading uses mapped memory.
"""

import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from probmcl.runtime.digests import block_checksum
from probmcl.runtime.files import explained_no_space, open_file, open_for_update


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
        header, size = self._header(), self._offset(self.shape[0], 0)
        existing = self.path.stat().st_size if self.path.is_file() else 0
        self._refuse_small_disk(size - existing)
        with explained_no_space(self.path, size), open_for_update(self.path, root=self.root) as file:
            if file.read(len(header)) != header:
                file.seek(0)
                file.write(header)
            if existing != size:
                file.truncate(size)

    def write(self, block: Block, values: Shaped[ndarray, "V n *rest"]) -> int:
        """Write a block and return its checksum."""
        checksum = 0
        with explained_no_space(self.path, values.nbytes), open_for_update(self.path, root=self.root) as file:
            for view, rows in zip(block.views, values, strict=True):
                content = np.ascontiguousarray(rows, dtype=self.dtype).data.cast("B")
                file.seek(self._offset(view, block.rows.start))
                file.write(content)
                checksum = block_checksum(content, checksum)
        return checksum

    def checksums(self, blocks: list[Block]) -> list[int]:
        """Return the checksum of each block in the file."""
        with open_file(self.path, root=self.root) as file:
            return [self._checksum(file, block) for block in blocks]

    def mapped(self) -> Shaped[ndarray, "V N *rest"]:
        """Return the array; its pages are read when they are used."""
        return np.memmap(self.path, self.dtype, mode="r+", offset=len(self._header()), shape=self.shape)

    def _checksum(self, file: IO[bytes], block: Block) -> int:
        checksum = 0
        for view in block.views:
            start, end = (self._offset(view, row) for row in (block.rows.start, block.rows.stop))
            file.seek(start)
            checksum = block_checksum(file.read(end - start), checksum)
        return checksum

    def _header(self) -> bytes:
        header = io.BytesIO()
        content = {"descr": dtype_to_descr(np.dtype(self.dtype)), "fortran_order": False, "shape": self.shape}
        write_array_header_1_0(header, content)
        return header.getvalue()

    def _offset(self, view: int, row: int) -> int:
        values = int(np.prod(self.shape[2:]))
        return len(self._header()) + (view * self.shape[1] + row) * values * np.dtype(self.dtype).itemsize

    def _refuse_small_disk(self, needed: int) -> None:
        """Raise an error now if the disk has too little space, instead of after computing a part of the array."""
        free = shutil.disk_usage(self.root).free
        if needed > free:
            raise OSError(
                f"{self.path}: the activation cache needs {needed:,} bytes, but {free:,} bytes are free; "
                'choose another folder with `out`, or use `tune="all"`, which needs less space'
            )
