import csv
from pathlib import Path

import numpy as np
import pytest

from helpers.tables import Write, refused, states_of, write_table
from probmcl.errors import DataError
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import read
from probmcl.readers.table.table import read_table, recognizes

SHARED = Path(__file__).parents[4] / "shared" / "data"


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
