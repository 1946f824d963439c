import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.tables import states_of, write_table
from probmcl.data.formats.table.table import read_hierarchy, read_table, recognizes
from probmcl.data.options import ReadOptions
from probmcl.data.read import read
from probmcl.data.records import Records
from probmcl.errors import DataError, OptionError

SHARED = Path(__file__).parents[5] / "shared" / "data"
CLASSES = ("animal", "dog", "puppy", "car")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a table, empty image files and, if given, classes.txt."""

    def write(text: str, *, classes: str = "", name: str = "labels.csv", images: str = "1 2 3 4") -> Path:
        for stem in images.split():
            (tmp_path / f"{stem}.jpg").touch()
        if classes:
            (tmp_path / "classes.txt").write_text(classes.replace(" ", "\n") + "\n", encoding="utf-8")
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    return write


def has(records: Records) -> list[set[str]]:
    """Return the names of the labels of each image."""
    return [{records.label_space.names[k] for k in np.flatnonzero(row)} for row in records.labels]


def unknown(records: Records) -> list[set[str]]:
    return [{records.label_space.names[k] for k in np.flatnonzero(~row)} for row in records.known]


def refused(path: Path, *parts: str, options: ReadOptions = ReadOptions()) -> str:
    with pytest.raises(DataError) as caught:
        read_table(path, options)
    for part in parts:
        assert part in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("separator", [" ", "|", ";", ", "])
def test_separators_are_detected(write: Write, separator: str) -> None:
    table = write(f'filename,labels\n1.jpg,"cat{separator}dog"\n2.jpg,dog\n3.jpg,\n')
    records = read_table(table)
    assert has(records) == [{"cat", "dog"}, {"dog"}, set()]
    assert records.known.all()
    assert records.label_space.names == ("cat", "dog")
    assert records.label_space.counts.tolist() == [1, 2]
    assert records.paths == tuple(table.parent / f"{i}.jpg" for i in (1, 2, 3))
    assert records.split == ("train",) * 3
    assert records.group is None


def test_space_is_part_of_the_name_if_there_is_another_separator(write: Write) -> None:
    records = read_table(write("filename,labels\n1.jpg,traffic light|dog\n2.jpg,dog\n"))
    assert has(records) == [{"traffic light", "dog"}, {"dog"}]


def test_two_separators_are_refused(write: Write) -> None:
    refused(write("filename,labels\n1.jpg,cat|dog\n2.jpg,cat;dog\n"), "'|' and ';'", "classes.txt")


def test_classes_file_decides_between_two_separators(write: Write) -> None:
    records = read_table(write("filename,labels\n1.jpg,cat|dog;old\n2.jpg,cat\n", classes="cat dog;old"))
    assert has(records) == [{"cat", "dog;old"}, {"cat"}]


def test_words_that_only_occur_together_are_refused(write: Write) -> None:
    table = write("filename,labels\n1.jpg,traffic light dog\n2.jpg,traffic light\n3.jpg,cat traffic light\n4.jpg,dog\n")
    refused(table, "'traffic' and 'light'", "classes.txt", "|")
    (table.parent / "classes.txt").write_text("traffic\nlight\ndog\ncat\n")
    assert has(read_table(table))[1] == {"traffic", "light"}


def test_classes_file_allows_names_with_spaces(write: Write) -> None:
    table = write("filename,labels\n1.jpg,traffic light\n2.jpg,dog\n")
    (table.parent / "classes.txt").write_text("dog\ntraffic light\n")
    assert has(read_table(table)) == [{"traffic light"}, {"dog"}]


def test_lists_that_match_the_classes_in_two_ways_are_refused(write: Write) -> None:
    table = write("filename,labels\n1.jpg,a b\n")
    (table.parent / "classes.txt").write_text("a\nb\na b\n")
    refused(table, "more than one way", "rename a class")


def test_indices_into_the_classes_file_start_at_zero(write: Write) -> None:
    records = read_table(write("filename,labels\n1.jpg,0 2\n2.jpg,1\n3.jpg,2\n", classes="zebra cat dog"))
    assert records.label_space.names == ("zebra", "cat", "dog")
    assert has(records) == [{"zebra", "dog"}, {"cat"}, {"dog"}]


def test_numbers_that_may_be_names_or_indices_are_refused(write: Write) -> None:
    refused(write("filename,labels\n1.jpg,1 2\n", classes="3 2 1"), "names", "indices")


@pytest.mark.parametrize("value", ["3", "-1"])
def test_index_out_of_range_is_refused(write: Write, value: str) -> None:
    refused(write(f"filename,labels\n1.jpg,0\n2.jpg,{value}\n", classes="a b c"), "row 3", f"'{value}'", "0 to 2")


def test_label_outside_of_the_classes_file_is_refused_with_a_suggestion(write: Write) -> None:
    refused(write("filename,labels\n1.jpg,zebra\n2.jpg,zebar\n", classes="cat zebra"), "row 3", "'zebar'", "'zebra'?")


def test_numbers_without_classes_are_names_in_numerical_order(write: Write) -> None:
    assert read_table(write("filename,labels\n1.jpg,10 9\n2.jpg,2\n")).label_space.names == ("2", "9", "10")


def test_list_in_brackets_is_refused(write: Write) -> None:
    refused(write("filename,labels\n1.jpg,\"['cat', 'dog']\"\n"), "row 2", "brackets")


def test_difficult_labels_are_unknown(write: Write) -> None:
    records = read_table(write("filename,labels,difficult\n1.jpg,cat dog,dog\n2.jpg,dog,bird\n3.jpg,cat,\n"))
    assert has(records) == [{"cat"}, {"dog"}, {"cat"}]
    assert unknown(records) == [{"dog"}, {"bird"}, set()]
    assert records.label_space.counts.tolist() == [0, 2, 1]


def test_blank_and_minus_one_are_unknown_in_class_columns(write: Write) -> None:
    records = read_table(write("image,cat,dog,bird\n1.jpg,1,0,\n2.jpg,TRUE,false,-1\n3.jpg,0,1.0,1\n4.jpg,0,0,0\n"))
    assert records.label_space.names == ("cat", "dog", "bird")
    assert has(records) == [{"cat"}, {"cat"}, {"dog", "bird"}, set()]
    assert unknown(records) == [{"bird"}, {"bird"}, set(), set()]


def test_classes_file_sets_the_order_of_class_columns(write: Write) -> None:
    records = read_table(write("image,cat,width,dog\n1.jpg,1,640,0\n", classes="dog cat"))
    assert records.label_space.names == ("dog", "cat")
    assert has(records) == [{"cat"}]


def test_class_columns_must_match_the_classes_file(write: Write) -> None:
    refused(write("image,cat,dogs\n1.jpg,1,0\n", classes="cat dog"), "'dog'", "'dogs'?")
    refused(write("image,cat,dog,bird\n1.jpg,1,0,1\n", classes="cat dog"), "'bird'", "classes.txt")


def test_difficult_labels_are_unknown_with_class_columns(write: Write) -> None:
    records = read_table(write("image,cat,dog,difficult\n1.jpg,1,0,dog\n2.jpg,1,1,\n"))
    assert unknown(records) == [{"dog"}, set()]
    refused(write("image,cat,dog,difficult\n1.jpg,1,0,1\n"), "'difficult'", "rename")


def test_other_values_in_a_class_column_are_refused(write: Write) -> None:
    refused(write("image,cat,width\n1.jpg,1,1\n2.jpg,0,640\n"), "row 3", "'width'", "'640'", "labels_column")


def test_label_column_next_to_class_columns_needs_an_option(write: Write) -> None:
    table = write("image,labels,night\n1.jpg,cat,0\n2.jpg,dog,1\n")
    refused(table, "'labels'", "night", "`labels_column=labels`")
    assert read_table(table, ReadOptions(labels_column="labels")).label_space.names == ("cat", "dog")


def test_label_column_of_zeros_and_ones_needs_an_option(write: Write) -> None:
    table = write("image,label\n1.jpg,0\n2.jpg,1\n")
    refused(table, "'label'", "`labels_column=label`")
    assert read_table(table, ReadOptions(labels_column="label")).label_space.names == ("0", "1")


def test_unnamed_column_is_ignored(write: Write) -> None:
    assert read_table(write(",image,cat\n7,1.jpg,1\n8,2.jpg,0\n")).label_space.names == ("cat",)


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


@pytest.mark.parametrize(
    "header", ["filename", "File", "PATH", "image", "Image Path", "image-path", "file_name", "img"]
)
def test_path_column_is_found_by_name(write: Write, header: str) -> None:
    assert len(read_table(write(f"labels,{header}\ncat,1.jpg\n"))) == 1


def test_path_column_with_another_name_needs_the_option(write: Write) -> None:
    table = write("photo,labels,where\n1.jpg,cat,a\n2.jpg,dog,b\n")
    refused(table, "photo, labels, where", "path_column")
    assert read_table(table, ReadOptions(path_column="photo", group="where")).group == ("a", "b")


def test_two_columns_for_one_role_need_an_option(write: Write) -> None:
    refused(write("file,path,labels\n1.jpg,x,cat\n"), "'file' and 'path'", "path_column")
    refused(write("file,tags,labels\n1.jpg,x,cat\n"), "'tags' and 'labels'", "labels_column")
    refused(write("file,set,split,labels\n1.jpg,x,train,cat\n"), "'set' and 'split'", "split_column")
    table = write("file,set,split,labels\n1.jpg,x,test,cat\n")
    assert read_table(table, ReadOptions(split_column="split")).split == ("test",)


def test_missing_column_is_refused_with_a_suggestion(write: Write) -> None:
    table = write("file,labels,patient\n1.jpg,cat,a\n")
    with pytest.raises(OptionError, match=r"`group=pateint` is not a column of .*; did you mean 'patient'\?"):
        read_table(table, ReadOptions(group="pateint"))
    with pytest.raises(OptionError, match="`group=patient` is already `split_column`"):
        read_table(table, ReadOptions(split_column="patient", group="patient"))


def test_blank_group_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="row 3: group 'patient' is blank"):
        read_table(write("file,labels,patient\n1.jpg,cat,a\n2.jpg,cat,\n"), ReadOptions(group="patient"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\ufefffilename;labels\r\n1.jpg;cat,dög\r\n"),
        ("a.tsv", 'filename\tlabels\n1.jpg\t"cat,dög"\n'),
        ("a.csv", "filename\tlabels\n1.jpg\tcat,dög\n"),
        ("a.CSV", '\n"filename","labels"\n"1.jpg","cat,dög"\n\n'),
        ("a.csv", "filename;labels;a,b\n1.jpg;cat|dög;x\n"),
    ],
)
def test_delimiters_quotes_byte_order_marks_and_line_ends(write: Write, name: str, text: str) -> None:
    assert has(read_table(write(text, name=name))) == [{"cat", "dög"}]


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"filename,labels\n1.jpg,d\xf6g\n")
    refused(tmp_path / "a.csv", "UTF-8", "0xf6")


def test_rows_are_numbered_as_in_an_editor(write: Write) -> None:
    table = write('filename,note,labels\n\n1.jpg,"two\nlines",cat\n\n2.jpg,,dog\n7.jpg,,dog\n')
    refused(table, "row 7", "'7.jpg'")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("filename,labels\n1.jpg,cat\n2.jpg,cat,dog\n", "row 3: 3 cells, but 2 columns; quote cells"),
        ("filename,labels\n1.jpg\n", "row 2: 1 cells, but 2 columns"),
        ('filename,labels\n1.jpg,cat\n2.jpg,"cat\n', "row 3"),
        ("filename,labels\n", "no rows"),
        ("", "no rows"),
        ("filename,labels,labels\n1.jpg,a,b\n", "two columns have the name 'labels'"),
        ("filename,labels\n,cat\n", "row 2: column 'filename' is blank"),
        ("filename,labels\n1.jpg,cat\n2.jpg,cat\n./1.jpg,cat\n", "rows 2 and 4: both have the label 'cat'"),
        ("filename,cat\n1.jpg,0\n2.jpg,1\n./1.jpg,1\n", "rows 2 and 4: both have the path './1.jpg'"),
    ],
)
def test_invalid_table_is_refused_with_the_row(write: Write, text: str, part: str) -> None:
    refused(write(text), "labels.csv", part)


def test_invalid_classes_file_is_refused_with_the_row(write: Write) -> None:
    table = write("filename,labels\n1.jpg,cat\n", classes="cat dog cat")
    refused(table, "classes.txt", "rows 1 and 3", "'cat'")
    (table.parent / "classes.txt").write_text("cat\n\ndog\n")
    refused(table, "classes.txt", "row 2")


def test_missing_images_are_refused(write: Write) -> None:
    table = write("filename,labels\n1.jpg,cat\n8.jpg,cat\n9.jpg,dog\n10.jpg,dog\n")
    refused(table, "labels.csv, row 3: '8.jpg' does not exist", "2 more", "images")


def test_missing_images_are_kept_on_request_unless_all_are_missing(write: Write) -> None:
    table = write("filename,labels\n1.jpg,cat\n8.jpg,dog\n")
    records = read_table(table, missing="keep")
    assert records.paths == (table.parent / "1.jpg", table.parent / "8.jpg")
    assert has(records) == [{"cat"}, {"dog"}]
    (table.parent / "1.jpg").unlink()
    with pytest.raises(DataError, match=r"row 2: '1\.jpg' does not exist in .*1 more.*`images=FOLDER`"):
        read_table(table, missing="keep")


def test_folder_with_more_of_the_images_is_used(write: Write, tmp_path: Path) -> None:
    table = write("filename,labels\n1.jpg,cat\n2.jpg,dog\n9.jpg,dog\n", images="1")
    (tmp_path / "images").mkdir()
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / "images" / name).touch()
    assert read_table(table, missing="keep").paths[2] == tmp_path / "images" / "9.jpg"
    (tmp_path / "2.jpg").touch()
    with pytest.raises(DataError, match=r"the images exist in several folders: .*`images=FOLDER`"):
        read_table(table, missing="keep")
    table.write_text(f"filename,labels\n{tmp_path}/1.jpg,cat\n{tmp_path}/9.jpg,dog\n")
    assert read_table(table, missing="keep").paths == (tmp_path / "1.jpg", tmp_path / "9.jpg")


@pytest.mark.parametrize(
    ("text", "classes", "description"),
    [
        (
            "File Name,tags\n1.jpg,cat|dog\n",
            "",
            "path column 'File Name', labels 'tags' (names separated by '|', 2 labels)",
        ),
        (
            "file,label\n1.jpg,1\n",
            "a b",
            "path column 'file', labels 'label' (indices into classes.txt, one per cell, 2 labels)",
        ),
        (
            "file,label,set,difficult\n1.jpg,a b,val,\n2.jpg,a,test,b\n",
            "a b",
            "path column 'file', labels 'label' (names of classes.txt separated by spaces, 2 labels), split 'set', "
            "difficult 'difficult'",
        ),
        ("file,cat,dog\n1.jpg,0,1\n", "", "path column 'file', one column per class ('cat', 'dog')"),
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


def test_images_are_found_next_to_the_table_or_in_images_or_by_option(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("filename,labels\n1.jpg,cat\n")
    for folder in (tmp_path / "images", tmp_path / "elsewhere"):
        folder.mkdir()
        (folder / "1.jpg").touch()
    assert read_table(tmp_path / "labels.csv").paths == (tmp_path / "images" / "1.jpg",)
    records = read_table(tmp_path / "labels.csv", images=tmp_path / "elsewhere")
    assert records.paths == (tmp_path / "elsewhere" / "1.jpg",)
    (tmp_path / "1.jpg").touch()
    refused(tmp_path / "labels.csv", str(tmp_path / "images"), "images")
    (tmp_path / "images" / "1.jpg").unlink()
    assert read_table(tmp_path / "labels.csv").paths == (tmp_path / "1.jpg",)


def test_folder_is_recognized_by_a_table_with_a_path_column(write: Write, tmp_path: Path) -> None:
    write("Patch Names,E\n1.jpg,1\n", name="other.csv")
    assert not recognizes(tmp_path)
    table = write("filename,labels\n1.jpg,cat\n")
    assert recognizes(tmp_path)
    assert find_tables(tmp_path) == [table]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.frozensets(st.sampled_from(["cat", "dog", "red fox", "é,è", "7"])), min_size=1, max_size=6))
def test_random_labels_round_trip(tmp_path: Path, labels: list[frozenset[str]]) -> None:
    (tmp_path / "classes.txt").write_text("dog\nred fox\né,è\ncat\n7\n", encoding="utf-8")
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "tags"), *((f"{i}.png", "|".join(row)) for i, row in enumerate(labels))])
    for i in range(len(labels)):
        (tmp_path / f"{i}.png").touch()
    records = read_table(tmp_path / "labels.csv")
    assert has(records) == labels


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


def write_parents(folder: Path, text: str) -> Path:
    (folder / "parents.csv").write_text(text)
    return folder / "parents.csv"


def test_parents_are_read_by_name(tmp_path: Path) -> None:
    table = write_parents(tmp_path, "Parent;Child\nanimal;dog\ndog;puppy\n")
    assert read_hierarchy(table, CLASSES) == {"dog": "animal", "puppy": "dog"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("child,parent\ndog,animl\n", r"row 2: 'animl' is not a class in the data; did you mean 'animal'"),
        ("child,parent\ndog,animal\ndog,car\n", r"row 3: 'dog' has two parents, 'animal' and 'car'"),
        ("child,parent\ndog,puppy\npuppy,dog\n", r"parents\.csv: class 'dog' is its own ancestor"),
        ("one,other\ndog,animal\n", r"row 1: expected the columns child and parent, got one, other"),
    ],
)
def test_invalid_hierarchy_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_hierarchy(write_parents(tmp_path, text), CLASSES)


def test_hierarchy_is_applied_to_labels(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    table = write_table(folder, "file,animal,dog,car\n1.jpg,,1,0\n2.jpg,0,,1\n3.jpg,,,0\n")
    parents = write_parents(tmp_path, "child,parent\ndog,animal\n")
    records = read(table, options=ReadOptions(blank=("unknown",), hierarchy=parents), seed=None)
    assert records.label_space.hierarchy == {"dog": "animal"}
    assert states_of(records) == ["++-", "--+", "??-"]
