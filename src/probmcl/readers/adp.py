"""The Atlas of Digital Pathology release: a folder of patches, a table of tissue types, and splits as lists of rows.

Hosseini et al., Atlas of Digital Pathology, CVPR 2019. Dots in the name of a type separate levels: `E` is epithelial
tissue, `E.M` simple epithelial, `E.M.S` simple squamous epithelial.
"""

import csv
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from probmcl.data.image_files import named_images
from probmcl.data.records import Missing, Origin, Records, Split
from probmcl.errors import DataError, counted

Level = Literal["L1", "L2", "L3"]

TABLE = "ADP_EncodedLabels_Release1_Flat.csv"
FULL_TABLE = "ADP_EncodedLabels_Release1.csv"  # has more types; only used to recognize the folder
NAME_COLUMN = "Patch Names"
LEVEL_1 = ("E", "C", "H", "S", "A", "M", "N", "G", "T")
UNSURE = "X"  # as the last part of a name: the subtype could not be determined
NEVER_SEEN = ("N.G.A", "N.G.O", "N.G.E", "N.G.R", "N.G.T")  # columns without a positive in the release
SPLIT_FILES: tuple[tuple[str, Split], ...] = (("train.npy", "train"), ("valid.npy", "val"), ("test.npy", "test"))


def recognizes(folder: Path) -> bool:
    """Return whether the folder is, or contains, the ADP release.

    >>> recognizes(Path("nowhere"))
    False
    """
    return _root(folder) is not None


def read_adp(folder: Path, *, level: Level = "L1", missing: Missing = "error") -> Records:
    """Read the flat ADP release from its folder, or from the parent of `ADP V1.0 Release/`.

    `L1` has the 9 types of the first level, in the order E, C, H, S, A, M, N, G, T. `L2` and `L3` add the types of the
    second and third levels in the order of the table, for a total of 26 and 33 classes as in KMCL. The parent of every
    class is also a class. Types that end in X (undetermined subtype) and the five types without positives are left out.
    `label_space.hierarchy` maps each type to its parent; it is None for `L1`.

    `splits/{train,valid,test}.npy` have the table rows of the patches; some files may be missing. Patches without
    a label among the classes are dropped, as in KMCL; for `L1` there are no such patches. With `missing="keep"`,
    patches whose files do not exist are kept.
    """
    root = _root(folder)
    if root is None:
        raise DataError(f"{folder}: no {TABLE} or {FULL_TABLE}; pass the folder of the ADP release")
    table = root / TABLE
    names, patches, all_labels = _read_table(table, int(level[1]))
    rows, splits = _split_rows(root / "splits", len(patches))
    kept = [n for n, row in enumerate(rows) if all_labels[row].any()]
    labels = all_labels[[rows[n] for n in kept]]
    images = root / "img_res_1um_bicubic"
    if not images.is_dir():
        raise DataError(f"{images} does not exist; unpack the patches there (available from the authors of ADP)")
    files, remedy = [patches[rows[n]] for n in kept], "unpack the patches there again"
    paths = named_images(images, files, source=table, remedy=remedy, missing=missing)
    hierarchy = {name: parent for name in names if (parent := name.rpartition(".")[0])}
    dropped = f"; patches without labels dropped: {len(rows) - len(kept):,}" if len(kept) < len(rows) else ""
    origin = Origin(table, f"ADP, flat release, level {level}{dropped}", tuple(rows[n] + 2 for n in kept))
    split = [splits[n] for n in kept]
    return Records.from_labels(names, paths, split, labels, hierarchy=hierarchy or None, origin=origin)


def _root(folder: Path) -> Path | None:
    candidates = (folder, folder / "ADP V1.0 Release")
    return next((path for path in candidates if any((path / name).is_file() for name in (TABLE, FULL_TABLE))), None)


def _read_table(table: Path, depth: int) -> tuple[list[str], list[str], Float[ndarray, "N C"]]:
    """Return the class names up to a depth, the file names of the patches, and their labels."""
    if not table.is_file():
        raise DataError(f"{table} does not exist; copy it from the ADP release")
    with table.open(newline="", encoding="utf-8-sig") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    columns = _columns(table, header, depth)
    labels = np.zeros((len(lines), len(columns)), dtype=np.float32)
    for row, line in enumerate(lines):
        if len(line) != len(header):
            fields = f"{counted(len(line), 'cell')}, but {counted(len(header), 'column')}"
            raise DataError(f"{table}, row {row + 2}: {fields}; use the released table")
        for name, cell in zip(header[1:], line[1:], strict=True):
            if cell not in ("0", "1"):
                raise DataError(f"{table}, row {row + 2}: {name!r} must be 0 or 1, got {cell!r}")
        labels[row] = [line[column] == "1" for column in columns]
    return [header[column] for column in columns], [line[0] for line in lines], labels


def _columns(table: Path, header: list[str], depth: int) -> list[int]:
    if header[:1] != [NAME_COLUMN]:
        first = "".join(header[:1])
        raise DataError(f"{table}: the first column is {first!r}, expected {NAME_COLUMN!r}; use the released table")
    first_level = tuple(name for name in header[1:] if "." not in name)
    if first_level != LEVEL_1:
        expected = ", ".join(LEVEL_1)
        raise DataError(f"{table}: level 1 has {', '.join(first_level)}, expected {expected}; use the released table")
    orphans = [name for name in header[1:] if "." in name and name.rpartition(".")[0] not in header]
    if orphans:
        raise DataError(f"{table}: column {orphans[0]!r} needs a column {orphans[0].rpartition('.')[0]!r}; add it")
    return [
        column
        for column, name in enumerate(header[1:], start=1)
        if name.count(".") < depth and name.rpartition(".")[2] != UNSURE and name not in NEVER_SEEN
    ]


def _split_rows(folder: Path, patches: int) -> tuple[list[int], list[Split]]:
    """Return the rows of all splits, counted from 0, and the split of each row."""
    files = {folder / name: split for name, split in SPLIT_FILES if (folder / name).is_file()}
    if not files:
        raise DataError(f"{folder}: no train.npy, valid.npy or test.npy; copy them from the ADP release")
    splits: dict[int, Split] = {}
    for path, split in files.items():
        for row in _rows(path, patches).tolist():
            if row in splits:
                raise DataError(f"{path}: row {row} is already in {splits[row]}; each patch must be in one split")
            splits[row] = split
    return list(splits), list(splits.values())


def _rows(path: Path, patches: int) -> Int[ndarray, "K"]:
    try:
        with path.open("rb") as file:
            rows: ndarray = np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path}: {error}; expected an array of integer row numbers") from error
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise DataError(f"{path}: expected a 1-D array of integer row numbers, got {rows.dtype} of shape {rows.shape}")
    outside = rows[(rows < 0) | (rows >= patches)]
    if len(outside):
        raise DataError(f"{path}: row {outside[0]} does not exist; the table has rows 0 to {patches - 1}")
    return rows
