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


def test_several_data_classes_can_map_to_one_model_class() -> None:
    matched = match_classes(["cat", "dog"], ["kitten", "emu", "dog", "tabby"], {"kitten": "cat", "tabby": "cat"})
    assert matched.common == ("cat", "dog")
    assert matched.in_model == [0, 1]
    assert matched.in_data == [[0, 3], [2]]
    assert (matched.only_in_model, matched.only_in_data) == ([], ["emu"])


def test_names_can_be_swapped() -> None:
    assert match_classes(["cat", "dog"], ["cat", "dog"], {"cat": "dog", "dog": "cat"}).in_data == [[1], [0]]


def test_renamed_class_is_merged_with_an_existing_one() -> None:
    assert match_classes(["dog"], ["dog", "puppy"], {"puppy": "dog"}).in_data == [[0, 1]]


def test_no_common_class_is_an_error() -> None:
    with pytest.raises(DataError, match=r"`rename`.*'Redd'.* red"):
        match_classes(["red"], ["Redd"])


def mapping(in_data: list[list[int]]) -> ClassMapping:
    names = tuple(map(str, range(len(in_data))))
    return ClassMapping(names, list(range(len(in_data))), in_data, [], [])


def combine(states: list[int]) -> tuple[float, bool]:
    """Combine states: present if any is present, absent if all are absent, otherwise unknown."""
    if State.PRESENT in states:
        return 1.0, True
    return 0.0, all(state == State.ABSENT for state in states)


@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.just(4)), elements=st.integers(0, 3)))
def test_merged_labels_match_a_loop_over_states(states: ndarray) -> None:
    sources = [[3, 1], [0]]
    labels, known = mapping(sources).labels(LabelStates.from_states(states))
    expected = [[combine([int(row[k]) for k in columns]) for columns in sources] for row in states]
    assert labels.tolist() == [[label for label, _ in row] for row in expected]
    assert known.tolist() == [[mask for _, mask in row] for row in expected]


def test_labels_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    states = LabelStates.from_states(np.random.default_rng(0).integers(0, 4, (50, 6)).astype(np.uint8))
    at_once = mapping([[5, 0], [1], [2, 3, 4]]).labels(states)
    monkeypatch.setattr(class_mapping, "ROWS_AT_ONCE", 7)
    parts = mapping([[5, 0], [1], [2, 3, 4]]).labels(states)
    np.testing.assert_array_equal(parts[0], at_once[0])
    np.testing.assert_array_equal(parts[1], at_once[1])


# Renames.

MODEL = ("Infiltration", "Mass", "Effusion")
DATA = ("Infiltrate", "Pleural Effusion", "Fluid", "Mass")


def read(path: Path, text: str) -> dict[str, str]:
    path.write_text(text, encoding="utf-8")
    return read_renames(path, model=MODEL, data=DATA)


RENAMES = {"Infiltrate": "Infiltration", "Fluid": "Effusion", "Pleural Effusion": "Effusion"}


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
def test_renames_from_csv_and_json(tmp_path: Path, name: str, text: str) -> None:
    assert read(tmp_path / name, text) == RENAMES


def test_renames_from_a_mapping_or_none() -> None:
    assert read_renames(RENAMES, model=MODEL, data=DATA) == RENAMES
    assert read_renames(None, model=MODEL, data=DATA) == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "data,model\nMass,Mass\nInfiltrat,Mass\n",
            r"a\.csv, row 3: .*'Infiltrat'; did you mean",
        ),
        ("a.csv", "data,model\nMass,Masse\n", r"a\.csv, row 2: .*'Masse'; did you mean 'Mass'"),
        ("a.csv", "data,model\nMass,\n", r"a\.csv, row 2: .*''"),
        ("a.csv", "data,model\nMass,Mass\nMass,Effusion\n", r"row 3: 'Mass' .*'Mass' and 'Effusion'"),
        ("a.csv", "data,model,x\nMass,Mass,1\n", r"a\.csv: .*3 columns"),
        ("a.csv", "data\nMass\n", r"a\.csv: .*1 column \("),
        (
            "a.csv",
            "Infiltrate,Infiltration\nFluid,Effusion\n",
            r"row 1: .*: data,model",
        ),
        ("a.json", '["Mass"]', r"a\.json: .*JSON object"),
        ("a.json", '{"Mass": 1}', r"a\.json: .*JSON object"),
        ("a.json", '{"Mass": }', r"a\.json, row 1: Expecting value"),
        ("a.json", '{"Mass": "Mass", "Mass": "Effusion"}', r"a\.json: 'Mass' .*'Mass' and 'Effusion'"),
        ("a.json", '{"mass": "Mass"}', r"a\.json: .*'mass'"),
    ],
)
def test_invalid_renames_are_rejected(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, text)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    for name in ("no.csv", "no.json"):
        with pytest.raises(DataError, match=rf"{name} does not exist"):
            read_renames(tmp_path / name, model=MODEL, data=DATA)
