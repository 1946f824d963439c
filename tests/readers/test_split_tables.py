"""Folders with several tables."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from helpers.tables import labels_of, write_table
from probmcl.data.records import Records
from probmcl.errors import DataError
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import read

IMAGES = " ".join(f"{number}.jpg" for number in range(1, 9))


def rows(numbers: str, header: str = "file,labels") -> str:
    """Return a table with the labels cat and dog, or only dog for even numbers."""
    cells = [f"{number}.jpg,{'dog' if int(number) % 2 == 0 else 'cat|dog'}" for number in numbers]
    return "\n".join([header, *cells]) + "\n"


def write(folder: Path, tables: Mapping[str, str], images: str = IMAGES) -> Path:
    for name in images.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for name, text in tables.items():
        (folder / name).write_text(text)
    return folder


def read_folder(folder: Path, tables: Mapping[str, str], images: str = IMAGES) -> Records:
    return read(write(folder, tables, images), seed=None)


def unlabeled(records: Records, folder: Path) -> list[str]:
    """Return the folders without labels, relative to a folder."""
    assert records.origin is not None
    return [Path(path).relative_to(folder).as_posix() for path in records.origin.unlabeled]


@pytest.mark.parametrize(
    "names",
    [
        ("train.csv", "val.csv", "test.csv"),
        ("train_v2.csv", "valid-v2.csv", "test_v2.csv"),
        ("RFMiD_Training_Labels.csv", "RFMiD_Validation_Labels.csv", "RFMiD_Testing_Labels.csv"),
    ],
)
def test_one_table_per_split(tmp_path: Path, names: tuple[str, str, str]) -> None:
    records = read_folder(tmp_path, dict(zip(names, map(rows, ("123", "45", "67")), strict=True)))
    assert records.split == ("train",) * 3 + ("val",) * 2 + ("test",) * 2
    assert labels_of(records)[2:5] == [{"cat", "dog"}, {"dog"}, {"cat", "dog"}]
    assert ", ".join(names) in str(records.origin)


def test_tables_with_equal_names_of_images_in_folders_of_their_split(tmp_path: Path) -> None:
    images = "train/1.jpg train/2.jpg test/1.jpg test/2.jpg"
    records = read_folder(tmp_path, {"train.csv": rows("12"), "test.csv": rows("12")}, images)
    assert [path.relative_to(tmp_path).as_posix() for path in records.paths] == images.split()
    assert records.split == ("train", "train", "test", "test")


def test_image_in_the_tables_of_two_splits_is_a_leak(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": rows("123"), "test.csv": rows("34")})
    with pytest.raises(DataError, match=r"train\.csv, row 4 .*row 2.*'train' and 'test'.*leak"):
        read(tmp_path)


def test_errors_have_the_file_and_row(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": rows("123"), "test.csv": rows("49")})
    with pytest.raises(DataError, match=r"test\.csv, row 3: '9\.jpg' does not exist"):
        read(tmp_path)


def test_table_with_a_part_of_the_images_is_not_used(tmp_path: Path) -> None:
    boxes = "file,label,x,y,w,h\n1.jpg,cat,0,0,1,1\n2.jpg,dog,0,0,1,1\n"
    records = read_folder(tmp_path, {"Data_Entry_2017.csv": rows("12345"), "BBox_List_2017.csv": boxes})
    assert len(records) == 5
    assert str(records.origin).startswith(str(tmp_path / "Data_Entry_2017.csv"))


@pytest.mark.parametrize("other", ["123", "456", "234"])
def test_two_tables_of_which_neither_contains_the_other_are_refused(tmp_path: Path, other: str) -> None:
    write(tmp_path, {"a.csv": rows("123"), "b.csv": rows(other)})
    with pytest.raises(DataError, match=r"2 tables.*a\.csv, .*b\.csv"):
        read(tmp_path)


def test_two_tables_of_one_split_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"train_a.csv": rows("123"), "train_b.csv": rows("456"), "test.csv": rows("7")})
    with pytest.raises(DataError, match=r"train_a\.csv and .*train_b\.csv are both tables for train"):
        read(tmp_path)


def test_tables_of_splits_must_have_the_same_columns(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": "file,cat,dog\n1.jpg,1,0\n2.jpg,0,1\n", "test.csv": "file,cat\n7.jpg,1\n8.jpg,0\n"})
    with pytest.raises(DataError, match=r"train\.csv has a column 'dog' that .*test\.csv lacks"):
        read(tmp_path)


def test_other_tables_are_ignored(tmp_path: Path) -> None:
    tables = {"labels.csv": rows("123"), "classes.csv": "id,name\n0,cat\n1,dog\n"}
    assert len(read_folder(tmp_path, tables)) == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test.csv", "file\n7.jpg\n8.jpg\n"),
        ("test.csv", "file,labels\n7.jpg,\n8.jpg,NaN\n"),
        ("sample_submission.csv", rows("78")),
        ("Submission_format.csv", rows("78")),
    ],
)
def test_tables_without_labels_are_not_used(tmp_path: Path, name: str, text: str) -> None:
    images = "train/1.jpg train/2.jpg train/3.jpg test/7.jpg test/8.jpg"
    records = read_folder(tmp_path, {"train.csv": rows("123"), name: text}, images)
    assert len(records) == 3
    assert unlabeled(records, tmp_path) == ["test"]


@pytest.mark.parametrize("cells", [",", "-1,-1"])
def test_class_columns_without_any_0_or_1_are_not_used(tmp_path: Path, cells: str) -> None:
    images = "images/1.jpg images/2.jpg public/7.jpg public/8.jpg"
    tables = {
        "train.csv": "file,cat,dog\n1.jpg,1,0\n2.jpg,0,1\n",
        "test.csv": f"file,cat,dog\n7.jpg,{cells}\n8.jpg,{cells}\n",
    }
    records = read_folder(tmp_path, tables, images)
    assert records.split == ("train", "train")
    assert unlabeled(records, tmp_path) == ["public"]


def test_negative_labels_are_labels(tmp_path: Path) -> None:
    tables = {"train.csv": "file,cat,dog\n1.jpg,1,0\n2.jpg,0,1\n", "test.csv": "file,cat,dog\n7.jpg,0,0\n8.jpg,0,0\n"}
    assert read_folder(tmp_path, tables).split == ("train", "train", "test", "test")


def test_test_folder_that_no_table_names_is_unlabeled(tmp_path: Path) -> None:
    table = {"labels.csv": "file,labels\ntrain/1.jpg,cat\ntrain/2.jpg,dog\n"}
    assert unlabeled(read_folder(tmp_path, table, "train/1.jpg train/2.jpg test-jpg/7.jpg"), tmp_path) == ["test-jpg"]
    table = {"labels.csv": "file,labels\ntrain/1.jpg,cat\ntest-jpg/7.jpg,dog\n"}
    assert unlabeled(read_folder(tmp_path, table, "test-jpg/8.jpg"), tmp_path) == []


def test_lists_of_files_set_the_splits(tmp_path: Path) -> None:
    lists = {"train_val_list.txt": "1.jpg\n2.jpg\n", "test_list.txt": "3.jpg\n4.jpg\n"}
    records = read_folder(tmp_path, {"labels.csv": rows("1234"), **lists})
    assert records.split == ("train", "train", "test", "test")
    assert "splits from test_list.txt, train_val_list.txt" in str(records.origin)


@pytest.mark.parametrize(
    "lists",
    [
        {"train_list.txt": "1.jpg\n2.jpg\n", "test_list.txt": "3.jpg\n"},
        {"test_list.txt": "3.jpg\n4.jpg\n"},
        {"train_list.txt": "1.jpg\n2.jpg\n", "test_notes.txt": "3.jpg and 4.jpg\n"},
    ],
)
def test_lists_of_files_that_do_not_cover_all_images_are_not_used(tmp_path: Path, lists: dict[str, str]) -> None:
    assert set(read_folder(tmp_path, {"labels.csv": rows("1234"), **lists}).split) == {"train"}


def test_image_in_the_lists_of_two_splits_is_a_leak(tmp_path: Path) -> None:
    lists = {"train_list.txt": "1.jpg\n2.jpg\n3.jpg\n", "test_list.txt": "3.jpg\n4.jpg\n"}
    write(tmp_path, {"labels.csv": rows("1234"), **lists})
    with pytest.raises(DataError, match=r"train_list\.txt: '3\.jpg' .*test.*leak"):
        read(tmp_path)


def test_split_column_takes_precedence_over_lists_of_files(tmp_path: Path) -> None:
    lists = {"train_list.txt": "1.jpg\n", "test_list.txt": "2.jpg\n"}
    table = "file,labels,split\n1.jpg,cat,test\n2.jpg,dog,train\n"
    assert read_folder(tmp_path, {"labels.csv": table, **lists}).split == ("test", "train")


def test_tables_in_split_folders(tmp_path: Path) -> None:
    images = "Train/1.jpg Train/2.jpg validation/3.jpg test/4.jpg"
    tables = {"Train/labels.csv": rows("12"), "validation/labels.csv": rows("3"), "test/labels.csv": "file\n4.jpg\n"}
    records = read_folder(tmp_path, tables, images)
    assert records.split == ("train", "train", "val")
    assert unlabeled(records, tmp_path) == ["test"]


def test_options_apply_to_all_tables(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": "photo,a,b\n1.jpg,cat,x\n2.jpg,dog,y\n", "test.csv": "photo,a,b\n7.jpg,cat,z\n"})
    options = ReadOptions(path_column="photo", labels_column="a", group="b")
    records = read(tmp_path, options=options, seed=None)
    assert records.split == ("train", "train", "test")
    assert records.group == ("x", "y", "z")


def test_folder_whose_tables_name_no_images_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.csv": "who,what\nanna,x\n", "b.csv": "who,what\nben,y\n"})
    with pytest.raises(DataError, match=r"2 tables, but none names images.*a\.csv, .*b\.csv"):
        read(tmp_path)


def test_example_of_a_submission_is_never_the_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"sample_submission\.csv is only an example"):
        read_folder(tmp_path, {"sample_submission.csv": rows("123")})


@pytest.mark.parametrize("label", ["cat", "7 8"])
def test_test_table_with_minus_one_as_label_has_no_labels(tmp_path: Path, label: str) -> None:
    write_table(tmp_path, f"file,label\n1.jpg,{label}\n2.jpg,{label}\n", name="train.csv")
    write_table(tmp_path, "file,label\n3.jpg,-1\n4.jpg,-1\n", name="test.csv")
    records = read(tmp_path, seed=None)
    assert [path.name for path in records.paths] == ["1.jpg", "2.jpg"]
    assert "-1" not in records.label_space.names


def test_split_folders_in_images(tmp_path: Path) -> None:
    for split, label in (("train", "cat"), ("test", "dog")):
        write_table(tmp_path, f"file,label\n1.jpg,{label}\n", name=f"{split}.csv", images=f"images/{split}/1.jpg")
    records = read(tmp_path, seed=None)
    assert [path.parent.name for path in records.paths] == ["train", "test"]
    assert labels_of(records) == [{"cat"}, {"dog"}]
