from pathlib import Path

import pytest

from helpers.tables import labels_of, options_of, write_table
from probmcl.data.formats.table.table import read_table
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, OptionError, Question


def table_of(folder: Path, **columns: str) -> Path:
    """Write a table with two images, one label each, and columns with two values."""
    rows: list[tuple[str, ...]] = [("file", "1.jpg", "2.jpg"), ("label", "cat", "dog")]
    rows += [(name, *values.split(",")) for name, values in columns.items()]
    return write_table(folder, "\n".join(",".join(row[i] for row in rows) for i in range(3)))


@pytest.mark.parametrize(
    "name", ["Patient ID", "patient", "PatientID", "Slide-Id", "group", "place", "SUBJECT", "case_id"]
)
def test_group_is_found_by_name(tmp_path: Path, name: str) -> None:
    records = read_table(table_of(tmp_path, **{name: "a,b"}))
    assert records.group == ("a", "b")
    assert f"\n  group column {name!r}" in str(records.origin)


def test_two_group_columns_need_the_option(tmp_path: Path) -> None:
    table = table_of(tmp_path, patient="a,b", slide="c,d")
    with pytest.raises(
        DataError, match=r"'patient' and 'slide' could all be the group column; .*`group=COLUMN`.*`group=''`"
    ):
        read_table(table)
    assert read_table(table, ReadOptions(group="slide")).group == ("c", "d")
    assert read_table(table, ReadOptions(group="")).group is None


def test_empty_option_disables_split_and_weight_columns(tmp_path: Path) -> None:
    table = table_of(tmp_path, split="test,odd", weight="x,y")
    with pytest.raises(DataError, match=r"`split_column=''`"):
        read_table(table)
    records = read_table(table, ReadOptions(split_column="", weight_column=""))
    assert records.split == ("train", "train")
    assert records.weight is None
    assert str(records.origin).endswith("\n  ignored: 'split', 'weight'")


@pytest.mark.parametrize("name", ["weight", "Sample Weight"])
def test_weights_are_found_by_name(tmp_path: Path, name: str) -> None:
    records = read_table(table_of(tmp_path, **{name: "0.5,2e0"}))
    assert records.weight is not None
    assert records.weight.tolist() == [0.5, 2.0]


@pytest.mark.parametrize("wrong", ["-1", "nan", "inf", "", "heavy"])
def test_invalid_weight_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(DataError, match=rf"row 3: weight 'mass' is '{wrong}'"):
        read_table(table_of(tmp_path, mass=f"0,{wrong}"), ReadOptions(weight_column="mass"))
    with pytest.raises(DataError, match=r"is 0 in every row"):
        read_table(table_of(tmp_path, weight="0,0"))


def test_columns_are_kept_and_missing_ones_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    table = table_of(tmp_path, scanner="A,B", Sex="F,")
    assert read_table(table, keep=("scanner", "Sex")).columns == {"scanner": ("A", "B"), "Sex": ("F", "")}
    assert read_table(table).columns == {}
    with pytest.raises(OptionError, match=r"`by=scaner` is not a column of .*; did you mean 'scanner'"):
        read_table(table, keep=("scaner",))
    with pytest.raises(OptionError, match=r"`ignore=sex` is not a column"):
        read_table(table, ReadOptions(ignore=("sex",)))


def test_ignored_column_has_no_role(tmp_path: Path) -> None:
    table = table_of(tmp_path, tags="emu,emu", patient="a,b")
    with pytest.raises(Question, match="'label' and 'tags'") as question:
        read_table(table)
    assert options_of(question.value) == [{"labels_column": "label"}, {"labels_column": "tags"}]
    records = read_table(table, ReadOptions(ignore=("tags", "patient")))
    assert labels_of(records) == [{"cat"}, {"dog"}]
    assert records.group is None


def test_image_id_is_the_path_only_if_there_is_no_path_column(tmp_path: Path) -> None:
    assert len(read_table(write_table(tmp_path, "image_id,file_name,label\n7,1.jpg,cat\n8,2.jpg,dog\n"))) == 2
    assert len(read_table(write_table(tmp_path, "Image ID,label\n1.jpg,cat\n2.jpg,dog\n"))) == 2


def test_label_column_next_to_flag_columns_needs_an_option(tmp_path: Path) -> None:
    table = table_of(tmp_path, age="40,50", night="0,1", rain="1,0")
    with pytest.raises(Question, match=r"'label'.*night, rain") as question:
        read_table(table)
    assert options_of(question.value) == [{"labels_column": "label"}, {"ignore": "label"}]
    assert read_table(table, ReadOptions(labels_column="label")).label_space.names == ("cat", "dog")
    assert read_table(table, ReadOptions(ignore=("label",))).label_space.names == ("night", "rain")
    assert len(read_table(table_of(tmp_path, age="40,50", night="0,1"))) == 2
