import csv
import re
from pathlib import Path

import numpy as np
import pytest

from probmcl.readers.adp import LEVEL_1, NEVER_SEEN, Level, read_adp, recognizes
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import read

FLAT, FULL = "ADP_EncodedLabels_Release1_Flat.csv", "ADP_EncodedLabels_Release1.csv"
RELEASED = Path(__file__).parents[3] / "shared" / "data" / "adp" / FLAT
released = pytest.mark.skipif(not RELEASED.is_file(), reason="needs the label table of ADP in ../shared/data")

HEADER = ("E", "E.M", "E.M.S", "E.M.X", "C", "C.X", "H", "S", "A", "M", "N", "N.G", "N.G.A", "G", "T")
PATCHES: dict[str, tuple[str, ...]] = {  # patch -> its types
    "001.png_crop_1.png": ("E", "E.M", "E.M.S", "T"),
    "001.png_crop_2.png": ("C", "C.X"),
    "002.png_crop_1.png": ("N", "N.G", "N.G.A", "H"),
    "002.png_crop_2.png": (),
    "003.png_crop_1.png": ("E", "E.M", "E.M.X"),
    "003.png_crop_2.png": ("T", "C"),
}
LISTS = {"train": [5, 0, 3], "valid": [2], "test": [1, 4]}


def write_lists(root: Path, lists: dict[str, list[int]]) -> None:
    (root / "splits").mkdir(exist_ok=True)
    for name, rows in lists.items():
        np.save(root / "splits" / f"{name}.npy", np.array(rows, dtype=np.int64))


def write(root: Path, name: str = FLAT, header: tuple[str, ...] = HEADER) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with (root / name).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("Patch Names", *header))
        table.writerows((patch, *(int(label in labels) for label in header)) for patch, labels in PATCHES.items())
    write_lists(root, LISTS)
    (root / "img_res_1um_bicubic").mkdir(exist_ok=True)
    for patch in PATCHES:
        (root / "img_res_1um_bicubic" / patch).touch()
    return root


def message_of(root: Path) -> str:
    with pytest.raises(ValueError, match=re.escape(str(root))) as caught:
        read_adp(root)
    return str(caught.value)


def test_labels_follow_the_lists_and_unlabeled_patches_are_dropped(tmp_path: Path) -> None:
    records = read_adp(write(tmp_path))
    assert records.label_space.names == LEVEL_1 == ("E", "C", "H", "S", "A", "M", "N", "G", "T")
    types = [[LEVEL_1[column] for column in np.flatnonzero(row)] for row in records.labels]
    assert types == [["C", "T"], ["E", "T"], ["H", "N"], ["C"], ["E"]]
    assert records.split == ("train", "train", "val", "test", "test")
    names = [list(PATCHES)[row] for row in (5, 0, 2, 1, 4)]
    assert records.paths == tuple(tmp_path / "img_res_1um_bicubic" / name for name in names)
    assert records.labels.dtype == np.float32
    assert records.known.all()
    assert records.group is None


def test_levels_are_formats(tmp_path: Path) -> None:
    write(tmp_path)
    assert read(tmp_path).label_space.names == LEVEL_1
    for level in ("L2", "L3"):
        records = read(tmp_path, options=ReadOptions(format=f"adp-{level.lower()}"))
        assert records.label_space.names == read_adp(tmp_path, level=level).label_space.names
        assert str(records.origin).startswith(f"{tmp_path / FLAT}: ADP, flat release, level {level}")
        assert records.label_space.hierarchy is not None
        assert records.label_space.hierarchy["E.M"] == "E"


def test_label_space_counts_only_train(tmp_path: Path) -> None:
    space = read_adp(write(tmp_path)).label_space
    assert dict(zip(space.names, space.counts.tolist(), strict=True)) == {
        **dict.fromkeys(LEVEL_1, 0),
        "E": 1,
        "C": 1,
        "T": 2,
    }
    assert np.argwhere(space.cooccurrence).tolist() == [[0, 8], [1, 8], [8, 0], [8, 1]]


def test_deeper_levels_add_children_and_a_hierarchy(tmp_path: Path) -> None:
    write(tmp_path)
    second, third = (read_adp(tmp_path, level=level) for level in ("L2", "L3"))
    assert second.label_space.names == ("E", "E.M", "C", "H", "S", "A", "M", "N", "N.G", "G", "T")
    assert third.label_space.names == ("E", "E.M", "E.M.S", "C", "H", "S", "A", "M", "N", "N.G", "G", "T")
    assert read_adp(tmp_path).label_space.hierarchy is None
    assert second.label_space.hierarchy == {"E.M": "E", "N.G": "N"}
    assert third.label_space.hierarchy == {"E.M": "E", "E.M.S": "E.M", "N.G": "N"}
    column = third.labels[:, third.label_space.names.index("E.M.S")]
    assert [third.paths[int(row)].name for row in np.flatnonzero(column)] == ["001.png_crop_1.png"]


def test_lists_may_be_missing(tmp_path: Path) -> None:
    (write(tmp_path) / "splits" / "valid.npy").unlink()
    assert set(read_adp(tmp_path).split) == {"train", "test"}


@pytest.mark.parametrize("subfolder", [".", "ADP V1.0 Release"])
@pytest.mark.parametrize("name", [FLAT, FULL])
def test_release_is_recognized_by_its_tables(tmp_path: Path, subfolder: str, name: str) -> None:
    assert not recognizes(tmp_path)
    write(tmp_path / subfolder, name)
    assert recognizes(tmp_path)
    if name == FLAT:
        assert len(read_adp(tmp_path)) == 5


@released
def test_released_table_has_the_classes_of_kmcl(tmp_path: Path) -> None:
    (tmp_path / FLAT).symlink_to(RELEASED)
    with RELEASED.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    picked = {"train": [0, 7, 9000], "test": [17667]}
    write_lists(tmp_path, picked)
    (tmp_path / "img_res_1um_bicubic").mkdir()
    patches = [table[row] for rows in picked.values() for row in rows]
    for patch in patches:
        (tmp_path / "img_res_1um_bicubic" / patch["Patch Names"]).touch()
    levels: tuple[tuple[Level, int], ...] = (("L1", 9), ("L2", 26), ("L3", 33))
    for level, classes in levels:
        records = read_adp(tmp_path, level=level)
        names = records.label_space.names
        assert len(names) == classes
        assert [path.name for path in records.paths] == [patch["Patch Names"] for patch in patches]
        assert records.labels.tolist() == [[float(patch[name]) for name in names] for patch in patches]
        assert set((records.label_space.hierarchy or {}).values()) <= set(names)


@released
def test_omitted_types_have_no_positives() -> None:
    with RELEASED.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    positive = {name for line in lines for name, cell in zip(header, line, strict=True) if cell == "1"}
    assert set(header[1:]) - positive == set(NEVER_SEEN)


def test_folder_without_table_is_refused(tmp_path: Path) -> None:
    assert message_of(tmp_path).startswith(f"{tmp_path}: no {FLAT} or {FULL}")


def test_flat_table_is_required(tmp_path: Path) -> None:
    write(tmp_path, FULL)
    assert message_of(tmp_path).startswith(f"{tmp_path / FLAT} does not exist")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Patch Names", "patch", ": the first column is 'patch', expected 'Patch Names'"),
        (",G,T", ",G,U", ": level 1 has E, C, H, S, A, M, N, G, U, expected E, C, H, S, A, M, N, G, T"),
        (",N.G,", ",N.P,", ": column 'N.G.A' needs a column 'N.G'"),
        ("001.png_crop_2.png,0", "001.png_crop_2.png,2", ", row 3: 'E' must be 0 or 1, got '2'"),
        ("001.png_crop_2.png,0", "001.png_crop_2.png", ", row 3: 15 cells, but 16 columns"),
    ],
)
def test_invalid_table_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    table = write(tmp_path) / FLAT
    table.write_text(table.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    assert message_of(tmp_path).startswith(f"{table}{message}")


def test_empty_table_is_refused(tmp_path: Path) -> None:
    (write(tmp_path) / FLAT).write_text("", encoding="utf-8")
    assert "the first column is ''" in message_of(tmp_path)


def test_at_least_one_list_is_required(tmp_path: Path) -> None:
    for name in LISTS:
        (write(tmp_path) / "splits" / f"{name}.npy").unlink()
    (tmp_path / "splits").rename(tmp_path / "elsewhere")
    assert message_of(tmp_path).startswith(f"{tmp_path / 'splits'}: no train.npy")


@pytest.mark.parametrize("row", [-1, 6])
def test_row_outside_of_the_table_is_refused(tmp_path: Path, row: int) -> None:
    write_lists(write(tmp_path), {"valid": [2, row]})
    assert message_of(tmp_path).startswith(f"{tmp_path / 'splits' / 'valid.npy'}: row {row} does not exist")


@pytest.mark.parametrize("name", ["valid", "train"])
def test_repeated_row_is_refused(tmp_path: Path, name: str) -> None:
    write_lists(write(tmp_path), {name: [5, 0, 5] if name == "train" else [2, 5]})
    assert message_of(tmp_path).startswith(f"{tmp_path / 'splits' / f'{name}.npy'}: row 5 is already in train")


@pytest.mark.parametrize(
    ("rows", "message"),
    [(np.array([0.0, 1.0]), "float64 of shape (2,)"), (np.array([[0, 1]]), "int64 of shape (1, 2)")],
)
def test_array_without_row_numbers_is_refused(tmp_path: Path, rows: np.ndarray, message: str) -> None:
    path = write(tmp_path) / "splits" / "train.npy"
    np.save(path, rows)
    assert message_of(tmp_path).endswith(f"got {message}")


def test_pickled_rows_are_never_loaded(tmp_path: Path) -> None:
    path = write(tmp_path) / "splits" / "test.npy"
    np.save(path, np.array([1, "4"], dtype=object), allow_pickle=True)
    assert message_of(tmp_path).startswith(f"{path}: Object arrays cannot be loaded")


def test_invalid_npy_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path) / "splits" / "test.npy"
    path.write_bytes(b"")
    assert message_of(tmp_path).startswith(f"{path}: ")


def test_missing_patches_are_refused(tmp_path: Path) -> None:
    images = write(tmp_path) / "img_res_1um_bicubic"
    for row in (0, 1, 3):  # the last one has no label and is dropped
        (images / list(PATCHES)[row]).unlink()
    missing = f"'001.png_crop_1.png' is not in {images} (2 of 5 missing)"
    assert message_of(tmp_path).startswith(f"{tmp_path / FLAT}: {missing}")


def test_missing_patches_are_kept_on_request_unless_all_are_missing(tmp_path: Path) -> None:
    complete = read_adp(write(tmp_path))
    complete.paths[0].unlink()
    assert read_adp(tmp_path, missing="keep").paths == complete.paths
    for path in (tmp_path / "img_res_1um_bicubic").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"\(5 of 5 missing\)"):
        read_adp(tmp_path, missing="keep")


def test_origin_has_lines_and_dropped_patches(tmp_path: Path) -> None:
    records = read_adp(write(tmp_path))
    lines = (tmp_path / FLAT).read_text(encoding="utf-8").splitlines()
    for row, path in enumerate(records.paths):
        number = lines.index(next(line for line in lines if line.startswith(path.name))) + 1
        assert records.where(row) == f"{tmp_path / FLAT}, row {number}: {path}"
    assert str(records.origin) == f"{tmp_path / FLAT}: ADP, flat release, level L1; patches without labels dropped: 1"


def test_missing_patch_folder_is_refused(tmp_path: Path) -> None:
    images = write(tmp_path) / "img_res_1um_bicubic"
    images.rename(tmp_path / "elsewhere")
    assert message_of(tmp_path).startswith(f"{images} does not exist")
