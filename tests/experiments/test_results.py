import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from helpers.results import FINGERPRINT, made_results
from helpers.rows import made_best, made_comparison, made_frozen
from probmcl.experiments.results import Result, merge_results, read_results, write_results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    return made_results(tmp_path_factory.mktemp("results"))


def test_results_round_trip(results: list[Result], tmp_path: Path) -> None:
    write_results(tmp_path / "results.jsonl", results)
    again = read_results(tmp_path / "results.jsonl")
    assert [vars(r) | {"folder": None} for r in again] == [vars(r) | {"folder": None} for r in results]
    assert again[0].folder == tmp_path


def test_old_results_without_notes_can_be_read(results: list[Result], tmp_path: Path) -> None:
    write_results(tmp_path / "results.jsonl", [replace(results[0], note="a note"), *results[1:]])
    assert [r.note for r in read_results(tmp_path)[:2]] == ["a note", ""]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    old = "".join(json.dumps({key: value for key, value in line.items() if key != "note"}) + "\n" for line in lines)
    (tmp_path / "old.jsonl").write_text(old)
    assert {r.note for r in read_results(tmp_path / "old.jsonl")} == {""}


def test_error_for_another_protocol_names_the_parts_that_differ(results: list[Result]) -> None:
    other = replace(results[1], fingerprint=structs.replace(FINGERPRINT, budget="x", split="y", all="z"))
    with pytest.raises(ValueError, match=r'`add="other\.jsonl"` .* split and budget'):
        merge_results(results, [other], Path("other.jsonl"))


def test_results_of_the_same_protocol_are_merged_without_replacing_any(results: list[Result]) -> None:
    new = Result(**{**vars(results[1]), "name": "new"})
    same = Result(**{**vars(results[1]), "validation": 0.0})
    merged = merge_results(results, [new, same], Path("other.jsonl"))
    assert [r.name for r in merged] == [r.name for r in results] + ["new"]


def test_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"name": "bce"}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl, line 1: "):
        read_results(tmp_path / "results.jsonl")
    with pytest.raises(ValueError, match=r"nowhere\.jsonl"):
        read_results(tmp_path / "nowhere.jsonl")


def test_a_comparison_prints_a_line_per_row() -> None:
    lines = repr(made_comparison(made_frozen(0.7912), made_best("asl"))).splitlines()
    assert lines[0].startswith("Comparison(voc, test split: 4,952 images, 20 classes, chance mAP 7.1")
    assert lines[1:] == [
        "  frozen probe: mAP 79.1 [77.9, 80.2], AUROC 94.1",
        "  asl, own head: mAP 82.0 [80.8, 83.1], AUROC 97.0",
    ]
