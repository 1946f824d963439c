"""The Atlas of Digital Pathology as it is released: a table of tissue types, three lists of rows, a folder of patches.

Hosseini et al., Atlas of Digital Pathology, CVPR 2019. The dots in the name of a type are its levels: `E` is epithelial
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
from probmcl.errors import DataError

Level = Literal["L1", "L2", "L3"]

TABLE = "ADP_EncodedLabels_Release1_Flat.csv"
FULL_TABLE = "ADP_EncodedLabels_Release1.csv"  # with types that are not evaluated; tells that a folder is ADP
NAME_COLUMN = "Patch Names"
LEVEL_1 = ("E", "C", "H", "S", "A", "M", "N", "G", "T")
UNSURE = "X"  # as last part: of this tissue, but the annotator could not say which kind
NEVER_SEEN = ("N.G.A", "N.G.O", "N.G.E", "N.G.R", "N.G.T")  # columns in which the release has no positive at all
SPLIT_FILES: tuple[tuple[str, Split], ...] = (("train.npy", "train"), ("valid.npy", "val"), ("test.npy", "test"))


def recognizes(folder: Path) -> bool:
    """Return whether the folder is, or contains, the release of ADP.

    >>> recognizes(Path("nowhere"))
    False
    """
    return _root(folder) is not None


def read_adp(folder: Path, *, level: Level = "L1", missing: Missing = "error") -> Records:
    """Read the flat release of ADP from its folder, or from the one that has `ADP V1.0 Release/`.

    `L1` is the 9 types of the first level, in the order E, C, H, S, A, M, N, G, T. `L2` and `L3` add the types of the
    second and third level, in the order of the table, so that the parent of every class is a class too: 26 and 33 in
    total, as KMCL counts them. Left out are types that end in X (of this tissue, but undecided which kind)
    and the five types that the release never gives to any patch. `label_space.hierarchy` maps each type to its parent;
    at `L1` there is none.

    Patches are those of `splits/{train,valid,test}.npy`, which hold rows of the table, in that order; a list may be
    absent. Patches without any label of the chosen classes are dropped, as in KMCL; at `L1` there are none.
    With `missing="keep"`, patches whose file does not exist stay.
    """
    root = _root(folder)
    if root is None:
        raise DataError(f"{folder}: has neither {TABLE} nor {FULL_TABLE}; name the folder of the ADP release")
    table = root / TABLE
    names, patches, all_labels = _read_table(table, int(level[1]))
    rows, splits = _split_rows(root / "splits", len(patches))
    kept = [n for n, row in enumerate(rows) if all_labels[row].any()]
    labels = all_labels[[rows[n] for n in kept]]
    images = root / "img_res_1um_bicubic"
    if not images.is_dir():
        raise DataError(f"{images}: does not exist; unpack the patches there, which ADP's authors give on request")
    shown, remedy = [patches[rows[n]] for n in kept], "unpack the patches there again"
    paths = named_images(images, shown, source=table, remedy=remedy, missing=missing)
    hierarchy = {name: parent for name in names if (parent := name.rpartition(".")[0])}
    dropped = f"; patches without label dropped: {len(rows) - len(kept):,}" if len(kept) < len(rows) else ""
    origin = Origin(table, f"ADP, flat release, level {level}{dropped}", tuple(rows[n] + 2 for n in kept))
    split = [splits[n] for n in kept]
    return Records.from_labels(names, paths, split, labels, hierarchy=hierarchy or None, origin=origin)


def _root(folder: Path) -> Path | None:
    places = (folder, folder / "ADP V1.0 Release")
    return next((place for place in places if any((place / name).is_file() for name in (TABLE, FULL_TABLE))), None)


def _read_table(table: Path, depth: int) -> tuple[list[str], list[str], Float[ndarray, "N C"]]:
    """Return the names of the classes down to a level, the names of the patches, and their labels."""
    if not table.is_file():
        raise DataError(f"{table}: does not exist; put it there")
    with table.open(newline="", encoding="utf-8-sig") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    columns = _columns(table, header, depth)
    labels = np.zeros((len(lines), len(columns)), dtype=np.float32)
    for row, line in enumerate(lines):
        if len(line) != len(header):
            fields = f"{len(line)} fields for {len(header)} columns"
            raise DataError(f"{table}: line {row + 2}: {fields}; take it as released")
        for name, cell in zip(header[1:], line[1:], strict=True):
            if cell not in ("0", "1"):
                raise DataError(f"{table}: line {row + 2}: {name!r} is {cell!r}; a label is 0 or 1")
        labels[row] = [line[column] == "1" for column in columns]
    return [header[column] for column in columns], [line[0] for line in lines], labels


def _columns(table: Path, header: list[str], depth: int) -> list[int]:
    if header[:1] != [NAME_COLUMN]:
        first = "".join(header[:1])
        raise DataError(f"{table}: its first column is {first!r}, not {NAME_COLUMN!r}; take the table as released")
    first_level = tuple(name for name in header[1:] if "." not in name)
    if first_level != LEVEL_1:
        wanted = ", ".join(LEVEL_1)
        raise DataError(f"{table}: its first level is {', '.join(first_level)}, not {wanted}; take it as released")
    orphans = [name for name in header[1:] if "." in name and name.rpartition(".")[0] not in header]
    if orphans:
        raise DataError(f"{table}: column {orphans[0]!r} has no parent {orphans[0].rpartition('.')[0]!r}; add it")
    return [
        column
        for column, name in enumerate(header[1:], start=1)
        if name.count(".") < depth and name.rpartition(".")[2] != UNSURE and name not in NEVER_SEEN
    ]


def _split_rows(folder: Path, patches: int) -> tuple[list[int], list[Split]]:
    """Return rows of the table, from 0, split after split, and the split of each."""
    files = {folder / name: split for name, split in SPLIT_FILES if (folder / name).is_file()}
    if not files:
        raise DataError(f"{folder}: has no train.npy, valid.npy or test.npy; take these from the ADP release")
    splits: dict[int, Split] = {}
    for path, split in files.items():
        for row in _rows(path, patches).tolist():
            if row in splits:
                raise DataError(f"{path}: row {row} is in {splits[row]} already; leave each patch in one place")
            splits[row] = split
    return list(splits), list(splits.values())


def _rows(path: Path, patches: int) -> Int[ndarray, "K"]:
    try:
        with path.open("rb") as file:
            rows: ndarray = np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path}: {error}; save row numbers as an array of integers") from error
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise DataError(f"{path}: holds {rows.dtype} of shape {rows.shape}; save row numbers as one list of integers")
    outside = rows[(rows < 0) | (rows >= patches)]
    if len(outside):
        raise DataError(f"{path}: row {outside[0]}, but the table has rows 0 to {patches - 1}; take both as released")
    return rows
