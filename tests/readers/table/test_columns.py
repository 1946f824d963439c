from pathlib import Path

import pytest

from helpers.tables import Write, asked, labels_of, refused, write_table
from probmcl.errors import DataError, OptionError
from probmcl.readers.options import ReadOptions
from probmcl.readers.table.table import read_table


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
        DataError, match=r"""'patient' and 'slide' could all be the group column; .*`group=COLUMN`.*`group=""`"""
    ):
        read_table(table)
    assert read_table(table, ReadOptions(group="slide")).group == ("c", "d")
    assert read_table(table, ReadOptions(group="")).group is None


def test_empty_option_disables_split_and_weight_columns(tmp_path: Path) -> None:
    table = table_of(tmp_path, split="test,odd", weight="x,y")
    with pytest.raises(DataError, match=r'`split_column=""`'):
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
    with pytest.raises(OptionError, match=r"""`by="scaner"` is not a column of .*; did you mean 'scanner'"""):
        read_table(table, keep=("scaner",))
    with pytest.raises(OptionError, match=r'`ignore="sex"` is not a column'):
        read_table(table, ReadOptions(ignore=("sex",)))


@pytest.mark.parametrize("ignored", [("a", "b"), ("a,b",), ("a, b",)])
def test_columns_to_ignore_are_separated_by_commas(tmp_path: Path, ignored: tuple[str, ...]) -> None:
    table = table_of(tmp_path, a="0,1", b="1,0")
    assert read_table(table, ReadOptions(ignore=ignored)).label_space.names == ("cat", "dog")


def test_column_whose_name_has_a_comma_is_not_split(write: Write) -> None:
    table = write('file,a,b,"a,b"\n1.jpg,1,0,1\n2.jpg,0,1,1\n')
    assert read_table(table, ReadOptions(ignore=("a,b",))).label_space.names == ("a", "b")


def test_ignored_column_has_no_role(tmp_path: Path) -> None:
    table = table_of(tmp_path, tags="emu,emu", patient="a,b")
    asked(table, {"labels_column": "label"}, {"labels_column": "tags"})
    records = read_table(table, ReadOptions(ignore=("tags", "patient")))
    assert labels_of(records) == [{"cat"}, {"dog"}]
    assert records.group is None


def test_image_id_is_the_path_only_if_there_is_no_path_column(tmp_path: Path) -> None:
    assert len(read_table(write_table(tmp_path, "image_id,file_name,label\n7,1.jpg,cat\n8,2.jpg,dog\n"))) == 2
    assert len(read_table(write_table(tmp_path, "Image ID,label\n1.jpg,cat\n2.jpg,dog\n"))) == 2


def test_label_column_next_to_flag_columns_needs_an_option(tmp_path: Path) -> None:
    table = table_of(tmp_path, age="40,50", night="0,1", rain="1,0")
    question = asked(table, {"labels_column": "label"}, {"ignore": "label"})
    assert "night, rain" in question.problem
    assert read_table(table, ReadOptions(labels_column="label")).label_space.names == ("cat", "dog")
    assert read_table(table, ReadOptions(ignore=("label",))).label_space.names == ("night", "rain")
    assert len(read_table(table_of(tmp_path, age="40,50", night="0,1"))) == 2


def test_label_column_next_to_class_columns_needs_an_option(write: Write) -> None:
    table = write("image,labels,night\n1.jpg,cat,0\n2.jpg,dog,1\n")
    asked(table, {"labels_column": "labels"}, {"ignore": "labels"})
    assert read_table(table, ReadOptions(labels_column="labels")).label_space.names == ("cat", "dog")


def test_label_column_of_zeros_and_ones_needs_an_option(write: Write) -> None:
    table = write("image,label\n1.jpg,0\n2.jpg,1\n")
    refused(table, "'label'", '`labels_column="label"`')
    assert read_table(table, ReadOptions(labels_column="label")).label_space.names == ("0", "1")


def test_unnamed_column_is_ignored(write: Write) -> None:
    assert read_table(write(",image,cat\n7,1.jpg,1\n8,2.jpg,0\n")).label_space.names == ("cat",)


@pytest.mark.parametrize(
    "header", ["filename", "File", "PATH", "image", "Image Path", "image-path", "file_name", "img"]
)
def test_path_column_is_found_by_name(write: Write, header: str) -> None:
    assert len(read_table(write(f"labels,{header}\ncat,1.jpg\n"))) == 1


def test_path_column_with_another_name_is_found_by_its_files(write: Write) -> None:
    table = write("photo,labels,where\n1.jpg,cat,a\n2.jpg,dog,b\n")
    assert "path column 'photo'" in str(read_table(table).origin)
    assert read_table(table, ReadOptions(path_column="photo", group="where")).group == ("a", "b")


def test_two_columns_for_one_role_need_an_option(write: Write) -> None:
    refused(write("file,path,labels\n1.jpg,2.jpg,cat\n"), "'file' and 'path'", "path_column")
    asked(write("file,tags,labels\n1.jpg,x,cat\n"), {"labels_column": "tags"}, {"labels_column": "labels"})
    refused(write("file,set,split,labels\n1.jpg,x,train,cat\n"), "'set' and 'split'", "split_column")
    table = write("file,set,split,labels\n1.jpg,x,test,cat\n")
    assert read_table(table, ReadOptions(split_column="split")).split == ("test",)


def test_missing_column_is_refused_with_a_suggestion(write: Write) -> None:
    table = write("file,labels,patient\n1.jpg,cat,a\n")
    with pytest.raises(OptionError, match=r"""`group="pateint"` is not a column of .*; did you mean 'patient'\?"""):
        read_table(table, ReadOptions(group="pateint"))
    with pytest.raises(OptionError, match='`group="patient"` is already `split_column`'):
        read_table(table, ReadOptions(split_column="patient", group="patient"))


@pytest.mark.parametrize("names", ["label,label_name", "class_name,class"])
def test_indices_next_to_the_names_of_the_same_classes_are_ignored(write: Write, names: str) -> None:
    indices_first = names.startswith("label")
    pairs = [(3, "cat"), (1, "dog"), (3, "cat")]
    rows = [
        f"{i}.jpg,{pair[0]},{pair[1]}" for i, p in enumerate(pairs, 1) for pair in [p if indices_first else p[::-1]]
    ]
    assert labels_of(read_table(write("\n".join([f"file,{names}", *rows])))) == [{"cat"}, {"dog"}, {"cat"}]


def test_label_columns_without_a_one_to_one_mapping_are_ambiguous(write: Write) -> None:
    table = write("file,label,label_name\n1.jpg,0,cat\n2.jpg,1,dog\n3.jpg,0,dog\n")
    question = asked(table, {"labels_column": "label"}, {"labels_column": "label_name"})
    assert [len(reading.rows) for reading in question.readings] == [3, 3]


def test_label_columns_with_equal_labels_are_not_a_question(write: Write) -> None:
    records = read_table(write("file,labels,tags\n1.jpg,cat|dog,cat;dog\n2.jpg,dog,dog\n3.jpg,cat,cat\n"))
    assert labels_of(records) == [{"cat", "dog"}, {"dog"}, {"cat"}]


def test_blank_label_column_is_not_a_question(write: Write) -> None:
    assert labels_of(read_table(write("file,tags,labels\n1.jpg,,cat\n2.jpg,,dog\n"))) == [{"cat"}, {"dog"}]


@pytest.mark.parametrize(
    "names", ["label_1,label_2,label_10", "Type 1,Type 2,Type 3", "diagnosis1,diagnosis2,diagnosis3"]
)
def test_numbered_columns_are_read_together(write: Write, names: str) -> None:
    records = read_table(write(f"file,{names}\n1.jpg,red fox,emu,\n2.jpg,cat,,red fox\n3.jpg,,,\n"))
    assert labels_of(records) == [{"red fox", "emu"}, {"cat", "red fox"}, set()]


def test_numbered_columns_that_are_not_labels(write: Write) -> None:
    assert read_table(write("file,label_1,label_2\n1.jpg,1,0\n2.jpg,0,1\n")).label_space.names == ("label_1", "label_2")
    records = read_table(write("file,labels,note1,note2\n1.jpg,cat,ok,\n2.jpg,dog,ok,ok\n"))
    assert labels_of(records) == [{"cat"}, {"dog"}]


def test_numbered_columns_next_to_several_columns_of_flags_are_refused(write: Write) -> None:
    text = "file,site 1,site 2,cat,dog\n1.jpg,left,right,1,0\n2.jpg,right,left,0,1\n"
    refused(write(text), "'site 1' and 'site 2'", "cat, dog", "ignore=COLUMN")
    ignored = ReadOptions(ignore=("site 1", "site 2"))
    assert labels_of(read_table(write(text), ignored)) == [{"cat"}, {"dog"}]


def test_header_that_names_an_image_is_refused(write: Write) -> None:
    refused(write("1.jpg,cat dog\n2.jpg,dog\n3.jpg,cat\n"), "row 1", "'1.jpg'", "names of the columns")


@pytest.mark.parametrize("name", ["Target", "dx", "Klassen"])
def test_other_names_of_label_columns(tmp_path: Path, name: str) -> None:
    records = read_table(write_table(tmp_path, f"file,{name},sex\n1.jpg,cat,f\n2.jpg,dog,m\n"))
    assert labels_of(records) == [{"cat"}, {"dog"}]
    text = f"file,label,{name}\n1.jpg,cat,a\n2.jpg,dog,b\n"
    assert labels_of(read_table(write_table(tmp_path, text))) == [{"cat"}, {"dog"}]


def test_one_column_per_annotator_is_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,annotator1,annotator2\n1.jpg,cat,dog\n2.jpg,dog,dog\n")
    refused(table, "'annotator1' and 'annotator2'", "`labels_column=COLUMN`")


def test_columns_with_recurring_values_are_suggested(tmp_path: Path) -> None:
    text = "file,id,color,shape\n1.jpg,7,red,disk\n2.jpg,8,red,disk\n3.jpg,9,blue,ring\n4.jpg,5,blue,disk\n"
    message = refused(write_table(tmp_path, text), '`labels_column="color"` or `labels_column="shape"`')
    assert "labels_column='id'" not in message
