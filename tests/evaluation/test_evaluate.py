"""Predictions and metrics of a model on one split, and the scores in one line."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from msgspec.structs import replace

from helpers.evaluations import row_metrics, split_metrics
from helpers.half_hidden import Table, tables
from helpers.images import label_space
from probmcl.console import Console
from probmcl.encoders import PrecomputedFeatures
from probmcl.evaluation import multilabel_metrics
from probmcl.evaluation.evaluate import EvaluatedModel, chance_warning, headline, predict
from probmcl.evaluation.intervals import EvaluationOptions, evaluate_rows
from probmcl.evaluation.scores import ScoredRows
from probmcl.methods.bce import BCE
from probmcl.runtime.conversion import convert
from probmcl.store.evaluation import Evaluation, SplitMetrics
from probmcl.tables import percent

SCORES = torch.tensor([[0.9, 0.6, 0.1], [0.2, 0.7, 0.3], [0.85, 0.1, 0.4]])
LABELS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])


def test_keys_of_the_result() -> None:
    result = split_metrics(SCORES, LABELS)
    assert (result.split, result.images, result.classes, result.classes_scored) == ("val", 3, 3, 2)
    assert result.at.keys() == ["0.5", "0.8"]
    keys = ["CP", "CR", "CF1", "OP", "OR", "OF1", "macro_F1"]
    assert result.at.half.keys() == result.at.high.keys() == result.top3.keys() == keys


def test_values_match_the_metrics_and_are_valid_json() -> None:
    result = split_metrics(SCORES, LABELS)
    assert result.ap["c"] is None  # no positive
    assert result.mAP == multilabel_metrics(SCORES, LABELS)["mAP"]
    assert multilabel_metrics(SCORES, LABELS, threshold=0.8)["OR"] == result.at.high.OR
    assert multilabel_metrics(SCORES, LABELS, top_k=3)["OP"] == result.top3.OP
    content = json.dumps(result.to_dict(), allow_nan=False)
    assert convert(json.loads(content), SplitMetrics) == result


def test_empty_note_is_omitted() -> None:
    plain, noted = (split_metrics(SCORES, LABELS, note=note) for note in ("", "mind this"))
    assert noted.to_dict() == {**plain.to_dict(), "note": "mind this"}
    assert "note" not in plain


def test_undefined_metrics_are_none() -> None:
    result = split_metrics(SCORES, torch.zeros_like(LABELS))
    assert result.mAP is None
    assert result.classes_scored == 0


def test_predicting_without_images_raises() -> None:
    with pytest.raises(ValueError, match="no images to score"):
        predict(BCE(PrecomputedFeatures(5), label_space()), [])


KNOWN = torch.tensor([[True, True, False], [True, False, True], [True, True, True]])


def test_rates_and_counts_per_class() -> None:
    result = split_metrics(SCORES, LABELS, KNOWN)
    assert result.per_class["b"].to_dict() == {
        "n": 2,
        "positives": 1,
        "sensitivity": 0.0,
        "specificity": 0.0,
        "ppv": 0.0,
        "npv": 0.0,
        "f1": 0.0,
        "threshold": 0.5,
    }
    assert result.per_class["c"].to_dict() == {
        "n": 2,
        "positives": 0,
        "sensitivity": None,
        "specificity": 1.0,
        "ppv": None,
        "npv": 1.0,
        "f1": 0.0,
        "threshold": 0.5,
    }
    assert result.auroc == {"a": 1.0, "b": 0.0, "c": None}
    assert result.macro_auroc == 0.5


def test_decisions_use_only_known_labels() -> None:
    # Of seven known labels, b is wrong in the first and the last image. Only the last image is fully known.
    decisions = split_metrics(SCORES, LABELS, KNOWN).decisions
    assert decisions.to_dict() == {
        "threshold": 0.5,
        "macro_F1": pytest.approx((1 + 0) / 2),  # c is not scored
        "micro_F1": pytest.approx(2 * 2 / (2 * 2 + 2)),
        "sample_F1": pytest.approx((2 / 3 + 0 + 2 / 3) / 3),
        "hamming_loss": pytest.approx(2 / 7),
        "subset_accuracy": 0.0,
        "images_fully_known": 1,
        "labels_predicted": pytest.approx((2 + 0 + 1) / 3),  # among the known labels
        "labels_true": pytest.approx((1 + 0 + 2) / 3),
    }


@settings(max_examples=60)
@given(tables())
def test_unknown_entries_are_ignored(table: Table) -> None:
    scores, labels, known = (torch.from_numpy(part) for part in table)
    result = split_metrics(scores, labels, known)
    for score, label in ((1.0, 1.0), (-torch.inf, 0.0)):
        hidden = scores.where(known, score), labels.where(known, label), known
        assert split_metrics(*hidden) == result


def test_classes_without_negatives_are_listed_but_not_scored() -> None:
    assert split_metrics(SCORES, LABELS).classes_without_negatives == []
    hidden = torch.tensor([[True, False, False], [False, True, False], [True, True, False]])  # no label of c is known
    for scores in (SCORES, 1 - SCORES):
        result = split_metrics(scores, LABELS, hidden)
        assert result.classes_without_negatives == ["a", "b"]
        assert result.ap == {"a": None, "b": None, "c": None}
        assert (result.mAP, result.chance, result.macro_auroc, result.classes_scored) == (None, None, None, 0)


def test_chance_is_the_mean_prevalence_of_the_scored_classes() -> None:
    assert split_metrics(SCORES, LABELS).chance == pytest.approx(2 / 3)
    result = split_metrics(SCORES, LABELS, KNOWN)  # b is present in 1 of 2 known images
    assert result.chance == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_means_per_level() -> None:
    result = split_metrics(SCORES, LABELS, levels=[1, 2, 2])
    assert result.levels is not None
    assert "levels" not in split_metrics(SCORES, LABELS)
    shared = {"classes_scored": 1, "chance": pytest.approx(2 / 3)}
    assert {number: level.to_dict() for number, level in result.levels.items()} == {
        "1": {"classes": 1, "mAP": result.ap["a"], "macro_auroc": result.auroc["a"], **shared},
        "2": {"classes": 2, "mAP": result.ap["b"], "macro_auroc": result.auroc["b"], **shared},
    }


def scored(signal: float, *, images: int = 200, prevalence: float = 0.3, classes: int = 3) -> ScoredRows:
    """Return scores that depend on the labels by `signal`, as a sigmoid; 0 is a useless model."""
    rng = np.random.default_rng(0)
    labels = (rng.random((images, classes)) < prevalence).astype(np.float32)
    logits = signal * labels + rng.normal(size=labels.shape)
    return ScoredRows(1 / (1 + np.exp(-logits)), labels, labels > -1)


def evaluation(rows: ScoredRows, draws: int = 200) -> Evaluation:
    model = EvaluatedModel([f"class {k}" for k in range(rows.scores.shape[1])])
    return evaluate_rows(rows, model, EvaluationOptions(draws=draws), None, Console.quiet())


def test_line_has_map_chance_auroc_and_intervals_in_percent() -> None:
    rows = scored(1.0)
    numbers = {"images": 80, "classes": 3, "classes_scored": 3, "mAP": 0.849, "chance": 0.831, "macro_auroc": 0.552}
    metrics = replace(row_metrics(rows), **numbers)
    assert headline(metrics) == "mAP 84.9 (chance 83.1), AUROC 55.2"
    intervals = {"mAP_interval": [0.82, 0.875], "macro_auroc_interval": [0.48, 0.62]}
    line = "mAP 84.9 [82.0, 87.5] (chance 83.1), AUROC 55.2 [48.0, 62.0]"
    assert headline(replace(evaluation(rows), **numbers, **intervals)) == line
    assert headline(metrics, gain="+1.0 [−0.3, +2.1]") == "mAP 84.9 (+1.0 [−0.3, +2.1], chance 83.1), AUROC 55.2"
    assert headline(replace(metrics, classes=5)).endswith(", over 3 of 5 classes")


def test_line_says_why_there_is_no_map() -> None:
    reason = "no class has both a positive and a negative"
    assert headline(evaluation(scored(1.0, images=1))) == f"mAP undefined: with only 1 image, {reason}"
    for prevalence in (0.0, 1.0):  # no class with a positive, and classes that are always present
        assert headline(row_metrics(scored(1.0, prevalence=prevalence))) == f"mAP undefined: {reason}"


@pytest.mark.parametrize("prevalence", [0.1, 0.9])
def test_only_a_model_that_is_not_better_than_chance_is_warned_about(prevalence: float) -> None:
    assert chance_warning(evaluation(scored(2.0, prevalence=prevalence))) == ""
    useless = evaluation(scored(0.0, prevalence=prevalence))
    assert useless.mAP_interval is not None
    low, high = useless.mAP_interval
    score = f"test mAP {percent(useless.mAP)} [{percent(low)}, {percent(high)}]"
    assert chance_warning(useless).startswith(f"{score} is not clearly above chance ({percent(useless.chance)})")


def test_a_random_ranking_of_few_images_is_not_better_than_chance() -> None:
    # One positive among five images: the expected mAP of a random ranking is (1 + 1/2 + … + 1/5) / 5 = 46 %.
    rng = np.random.default_rng(0)
    labels = np.eye(5, dtype=np.float32)[rng.integers(5, size=60)].T
    evaluated = evaluation(ScoredRows(rng.random(labels.shape), labels, labels > -1))
    assert evaluated.mAP_interval is not None
    assert evaluated.chance is not None
    assert evaluated.mAP_interval[0] > evaluated.chance
    assert chance_warning(evaluated).startswith("test AUROC ")
    assert "is not clearly above chance (50.0)" in chance_warning(evaluated)


def test_a_model_without_intervals_is_warned_about() -> None:
    without = evaluation(scored(2.0), draws=0)
    assert chance_warning(without).startswith(f"test mAP {percent(without.mAP)} is not clearly above chance")
    alone = evaluation(scored(1.0, images=1))
    assert chance_warning(alone).startswith("the model could not be scored on the test split: with")
