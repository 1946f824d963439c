"""Meaning of label cells: flags such as 0, 1, true and x, blanks, −1, and labels for "no label"."""

from pathlib import Path

import numpy as np
import pytest

from helpers.tables import labels_of, states_of, write_table
from probmcl.data.labels import State
from probmcl.data.records import Records, describe
from probmcl.errors import DataError, OptionError
from probmcl.readers.label_policy import LabelPolicy, meaning_notes
from probmcl.readers.options import ReadOptions
from probmcl.readers.table.table import read_table

NAMES = ("Edema", "Fracture", "Mass")

CHEST = "Image Index,Finding Labels\n1.jpg,Edema|Mass\n2.jpg,No Finding\n3.jpg,Mass\n4.jpg,\n"


def test_meanings_for_all_and_for_single_classes() -> None:
    policy = LabelPolicy.of(["negative", "Mass=unknown"], ["Edema=positive", "unknown", "Mass=soft:0.6"])
    states = policy.blank_states(NAMES, default="unknown")
    assert states.tolist() == [State.ABSENT, State.ABSENT, State.UNKNOWN]
    np.testing.assert_array_equal(policy.chance(NAMES), np.array([1.0, np.nan, 0.6], dtype=np.float32))
    assert meaning_notes(policy, 1, 2, "unknown") == [
        "blank = negative, 'Mass' unknown (1 cell)",
        "-1 = unknown, 'Edema' positive, 'Mass' soft:0.6 (2 cells)",
    ]


def test_default_meanings() -> None:
    policy = LabelPolicy.of()
    assert policy.blank_states(NAMES, default="negative").tolist() == [State.ABSENT] * 3
    assert np.isnan(policy.chance(NAMES)).all()
    assert meaning_notes(policy, 0, 0, "negative") == []


@pytest.mark.parametrize(
    ("blank", "minus_one", "message"),
    [
        (["absent"], [], '`blank="absent"` must be negative or unknown'),
        (["soft:0.5"], [], '`blank="soft:0.5"`'),
        ([], ["soft:1.5"], '`minus_one="soft:1.5"` must be unknown, negative, positive or soft:P'),
        ([], ["soft:x"], '`minus_one="soft:x"`'),
        ([], ["soft:0"], '`minus_one="soft:0"`'),
        ([], ["Edema=maybe"], '`minus_one="maybe"`'),
        (["negative", "unknown"], [], '`blank="unknown"` contradicts'),
        ([], ["Edema=unknown", "Edema=negative"], "`minus_one=\"Edema=negative\"` contradicts .*'Edema'"),
    ],
)
def test_invalid_meanings_are_refused(blank: list[str], minus_one: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LabelPolicy.of(blank, minus_one)


def test_missing_class_is_refused_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match=r"""`minus_one="Edemma=positive"` .*'Edema'\?"""):
        LabelPolicy.of([], ["Edemma=positive"]).chance(NAMES)
    with pytest.raises(OptionError, match='`blank="Bone=unknown"`'):
        LabelPolicy.of(["Bone=unknown"]).blank_states(NAMES, default="negative")


def test_class_name_may_contain_an_equals_sign() -> None:
    assert LabelPolicy.of(["pH=7=unknown"]).blank_of == {"pH=7": "unknown"}


def test_meanings_are_separated_by_commas_unless_a_class_name_has_one() -> None:
    assert LabelPolicy.of(["negative,Mass=unknown"]) == LabelPolicy.of(["negative", "Mass=unknown"])
    assert LabelPolicy.of([], ["Mass=soft:0.6, Edema=positive"]).minus_one_of == {
        "Mass": "soft:0.6",
        "Edema": "positive",
    }
    assert LabelPolicy.of(["Lung, left=negative"]).blank_of == {"Lung, left": "negative"}


def read(folder: Path, text: str, *, blank: str = "", none_label: str | None = None) -> Records:
    options = ReadOptions(blank=(blank,) if blank else (), none_label=none_label)
    return read_table(write_table(folder, text), options)


def test_none_label_is_not_a_class(tmp_path: Path) -> None:
    records = read(tmp_path, CHEST)
    assert labels_of(records) == [{"Edema", "Mass"}, set(), {"Mass"}, set()]
    assert "column 'Finding Labels', names separated by '|', 2 labels; 'No Finding' = no label" in str(records.origin)


def test_labels_are_known_for_a_none_label_and_unknown_for_a_blank(tmp_path: Path) -> None:
    assert states_of(read(tmp_path, CHEST, blank="unknown")) == ["++", "--", "-+", "??"]
    assert states_of(read(tmp_path, CHEST, blank="Mass=unknown")) == ["++", "--", "-+", "-?"]


@pytest.mark.parametrize("name", ["none", "None", "NO FINDINGS", "nothing", "No label"])
def test_none_label_is_detected_by_name(tmp_path: Path, name: str) -> None:
    records = read(tmp_path, f"file,labels\n1.jpg,cat dog\n2.jpg,{name}\n3.jpg,dog\n")
    assert labels_of(records) == [{"cat", "dog"}, set(), {"dog"}]


def test_none_label_together_with_others_is_refused(tmp_path: Path) -> None:
    text = CHEST.replace("3.jpg,Mass", "3.jpg,No Finding|Mass")
    with pytest.raises(DataError, match=r"""row 4: .*'No Finding' .*'Mass'.*`none_label=""`"""):
        read(tmp_path, text)
    with pytest.raises(DataError, match=r"row 4: .*'No Finding' .*'Mass', although `none_label`"):
        read(tmp_path, text, none_label="No Finding")
    assert labels_of(read(tmp_path, text, none_label=""))[1:3] == [{"No Finding"}, {"No Finding", "Mass"}]


def test_none_label_that_never_occurs_alone_is_a_class(tmp_path: Path) -> None:
    records = read(tmp_path, "file,labels\n1.jpg,cat none\n2.jpg,cat\n")
    assert labels_of(records) == [{"cat", "none"}, {"cat"}]


def test_none_label_option(tmp_path: Path) -> None:
    text = CHEST.replace("No Finding", "Normal")
    assert labels_of(read(tmp_path, text))[1] == {"Normal"}
    assert labels_of(read(tmp_path, text, none_label="Normal"))[1] == set()
    with pytest.raises(OptionError, match=r"""`none_label="Norml"` is not in any cell of .*; did you mean 'Normal'"""):
        read(tmp_path, text, none_label="Norml")


def test_classes_file_takes_precedence_over_detection(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("No Finding\nMass\nEdema\n")
    assert read(tmp_path, CHEST).label_space.names == ("No Finding", "Mass", "Edema")
    assert read(tmp_path, CHEST, none_label="No Finding").label_space.names == ("Mass", "Edema")
    (tmp_path / "classes.txt").write_text("Mass\nEdema\n")
    assert labels_of(read(tmp_path, CHEST))[:2] == [{"Edema", "Mass"}, set()]


def test_table_with_only_none_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is blank or 'none' in every row"):
        read(tmp_path, "file,labels\n1.jpg,none\n2.jpg,\n")


@pytest.mark.parametrize("name", ["NaN", "nan", "null", "NA", "n/a"])
def test_nan_texts_are_blank(tmp_path: Path, name: str) -> None:
    text = f"file,labels\n1.jpg,cat|dog\n2.jpg,{name}\n3.jpg,dog\n"
    records = read(tmp_path, text)
    assert labels_of(records) == [{"cat", "dog"}, set(), {"dog"}]
    assert f"names separated by '|', 2 labels; '{name}' = blank" in str(records.origin)
    assert states_of(read(tmp_path, text, blank="unknown")) == ["++", "??", "-+"]
    assert labels_of(read(tmp_path, text.replace("cat|dog", f"cat|{name}")))[1] == {name}
    (tmp_path / "classes.txt").write_text(f"cat\n{name}\ndog\n")
    assert labels_of(read(tmp_path, text))[1] == {name}


def test_nan_texts_are_blank_in_long_form_and_in_the_difficult_column(tmp_path: Path) -> None:
    assert labels_of(read(tmp_path, "file,label\n1.jpg,cat\n1.jpg,dog\n2.jpg,NaN\n")) == [{"cat", "dog"}, set()]
    records = read(tmp_path, "file,label,difficult\n1.jpg,cat,nan\n2.jpg,dog,cat\n")
    assert states_of(records) == ["+-", "?+"]


def test_nan_text_as_none_label(tmp_path: Path) -> None:
    records = read(tmp_path, "file,label\n1.jpg,cat\n2.jpg,NA\n3.jpg,\n", none_label="NA", blank="unknown")
    assert states_of(records) == ["+", "-", "?"]


def test_classes_that_differ_only_in_case_are_reported(tmp_path: Path) -> None:
    records = read(tmp_path, "file,label\n1.jpg,cat\n2.jpg,Cat\n3.jpg,dog\n")
    assert "\nclasses 'Cat' and 'cat' differ only in case or Unicode form\n" in describe(records)
    records = read(tmp_path, "file,label\n1.jpg,caf\u00e9\n2.jpg,cafe\u0301\n")
    assert "Unicode form" in describe(records)


def write(folder: Path, cells: list[str]) -> Path:
    rows = "".join(f"{i}.jpg,{cell}\n" for i, cell in enumerate(cells))
    return write_table(folder, f"file,label\n{rows}", images=" ".join(f"{i}.jpg" for i in range(len(cells))))


@pytest.mark.parametrize(
    "names",
    [
        ["Pleural effusion", "Pleural thickening", "Lung mass", "Lung nodule"],
        ["fox", "red fox", "arctic fox", "wolf", "gray wolf"],
        ["traffic light", "hot dog", "dog", "teddy bear", "bear", "cat"],
        ["Apple leaf", "Apple rust leaf", "Tomato leaf", "Tomato leaf late blight", "Corn rust leaf"],
        ["class 1", "class 2", "class 10"],
    ],
    ids=lambda names: names[0],
)
def test_possible_names_are_refused_without_a_classes_file(tmp_path: Path, names: list[str]) -> None:
    table = write(tmp_path, names * 3)
    with pytest.raises(DataError, match=r"column 'label': .* one class or .*\? .*classes\.txt"):
        read_table(table)
    (tmp_path / "classes.txt").write_text("\n".join(names))
    assert labels_of(read_table(table)) == [{name} for name in names] * 3


def test_possible_names_that_occur_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is 'Pleural effusion' one class or 2\?"):
        read_table(write(tmp_path, ["Pleural effusion", "Pleural thickening", "Lung mass", "clear"]))


def test_word_that_always_precedes_a_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is 'not ripe' one class or 2\?"):
        read_table(write(tmp_path, ["not ripe", "ripe"] * 3))


@pytest.mark.parametrize(
    "cells",
    [
        ["cat dog", "dog", "cat"],
        ["cat dog", "dog"],
        ["cat dog", "dog cat"],
        ["cat dog", "dog emu", "emu cat"],
        ["cat dog", "dog", "cat emu"],
        ["cat dog", "emu"],
        ["one four nine", "four", "nine one", "two four"],
        ["clear primary", "agriculture clear", "haze primary water", "agriculture haze", "clear haze primary"],
        ["3 14", "7 15"],
    ],
    ids=str,
)
def test_words_used_as_labels_are_lists(tmp_path: Path, cells: list[str]) -> None:
    assert labels_of(read_table(write(tmp_path, cells))) == [set(cell.split()) for cell in cells]
