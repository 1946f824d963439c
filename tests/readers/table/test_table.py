"""Reading of a table into records; if several readings are possible, the user is asked."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.tables import Write, asked, labels_of, refused, states_of, write_table
from probmcl.data.records import Records
from probmcl.errors import DataError, Question, Reading
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import read
from probmcl.readers.table.table import answered, read_table, recognizes

BLANK = ({"blank": "negative"}, {"blank": "unknown"})
SEPARATORS = [Reading(f"{mark} separates labels", {"separator": mark}) for mark in ",;"]

SHARED = Path(__file__).parents[4] / "shared" / "data"


def reader(labels: dict[str, list[float] | Exception]) -> Callable[[ReadOptions], Records]:
    """Return a reader that asks for the separator, and then returns one image, or raises an error."""

    def read(options: ReadOptions) -> Records:
        if options.separator is None:
            raise Question("labels.csv: which separator?", SEPARATORS)
        result = labels[options.separator]
        if isinstance(result, Exception):
            raise result
        return Records.from_labels(["cat", "dog"], [Path("1.jpg")], ["train"], np.array([result]))

    return read


def test_readings_with_equal_labels_are_not_a_question() -> None:
    assert labels_of(answered(reader({",": [1.0, 0.0], ";": [1.0, 0.0]}), ReadOptions())) == [{"cat"}]


def test_reading_that_is_the_only_possible_one_is_not_a_question() -> None:
    assert labels_of(answered(reader({",": DataError("no"), ";": [0.0, 1.0]}), ReadOptions())) == [{"dog"}]


def test_readings_with_different_labels_are_a_question() -> None:
    with pytest.raises(Question) as caught:
        answered(reader({",": [1.0, 0.0], ";": [0.0, 1.0]}), ReadOptions())
    assert [reading.rows for reading in caught.value.readings] == [("1.jpg: cat",), ("1.jpg: dog",)]


def test_reading_that_needs_another_decision_is_possible() -> None:
    another = Question("labels.csv: does a blank mean absent?", SEPARATORS)
    with pytest.raises(Question, match="which separator") as caught:
        answered(reader({",": [1.0, 0.0], ";": another}), ReadOptions())
    assert len(caught.value.readings) == 2


def test_readings_with_different_errors_are_a_question() -> None:
    with pytest.raises(Question, match="which separator"):
        answered(reader({",": DataError("no"), ";": DataError("never")}), ReadOptions())


def test_readings_with_the_same_error_are_that_error() -> None:
    with pytest.raises(DataError, match="row 7"):
        answered(reader({",": DataError("row 7"), ";": DataError("row 7")}), ReadOptions())


def test_reading_that_an_option_excludes_is_left_out(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,tags,cat,dog\n1.jpg,cat,1,0\n2.jpg,empty,0,1\n")
    records = read_table(table, ReadOptions(none_label="empty"))
    assert labels_of(records) == [{"cat"}, set()]


def test_question_shows_the_labels_of_two_rows_in_every_reading(tmp_path: Path) -> None:
    question = asked(write_table(tmp_path, "file,cat,dog\n1.jpg,1,1\n2.jpg,1,\n3.jpg,,1\n4.jpg,,1\n"), *BLANK)
    assert [reading.rows for reading in question.readings] == [
        ("row 3, 2.jpg: cat", "row 4, 3.jpg: dog"),
        ("row 3, 2.jpg: cat (unknown: dog)", "row 4, 3.jpg: dog (unknown: cat)"),
    ]


def test_question_keeps_the_other_options(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog,emu\n1.jpg,1,,\n2.jpg,,1,\n3.jpg,,,1\n")
    question = asked(table, *BLANK, options=ReadOptions(blank=("emu=negative",), ignore=("dog",)))
    assert question.readings[1].rows == ("row 3, 2.jpg: no label (unknown: cat)", "row 4, 3.jpg: emu (unknown: cat)")


def test_rows_that_differ_are_found_in_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probmcl.readers.table.table.BLOCK", 2)
    question = asked(write_table(tmp_path, "file,cat,dog\n1.jpg,1,1\n2.jpg,1,1\n3.jpg,1,\n4.jpg,,1\n"), *BLANK)
    assert question.readings[0].rows == ("row 4, 3.jpg: cat", "row 5, 4.jpg: dog")


def test_table_without_labels_is_refused(write: Write) -> None:
    refused(write("image\n1.jpg\n"), "no labels", "labels_column")
    refused(write("image,labels\n1.jpg,\n2.jpg,\n"), "'labels'", "blank")


def test_splits_are_mapped_and_invalid_ones_refused(write: Write) -> None:
    values = ["Train", "trainval", "val", "valid", "validation", "test"]
    rows = "".join(f"{i}.jpg,cat,{value}\n" for i, value in enumerate(values))
    records = read_table(write("file,labels,Subset\n" + rows, images="0 1 2 3 4 5"))
    assert records.split == ("train", "train", "val", "val", "val", "test")
    assert records.label_space.counts.tolist() == [2]
    refused(
        write("file,labels,split\n1.jpg,cat,train\n2.jpg,cat,dev\n3.jpg,cat,\n"), "row 3", "'' and 'dev'", "trainval"
    )


def test_blank_group_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="row 3: group 'patient' is blank"):
        read_table(write("file,labels,patient\n1.jpg,cat,a\n2.jpg,cat,\n"), ReadOptions(group="patient"))


@pytest.mark.parametrize(
    ("text", "classes", "description"),
    [
        (
            "File Name,tags\n1.jpg,cat|dog\n",
            "",
            "path column 'File Name'\n  labels: column 'tags', names separated by '|', 2 labels",
        ),
        (
            "file,label\n1.jpg,1\n",
            "a b",
            "path column 'file'\n  labels: column 'label', indices into classes.txt, one per cell, 2 labels",
        ),
        (
            "file,label,set,difficult\n1.jpg,a b,val,\n2.jpg,a,test,b\n",
            "a b",
            "path column 'file'\n  labels: column 'label', names of classes.txt separated by spaces, 2 labels\n"
            "  split column 'set', difficult column 'difficult'",
        ),
        ("file,cat,dog\n1.jpg,0,1\n", "", "path column 'file'\n  labels: one column per class ('cat', 'dog')"),
    ],
)
def test_description_of_the_columns(write: Write, text: str, classes: str, description: str) -> None:
    table = write(text, classes=classes)
    assert str(read_table(table).origin) == f"{table}: {description}"


def test_where_has_the_line_of_an_image(write: Write) -> None:
    table = write('file,labels\n\n1.jpg,"cat\n"\n2.jpg,cat\n')
    records = read_table(table)
    assert [records.where(row) for row in range(2)] == [
        f"{table}, row {line}: {table.parent / name}" for line, name in ((3, "1.jpg"), (5, "2.jpg"))
    ]


def test_folder_is_recognized_by_a_table_with_a_path_column(write: Write, tmp_path: Path) -> None:
    write("Patch Names,E\n1.jpg,1\n", name="other.csv")
    assert not recognizes(tmp_path)
    write("filename,labels\n1.jpg,cat\n")
    assert recognizes(tmp_path)


@pytest.mark.parametrize(
    ("name", "classes", "images"), [("coco", 80, (10_000, 0, 4_000)), ("voc", 20, (1690, 1676, 3337))]
)
def test_real_tables_match_a_plain_loop(name: str, classes: int, images: tuple[int, ...]) -> None:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip("needs the real images of ../shared/data")
    records = read_table(folder / "labels.csv")
    assert tuple(len(records.rows(split)) for split in ("train", "val", "test")) == images
    assert records.label_space.names == tuple((folder / "classes.txt").read_text().split("\n")[:classes])
    with (folder / "labels.csv").open() as file:
        for i, row in enumerate(csv.DictReader(file)):
            assert records.paths[i] == folder / "images" / row["filename"]
            assert np.flatnonzero(records.labels[i]).tolist() == sorted(map(int, row["labels"].split()))
            difficult = sorted(map(int, row.get("difficult", "").split()))
            assert np.flatnonzero(~records.known[i]).tolist() == difficult
    assert i + 1 == sum(images)


def test_hierarchy_is_applied_to_labels(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    table = write_table(folder, "file,animal,dog,car\n1.jpg,,1,0\n2.jpg,0,,1\n3.jpg,,,0\n")
    parents = tmp_path / "parents.csv"
    parents.write_text("child,parent\ndog,animal\n")
    records = read(table, options=ReadOptions(blank=("unknown",), hierarchy=parents), seed=None)
    assert records.label_space.hierarchy == {"dog": "animal"}
    assert states_of(records) == ["++-", "--+", "??-"]
