from pathlib import Path

import pytest

from probmcl.errors import DataError
from probmcl.inference.renaming import read_renames

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
        ("a.csv", "data,model\nMass,Mass\nMass,Effusion\n", r"row 3: 'Mass' is said to be 'Mass' and 'Effusion'"),
        ("a.csv", "data,model,x\nMass,Mass,1\n", r"a\.csv: 3 columns .*; renames have two"),
        ("a.csv", "data\nMass\n", r"a\.csv: 1 columns"),
        (
            "a.csv",
            "Infiltrate,Infiltration\nFluid,Effusion\n",
            r"row 1 renames already; put a header above it: data,model",
        ),
        ("a.json", '["Mass"]', r"a\.json: renames are one object of names"),
        ("a.json", '{"Mass": 1}', r"a\.json: renames are one object of names"),
        ("a.json", '{"Mass": }', r"a\.json: row 1: Expecting value"),
        ("a.json", '{"Mass": "Mass", "Mass": "Effusion"}', r"a\.json: 'Mass' is said to be 'Mass' and 'Effusion'"),
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
