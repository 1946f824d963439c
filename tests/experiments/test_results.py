import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.results import FINGERPRINT, made_results
from probmcl.experiments.results import Result, merge_results, read_results, write_results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    return made_results(tmp_path_factory.mktemp("results"))


def test_results_are_the_same_after_writing_and_reading(results: list[Result], tmp_path: Path) -> None:
    write_results(tmp_path / "results.jsonl", results)
    again = read_results(tmp_path / "results.jsonl")
    assert [vars(r) | {"folder": None} for r in again] == [vars(r) | {"folder": None} for r in results]
    assert again[0].folder == tmp_path


def test_results_from_before_there_were_notes_are_read_and_have_none(results: list[Result], tmp_path: Path) -> None:
    write_results(tmp_path / "results.jsonl", [replace(results[0], note="mind this"), *results[1:]])
    assert [r.note for r in read_results(tmp_path)[:2]] == ["mind this", ""]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    old = "".join(json.dumps({key: value for key, value in line.items() if key != "note"}) + "\n" for line in lines)
    (tmp_path / "old.jsonl").write_text(old)
    assert {r.note for r in read_results(tmp_path / "old.jsonl")} == {""}


def test_rows_of_another_protocol_are_refused_by_what_differs(results: list[Result]) -> None:
    other = Result(**{**vars(results[1]), "fingerprint": FINGERPRINT | {"budget": "x", "split": "y", "all": "z"}})
    with pytest.raises(ValueError, match=r"`add=there.jsonl` has rows .* its split and budget differ from this"):
        merge_results(results, [other], Path("there.jsonl"))


def test_rows_of_the_same_protocol_join_and_ours_stay(results: list[Result]) -> None:
    new = Result(**{**vars(results[1]), "name": "new"})
    same = Result(**{**vars(results[1]), "validation": 0.0})
    found = merge_results(results, [new, same], Path("there.jsonl"))
    assert [r.name for r in found] == [r.name for r in results] + ["new"]


def test_a_line_that_is_no_result_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"name": "bce"}\n')
    with pytest.raises(ValueError, match=r"results.jsonl: line 1: .*give the results.jsonl of a comparison"):
        read_results(tmp_path / "results.jsonl")
    with pytest.raises(ValueError, match="cannot be read"):
        read_results(tmp_path / "nowhere.jsonl")
