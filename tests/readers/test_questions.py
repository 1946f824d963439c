from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.tables import asked, labels_of, write_table
from probmcl.data.records import Records
from probmcl.errors import DataError, Question, Reading
from probmcl.readers.options import ReadOptions
from probmcl.readers.questions import answered
from probmcl.readers.table.table import read_table

BLANK = ({"blank": "negative"}, {"blank": "unknown"})
SEPARATORS = [Reading(f"{mark} separates labels", {"separator": mark}) for mark in ",;"]


def reader(labels: dict[str, list[float] | Exception]) -> Callable[[ReadOptions], Records]:
    """Return a reader that asks for the separator, and then returns one image, or raises an error."""

    def read(options: ReadOptions) -> Records:
        if options.separator is None:
            raise Question("labels.csv: which separator?", SEPARATORS)
        result = labels[options.separator]
        if isinstance(result, Exception):
            raise result
        return Records.from_labels(["cat", "dog"], [Path("1.jpg")], ["train"], np.array([result]))

    return read


def test_readings_with_equal_labels_are_not_a_question() -> None:
    assert labels_of(answered(reader({",": [1.0, 0.0], ";": [1.0, 0.0]}), ReadOptions())) == [{"cat"}]


def test_reading_that_is_the_only_possible_one_is_not_a_question() -> None:
    assert labels_of(answered(reader({",": DataError("no"), ";": [0.0, 1.0]}), ReadOptions())) == [{"dog"}]


def test_readings_with_different_labels_are_a_question() -> None:
    with pytest.raises(Question) as caught:
        answered(reader({",": [1.0, 0.0], ";": [0.0, 1.0]}), ReadOptions())
    assert [reading.rows for reading in caught.value.readings] == [("1.jpg: cat",), ("1.jpg: dog",)]


def test_reading_that_needs_another_decision_is_possible() -> None:
    another = Question("labels.csv: does a blank mean absent?", SEPARATORS)
    with pytest.raises(Question, match="which separator") as caught:
        answered(reader({",": [1.0, 0.0], ";": another}), ReadOptions())
    assert len(caught.value.readings) == 2


def test_readings_with_different_errors_are_a_question() -> None:
    with pytest.raises(Question, match="which separator"):
        answered(reader({",": DataError("no"), ";": DataError("never")}), ReadOptions())


def test_readings_with_the_same_error_are_that_error() -> None:
    with pytest.raises(DataError, match="row 7"):
        answered(reader({",": DataError("row 7"), ";": DataError("row 7")}), ReadOptions())


def test_reading_that_an_option_excludes_is_left_out(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,tags,cat,dog\n1.jpg,cat,1,0\n2.jpg,empty,0,1\n")
    records = read_table(table, ReadOptions(none_label="empty"))
    assert labels_of(records) == [{"cat"}, set()]


def test_question_shows_the_labels_of_two_rows_in_every_reading(tmp_path: Path) -> None:
    question = asked(write_table(tmp_path, "file,cat,dog\n1.jpg,1,1\n2.jpg,1,\n3.jpg,,1\n4.jpg,,1\n"), *BLANK)
    assert [reading.rows for reading in question.readings] == [
        ("row 3, 2.jpg: cat", "row 4, 3.jpg: dog"),
        ("row 3, 2.jpg: cat (unknown: dog)", "row 4, 3.jpg: dog (unknown: cat)"),
    ]


def test_question_keeps_the_other_options(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,cat,dog,emu\n1.jpg,1,,\n2.jpg,,1,\n3.jpg,,,1\n")
    question = asked(table, *BLANK, options=ReadOptions(blank=("emu=negative",), ignore=("dog",)))
    assert question.readings[1].rows == ("row 3, 2.jpg: no label (unknown: cat)", "row 4, 3.jpg: emu (unknown: cat)")


def test_rows_that_differ_are_found_in_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probmcl.readers.questions.BLOCK", 2)
    question = asked(write_table(tmp_path, "file,cat,dog\n1.jpg,1,1\n2.jpg,1,1\n3.jpg,1,\n4.jpg,,1\n"), *BLANK)
    assert question.readings[0].rows == ("row 4, 3.jpg: cat", "row 5, 4.jpg: dog")
