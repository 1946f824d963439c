import json

import numpy as np
import pytest

from probmcl.evaluation import (
    area_under_roc,
    average_precision,
    bootstrapped_areas,
    centered,
    interval,
    resamples,
)
from probmcl.evaluation.bootstrap import resamples_in_blocks
from probmcl.evaluation.judged import ScoredRows
from probmcl.evaluation.parts import by_value, in_order, with_interval


def made(images: int = 60, group: tuple[str, ...] | None = None) -> ScoredRows:
    generator = np.random.default_rng(0)
    labels = (generator.random((images, 3)) < 0.4).astype(np.float32)
    scores = generator.random(labels.shape) * 0.7 + 0.3 * labels
    return ScoredRows.of_images(scores, labels, generator.random(labels.shape) < 0.7, group)


def test_the_interval_is_that_of_resampled_images_moved_to_what_was_found() -> None:
    judged = made()
    found = with_interval(judged, draws=200, seed=5)
    arrays = (judged.scores, judged.labels, judged.known)
    areas = bootstrapped_areas(*arrays, resamples(60, None, draws=200, seed=5))
    precision, auroc = average_precision(*arrays).nanmean().item(), area_under_roc(*arrays).nanmean().item()
    assert (found["mAP"], found["macro_auroc"]) == (precision, auroc)
    assert found["mAP_interval"] == list(interval(centered(areas.mean_precision, precision)))
    assert found["macro_auroc_interval"] == list(interval(centered(areas.mean_auroc, auroc)))
    assert found["mAP_interval"][0] < precision < found["mAP_interval"][1]
    assert (found["images"], found["groups"], found["classes_scored"]) == (60, None, 3)


def test_groups_are_resampled_whole() -> None:
    group = tuple(f"patient {number // 20}" for number in range(60))
    found = with_interval(made(group=group), draws=200, seed=0)
    arrays = (made().scores, made().labels, made().known)
    areas = bootstrapped_areas(*arrays, resamples(60, group, draws=200, seed=0))
    assert found["mAP_interval"] == list(interval(centered(areas.mean_precision, found["mAP"])))
    assert found["groups"] == 3
    assert found["mAP_interval"] != with_interval(made(), draws=200, seed=0)["mAP_interval"]


def test_blocks_of_resamples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, told = with_interval(made(), draws=50, seed=3), list[int]()
    monkeypatch.setattr("probmcl.evaluation.bootstrap.AT_ONCE", 7 * 60)
    assert [len(block) for block in resamples_in_blocks(60, None, draws=50, seed=3)] == [7] * 7 + [1]
    assert with_interval(made(), draws=50, seed=3, done=told.append) == whole
    assert sum(told) == 3


def test_one_group_alone_and_no_draws_have_no_interval() -> None:
    for judged, draws in ((made(group=("one",) * 60), 100), (made(), 0), (made(images=1), 100)):
        found = with_interval(judged, draws=draws, seed=0)
        assert found["mAP_interval"] is None
        assert found["macro_auroc_interval"] is None


def test_an_interval_stays_within_0_and_1() -> None:
    labels = np.array([[1.0], [0.0]] * 4 + [[1.0]])
    scores = np.array([[0.9], [0.1]] * 4 + [[0.05]])
    low, high = with_interval(ScoredRows.of_images(scores, labels, labels >= 0), draws=300, seed=0)["mAP_interval"]
    assert 0 <= low < high <= 1


def test_nothing_to_score_is_none_and_fits_into_json() -> None:
    judged = made()
    nothing = ScoredRows.of_images(judged.scores, np.zeros_like(judged.labels), judged.known)
    found = with_interval(nothing, draws=20, seed=0)
    assert (found["mAP"], found["mAP_interval"], found["macro_auroc"], found["classes_scored"]) == (None, None, None, 0)
    json.dumps(found, allow_nan=False)


def test_each_value_is_scored_as_if_it_were_alone() -> None:
    judged, values = made(), ["south", "north ", ""] * 20
    found = by_value(judged, values, draws=50, seed=0)
    assert list(found) == ["north", "south", "(blank)"]
    for number, value in enumerate(("south", "north", "(blank)")):
        alone = judged.take(np.arange(number, 60, 3))
        assert found[value] == with_interval(alone, draws=50, seed=0)
    assert sum(part["images"] for part in found.values()) == 60


def test_every_class_of_every_value_is_reported_as_done() -> None:
    told: list[int] = []
    by_value(made(), ["a"] * 59 + ["b"], draws=3, seed=0, done=told.append)
    assert sum(told) == 2 * 3


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["b", "a", "b"], ["a", "b"]),
        (["100", "20", "3"], ["3", "20", "100"]),
        (["", "x", "7"], ["7", "x", "(blank)"]),
        (["nan", "1"], ["1", "nan"]),
    ],
)
def test_values_come_in_order(values: list[str], wanted: list[str]) -> None:
    assert in_order(values) == wanted
