from pathlib import Path

import numpy as np
import pytest

from helpers.tables import options_of, states_of, write_table
from probmcl.data.formats.table.table import read_table
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, OptionError, Question

CHEST = (
    "Path,Sex,Age,AP/PA,No Finding,Edema,Pneumonia\n"
    "1.jpg,F,68,AP,1.0,,-1.0\n2.jpg,M,1,PA,,1.0,0.0\n3.jpg,M,80,,,-1.0,NaN\n4.jpg,F,7,,0,0,1\n"
)


def description(path: Path, options: ReadOptions = ReadOptions()) -> str:
    origin = read_table(path, options).origin
    assert origin is not None
    return origin.description


@pytest.mark.parametrize(
    ("cell", "state"),
    [
        *((text, "-") for text in ("0", "0.0", "false", "False", "NO", "0.00", '"0,0"', "-0.0", "0.000e+00")),
        *((text, "+") for text in ("1", "1.0", "TRUE", "yes", "1.00", '"1,0"', "+1", "1.000000e+00")),
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
    assert "blank = unknown (4 cells; change with `blank=negative`)" in text
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
    with pytest.raises(OptionError, match=r"`minus_one=Edma=positive` .*; did you mean 'Edema'"):
        read_table(write_table(tmp_path, CHEST), ReadOptions(minus_one=("Edma=positive",)))


@pytest.mark.parametrize(("blank", "states"), [("negative", ["+-", "-+"]), ("unknown", ["+?", "?+"])])
def test_blanks_without_zeros_need_a_policy(tmp_path: Path, blank: str, states: list[str]) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,\n2.jpg,,1\n")
    with pytest.raises(Question, match="'cat', 'dog' ") as question:
        read_table(table)
    assert options_of(question.value) == [{"blank": "negative"}, {"blank": "unknown"}]
    assert states_of(read_table(table, ReadOptions(blank=(blank,)))) == states
    assert states_of(read_table(table, ReadOptions(blank=(f"cat={blank}", f"dog={blank}")))) == states
    with pytest.raises(Question):
        read_table(table, ReadOptions(blank=(f"cat={blank}",)))


def test_class_with_ones_and_blanks_only_needs_a_policy(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,No Finding,cat,dog\n1.jpg,1,0,-1\n2.jpg,,1,1\n3.jpg,,,\n")
    with pytest.raises(Question, match=r"columns 'No Finding', 'dog': there are 1s and blanks") as question:
        read_table(table)
    assert "`blank='No Finding=negative'` or `blank='No Finding=unknown'`" in str(question.value)
    assert options_of(question.value) == [{"blank": "negative"}, {"blank": "unknown"}]
    assert states_of(read_table(table, ReadOptions(blank=("unknown",)))) == ["+-~", "?++", "???"]
    assert states_of(read_table(table, ReadOptions(blank=("negative",)))) == ["+-~", "-++", "---"]
    both = ReadOptions(blank=("No Finding=negative", "dog=unknown"))
    assert states_of(read_table(table, both)) == ["+-~", "-++", "-??"]
    with pytest.raises(Question, match=r"column 'dog': there are 1s and blanks"):
        read_table(table, ReadOptions(blank=("No Finding=negative",)))
    mapped = ReadOptions(blank=("No Finding=negative",), minus_one=("negative",))  # then 'dog' has a negative
    assert read_table(table, mapped).known.tolist() == [[True] * 3, [True] * 3, [True, False, False]]


def test_rows_option_is_refused_with_class_columns(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,0\n2.jpg,0,1\n1.jpg,1,1\n")
    with pytest.raises(OptionError, match=r"`rows=labels` .*'cat', 'dog'.*`labels_column"):
        read_table(table, ReadOptions(rows="labels"))


def test_minus_one_without_zeros_needs_a_policy(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,-1\n2.jpg,-1,1\n3.jpg,-1,-1\n")
    with pytest.raises(Question) as question:
        read_table(table)
    assert options_of(question.value) == [{"minus_one": "negative"}, {"minus_one": "unknown"}]
    records = read_table(table, ReadOptions(minus_one=("negative",)))
    assert records.labels.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert records.known.all()
    assert not read_table(table, ReadOptions(minus_one=("unknown",))).known[2].any()


def test_minus_one_is_uncertain_if_blanks_mean_absent(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,-1\n2.jpg,,1\n")
    assert states_of(read_table(table, ReadOptions(blank=("negative",)))) == ["+~", "-+"]
    with pytest.raises(Question, match=r"`minus_one=negative`"):
        read_table(table, ReadOptions(blank=("unknown",)))


def test_policy_without_effect_is_reported(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat\n1.jpg,1\n2.jpg,0\n")
    text = description(table, ReadOptions(blank=("unknown",), minus_one=("positive",)))
    assert "`blank` has no effect" in text
    assert "`minus_one` has no effect" in text


def test_column_of_numbers_is_refused_if_half_of_them_are_flags(tmp_path: Path) -> None:
    few = write_table(tmp_path, "file,cat,age\n1.jpg,1,1\n2.jpg,0,40\n3.jpg,0,41\n")
    assert read_table(few).label_space.names == ("cat",)
    many = write_table(tmp_path, "file,cat,age\n1.jpg,1,1\n2.jpg,0,0\n3.jpg,0,41\n")
    with pytest.raises(DataError, match=r"row 4: column 'age' has '41'.*`ignore='age'`"):
        read_table(many)
    assert read_table(many, ReadOptions(ignore=("age",))).label_space.names == ("cat",)


def test_blank_column_is_ignored(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog\n1.jpg,1,\n2.jpg,0,\n")
    assert description(table) == "path column 'file'\nlabels: one column per class ('cat')\nignored: 'dog'"


def test_unnamed_column_of_pandas_is_ignored(tmp_path: Path) -> None:
    table = write_table(tmp_path, "Unnamed: 0,file,cat\n0,1.jpg,1\n1,2.jpg,0\n")
    assert read_table(table).label_space.names == ("cat",)


def test_none_label_is_refused_with_class_columns(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"`none_label=No Finding` .*`ignore=No Finding`"):
        read_table(write_table(tmp_path, CHEST), ReadOptions(none_label="No Finding"))


def test_states_are_stored_sparsely(tmp_path: Path) -> None:
    rows = "".join(f"{i}.jpg,{int(i == 5)},{'' if i else 0},-1\n" for i in range(200))
    table = write_table(tmp_path, "file,a,b,c\n" + rows, images=" ".join(f"{i}.jpg" for i in range(200)))
    states = read_table(table).states
    assert states.default.tolist() == [0, 2, 3]
    assert len(states.states) == 2
