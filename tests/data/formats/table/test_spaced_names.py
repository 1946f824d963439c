from pathlib import Path

import pytest

from helpers.tables import labels_of, write_table
from probmcl.data.formats.table.table import read_table
from probmcl.errors import DataError


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
def test_cells_that_may_be_names_are_asked_about_and_the_classes_decide(tmp_path: Path, names: list[str]) -> None:
    table = write(tmp_path, names * 3)
    with pytest.raises(DataError, match=r"column 'label': .* one class or .*\? .*classes\.txt .* separate them by \|"):
        read_table(table)
    (tmp_path / "classes.txt").write_text("\n".join(names))
    assert labels_of(read_table(table)) == [{name} for name in names] * 3


def test_names_of_which_no_word_is_a_label_are_asked_about_when_each_comes_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is 'Pleural effusion' one class or 2\?"):
        read_table(write(tmp_path, ["Pleural effusion", "Pleural thickening", "Lung mass", "clear"]))


def test_a_word_that_always_precedes_one_that_stands_alone_is_asked_about(tmp_path: Path) -> None:
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
def test_words_that_are_used_as_labels_are_lists(tmp_path: Path, cells: list[str]) -> None:
    assert labels_of(read_table(write(tmp_path, cells))) == [set(cell.split()) for cell in cells]
