from pathlib import Path

import numpy as np
import pytest

from helpers.tables import states_of, write_table
from probmcl.data.formats.table.table import read_table
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, OptionError

CHEST = (
    "Path,Sex,Age,AP/PA,No Finding,Edema,Pneumonia\n"
    "1.jpg,F,68,AP,1.0,,-1.0\n2.jpg,M,1,PA,,1.0,0.0\n3.jpg,M,80,,,-1.0,NaN\n4.jpg,F,7,,0,0,1\n"
)


def understood(path: Path, options: ReadOptions = ReadOptions()) -> str:
    origin = read_table(path, options).origin
    assert origin is not None
    return origin.understood


@pytest.mark.parametrize(
    ("cell", "state"),
    [
        *((text, "-") for text in ("0", "0.0", "false", "False", "NO", "0.00", '"0,0"', "-0.0", "0.000e+00")),
        *((text, "+") for text in ("1", "1.0", "TRUE", "yes", "1.00", '"1,0"', "+1", "1.000000e+00")),
        *((text, "?") for text in ("", "nan", "NaN", "NA", "n/a", "null", "None")),
        *((text, "~") for text in ("-1", "-1.0", "-1.00", '"-1,0"')),
    ],
)
def test_every_way_to_write_a_flag(tmp_path: Path, cell: str, state: str) -> None:
    table = write_table(tmp_path, f"file,cat,dog\n1.jpg,{cell},0\n2.jpg,1,1\n3.jpg,0,1\n")
    assert states_of(read_table(table)) == [f"{state}-", "++", "-+"]


@pytest.mark.parametrize("cell", ["1,000", "0.5", "2", "1.01"])
def test_a_number_that_is_no_flag_is_shown(tmp_path: Path, cell: str) -> None:
    table = write_table(tmp_path, f'file,cat,dog\n1.jpg,"{cell}",0\n2.jpg,1,1\n3.jpg,0,1\n')
    with pytest.raises(DataError, match=rf"row 2: column 'cat' holds '{cell}', not 0, 1"):
        read_table(table)


def test_blank_beside_zeros_is_unknown_and_minus_one_uncertain_and_both_are_said(tmp_path: Path) -> None:
    table = write_table(tmp_path, CHEST)
    records = read_table(table)
    assert records.label_space.names == ("No Finding", "Edema", "Pneumonia")
    assert states_of(records) == ["+?~", "?+-", "?~?", "--+"]
    assert np.isnan(records.states.chance).all()
    said = understood(table)
    assert "blank = unknown (4 cells; `blank=negative` says otherwise)" in said
    assert "-1 = unknown (2 cells; `minus_one` says otherwise)" in said
    assert said.endswith("not read: 'Sex', 'Age', 'AP/PA'")


def test_the_policy_gives_blanks_and_minus_one_a_meaning_class_by_class(tmp_path: Path) -> None:
    options = ReadOptions(blank=("negative", "Edema=unknown"), minus_one=("positive", "Edema=soft:0.6"))
    table = write_table(tmp_path, CHEST)
    records = read_table(table, options)
    assert states_of(records) == ["+?~", "-+-", "-~-", "--+"]
    assert records.states.chance.tolist() == pytest.approx([1.0, 0.6, 1.0])
    assert records.labels[0].tolist() == [1.0, 0.0, 1.0]
    assert records.known[2].tolist() == [True, False, True]
    said = understood(table, options)
    assert "blank = negative, 'Edema' unknown (4 cells); -1 = positive, 'Edema' soft:0.6 (2 cells)" in said


def test_a_meaning_for_a_class_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"`minus_one=Edma=positive` names no class: .*; did you mean 'Edema'"):
        read_table(write_table(tmp_path, CHEST), ReadOptions(minus_one=("Edma=positive",)))


@pytest.mark.parametrize(("blank", "states"), [("negative", ["+-", "-+"]), ("unknown", ["+?", "?+"])])
def test_blanks_without_zeros_have_two_meanings_and_the_flag_says_which(
    tmp_path: Path, blank: str, states: list[str]
) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,\n2.jpg,,1\n")
    with pytest.raises(DataError, match=r"'cat', 'dog' hold blanks .* `blank=negative` or `blank=unknown`"):
        read_table(table)
    assert states_of(read_table(table, ReadOptions(blank=(blank,)))) == states
    assert states_of(read_table(table, ReadOptions(blank=(f"cat={blank}", f"dog={blank}")))) == states
    with pytest.raises(DataError, match=r"`blank=negative` or"):
        read_table(table, ReadOptions(blank=(f"cat={blank}",)))


def test_a_class_of_one_and_blank_beside_others_with_zeros_is_asked_about(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,No Finding,cat,dog\n1.jpg,1,0,-1\n2.jpg,,1,1\n3.jpg,,,\n")
    with pytest.raises(DataError, match=r"columns 'No Finding', 'dog': 1 and blank, but no 0") as caught:
        read_table(table)
    assert "`blank='No Finding=negative'` or `blank='No Finding=unknown'`" in str(caught.value)
    assert str(caught.value).endswith("`blank=negative` or `blank=unknown` for all")
    assert states_of(read_table(table, ReadOptions(blank=("unknown",)))) == ["+-~", "?++", "???"]
    assert states_of(read_table(table, ReadOptions(blank=("negative",)))) == ["+-~", "-++", "---"]
    both = ReadOptions(blank=("No Finding=negative", "dog=unknown"))
    assert states_of(read_table(table, both)) == ["+-~", "-++", "-??"]
    with pytest.raises(DataError, match=r"column 'dog': 1 and blank"):
        read_table(table, ReadOptions(blank=("No Finding=negative",)))
    told = ReadOptions(blank=("No Finding=negative",), minus_one=("negative",))  # then 'dog' has an absence
    assert read_table(table, told).known.tolist() == [[True] * 3, [True] * 3, [True, False, False]]


def test_rows_of_labels_have_no_place_beside_class_columns(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,0\n2.jpg,0,1\n1.jpg,1,1\n")
    with pytest.raises(OptionError, match=r"`rows=labels` is for a column of labels; in .*'cat', 'dog'.* leave it out"):
        read_table(table, ReadOptions(rows="labels"))


def test_minus_one_without_zeros_has_two_meanings_and_the_flag_says_which(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,-1\n2.jpg,-1,1\n3.jpg,-1,-1\n")
    with pytest.raises(DataError, match=r"`minus_one=negative` or `minus_one=unknown`"):
        read_table(table)
    records = read_table(table, ReadOptions(minus_one=("negative",)))
    assert records.labels.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert records.known.all()
    assert not read_table(table, ReadOptions(minus_one=("unknown",))).known[2].any()


def test_minus_one_beside_blanks_that_mean_absent_is_uncertain(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,-1\n2.jpg,,1\n")
    assert states_of(read_table(table, ReadOptions(blank=("negative",)))) == ["+~", "-+"]
    with pytest.raises(DataError, match=r"`minus_one=negative`"):
        read_table(table, ReadOptions(blank=("unknown",)))


def test_a_flag_that_has_nothing_to_apply_to_is_said_to_change_nothing(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat\n1.jpg,1\n2.jpg,0\n")
    said = understood(table, ReadOptions(blank=("unknown",), minus_one=("positive",)))
    assert "`blank` changes nothing: no cell is blank; `minus_one` changes nothing: no cell is -1" in said


def test_a_column_of_numbers_with_few_flags_is_no_class_and_one_with_many_is_asked_about(tmp_path: Path) -> None:
    few = write_table(tmp_path, "file,cat,age\n1.jpg,1,1\n2.jpg,0,40\n3.jpg,0,41\n")
    assert read_table(few).label_space.names == ("cat",)
    many = write_table(tmp_path, "file,cat,age\n1.jpg,1,1\n2.jpg,0,0\n3.jpg,0,41\n")
    with pytest.raises(DataError, match=r"row 4: column 'age' holds '41'.*`ignore='age'`"):
        read_table(many)
    assert read_table(many, ReadOptions(ignore=("age",))).label_space.names == ("cat",)


def test_a_column_that_is_blank_throughout_is_no_class(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,\n2.jpg,0,\n")
    assert understood(table) == "path column 'file', one column a class ('cat'); not read: 'dog'"


def test_pandas_own_name_for_a_nameless_column_is_no_class(tmp_path: Path) -> None:
    table = write_table(tmp_path, "Unnamed: 0,file,cat\n0,1.jpg,1\n1,2.jpg,0\n")
    assert read_table(table).label_space.names == ("cat",)


def test_none_label_has_no_place_beside_class_columns(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"`none_label=No Finding` is for lists .* `ignore=No Finding`"):
        read_table(write_table(tmp_path, CHEST), ReadOptions(none_label="No Finding"))


def test_states_are_held_sparsely(tmp_path: Path) -> None:
    rows = "".join(f"{i}.jpg,{int(i == 5)},{'' if i else 0},-1\n" for i in range(200))
    table = write_table(tmp_path, "file,a,b,c\n" + rows, images=" ".join(f"{i}.jpg" for i in range(200)))
    states = read_table(table).states
    assert states.default.tolist() == [0, 2, 3]
    assert len(states.states) == 2
