import numpy as np
import pytest
from msgspec.structs import replace

from helpers.evaluations import row_metrics
from probmcl.console import Console
from probmcl.evaluation.evaluate import EvaluatedModel
from probmcl.evaluation.groups import EvaluationOptions, evaluate_rows
from probmcl.evaluation.headline import chance_warning, headline
from probmcl.evaluation.stored_scores import ScoredRows
from probmcl.store.evaluation import Evaluation
from probmcl.tables import percent


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
