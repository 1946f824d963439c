from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy import ndarray

from probmcl.data.labels import LabelStates, State
from probmcl.errors import DataError
from probmcl.inference import class_mapping
from probmcl.inference.class_mapping import ClassMapping, match_classes, read_renames


def test_several_names_of_the_data_may_be_one_of_the_model() -> None:
    found = match_classes(["cat", "dog"], ["kitten", "emu", "dog", "tabby"], {"kitten": "cat", "tabby": "cat"})
    assert found.common == ("cat", "dog")
    assert found.in_model == [0, 1]
    assert found.in_data == [[0, 3], [2]]
    assert (found.only_in_model, found.only_in_data) == ([], ["emu"])


def test_names_may_be_exchanged() -> None:
    assert match_classes(["cat", "dog"], ["cat", "dog"], {"cat": "dog", "dog": "cat"}).in_data == [[1], [0]]


def test_a_renamed_class_is_joined_to_the_one_that_has_the_name_already() -> None:
    assert match_classes(["dog"], ["dog", "puppy"], {"puppy": "dog"}).in_data == [[0, 1]]


def test_nothing_in_common_names_the_remedy() -> None:
    with pytest.raises(DataError, match=r"no class in common.*`rename`.*'Redd'.* red"):
        match_classes(["red"], ["Redd"])


def mapping(in_data: list[list[int]]) -> ClassMapping:
    names = tuple(map(str, range(len(in_data))))
    return ClassMapping(names, list(range(len(in_data))), in_data, [], [])


def joined(states: list[int]) -> tuple[float, bool]:
    """Present if any is, absent if all are, else not known."""
    if State.PRESENT in states:
        return 1.0, True
    return 0.0, all(state == State.ABSENT for state in states)


@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.just(4)), elements=st.integers(0, 3)))
def test_joined_classes_are_what_a_loop_over_all_states_says(states: ndarray) -> None:
    sources = [[3, 1], [0]]
    labels, known = mapping(sources).labels(LabelStates.from_states(states))
    wanted = [[joined([int(row[k]) for k in places]) for places in sources] for row in states]
    assert labels.tolist() == [[label for label, _ in row] for row in wanted]
    assert known.tolist() == [[seen for _, seen in row] for row in wanted]


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    states = LabelStates.from_states(np.random.default_rng(0).integers(0, 4, (50, 6)).astype(np.uint8))
    whole = mapping([[5, 0], [1], [2, 3, 4]]).labels(states)
    monkeypatch.setattr(class_mapping, "ROWS_AT_ONCE", 7)
    parts = mapping([[5, 0], [1], [2, 3, 4]]).labels(states)
    np.testing.assert_array_equal(parts[0], whole[0])
    np.testing.assert_array_equal(parts[1], whole[1])


# Renames.

MODEL = ("Infiltration", "Mass", "Effusion")
DATA = ("Infiltrate", "Pleural Effusion", "Fluid", "Mass")


def read(path: Path, text: str) -> dict[str, str]:
    path.write_text(text, encoding="utf-8")
    return read_renames(path, model=MODEL, data=DATA)


WANTED = {"Infiltrate": "Infiltration", "Fluid": "Effusion", "Pleural Effusion": "Effusion"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "data,model\nInfiltrate,Infiltration\nFluid,Effusion\nPleural Effusion,Effusion\n"),
        ("a.csv", "model,data\nInfiltration,Infiltrate\nEffusion,Fluid\nEffusion,Pleural Effusion\n"),
        ("a.csv", "To;From\nInfiltration;Infiltrate\nEffusion;Fluid\nEffusion;Pleural Effusion\n"),
        ("a.tsv", "theirs\tours\nInfiltrate\tInfiltration\nFluid\tEffusion\nPleural Effusion\tEffusion\n"),
        ("a.json", '{"Infiltrate": "Infiltration", "Fluid": "Effusion", "Pleural Effusion": "Effusion"}'),
    ],
)
def test_a_table_or_an_object_says_the_same(tmp_path: Path, name: str, text: str) -> None:
    assert read(tmp_path / name, text) == WANTED


def test_so_does_a_mapping_and_nothing_is_nothing() -> None:
    assert read_renames(WANTED, model=MODEL, data=DATA) == WANTED
    assert read_renames(None, model=MODEL, data=DATA) == {}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.csv",
            "data,model\nMass,Mass\nInfiltrat,Mass\n",
            r"a\.csv: row 3: the data has no class 'Infiltrat'; did you",
        ),
        ("a.csv", "data,model\nMass,Masse\n", r"a\.csv: row 2: the model has no class 'Masse'; did you mean 'Mass'"),
        ("a.csv", "data,model\nMass,\n", r"a\.csv: row 2: the model has no class ''"),
        ("a.csv", "data,model\nMass,Mass\nMass,Effusion\n", r"row 3: 'Mass' is mapped to 'Mass' and 'Effusion'"),
        ("a.csv", "data,model,x\nMass,Mass,1\n", r"a\.csv: 3 columns .*; renames have two"),
        ("a.csv", "data\nMass\n", r"a\.csv: 1 columns"),
        (
            "a.csv",
            "Infiltrate,Infiltration\nFluid,Effusion\n",
            r"row 1 is a rename; put a header above it: data,model",
        ),
        ("a.json", '["Mass"]', r"a\.json: renames are one object of names"),
        ("a.json", '{"Mass": 1}', r"a\.json: renames are one object of names"),
        ("a.json", '{"Mass": }', r"a\.json: row 1: Expecting value"),
        ("a.json", '{"Mass": "Mass", "Mass": "Effusion"}', r"a\.json: 'Mass' is mapped to 'Mass' and 'Effusion'"),
        ("a.json", '{"mass": "Mass"}', r"a\.json: the data has no class 'mass'"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(tmp_path / name, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("no.csv", "no.json"):
        with pytest.raises(DataError, match=rf"{name} does not exist"):
            read_renames(tmp_path / name, model=MODEL, data=DATA)
