from pathlib import Path

import numpy as np
import pytest

from helpers.tables import Write, asked, labels_of, refused, states_of, unknown_of, write_table
from probmcl.data.records import Records
from probmcl.errors import DataError, OptionError
from probmcl.readers.options import ReadOptions, Rows
from probmcl.readers.table.table import read_table

PAIRS = "file,label,patient\n1.jpg,cat,a\n2.jpg,dog,b\n./1.jpg,dog,a\n3.jpg,,b\n"
MEANINGS = ({"blank": "negative"}, {"blank": "unknown"})
FLAGS = "ImageID,LabelName,Confidence\n1,cat,1\n1,dog,0\n2,dog,1\n3,cat,-1\n"

CHEST = (
    "Path,Sex,Age,AP/PA,No Finding,Edema,Pneumonia\n"
    "1.jpg,F,68,AP,1.0,,-1.0\n2.jpg,M,1,PA,,1.0,0.0\n3.jpg,M,80,,,-1.0,NaN\n4.jpg,F,7,,0,0,1\n"
)


def description(path: Path, options: ReadOptions = ReadOptions()) -> str:
    origin = read_table(path, options).origin
    assert origin is not None
    return origin.description


def read(folder: Path, text: str, options: ReadOptions = ReadOptions()) -> Records:
    return read_table(write_table(folder, text), options)


def fails(folder: Path, text: str, message: str, options: ReadOptions = ReadOptions()) -> None:
    with pytest.raises(DataError, match=message):
        read(folder, text, options)


def test_repeated_paths_with_single_labels_are_long_form(tmp_path: Path) -> None:
    records = read(tmp_path, PAIRS)
    assert records.paths == tuple(tmp_path / f"{i}.jpg" for i in (1, 2, 3))
    assert states_of(records) == ["++", "-+", "--"]
    assert records.group == ("a", "b", "b")
    assert records.origin is not None
    assert list(records.origin.lines or ()) == [2, 3, 5]
    assert "4 rows are 3 images\n  labels: column 'label', one row per label, names, one per cell" in str(
        records.origin
    )


def test_labels_without_a_row_are_unknown_on_request(tmp_path: Path) -> None:
    records = read(tmp_path, PAIRS, ReadOptions(blank=("unknown",)))
    assert states_of(records) == ["++", "?+", "??"]
    assert "labels without a row = unknown" in str(records.origin)


def test_rows_images_refuses_repeated_paths(tmp_path: Path) -> None:
    fails(tmp_path, PAIRS, r"rows 2 and 4: both have the path '\./1\.jpg'", ReadOptions(rows="images"))
    with pytest.raises((OptionError, TypeError), match="images"):  # a TypeError with the type-checking hook
        ReadOptions(rows="label")  # type: ignore[arg-type]


@pytest.mark.parametrize("second", ["dog|emu", "dog cat"])
def test_possible_lists_with_repeated_paths_need_an_option(tmp_path: Path, second: str) -> None:
    text = f"file,label\n1.jpg,cat\n2.jpg,dog\n1.jpg,{second}\n"
    fails(tmp_path, text, r"""rows 2 and 4: both have the path '1\.jpg'.*`rows="labels"`.*`rows="images"`""")
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
    fails(tmp_path, text, "row 2 and row 4: .*column 'patient' has 'a' and 'x'")
    with pytest.raises(DataError, match="column 'patient' has 'a' and 'x'"):
        read_table(tmp_path / "labels.csv", ReadOptions(group=""), keep=("patient",))
    assert read(tmp_path, text, ReadOptions(group="")).group is None


def test_presence_column_marks_present_labels(tmp_path: Path) -> None:
    assert "row 3: column 'Confidence'" in asked(write_table(tmp_path, FLAGS), *MEANINGS).problem
    assert states_of(read(tmp_path, FLAGS, ReadOptions(blank=("unknown",)))) == ["+-", "?+", "~?"]
    records = read(tmp_path, FLAGS, ReadOptions(blank=("negative",), minus_one=("cat=soft:0.5",)))
    assert states_of(records) == ["+-", "-+", "~-"]
    assert records.states.chance[0] == 0.5
    assert "'Confidence' marks which are present" in str(records.origin)
    assert states_of(read(tmp_path, FLAGS, ReadOptions(ignore=("Confidence",)))) == ["++", "-+", "+-"]


def test_labels_without_a_row_are_absent_if_no_flag_is_zero(tmp_path: Path) -> None:
    assert states_of(read(tmp_path, FLAGS.replace("dog,0", "dog,-1"))) == ["+~", "-+", "~-"]


def test_other_values_in_the_presence_column_are_refused(tmp_path: Path) -> None:
    fails(
        tmp_path, FLAGS.replace("dog,1", "dog,0.87"), "row 4: column 'Confidence' has '0.87'.*`ignore=\"Confidence\"`"
    )


def test_presence_column_without_repeated_paths_needs_an_option(tmp_path: Path) -> None:
    text = "file,label,present\n1.jpg,cat,1\n2.jpg,dog,0\n"
    asked(write_table(tmp_path, text), {"rows": "labels"}, {"ignore": "present"})
    assert states_of(read(tmp_path, text, ReadOptions(rows="labels", blank=("unknown",)))) == ["+?", "?-"]


def test_contradicting_rows_are_refused(tmp_path: Path) -> None:
    text = FLAGS + "2,dog,0\n"
    fails(tmp_path, text, "rows 4 and 6: .*'dog'", ReadOptions(blank=("unknown",), rows="labels"))


def test_none_label_in_long_form(tmp_path: Path) -> None:
    text = "file,label\n1.jpg,none\n2.jpg,dog\n2.jpg,cat\n3.jpg,\n"
    records = read(tmp_path, text, ReadOptions(blank=("unknown",)))
    assert records.label_space.names == ("cat", "dog")
    assert states_of(records) == ["--", "++", "??"]
    fails(tmp_path, text + "1.jpg,dog\n", "row 2 and row 6: 'none' .*'dog'.*`none_label=\"\"`")
    assert labels_of(read(tmp_path, text + "1.jpg,dog\n", ReadOptions(none_label="")))[0] == {"none", "dog"}


def test_difficult_column_is_refused_in_long_form(tmp_path: Path) -> None:
    text = "file,label,difficult\n1.jpg,cat,\n1.jpg,dog,cat\n"
    fails(tmp_path, text, "'difficult' .*`ignore=\"difficult\"`")


@pytest.mark.parametrize(
    ("cell", "state"),
    [
        *((text, "-") for text in ("0", "0.0", "false", "False", "NO", "0.00", '"0,0"', "-0.0", "0.000e+00")),
        *((text, "+") for text in ("1", "1.0", "TRUE", "yes", "1.00", '"1,0"', "+1", "1.000000e+00")),
        *((text, "-") for text in ("N", "Nein", "absent", "Negative")),
        *((text, "+") for text in ("Y", "ja", "present", "Positive")),
        *((text, "?") for text in ("", "nan", "NaN", "NA", "n/a", "null", "None")),
        *((text, "~") for text in ("-1", "-1.0", "-1.00", '"-1,0"')),
    ],
)
def test_spellings_of_flags(tmp_path: Path, cell: str, state: str) -> None:
    table = write_table(tmp_path, f"file,cat,dog\n1.jpg,{cell},0\n2.jpg,1,1\n3.jpg,0,1\n")
    assert states_of(read_table(table)) == [f"{state}-", "++", "-+"]


@pytest.mark.parametrize("cell", ["1,000", "0.5", "2", "1.01"])
def test_other_numbers_are_refused(tmp_path: Path, cell: str) -> None:
    table = write_table(tmp_path, f'file,cat,dog\n1.jpg,"{cell}",0\n2.jpg,1,1\n3.jpg,0,1\n')
    with pytest.raises(DataError, match=rf"row 2: column 'cat' has '{cell}'"):
        read_table(table)


def test_by_default_blank_is_unknown_and_minus_one_uncertain(tmp_path: Path) -> None:
    table = write_table(tmp_path, CHEST)
    records = read_table(table)
    assert records.label_space.names == ("No Finding", "Edema", "Pneumonia")
    assert states_of(records) == ["+?~", "?+-", "?~?", "--+"]
    assert np.isnan(records.states.chance).all()
    text = description(table)
    assert 'blank = unknown (4 cells; change with `blank="negative"`)' in text
    assert "-1 = unknown (2 cells; change with `minus_one`)" in text
    assert text.endswith("ignored: 'Sex', 'Age', 'AP/PA'")


def test_policy_sets_meanings_per_class(tmp_path: Path) -> None:
    options = ReadOptions(blank=("negative", "Edema=unknown"), minus_one=("positive", "Edema=soft:0.6"))
    table = write_table(tmp_path, CHEST)
    records = read_table(table, options)
    assert states_of(records) == ["+?~", "-+-", "-~-", "--+"]
    assert records.states.chance.tolist() == pytest.approx([1.0, 0.6, 1.0])
    assert records.labels[0].tolist() == [1.0, 0.0, 1.0]
    assert records.known[2].tolist() == [True, False, True]
    text = description(table, options)
    assert "blank = negative, 'Edema' unknown (4 cells); -1 = positive, 'Edema' soft:0.6 (2 cells)" in text


def test_policy_for_a_missing_class_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"""`minus_one="Edma=positive"` .*; did you mean 'Edema'"""):
        read_table(write_table(tmp_path, CHEST), ReadOptions(minus_one=("Edma=positive",)))


@pytest.mark.parametrize(("blank", "states"), [("negative", ["+-", "-+"]), ("unknown", ["+?", "?+"])])
def test_blanks_without_zeros_need_a_policy(tmp_path: Path, blank: str, states: list[str]) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,\n2.jpg,,1\n")
    assert "'cat', 'dog'" in asked(table, *MEANINGS).problem
    assert states_of(read_table(table, ReadOptions(blank=(blank,)))) == states
    assert states_of(read_table(table, ReadOptions(blank=(f"cat={blank}", f"dog={blank}")))) == states
    asked(table, *MEANINGS, options=ReadOptions(blank=(f"cat={blank}",)))


def test_class_with_ones_and_blanks_only_needs_a_policy(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,No Finding,cat,dog\n1.jpg,1,0,-1\n2.jpg,,1,1\n3.jpg,,,\n")
    problem = asked(table, *MEANINGS).problem
    assert "columns 'No Finding', 'dog': there are 1s and blanks" in problem
    assert '`blank="No Finding=negative"` or `blank="No Finding=unknown"`' in problem
    assert states_of(read_table(table, ReadOptions(blank=("unknown",)))) == ["+-~", "?++", "???"]
    assert states_of(read_table(table, ReadOptions(blank=("negative",)))) == ["+-~", "-++", "---"]
    both = ReadOptions(blank=("No Finding=negative", "dog=unknown"))
    assert states_of(read_table(table, both)) == ["+-~", "-++", "-??"]
    assert "column 'dog': " in asked(table, *MEANINGS, options=ReadOptions(blank=("No Finding=negative",))).problem
    mapped = ReadOptions(blank=("No Finding=negative",), minus_one=("negative",))  # then 'dog' has a negative
    assert read_table(table, mapped).known.tolist() == [[True] * 3, [True] * 3, [True, False, False]]


def test_rows_option_is_refused_with_class_columns(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,0\n2.jpg,0,1\n1.jpg,1,1\n")
    with pytest.raises(OptionError, match=r"""`rows="labels"` .*'cat', 'dog'.*`labels_column"""):
        read_table(table, ReadOptions(rows="labels"))


def test_minus_one_without_zeros_needs_a_policy(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,-1\n2.jpg,-1,1\n3.jpg,-1,-1\n")
    asked(table, {"minus_one": "negative"}, {"minus_one": "unknown"})
    records = read_table(table, ReadOptions(minus_one=("negative",)))
    assert records.labels.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert records.known.all()
    assert not read_table(table, ReadOptions(minus_one=("unknown",))).known[2].any()


def test_minus_one_is_uncertain_if_blanks_mean_absent(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,-1\n2.jpg,,1\n")
    assert states_of(read_table(table, ReadOptions(blank=("negative",)))) == ["+~", "-+"]
    asked(table, {"minus_one": "negative"}, {"minus_one": "unknown"}, options=ReadOptions(blank=("unknown",)))


def test_policy_without_effect_is_reported(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat\n1.jpg,1\n2.jpg,0\n")
    text = description(table, ReadOptions(blank=("unknown",), minus_one=("positive",)))
    assert "`blank` has no effect" in text
    assert "`minus_one` has no effect" in text


def test_column_of_numbers_is_refused_if_half_of_them_are_flags(tmp_path: Path) -> None:
    few = write_table(tmp_path, "file,cat,age\n1.jpg,1,1\n2.jpg,0,40\n3.jpg,0,41\n")
    assert read_table(few).label_space.names == ("cat",)
    many = write_table(tmp_path, "file,cat,age\n1.jpg,1,1\n2.jpg,0,0\n3.jpg,0,41\n")
    with pytest.raises(DataError, match=r"""row 4: column 'age' has '41'.*`ignore="age"`"""):
        read_table(many)
    assert read_table(many, ReadOptions(ignore=("age",))).label_space.names == ("cat",)


def test_blank_column_is_ignored(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,\n2.jpg,0,\n")
    assert description(table) == "path column 'file'\nlabels: one column per class ('cat')\nignored: 'dog'"


def test_unnamed_column_of_pandas_is_ignored(tmp_path: Path) -> None:
    table = write_table(tmp_path, "Unnamed: 0,file,cat\n0,1.jpg,1\n1,2.jpg,0\n")
    assert read_table(table).label_space.names == ("cat",)


def test_none_label_is_refused_with_class_columns(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r'`none_label="No Finding"` .*`ignore="No Finding"`'):
        read_table(write_table(tmp_path, CHEST), ReadOptions(none_label="No Finding"))


def test_states_are_stored_sparsely(tmp_path: Path) -> None:
    rows = "".join(f"{i}.jpg,{int(i == 5)},{'' if i else 0},-1\n" for i in range(200))
    table = write_table(tmp_path, "file,a,b,c\n" + rows, images=" ".join(f"{i}.jpg" for i in range(200)))
    states = read_table(table).states
    assert states.default.tolist() == [0, 2, 3]
    assert len(states.states) == 2


def test_blank_and_minus_one_are_unknown_in_class_columns(write: Write) -> None:
    records = read_table(write("image,cat,dog,bird\n1.jpg,1,0,\n2.jpg,TRUE,false,-1\n3.jpg,0,1.0,1\n4.jpg,0,0,0\n"))
    assert records.label_space.names == ("cat", "dog", "bird")
    assert labels_of(records) == [{"cat"}, {"cat"}, {"dog", "bird"}, set()]
    assert unknown_of(records) == [{"bird"}, {"bird"}, set(), set()]


def test_classes_file_sets_the_order_of_class_columns(write: Write) -> None:
    records = read_table(write("image,cat,width,dog\n1.jpg,1,640,0\n", classes="dog cat"))
    assert records.label_space.names == ("dog", "cat")
    assert labels_of(records) == [{"cat"}]


def test_class_columns_must_match_the_classes_file(write: Write) -> None:
    refused(write("image,cat,dogs\n1.jpg,1,0\n", classes="cat dog"), "'dog'", "'dogs'?")
    refused(write("image,cat,dog,bird\n1.jpg,1,0,1\n", classes="cat dog"), "'bird'", "classes.txt")


def test_difficult_labels_are_unknown_with_class_columns(write: Write) -> None:
    records = read_table(write("image,cat,dog,difficult\n1.jpg,1,0,dog\n2.jpg,1,1,\n"))
    assert unknown_of(records) == [{"dog"}, set()]
    refused(write("image,cat,dog,difficult\n1.jpg,1,0,1\n"), "'difficult'", "rename")


def test_difficult_flags_are_refused_next_to_names(write: Write) -> None:
    refused(write("file,tags,difficult\n1.jpg,cat,0\n2.jpg,dog,1\n"), "'difficult'", 'ignore="difficult"')
    records = read_table(write("file,tags,difficult\n1.jpg,0 1,\n2.jpg,1,0\n"))
    assert unknown_of(records) == [set(), {"0"}]


def test_other_values_in_a_class_column_are_refused(write: Write) -> None:
    refused(write("image,cat,width\n1.jpg,1,1\n2.jpg,0,640\n"), "row 3", "'width'", "'640'", "labels_column")


@pytest.mark.parametrize("mark", ["x", "X", "✓", "✔"])
def test_blank_next_to_crosses_is_absent(write: Write, mark: str) -> None:
    table = write(f"file,cat,dog\n1.jpg,{mark},\n2.jpg,,{mark}\n3.jpg,,\n")
    assert states_of(read_table(table)) == ["+-", "-+", "--"]
    assert 'blank = negative (4 cells; change with `blank="unknown"`)' in description(table)
    assert states_of(read_table(table, ReadOptions(blank=("unknown",)))) == ["+?", "?+", "??"]


def test_blank_next_to_crosses_and_zeros_is_unknown(write: Write) -> None:
    assert states_of(read_table(write("file,cat,dog\n1.jpg,x,0\n2.jpg,,x\n3.jpg,0,0\n"))) == ["+-", "?+", "--"]


def test_crosses_next_to_a_list_are_ignored(write: Write) -> None:
    table = write("file,tags,checked\n1.jpg,cat dog,x\n2.jpg,dog,\n3.jpg,cat,x\n")
    assert labels_of(read_table(table)) == [{"cat", "dog"}, {"dog"}, {"cat"}]
    assert description(table).endswith("ignored: 'checked'")


def test_unknown_label_in_class_columns(write: Write) -> None:
    table = write("file,cat,dog\n1.jpg,1,0\n2.jpg,?,?\n3.jpg,?,1\n4.jpg,0,?\n")
    assert states_of(read_table(table, ReadOptions(unknown_label=("?",)))) == ["+-", "??", "?+", "-?"]
    refused(table, "row 3: column 'cat' has '?'", "`unknown_label=VALUE`")


def test_unknown_label_in_label_rows(write: Write) -> None:
    table = write("file,tag\n1.jpg,cat\n1.jpg,dog\n2.jpg,todo\n3.jpg,dog\n")
    assert states_of(read_table(table, ReadOptions(unknown_label=("todo",)))) == ["++", "??", "-+"]


def test_repeated_label_of_boxes_counts_once(write: Write) -> None:
    rows = "1.jpg,traffic light,0,0,1,1\n1.jpg,car,1,1,2,2\n1.jpg,car,3,3,4,4\n2.jpg,car,0,0,1,1\n"
    table = write(f"filename,class,xmin,ymin,xmax,ymax\n{rows}")
    assert labels_of(read_table(table)) == [{"traffic light", "car"}, {"car"}]
    assert "boxes (xmin, ymin, xmax, ymax) are not used" in description(table)


def test_class_columns_that_agree_with_a_list_are_not_a_question(write: Write) -> None:
    table = write("file,tags,cat,dog\n1.jpg,cat dog,1,1\n2.jpg,dog,0,1\n3.jpg,,0,0\n")
    assert states_of(read_table(table)) == ["++", "-+", "--"]
    other = write("file,tags,cat,dog\n1.jpg,cat dog,1,1\n2.jpg,dog,0,1\n3.jpg,,1,0\n")
    question = asked(other, {"labels_column": "tags"}, {"ignore": "tags"})
    assert [reading.rows for reading in question.readings] == [("row 4, 3.jpg: no label",), ("row 4, 3.jpg: cat",)]


def test_presence_column_is_not_a_question_if_every_label_has_a_row(write: Write) -> None:
    table = write("file,label,present\n1.jpg,cat,1\n1.jpg,dog,0\n2.jpg,cat,0\n2.jpg,dog,1\n")
    assert states_of(read_table(table)) == ["+-", "-+"]
