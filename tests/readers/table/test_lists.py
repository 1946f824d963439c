import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.tables import Write, asked, labels_of, refused, states_of, unknown_of
from probmcl.errors import OptionError
from probmcl.readers.options import ReadOptions
from probmcl.readers.table.table import read_table


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


def test_separator_that_gives_consistent_labels_is_chosen(write: Write) -> None:
    records = read_table(write('file,tags\n1.jpg,"Doe, John|Smith, Ann"\n2.jpg,"Smith, Ann"\n'))
    assert labels_of(records) == [{"Doe, John", "Smith, Ann"}, {"Smith, Ann"}]


def test_separators_that_are_equally_consistent_are_ambiguous(write: Write) -> None:
    table = write('file,tags\n1.jpg,"Doe, John|Smith, Ann"\n2.jpg,"Roe, Max"\n')
    question = asked(table, {"separator": "|"}, {"separator": ","})
    assert [reading.rows[1] for reading in question.readings] == ["row 3, 2.jpg: Roe, Max", "row 3, 2.jpg: Max, Roe"]


@pytest.mark.parametrize("separator", ["/", ";", " and ", "\t"])
def test_separator_option(write: Write, separator: str) -> None:
    table = write(f'file,tags\n1.jpg,"cat{separator}dog"\n2.jpg,"dog"\n')
    assert labels_of(read_table(table, ReadOptions(separator=separator))) == [{"cat", "dog"}, {"dog"}]
    assert labels_of(read_table(table, ReadOptions(separator="")))[0] == {f"cat{separator}dog"}


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("""["it's", 'a "b"']""", {"it's", 'a "b"'}),
        (r"['it\'s']", {"it's"}),
        ("['red fox' 'emu']", {"red fox", "emu"}),  # as numpy prints an array
        ("['red fox'\n 'emu']", {"red fox", "emu"}),
        ("('red fox', 'emu')", {"red fox", "emu"}),
        ("('emu',)", {"emu"}),
        ('[["a"], ["b", 7]]', {"a", "b", "7"}),
        ("{red fox, emu}", {"red fox", "emu"}),
        ("[]", set()),
        ('{"choices": ["a", "b"]}', {"a", "b"}),  # as Label Studio writes CSV
        ('[{"x": 1, "rectanglelabels": ["a"], "original_width": 3}]', {"a"}),
        ("(unclear) shape", {"(unclear) shape"}),
    ],
)
def test_literals(write: Write, cell: str, labels: set[str]) -> None:
    quoted = cell.replace('"', '""')
    assert labels_of(read_table(write(f"file,tags\n1.jpg,\"{quoted}\"\n2.jpg,['a']\n"))) == [labels, {"a"}]


@pytest.mark.parametrize("cell", ["['a'", "['a', b']", "{a", "[a}"])
def test_unbalanced_brackets_are_refused(write: Write, cell: str) -> None:
    refused(write(f'file,tags\n1.jpg,"[\'a\']"\n2.jpg,"{cell}"\n'), "row 3", "'tags'", "brackets")


def test_names_with_slashes_are_a_hierarchy_if_parents_are_consistent(write: Write) -> None:
    records = read_table(write("file,tags\n1.jpg,water/sea/boat|sky\n2.jpg,water/sea/wave\n3.jpg,water/sea\n"))
    assert records.label_space.hierarchy == {"sea": "water", "boat": "sea", "wave": "sea"}
    assert labels_of(records) == [{"water", "sea", "boat", "sky"}, {"water", "sea", "wave"}, {"water", "sea"}]
    assert "parent is absent" not in str(records.origin)


@pytest.mark.parametrize(
    "cells",
    [
        ["a/x", "b/x"],  # x has two parents
        ["a/x", "b/y"],  # no parent has two children
        ["a/x", "a/y", "x"],  # x is also without a parent
    ],
    ids=str,
)
def test_other_names_with_slashes_are_ambiguous(write: Write, cells: list[str]) -> None:
    rows = "".join(f"{number}.jpg,{cell}\n" for number, cell in enumerate(cells, 1))
    table = write(f"file,tags\n{rows}")
    asked(table, {"separator": ""}, {"separator": "/"})
    assert read_table(table, ReadOptions(separator="")).label_space.names == tuple(sorted(cells))


@pytest.mark.parametrize("cells", [["/m/01", "/m/02", "/m/03"], ["a/x|b/x", "b/x"], ["and/", "a|and/"]], ids=str)
def test_slash_is_part_of_a_name_if_it_is_first_or_last_or_there_is_a_separator(write: Write, cells: list[str]) -> None:
    rows = "".join(f"{number}.jpg,{cell}\n" for number, cell in enumerate(cells, 1))
    assert labels_of(read_table(write(f"file,tags\n{rows}"))) == [{*cell.split("|")} for cell in cells]


def test_unknown_label(write: Write) -> None:
    table = write("file,tags\n1.jpg,cat|dog\n2.jpg,to do\n3.jpg,cat|?\n4.jpg,dog\n")
    records = read_table(table, ReadOptions(unknown_label=("to do", "?")))
    assert states_of(records) == ["++", "??", "+?", "-+"]
    assert "'?' and 'to do' = unknown" in str(records.origin)


@pytest.mark.parametrize("unknown", ["to do,?", "to do, ?"])
def test_unknown_labels_are_separated_by_commas(write: Write, unknown: str) -> None:
    table = write("file,label\n1.jpg,cat\n2.jpg,to do\n3.jpg,?\n4.jpg,dog\n")
    assert read_table(table, ReadOptions(unknown_label=(unknown,))).label_space.names == ("cat", "dog")


@pytest.mark.parametrize("cell", ["cat,todo,skip", "cat,skip,todo"])
def test_unknown_labels_may_be_listed_in_any_order(write: Write, cell: str) -> None:
    table = write(f'file,tags\n1.jpg,"{cell}"\n2.jpg,"cat,dog"\n3.jpg,dog\n')
    records = read_table(table, ReadOptions(unknown_label=("todo,skip",)))
    assert records.label_space.names == ("cat", "dog")


def test_unknown_label_in_lists_with_two_possible_separators(write: Write) -> None:
    table = write("file,tags\n1.jpg,A|B;cat\n2.jpg,cat;todo\n3.jpg,A|B\n4.jpg,cat\n")
    records = read_table(table, ReadOptions(unknown_label=("todo",)))
    assert records.label_space.names == ("A|B", "cat")
    assert states_of(records) == ["++", "?+", "+-", "-+"]


def test_unknown_label_in_brackets_and_in_one_of_several_columns(write: Write) -> None:
    todo = ReadOptions(unknown_label=("todo",))
    assert states_of(read_table(write("file,tags\n1.jpg,['cat']\n2.jpg,['todo']\n"), todo)) == ["+", "?"]
    table = write("file,label_1,label_2\n1.jpg,cat,dog\n2.jpg,todo,\n3.jpg,dog,todo\n4.jpg,dog,\n")
    assert states_of(read_table(table, todo)) == ["++", "??", "?+", "-+"]


@pytest.mark.parametrize("text", ["file,tags\n1.jpg,cat|dog\n2.jpg,dog\n", "file,cat,dog\n1.jpg,1,1\n2.jpg,0,1\n"])
def test_unknown_label_that_does_not_occur_is_refused(write: Write, text: str) -> None:
    with pytest.raises(OptionError, match='`unknown_label="todo"` is not in any'):
        read_table(write(text), ReadOptions(unknown_label=("todo",)))


def test_lists_in_brackets_next_to_other_lists_are_refused(write: Write) -> None:
    refused(write("file,labels\n1.jpg,\"['a', 'b']\"\n2.jpg,a|b\n"), "row 3", "'a|b'", "brackets")


def test_separator_that_does_not_occur_is_refused(write: Write) -> None:
    with pytest.raises(OptionError, match=r'`separator="@"` is not in any cell of .*labels\.csv'):
        read_table(write("file,labels\n1.jpg,a|b\n"), ReadOptions(separator="@"))


@pytest.mark.parametrize("text", ["0 1 0", "[0, 1, 0]", "0.0;1.0;0.0", "0|1|0"])
@pytest.mark.parametrize("classes", ["", "cat dog bird"])
def test_lists_with_a_flag_for_each_class_are_refused(write: Write, text: str, classes: str) -> None:
    table = write(f'file,labels\n1.jpg,"{text}"\n2.jpg,"{text.replace("1", "0")}"\n', classes=classes)
    refused(table, "'labels'", "0 or 1 for each class", "one column per class")


@pytest.mark.parametrize("text", ['{""cat"": 1, ""dog"": 0}', '[{""size"": ""big""}]'])
def test_objects_without_labels_are_refused(write: Write, text: str) -> None:
    table = write(f'file,labels\n1.jpg,"[""cat""]"\n2.jpg,"{text}"\n3.jpg,"{{}}"\n')
    refused(table, "row 3", "'labels'", "without brackets")


def test_quotes_around_a_name_with_the_separator_are_refused(write: Write) -> None:
    table = write('file,labels\n1.jpg,tree\n2.jpg,"car, ""Doe, John"""\n')
    refused(table, "row 3", "'\"Doe'", "separated by |")


@pytest.mark.parametrize("mark", ["+", "&", "-"])
def test_sign_between_spaces_is_not_a_label(write: Write, mark: str) -> None:
    table = write(f"file,labels\n1.jpg,cat {mark} dog\n2.jpg,dog\n3.jpg,dog {mark} cat\n")
    asked(table, {"separator": ""}, {"separator": f" {mark} "})
    records = read_table(table, ReadOptions(separator=f" {mark} "))
    assert labels_of(records) == [{"cat", "dog"}, {"dog"}, {"cat", "dog"}]


def test_meaning_of_blank_cells_is_printed(write: Write) -> None:
    records = read_table(write("file,labels\n1.jpg,cat|dog\n2.jpg,\n"))
    assert str(records.origin).endswith("; blank = no label")


def test_too_many_labels_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probmcl.readers.table.lists.MAX_CLASSES", 2)
    assert len(read_table(write("file,tags\n1.jpg,a\n2.jpg,b\n")).label_space) == 2
    refused(write("file,tags\n1.jpg,a\n2.jpg,b\n3.jpg,c\n"), "'tags'", "3 labels", "labels_column=COLUMN")
