from pathlib import Path

import pytest

from helpers.tables import labels_of, states_of, write_table
from probmcl.data.formats.table.table import read_table
from probmcl.data.options import ReadOptions
from probmcl.data.records import Records
from probmcl.errors import DataError, OptionError

PAIRS = "file,label,patient\n1.jpg,cat,a\n2.jpg,dog,b\n./1.jpg,dog,a\n3.jpg,,b\n"
FLAGS = "ImageID,LabelName,Confidence\n1,cat,1\n1,dog,0\n2,dog,1\n3,cat,-1\n"


def read(folder: Path, text: str, options: ReadOptions = ReadOptions()) -> Records:
    return read_table(write_table(folder, text), options)


def refused(folder: Path, text: str, what: str, options: ReadOptions = ReadOptions()) -> None:
    with pytest.raises(DataError, match=what):
        read(folder, text, options)


def test_a_path_that_repeats_with_single_labels_is_long_form_and_said(tmp_path: Path) -> None:
    records = read(tmp_path, PAIRS)
    assert records.paths == tuple(tmp_path / f"{i}.jpg" for i in (1, 2, 3))
    assert states_of(records) == ["++", "-+", "--"]
    assert records.group == ("a", "b", "b")
    assert records.origin is not None
    assert records.origin.lines == (2, 3, 5)
    assert "one row a label: 4 rows, 3 images, labels 'label' (names, one in each cell, 2 labels)" in str(
        records.origin
    )


def test_what_is_not_there_is_unknown_on_request(tmp_path: Path) -> None:
    records = read(tmp_path, PAIRS, ReadOptions(blank=("unknown",)))
    assert states_of(records) == ["++", "?+", "??"]
    assert "pairs that are not there = unknown" in str(records.origin)


def test_rows_are_images_where_that_is_said(tmp_path: Path) -> None:
    refused(tmp_path, PAIRS, r"rows 2 and 4: both are '\./1\.jpg'", ReadOptions(rows="images"))
    with pytest.raises((OptionError, TypeError), match="images"):  # under the type-checking hook a TypeError
        ReadOptions(rows="label")  # type: ignore[arg-type]


@pytest.mark.parametrize("second", ["dog|emu", "traffic light"])
def test_cells_that_may_be_lists_on_repeated_rows_are_asked_about(tmp_path: Path, second: str) -> None:
    text = f"file,label\n1.jpg,cat\n2.jpg,dog\n1.jpg,{second}\n"
    refused(tmp_path, text, r"rows 2 and 4: both are '1\.jpg'.*`rows=labels`.*`rows=images`")
    records = read(tmp_path, text, ReadOptions(rows="labels"))
    assert labels_of(records) == [{"cat", *second.split("|")}, {"dog"}]


def test_spaced_names_of_the_classes_file_are_long_form_without_asking(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("traffic light\ndog\n")
    assert labels_of(read(tmp_path, "file,label\n1.jpg,traffic light\n1.jpg,dog\n")) == [{"traffic light", "dog"}]


def test_a_pair_that_is_said_twice_is_asked_about(tmp_path: Path) -> None:
    text = "file,label\n1.jpg,cat\n2.jpg,dog\n1.jpg,cat\n"
    refused(tmp_path, text, "rows 2 and 4: both say 'cat' of one image; `rows=labels`")
    assert labels_of(read(tmp_path, text, ReadOptions(rows="labels"))) == [{"cat"}, {"dog"}]


def test_columns_that_differ_over_the_rows_of_an_image_are_refused_with_both(tmp_path: Path) -> None:
    text = PAIRS.replace("./1.jpg,dog,a", "./1.jpg,dog,x")
    refused(tmp_path, text, "row 2 and row 4: are one image, but column 'patient' holds 'a' and 'x'")
    with pytest.raises(DataError, match="column 'patient' holds 'a' and 'x'"):
        read_table(tmp_path / "labels.csv", ReadOptions(group=""), keep=("patient",))
    assert read(tmp_path, text, ReadOptions(group="")).group is None


def test_a_column_of_flags_says_which_labels_are_there(tmp_path: Path) -> None:
    refused(tmp_path, FLAGS, "row 3: column 'Confidence'.*`blank=negative`.*`blank=unknown`")
    assert states_of(read(tmp_path, FLAGS, ReadOptions(blank=("unknown",)))) == ["+-", "?+", "~?"]
    records = read(tmp_path, FLAGS, ReadOptions(blank=("negative",), minus_one=("cat=soft:0.5",)))
    assert states_of(records) == ["+-", "-+", "~-"]
    assert records.states.chance[0] == 0.5
    assert "'Confidence' says which are there" in str(records.origin)
    assert states_of(read(tmp_path, FLAGS, ReadOptions(ignore=("Confidence",)))) == ["++", "-+", "+-"]


def test_flags_without_zeros_leave_the_others_absent(tmp_path: Path) -> None:
    assert states_of(read(tmp_path, FLAGS.replace("dog,0", "dog,-1"))) == ["+~", "-+", "~-"]


def test_a_confidence_that_is_no_flag_is_named(tmp_path: Path) -> None:
    refused(
        tmp_path, FLAGS.replace("dog,1", "dog,0.87"), "row 4: column 'Confidence' holds '0.87'.*`ignore=Confidence`"
    )


def test_a_column_of_flags_beside_single_rows_is_asked_about(tmp_path: Path) -> None:
    text = "file,label,present\n1.jpg,cat,1\n2.jpg,dog,0\n"
    refused(tmp_path, text, "'present' may say .* `rows=labels` reads it so, `ignore=present`")
    assert states_of(read(tmp_path, text, ReadOptions(rows="labels", blank=("unknown",)))) == ["+?", "?-"]


def test_a_label_that_is_there_and_is_not_is_refused(tmp_path: Path) -> None:
    text = FLAGS + "2,dog,0\n"
    refused(tmp_path, text, "rows 4 and 6: say of 'dog'", ReadOptions(blank=("unknown",), rows="labels"))


def test_none_of_them_in_a_row_of_its_own(tmp_path: Path) -> None:
    text = "file,label\n1.jpg,none\n2.jpg,dog\n2.jpg,cat\n3.jpg,\n"
    records = read(tmp_path, text, ReadOptions(blank=("unknown",)))
    assert records.label_space.names == ("cat", "dog")
    assert states_of(records) == ["--", "++", "??"]
    refused(tmp_path, text + "1.jpg,dog\n", "row 2, with row 6: 'none' stands beside 'dog'.*`none_label=''`")
    assert labels_of(read(tmp_path, text + "1.jpg,dog\n", ReadOptions(none_label="")))[0] == {"none", "dog"}


def test_a_list_of_difficult_labels_has_no_place(tmp_path: Path) -> None:
    text = "file,label,difficult\n1.jpg,cat,\n1.jpg,dog,cat\n"
    refused(tmp_path, text, "'difficult' lists labels.*`ignore=difficult`")
