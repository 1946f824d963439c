import sys

import pytest

from probmcl.methods import METHODS
from probmcl.run.results import CandidateId
from probmcl.runtime.file_names import file_name

NAMES = [
    ("probmcl:paper", "probmcl-paper"),
    ('a<b>c"d|e?f*g', "a-b-c-d-e-f-g"),
    ("C:\\folder\\file", "C--folder-file"),
    ("two\nlines\0", "two-lines-"),
    ("ends with dots. .", "ends with dots"),
    ("aux", "-aux"),
    ("NUL.json", "-NUL.json"),
    ("com1", "-com1"),
    ("command", "command"),
    ("größe.v2", "größe.v2"),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
def test_names_change_only_on_windows(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_name(name) == name
    monkeypatch.setattr(sys, "platform", "win32")
    assert file_name(name) == expected


def test_names_of_methods_do_not_change_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*METHODS, *(CandidateId(method, "re-probed", trial=2).key for method in METHODS)]
    monkeypatch.setattr(sys, "platform", "win32")
    assert [file_name(name) for name in names] == names


def test_the_files_of_a_preset_have_valid_names_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = CandidateId("probmcl:paper", "own head", trial=2)
    assert candidate.key == "probmcl:paper.trial2.own_head"
    monkeypatch.setattr(sys, "platform", "win32")
    assert candidate.key == "probmcl-paper.trial2.own_head"
