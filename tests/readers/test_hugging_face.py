from pathlib import Path

import pytest

from helpers.tables import labels_of, write_table
from probmcl.errors import DataError, OptionError
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import read

HEADER = "file_name,labels,patient\n"


def write(root: Path, *, train: str = HEADER, validation: str | None = None, test: str | None = None) -> Path:
    for name, text in (("train", train), ("validation", validation), ("test", test)):
        if text is not None:
            (root / name).mkdir(exist_ok=True)
            write_table(root / name, text, name="metadata.csv", images="1.jpg 2.jpg")
    return root


def test_tables_of_all_splits_are_concatenated(tmp_path: Path) -> None:
    write(
        tmp_path,
        train=HEADER + "1.jpg,cat|dog,a\n2.jpg,dog,b\n",
        validation="patient,file_name,labels\nc,1.jpg,emu\n",
        test=HEADER + "2.jpg,cat,d\n",
    )
    records = read(tmp_path)
    assert records.split == ("train", "train", "val", "test")
    assert labels_of(records) == [{"cat", "dog"}, {"dog"}, {"emu"}, {"cat"}]
    assert records.paths[2] == tmp_path / "validation" / "1.jpg"
    assert records.group == ("a", "b", "c", "d")
    assert str(records.origin).startswith(
        f"{tmp_path}: path column 'file_name'\n  labels: column 'labels', names separated"
    )
    assert "train/metadata.csv, validation/metadata.csv, test/metadata.csv" in str(records.origin)


def test_metadata_without_splits_is_read_as_a_table(tmp_path: Path) -> None:
    write_table(tmp_path, "file_name,labels\n1.jpg,cat\n2.jpg,dog\n", name="metadata.csv")
    assert labels_of(read(tmp_path, seed=None)) == [{"cat"}, {"dog"}]


def test_split_folders_are_recognized_in_any_case(tmp_path: Path) -> None:
    write(tmp_path, train=HEADER + "1.jpg,cat,a\n2.jpg,dog,b\n", test=HEADER + "2.jpg,cat,d\n")
    (tmp_path / "train").rename(tmp_path / "Training")
    (tmp_path / "test").rename(tmp_path / "TEST")
    records = read(tmp_path, seed=None)
    assert records.split == ("train", "train", "test")
    assert records.paths[2] == tmp_path / "TEST" / "2.jpg"


def test_errors_have_the_file_and_row(tmp_path: Path) -> None:
    write(tmp_path, train=HEADER + "1.jpg,cat,a\n2.jpg,dog,b\n", test=HEADER + "1.jpg,cat,a\n7.jpg,cat,b\n")
    with pytest.raises(DataError, match=r"test/metadata\.csv, row 3: 'test/7\.jpg' does not exist"):
        read(tmp_path)


def test_columns_must_be_equal(tmp_path: Path) -> None:
    write(tmp_path, train=HEADER + "1.jpg,cat,a\n", test="file_name,labels\n1.jpg,cat\n")
    with pytest.raises(DataError, match=r"train/metadata\.csv has a column 'patient' that .*test/metadata\.csv"):
        read(tmp_path)


def test_two_tables_of_one_split_are_refused(tmp_path: Path) -> None:
    write(tmp_path, train=HEADER + "1.jpg,cat,a\n", validation=HEADER + "1.jpg,cat,a\n")
    (tmp_path / "validation").rename(tmp_path / "val")
    assert read(tmp_path, seed=None).split == ("train", "val")
    write(tmp_path, validation=HEADER + "1.jpg,cat,a\n")
    with pytest.raises(DataError, match="are both tables for val"):
        read(tmp_path, options=ReadOptions(format="hugging_face"))


def test_options_for_tables_are_used(tmp_path: Path) -> None:
    write(tmp_path, train=HEADER + "1.jpg,Normal,a\n2.jpg,cat,b\n", test=HEADER + "1.jpg,cat,a\n")
    records = read(tmp_path, options=ReadOptions(none_label="Normal", group=""), keep=["patient"], seed=None)
    assert labels_of(records) == [set(), {"cat"}, {"cat"}]
    assert records.group is None
    assert records.columns == {"patient": ("a", "b", "a")}
    with pytest.raises(
        OptionError, match=r"""`path_column="filename"` is not a column of .*; did you mean 'file_name'"""
    ):
        read(tmp_path, options=ReadOptions(path_column="filename"))


def test_folder_without_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no metadata\.csv in train/ or"):
        read(tmp_path, options=ReadOptions(format="hugging_face"))
