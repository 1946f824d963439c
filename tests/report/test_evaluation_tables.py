from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from rich.console import Console as RichConsole

from probmcl.console import Console
from probmcl.evaluation.evaluate import EvaluatedModel
from probmcl.evaluation.intervals import EvaluationOptions, evaluate_rows
from probmcl.evaluation.scores import ScoredRows
from probmcl.report import evaluation_tables as tables
from probmcl.store.evaluation import IntervalScores, LevelScores, ModelEvaluation, UnscoredImage, ValueScores
from probmcl.tables import Table, percent, to_rich


def make_result(names: list[str], **others: Any) -> ModelEvaluation:
    """Evaluate four images; the first class has perfect scores, the last one has no positive."""
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(4, len(names), generator=generator), torch.zeros(4, len(names))
    labels[2:, :-1] = 1.0
    scores[:, 0] = labels[:, 0]
    rows = ScoredRows(scores.numpy(), labels.numpy(), np.ones(labels.shape, dtype=bool))
    evaluation = evaluate_rows(rows, EvaluatedModel(names), EvaluationOptions(draws=0), None, Console.quiet())
    result = ModelEvaluation(
        **msgspec.structs.asdict(evaluation),
        classes_only_in_model=[],
        classes_only_in_data=[],
        renamed={},
        trained_on=0,
        calibrated_on=0,
        thresholds=None,
        not_promised=[],
        skipped=[],
    )
    return replace(result, **others)


def printed(table: Table, width: int = 100) -> list[str]:
    console = RichConsole(width=width, color_system=None)
    with console.capture() as capture:
        console.print(to_rich(table))
    return capture.get().splitlines()


def test_classes_are_sorted_by_ap_with_those_without_positives_last() -> None:
    result = make_result(["a", "[red]b", ":cat:", "d"])
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in printed(tables.by_class(result)) if "│" in line
    ]
    scored = sorted(["a", "[red]b", ":cat:"], key=lambda name: result.ap[name] or 0.0)
    assert [row[0] for row in rows] == [*scored, "d"]
    specificity = percent(result.per_class["d"].specificity)
    assert rows[-1] == ["d", "4", "0", "–", "–", "–", specificity, *rows[-1][7:]]
    best = rows[-2]
    assert best == ["a", "4", "2", "100.0", "100.0", "100.0", "100.0", "100.0", "100.0"]


def test_many_classes_are_limited_to_the_worst_and_the_best() -> None:
    result = make_result([f"c{number}" for number in range(30)])
    lines = printed(tables.by_class(result))
    assert lines[0].startswith("20 of 30 classes")
    assert sum(line.startswith("│ c") for line in lines) == 20
    assert any(line.startswith("best: c0 100.0, ") for line in tables.lines(result))
    assert not any(line.startswith("best") for line in tables.lines(make_result(["a", "b"])))


def test_map_is_printed_with_its_interval() -> None:
    result = make_result(["a", "b"], mAP_interval=[0.25, 0.75], draws=1000, resampled="groups")
    assert tables.summary(result).startswith(f"4 test images: mAP {percent(result.mAP)} [25.0, 75.0] (chance 50.0)")
    assert tables.summary(result).endswith(", over 1 of 2 classes")
    assert any(line.endswith("1,000 resamples of groups") for line in tables.lines(result))
    assert "[" not in tables.summary(make_result(["a", "b"]))
    grouped = make_result(["a", "b"], aggregate="max", groups=2)
    assert tables.summary(grouped).startswith("2 groups by the max of 4 test images: mAP")


def test_abbreviations_are_explained_below_the_decisions() -> None:
    legend = "C: mean over classes; O: all decisions together; P: precision; R: recall; F1: their harmonic mean"
    assert tables.lines(make_result(["a", "b"]))[0] == legend


def test_counts_of_one() -> None:
    counts = {"images": 1, "groups": 1, "aggregate": "max", "classes": 1, "draws": 1}
    decisions = replace(make_result(["a", "b"]).decisions, images_fully_known=1)
    result = make_result(["a", "b"], mAP_interval=[0.25, 0.75], resampled="groups", decisions=decisions, **counts)
    assert tables.summary(result).startswith("1 group by the max of 1 test image: mAP ")
    assert any(line.endswith("with 1 resample of groups") for line in tables.lines(result))
    assert "(1 group with all labels known)" in tables.decisions_line(result)


def test_decisions_are_one_line() -> None:
    line = tables.decisions_line(make_result(["a", "b"]))
    assert line.startswith("at raw score > 0.5: macro F1 ")
    assert "(4 images" in line


def test_decisions_without_known_labels_are_dashes() -> None:
    decisions = replace(make_result(["a"]).decisions, labels_predicted=None, labels_true=None)
    assert tables.decisions_line(make_result(["a"], decisions=decisions)).endswith("; – labels per image (true: –)")


def test_missing_numbers_of_a_value_are_dashes() -> None:
    part = IntervalScores(
        images=1200,
        groups=None,
        classes_scored=3,
        mAP=0.5,
        chance=0.1,
        macro_auroc=0.75,
        mAP_interval=[0.4, 0.6],
        macro_auroc_interval=None,
    )
    nothing = replace(part, images=1, groups=1, mAP=None, mAP_interval=None)
    lines = printed(tables.by_value(ValueScores(column="site", values={"[north]": part, "(blank)": nothing})))
    assert lines[0].startswith("by site")
    assert [line.split() for line in lines if line.startswith(("[north]", "(blank)"))] == [
        ["[north]", "1,200", "–", "3", "10.0", "50.0", "40.0–60.0", "75.0", "–"],
        ["(blank)", "1", "1", "3", "10.0", "–", "–", "75.0", "–"],
    ]


def test_numbers_are_not_cut_at_80_columns() -> None:
    part = IntervalScores(
        images=123456,
        groups=12345,
        classes_scored=80,
        mAP=0.5,
        chance=0.1,
        macro_auroc=0.75,
        mAP_interval=[0.41, 0.62],
        macro_auroc_interval=[0.7, 0.8],
    )
    lines = printed(tables.by_value(ValueScores(column="site", values={"a long name of a site": part})), 80)
    assert all(len(line) <= 80 for line in lines)
    assert any("41.0–62.0" in line and "70.0–80.0" in line and "123,456" in line for line in lines)


@pytest.mark.parametrize("side", ["model", "data"])
def test_classes_that_are_not_scored_are_listed(side: str) -> None:
    lines = tables.lines(make_result(["a", "b"], **{f"classes_only_in_{side}": list("abcdefg")}))
    assert lines[-1] == f"not scored: 7 classes only in the {side} (a, b, c, d, e and 2 more)"


def test_lines_with_notes_levels_and_renames() -> None:
    level = LevelScores(classes=3, classes_scored=2, mAP=0.5, chance=0.25, macro_auroc=0.75)
    lines = tables.lines(make_result(["a", "b"], note="a note", levels={"1": level}, renamed={"x": "a"}))
    assert lines[1:3] == ["note: a note", "note: not scored: 1 class without a known positive (b)"]
    assert "level 1: mAP 50.0 (chance 25.0), AUROC 75.0, over 2 of 3 classes" in lines
    assert lines[-1] == "renamed: x → a"


def test_notes_on_classes_without_negatives_and_skipped_images() -> None:
    bad = [UnscoredImage(path=f"[{name}].png", reason="the file is empty") for name in "vwxyzq"]
    lines = tables.lines(make_result(["a", "b"], note="a note", classes_without_negatives=["b"], skipped=bad))
    assert lines[1:5] == [
        "note: a note",
        "note: not scored: 1 class without a known negative (b)",
        "note: not scored: 1 class without a known positive (b)",
        "note: skipped 6 unreadable images: "
        + ", ".join(f"[{name}].png (the file is empty)" for name in "vwxyz")
        + " and 1 more",
    ]
    many = tables.lines(make_result(["a", "b"], classes_without_negatives=list("abcdefg")))
    assert many[1] == "note: not scored: 7 classes without a known negative (a, b, c, d, e and 2 more)"
