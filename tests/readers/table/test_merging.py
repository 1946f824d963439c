"""Rows of the same image: equal rows, contradictions, and several annotators."""

import pytest

from helpers.tables import Write, asked, refused, states_of
from probmcl.errors import DataError, OptionError
from probmcl.readers.options import Annotators, ReadOptions
from probmcl.readers.table.table import read_table

LISTS = (
    "file,Rater,tags\n1.jpg,p,cat|dog\n1.jpg,q,cat\n1.jpg,r,dog\n"  # two of three for both
    "2.jpg,p,cat\n2.jpg,q,dog\n"  # a tie
    "3.jpg,p,dog\n3.jpg,q,dog\n4.jpg,q,cat\n"
)
ROWS = "file,reader,label\n1.jpg,p,cat\n1.jpg,p,dog\n1.jpg,q,cat\n2.jpg,p,dog\n2.jpg,q,dog\n"
FLAGS = (
    "file,rad_id,cat,dog\n1.jpg,p,1,0\n1.jpg,q,0,0\n1.jpg,r,1,\n"  # an unknown label is not a vote
    "2.jpg,p,,1\n2.jpg,q,0,\n3.jpg,p,1,1\n3.jpg,q,0,-1\n"
)


def test_equal_rows_are_merged(write: Write) -> None:
    rows = "1.jpg,cat|dog,train,x,2,old\n./1.jpg,cat|dog,train,x,2,new\n2.jpg,cat,test,y,1,\n"
    records = read_table(write(f"file,tags,split,patient,weight,note\n{rows}"))
    assert states_of(records) == ["++", "+-"]
    assert records.split == ("train", "test")
    assert records.group == ("x", "y")
    assert records.weight is not None
    assert records.weight.tolist() == [2.0, 1.0]
    assert "3 rows are 2 images" in str(records.origin)


def test_equal_class_columns_are_merged(write: Write) -> None:
    assert states_of(read_table(write("file,cat,dog\n1.jpg,1,\n2.jpg,0,0\n1.jpg,1.0,\n"))) == ["+?", "--"]


def test_image_in_two_splits_is_a_leak(write: Write) -> None:
    table = write("file,tags,split\n1.jpg,cat,train\n2.jpg,dog,train\n1.jpg,cat,test\n")
    refused(table, "row 2 and row 4", "'train' and 'test'", "leak")


@pytest.mark.parametrize("column", ["patient", "weight"])
def test_rows_with_another_group_or_weight_are_refused(write: Write, column: str) -> None:
    refused(write(f"file,tags,{column}\n1.jpg,cat,1\n1.jpg,cat,2\n2.jpg,dog,1\n"), "row 2 and row 3", f"'{column}'")


def test_contradictory_class_columns_are_refused_with_the_rows(write: Write) -> None:
    table = write("file,cat,dog\n1.jpg,1,0\n2.jpg,0,1\n1.jpg,1,0\n2.jpg,0,0\n")
    refused(table, "rows 3 and 5: both have the path '2.jpg'", "2 rows repeat a path, 1 of them with equal cells")


@pytest.mark.parametrize(
    ("text", "option", "states"),
    [
        (LISTS, "majority", ["++", "??", "-+", "+-"]),
        (LISTS, "any", ["++", "++", "-+", "+-"]),
        (LISTS, "unknown", ["??", "??", "-+", "+-"]),
        (ROWS, "majority", ["+?", "-+"]),
        (ROWS, "any", ["++", "-+"]),
        (ROWS, "unknown", ["+?", "-+"]),
        (FLAGS, "majority", ["+-", "-+", "?+"]),
        (FLAGS, "any", ["+-", "-+", "++"]),
        (FLAGS, "unknown", ["?-", "-+", "?+"]),
    ],
)
def test_annotators_that_disagree(write: Write, text: str, option: Annotators, states: list[str]) -> None:
    table = write(text)
    asked(table, {"annotators": "majority"}, {"annotators": "any"}, {"annotators": "unknown"})
    assert states_of(read_table(table, ReadOptions(annotators=option))) == states


def test_question_about_annotators_names_two_rows_that_disagree(write: Write) -> None:
    with pytest.raises(DataError, match=r"'reader'.*'dog' in rows 2 \(p\) and 4 \(q\)"):
        read_table(write(ROWS))


def test_annotators_that_agree_need_no_option(write: Write) -> None:
    assert states_of(read_table(write("file,rater,tags\n1.jpg,p,cat|dog\n1.jpg,q,dog|cat\n2.jpg,p,cat\n"))) == [
        "++",
        "+-",
    ]
    assert states_of(read_table(write("file,rater,cat\n1.jpg,p,1\n1.jpg,q,\n2.jpg,q,0\n"))) == ["+", "-"]


def test_contradictory_rows_of_one_annotator_are_refused(write: Write) -> None:
    table = write("file,rater,cat,dog\n1.jpg,p,1,0\n1.jpg,p,0,0\n2.jpg,p,0,1\n")
    refused(table, "rows 2 and 3", "'1.jpg'", options=ReadOptions(annotators="any"))


def test_annotators_option_without_an_annotator_column_is_refused(write: Write) -> None:
    with pytest.raises(OptionError, match=r'`annotators="any"` needs a column .*annotator'):
        read_table(write("file,tags\n1.jpg,cat\n2.jpg,dog\n"), ReadOptions(annotators="any"))
    with pytest.raises((OptionError, TypeError), match="annotators"):  # a TypeError with the type-checking hook
        ReadOptions(annotators="mean")  # type: ignore[arg-type]


def test_uncertain_labels_of_one_annotator_stay_uncertain(write: Write) -> None:
    table = write("file,rater,a,b\n1.jpg,p,-1,0\n2.jpg,p,1,1\n2.jpg,q,1,-1\n")
    records = read_table(table, ReadOptions(minus_one=("positive",)))
    assert states_of(records) == ["~-", "++"]
    assert records.labels.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_rows_with_the_same_labels_in_another_order_are_merged(write: Write) -> None:
    assert states_of(read_table(write("file,labels\n1.jpg,a|b\n2.jpg,b\n1.jpg,b|a\n"))) == ["++", "-+"]
    refused(write("file,labels\n1.jpg,a|b\n2.jpg,b\n1.jpg,b|c\n"), "rows 2 and 4", '`rows="labels"`')


def test_unknown_label_in_another_row_leaves_a_label_present(write: Write) -> None:
    table = write("file,label\n1.jpg,a\n2.jpg,b\n1.jpg,b\n2.jpg,todo\n")
    assert states_of(read_table(table, ReadOptions(unknown_label=("todo",)))) == ["++", "?+"]
