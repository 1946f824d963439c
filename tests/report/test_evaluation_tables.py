from typing import Any

import pytest
import torch
from rich.console import Console

from probmcl.evaluation.evaluate import evaluate
from probmcl.report import evaluation_tables as tables
from probmcl.tables import Table, to_rich


def found(names: list[str], **others: Any) -> dict[str, Any]:
    """Four images and any number of classes; the first class is the best, the last has no positive."""
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(4, len(names), generator=generator), torch.zeros(4, len(names))
    labels[2:, :-1] = 1.0
    scores[:, 0] = labels[:, 0]
    result = evaluate(scores, labels, None, names=names, split="test")
    return {**result, "classes_only_in_model": [], "classes_only_in_data": [], **others}


def printed(table: Table, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(to_rich(table))
    return capture.get().splitlines()


def test_classes_come_worst_first_and_those_without_a_positive_last() -> None:
    result = found(["a", "[red]b", ":cat:", "d"])
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in printed(tables.by_class(result)) if "│" in line
    ]
    ap = result["ap"]
    assert [row[0] for row in rows] == [*sorted(["a", "[red]b", ":cat:"], key=lambda name: ap[name]), "d"]
    assert rows[-1] == ["d", "4", "0", "–", "–", "–", *(f"{x:.1f}" for x in (specificity(result),)), *rows[-1][7:]]
    best = rows[-2]
    assert best == ["a", "4", "2", "100.0", "100.0", "100.0", "100.0", "100.0", "100.0"]


def specificity(result: dict[str, Any]) -> float:
    return float(100 * result["per_class"]["d"]["specificity"])


def test_of_many_classes_the_worst_are_shown_and_the_best_are_named() -> None:
    result = found([f"c{number}" for number in range(30)])
    lines = printed(tables.by_class(result))
    assert lines[0].startswith("the 20 worst of 30 classes")
    assert sum(line.startswith("│ c") for line in lines) == 20
    assert any(line.startswith("best: c0 100.0, ") for line in tables.lines(result))
    assert not any(line.startswith("best") for line in tables.lines(found(["a", "b"])))


def test_the_interval_stands_beside_the_map() -> None:
    result = found(["a", "b"], mAP_interval=[0.25, 0.75], draws=1000, resampled="groups")
    title = " ".join(line.strip() for line in printed(tables.overall(result))[:2])
    assert "[25.0–75.0] (4 images, 1 of 2 classes" in title
    assert "intervals: the middle 95 % of 1,000 resamples of groups" in tables.lines(result)
    assert "[" not in printed(tables.overall(found(["a", "b"])))[0]


def test_decisions_are_one_line() -> None:
    said = tables.decisions_line(found(["a", "b"]))
    assert said.startswith("at probability > 0.5: macro F1 ")
    assert said.endswith("(of 4 fully known)")


def test_a_value_has_its_numbers_and_a_dash_where_there_are_none() -> None:
    part = {"images": 1200, "groups": None, "classes_scored": 3, "mAP": 0.5, "mAP_interval": [0.4, 0.6]}
    nothing = part | {"images": 1, "groups": 1, "mAP": None, "mAP_interval": None}
    auroc = {"macro_auroc": 0.75, "macro_auroc_interval": None}
    values = {"[north]": part | auroc, "(blank)": nothing | auroc}
    lines = printed(tables.by_value(found(["a", "b"], by={"column": "site", "values": values})))
    assert lines[0].startswith("by site")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert rows == [
        ["[north]", "1,200", "–", "3", "50.0", "40.0–60.0", "75.0", "–"],
        ["(blank)", "1", "1", "3", "–", "–", "75.0", "–"],
    ]


def test_at_eighty_columns_numbers_are_whole() -> None:
    part = {"images": 123456, "groups": 12345, "classes_scored": 80, "mAP": 0.5, "mAP_interval": [0.41, 0.62]}
    part |= {"macro_auroc": 0.75, "macro_auroc_interval": [0.7, 0.8]}
    shown = printed(tables.by_value(found(["a"], by={"column": "site", "values": {"a long name of a site": part}})), 80)
    assert all(len(line) <= 80 for line in shown)
    assert any("41.0–62.0" in line and "70.0–80.0" in line and "123,456" in line for line in shown)


@pytest.mark.parametrize("side", ["model", "data"])
def test_what_was_not_scored_is_named(side: str) -> None:
    said = tables.lines(found(["a", "b"], **{f"classes_only_in_{side}": list("abcdefg")}))
    assert said[-1] == f"not scored, 7 classes only in the {side}: a, b, c, d, e and 2 more"


def test_a_note_comes_first_and_levels_and_renames_are_lines() -> None:
    level = {"classes": 3, "classes_scored": 2, "mAP": 0.5, "macro_auroc": None}
    said = tables.lines(found(["a", "b"], note="mind this", levels={"1": level}, renamed={"x": "a"}))
    assert said[0] == "note: mind this"
    assert "level 1: mAP 50.0, macro AUROC – (2 of 3 classes)" in said
    assert said[-1] == "renamed: x → a"


def test_a_perfect_score_by_definition_and_images_left_out_are_noted() -> None:
    assert not any("note: " in line for line in tables.lines(found(["a", "b"])))
    bad = [{"path": f"[{name}].png", "reason": "the file is empty"} for name in "vwxyzq"]
    said = tables.lines(found(["a", "b"], note="mind this", classes_without_negatives=["b"], skipped=bad))
    assert said[:3] == [
        "note: mind this",
        "note: AP is 1 by definition for 1 class without a known negative: b",
        "note: skipped, 6 images that cannot be used: "
        + ", ".join(f"[{name}].png (the file is empty)" for name in "vwxyz")
        + " and 1 more",
    ]
    many = tables.lines(found(["a", "b"], classes_without_negatives=list("abcdefg")))
    assert many[0] == "note: AP is 1 by definition for 7 classes without a known negative: a, b, c, d, e and 2 more"
