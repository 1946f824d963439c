from pathlib import Path

import pytest

from helpers.tables import labels_of, write_table
from probmcl.data.formats.table.table import read_table
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, OptionError


def table_of(folder: Path, **columns: str) -> Path:
    """A table with two images, two labels and columns of two values."""
    rows: list[tuple[str, ...]] = [("file", "1.jpg", "2.jpg"), ("label", "cat", "dog")]
    rows += [(name, *values.split(",")) for name, values in columns.items()]
    return write_table(folder, "\n".join(",".join(row[i] for row in rows) for i in range(3)))


@pytest.mark.parametrize(
    "name", ["Patient ID", "patient", "PatientID", "Slide-Id", "group", "place", "SUBJECT", "case_id"]
)
def test_a_group_is_found_by_its_name_and_said(tmp_path: Path, name: str) -> None:
    records = read_table(table_of(tmp_path, **{name: "a,b"}))
    assert records.group == ("a", "b")
    assert str(records.origin).endswith(f", group {name!r}")


def test_of_two_groups_the_flag_decides_and_a_blank_one_means_none(tmp_path: Path) -> None:
    table = table_of(tmp_path, patient="a,b", slide="c,d")
    with pytest.raises(DataError, match=r"'patient' and 'slide' could each be the group; `group=COLUMN` .* `group=''`"):
        read_table(table)
    assert read_table(table, ReadOptions(group="slide")).group == ("c", "d")
    assert read_table(table, ReadOptions(group="")).group is None


def test_a_blank_split_or_weight_column_means_none(tmp_path: Path) -> None:
    table = table_of(tmp_path, split="test,odd", weight="x,y")
    with pytest.raises(DataError, match=r"`split_column=''` none"):
        read_table(table)
    records = read_table(table, ReadOptions(split_column="", weight_column=""))
    assert records.split == ("train", "train")
    assert records.weight is None
    assert str(records.origin).endswith("; not read: 'split', 'weight'")


@pytest.mark.parametrize("name", ["weight", "Sample Weight"])
def test_weights_are_found_by_name(tmp_path: Path, name: str) -> None:
    records = read_table(table_of(tmp_path, **{name: "0.5,2e0"}))
    assert records.weight is not None
    assert records.weight.tolist() == [0.5, 2.0]


@pytest.mark.parametrize("wrong", ["-1", "nan", "inf", "", "heavy"])
def test_a_weight_that_is_none_is_named_by_its_row(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(DataError, match=rf"row 3: weight 'mass' is '{wrong}'"):
        read_table(table_of(tmp_path, mass=f"0,{wrong}"), ReadOptions(weight_column="mass"))
    with pytest.raises(DataError, match=r"is 0 in every row"):
        read_table(table_of(tmp_path, weight="0,0"))


def test_columns_are_kept_as_they_are_and_a_wrong_one_is_answered_with_the_nearest(tmp_path: Path) -> None:
    table = table_of(tmp_path, scanner="A,B", Sex="F,")
    assert read_table(table, keep=("scanner", "Sex")).columns == {"scanner": ("A", "B"), "Sex": ("F", "")}
    assert read_table(table).columns == {}
    with pytest.raises(OptionError, match=r"`by=scaner` is not a column of .*; did you mean 'scanner'"):
        read_table(table, keep=("scaner",))
    with pytest.raises(OptionError, match=r"`ignore=sex` is not a column"):
        read_table(table, ReadOptions(ignore=("sex",)))


def test_a_column_that_is_ignored_has_no_role(tmp_path: Path) -> None:
    table = table_of(tmp_path, tags="emu,emu", patient="a,b")
    with pytest.raises(DataError, match=r"`labels_column=COLUMN` says which, and `ignore=COLUMN` leaves one out"):
        read_table(table)
    records = read_table(table, ReadOptions(ignore=("tags", "patient")))
    assert labels_of(records) == [{"cat"}, {"dog"}]
    assert records.group is None


def test_a_number_is_the_path_only_where_no_column_has_one(tmp_path: Path) -> None:
    assert len(read_table(write_table(tmp_path, "image_id,file_name,label\n7,1.jpg,cat\n8,2.jpg,dog\n"))) == 2
    assert len(read_table(write_table(tmp_path, "Image ID,label\n1.jpg,cat\n2.jpg,dog\n"))) == 2


def test_a_list_beside_several_columns_of_flags_is_decided_by_the_flag(tmp_path: Path) -> None:
    table = table_of(tmp_path, age="40,50", night="0,1", rain="1,0")
    with pytest.raises(DataError, match=r"'label' may list the labels, and night, rain may be one column a class"):
        read_table(table)
    assert read_table(table, ReadOptions(labels_column="label")).label_space.names == ("cat", "dog")
    assert read_table(table, ReadOptions(ignore=("label",))).label_space.names == ("night", "rain")
    assert len(read_table(table_of(tmp_path, age="40,50", night="0,1"))) == 2
