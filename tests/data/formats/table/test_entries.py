from pathlib import Path

import pytest

from helpers.tables import labels_of, options_of, states_of, write_table
from probmcl.data.formats.table.table import read_table
from probmcl.data.options import ReadOptions, Rows
from probmcl.data.records import Records
from probmcl.errors import DataError, OptionError, Question

PAIRS = "file,label,patient\n1.jpg,cat,a\n2.jpg,dog,b\n./1.jpg,dog,a\n3.jpg,,b\n"
FLAGS = "ImageID,LabelName,Confidence\n1,cat,1\n1,dog,0\n2,dog,1\n3,cat,-1\n"


def read(folder: Path, text: str, options: ReadOptions = ReadOptions()) -> Records:
    return read_table(write_table(folder, text), options)


def refused(folder: Path, text: str, message: str, options: ReadOptions = ReadOptions()) -> None:
    with pytest.raises(DataError, match=message):
        read(folder, text, options)


def asked(folder: Path, text: str, message: str, *options: dict[str, str]) -> None:
    with pytest.raises(Question, match=message) as question:
        read(folder, text)
    assert options_of(question.value) == [*options]


def test_repeated_paths_with_single_labels_are_long_form(tmp_path: Path) -> None:
    records = read(tmp_path, PAIRS)
    assert records.paths == tuple(tmp_path / f"{i}.jpg" for i in (1, 2, 3))
    assert states_of(records) == ["++", "-+", "--"]
    assert records.group == ("a", "b", "b")
    assert records.origin is not None
    assert records.origin.lines == (2, 3, 5)
    assert "4 rows are 3 images\n  labels: column 'label', one row per label, names, one per cell" in str(records.origin)


def test_labels_without_a_row_are_unknown_on_request(tmp_path: Path) -> None:
    records = read(tmp_path, PAIRS, ReadOptions(blank=("unknown",)))
    assert states_of(records) == ["++", "?+", "??"]
    assert "labels without a row = unknown" in str(records.origin)


def test_rows_images_refuses_repeated_paths(tmp_path: Path) -> None:
    refused(tmp_path, PAIRS, r"rows 2 and 4: both have the path '\./1\.jpg'", ReadOptions(rows="images"))
    with pytest.raises((OptionError, TypeError), match="images"):  # a TypeError with the type-checking hook
        ReadOptions(rows="label")  # type: ignore[arg-type]


@pytest.mark.parametrize("second", ["dog|emu", "dog cat"])
def test_possible_lists_with_repeated_paths_need_an_option(tmp_path: Path, second: str) -> None:
    text = f"file,label\n1.jpg,cat\n2.jpg,dog\n1.jpg,{second}\n"
    refused(tmp_path, text, r"rows 2 and 4: both have the path '1\.jpg'.*`rows=labels`.*`rows=images`")
    records = read(tmp_path, text, ReadOptions(rows="labels"))
    assert labels_of(records) == [{"cat", *second.split("|")}, {"dog"}]


def test_names_with_spaces_are_long_form(tmp_path: Path) -> None:
    text = "file,label\n1.jpg,cat\n2.jpg,dog\n1.jpg,traffic light\n"
    assert labels_of(read(tmp_path, text)) == [{"cat", "traffic light"}, {"dog"}]


def test_names_with_spaces_from_the_classes_file_are_long_form(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("traffic light\ndog\n")
    assert labels_of(read(tmp_path, "file,label\n1.jpg,traffic light\n1.jpg,dog\n")) == [{"traffic light", "dog"}]


@pytest.mark.parametrize("rows", [None, "labels"])
def test_repeated_label_counts_once(tmp_path: Path, rows: Rows | None) -> None:
    text = "file,label\n1.jpg,cat\n2.jpg,dog\n1.jpg,cat\n"
    assert labels_of(read(tmp_path, text, ReadOptions(rows=rows))) == [{"cat"}, {"dog"}]


def test_rows_of_an_image_must_agree_in_other_columns(tmp_path: Path) -> None:
    text = PAIRS.replace("./1.jpg,dog,a", "./1.jpg,dog,x")
    refused(tmp_path, text, "row 2 and row 4: .*column 'patient' has 'a' and 'x'")
    with pytest.raises(DataError, match="column 'patient' has 'a' and 'x'"):
        read_table(tmp_path / "labels.csv", ReadOptions(group=""), keep=("patient",))
    assert read(tmp_path, text, ReadOptions(group="")).group is None


def test_presence_column_marks_present_labels(tmp_path: Path) -> None:
    asked(tmp_path, FLAGS, "row 3: column 'Confidence'", {"blank": "negative"}, {"blank": "unknown"})
    assert states_of(read(tmp_path, FLAGS, ReadOptions(blank=("unknown",)))) == ["+-", "?+", "~?"]
    records = read(tmp_path, FLAGS, ReadOptions(blank=("negative",), minus_one=("cat=soft:0.5",)))
    assert states_of(records) == ["+-", "-+", "~-"]
    assert records.states.chance[0] == 0.5
    assert "'Confidence' marks which are present" in str(records.origin)
    assert states_of(read(tmp_path, FLAGS, ReadOptions(ignore=("Confidence",)))) == ["++", "-+", "+-"]


def test_labels_without_a_row_are_absent_if_no_flag_is_zero(tmp_path: Path) -> None:
    assert states_of(read(tmp_path, FLAGS.replace("dog,0", "dog,-1"))) == ["+~", "-+", "~-"]


def test_other_values_in_the_presence_column_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, FLAGS.replace("dog,1", "dog,0.87"), "row 4: column 'Confidence' has '0.87'.*`ignore=Confidence`")


def test_presence_column_without_repeated_paths_needs_an_option(tmp_path: Path) -> None:
    text = "file,label,present\n1.jpg,cat,1\n2.jpg,dog,0\n"
    asked(tmp_path, text, "'present' ", {"rows": "labels"}, {"ignore": "present"})
    assert states_of(read(tmp_path, text, ReadOptions(rows="labels", blank=("unknown",)))) == ["+?", "?-"]


def test_contradicting_rows_are_refused(tmp_path: Path) -> None:
    text = FLAGS + "2,dog,0\n"
    refused(tmp_path, text, "rows 4 and 6: .*'dog'", ReadOptions(blank=("unknown",), rows="labels"))


def test_none_label_in_long_form(tmp_path: Path) -> None:
    text = "file,label\n1.jpg,none\n2.jpg,dog\n2.jpg,cat\n3.jpg,\n"
    records = read(tmp_path, text, ReadOptions(blank=("unknown",)))
    assert records.label_space.names == ("cat", "dog")
    assert states_of(records) == ["--", "++", "??"]
    refused(tmp_path, text + "1.jpg,dog\n", "row 2 and row 6: 'none' .*'dog'.*`none_label=''`")
    assert labels_of(read(tmp_path, text + "1.jpg,dog\n", ReadOptions(none_label="")))[0] == {"none", "dog"}


def test_difficult_column_is_refused_in_long_form(tmp_path: Path) -> None:
    text = "file,label,difficult\n1.jpg,cat,\n1.jpg,dog,cat\n"
    refused(tmp_path, text, "'difficult' .*`ignore=difficult`")
