import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.tables import Write, asked, labels_of, refused, unknown_of
from probmcl.data.formats.table.table import read_table


@pytest.mark.parametrize("separator", [" ", "|", ";", ", "])
def test_separators_are_detected(write: Write, separator: str) -> None:
    table = write(f'filename,labels\n1.jpg,"cat{separator}dog"\n2.jpg,dog\n3.jpg,\n')
    records = read_table(table)
    assert labels_of(records) == [{"cat", "dog"}, {"dog"}, set()]
    assert records.known.all()
    assert records.label_space.names == ("cat", "dog")
    assert records.label_space.counts.tolist() == [1, 2]
    assert records.paths == tuple(table.parent / f"{i}.jpg" for i in (1, 2, 3))
    assert records.split == ("train",) * 3
    assert records.group is None


def test_space_is_part_of_the_name_if_there_is_another_separator(write: Write) -> None:
    records = read_table(write("filename,labels\n1.jpg,traffic light|dog\n2.jpg,dog\n"))
    assert labels_of(records) == [{"traffic light", "dog"}, {"dog"}]


def test_two_separators_are_ambiguous(write: Write) -> None:
    question = asked(write("filename,labels\n1.jpg,cat|dog\n2.jpg,cat;dog\n"), {"separator": "|"}, {"separator": ";"})
    assert "'|' and ';'" in question.problem
    assert "classes.txt" in question.problem


def test_classes_file_decides_between_two_separators(write: Write) -> None:
    records = read_table(write("filename,labels\n1.jpg,cat|dog;old\n2.jpg,cat\n", classes="cat dog;old"))
    assert labels_of(records) == [{"cat", "dog;old"}, {"cat"}]


def test_words_that_only_occur_together_are_refused(write: Write) -> None:
    table = write("filename,labels\n1.jpg,traffic light dog\n2.jpg,traffic light\n3.jpg,cat traffic light\n4.jpg,dog\n")
    problem = asked(table, {"separator": ""}, {"separator": " "}).problem
    assert "'traffic' and 'light'" in problem
    assert "classes.txt" in problem
    (table.parent / "classes.txt").write_text("traffic\nlight\ndog\ncat\n")
    assert labels_of(read_table(table))[1] == {"traffic", "light"}


def test_classes_file_allows_names_with_spaces(write: Write) -> None:
    table = write("filename,labels\n1.jpg,traffic light\n2.jpg,dog\n")
    (table.parent / "classes.txt").write_text("dog\ntraffic light\n")
    assert labels_of(read_table(table)) == [{"traffic light"}, {"dog"}]


def test_lists_that_match_the_classes_in_two_ways_are_refused(write: Write) -> None:
    table = write("filename,labels\n1.jpg,a b\n")
    (table.parent / "classes.txt").write_text("a\nb\na b\n")
    refused(table, "more than one way", "rename a class")


def test_indices_into_the_classes_file_start_at_zero(write: Write) -> None:
    records = read_table(write("filename,labels\n1.jpg,0 2\n2.jpg,1\n3.jpg,2\n", classes="zebra cat dog"))
    assert records.label_space.names == ("zebra", "cat", "dog")
    assert labels_of(records) == [{"zebra", "dog"}, {"cat"}, {"dog"}]


def test_numbers_that_may_be_names_or_indices_are_refused(write: Write) -> None:
    refused(write("filename,labels\n1.jpg,1 2\n", classes="3 2 1"), "names", "indices")


@pytest.mark.parametrize("value", ["3", "-1"])
def test_index_out_of_range_is_refused(write: Write, value: str) -> None:
    refused(write(f"filename,labels\n1.jpg,0\n2.jpg,{value}\n", classes="a b c"), "row 3", f"'{value}'", "0 to 2")


def test_label_outside_of_the_classes_file_is_refused_with_a_suggestion(write: Write) -> None:
    refused(write("filename,labels\n1.jpg,zebra\n2.jpg,zebar\n", classes="cat zebra"), "row 3", "'zebar'", "'zebra'?")


def test_numbers_without_classes_are_names_in_numerical_order(write: Write) -> None:
    assert read_table(write("filename,labels\n1.jpg,10 9\n2.jpg,2\n")).label_space.names == ("2", "9", "10")


def test_list_in_brackets(write: Write) -> None:
    assert labels_of(read_table(write("filename,labels\n1.jpg,\"['cat', 'dog']\"\n"))) == [{"cat", "dog"}]


def test_difficult_labels_are_unknown(write: Write) -> None:
    records = read_table(write("filename,labels,difficult\n1.jpg,cat dog,dog\n2.jpg,dog,bird\n3.jpg,cat,\n"))
    assert labels_of(records) == [{"cat"}, {"dog"}, {"cat"}]
    assert unknown_of(records) == [{"dog"}, {"bird"}, set()]
    assert records.label_space.counts.tolist() == [0, 2, 1]


def test_invalid_classes_file_is_refused_with_the_row(write: Write) -> None:
    table = write("filename,labels\n1.jpg,cat\n", classes="cat dog cat")
    refused(table, "classes.txt", "rows 1 and 3", "'cat'")
    (table.parent / "classes.txt").write_text("cat\n\ndog\n")
    refused(table, "classes.txt", "row 2")


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.frozensets(st.sampled_from(["cat", "dog", "red fox", "é,è", "7"])), min_size=1, max_size=6))
def test_random_labels_round_trip(tmp_path: Path, labels: list[frozenset[str]]) -> None:
    (tmp_path / "classes.txt").write_text("dog\nred fox\né,è\ncat\n7\n", encoding="utf-8")
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "tags"), *((f"{i}.png", "|".join(row)) for i, row in enumerate(labels))])
    for i in range(len(labels)):
        (tmp_path / f"{i}.png").touch()
    records = read_table(tmp_path / "labels.csv")
    assert labels_of(records) == labels
