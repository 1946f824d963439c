import json

import numpy as np
import pytest

from probmcl.errors import DataError
from probmcl.evaluation import area_under_roc, average_precision, centered, interval, resamples
from probmcl.evaluation.bootstrap import bootstrapped_areas, resamples_in_blocks
from probmcl.evaluation.intervals import evaluate_by_value, sorted_values, value_of_groups, with_interval
from probmcl.evaluation.scores import ScoredRows


def slides() -> ScoredRows:
    """Return four images of slide b and two of slide a, with all combinations of known and unknown labels."""
    scores = np.array([[0.25, 0.5], [0.75, 0.5], [0.5, 0.0], [0.0, 1.0], [0.5, 0.25], [1.0, 0.75]], dtype=np.float32)
    labels = np.array([[0, 0], [1, 0], [0, 1], [0, 0], [0, 0], [0, 0]], dtype=np.float32)
    known = np.array([[1, 1], [1, 0], [0, 0], [1, 0], [0, 1], [0, 0]], dtype=np.bool_)
    return ScoredRows(scores, labels, known, ("b", "b", "b", "b", "a", "a"))


def test_aggregate_mean() -> None:
    result = slides().aggregate("mean")
    assert result.scores.tolist() == [[0.75, 0.5], [0.375, 0.5]]
    assert result.group == ("a", "b")
    assert result.images is not None
    assert result.images.tolist() == [2, 4]
    assert len(result) == 2


def test_aggregate_maximum() -> None:
    assert slides().aggregate("max").scores.tolist() == [[1.0, 0.75], [0.75, 1.0]]


@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_labels_of_a_group(aggregate: str) -> None:
    result = slides().aggregate(aggregate)  # type: ignore[arg-type]
    # Slide a: class 0 is unknown, class 1 is absent in its only known image. Slide b: class 0 is present in one image,
    # class 1 is absent in its only known image; the 1 of an unknown label does not count.
    assert result.labels.tolist() == [[0, 0], [1, 0]]
    assert result.known.tolist() == [[False, True], [True, True]]


def test_aggregation_does_not_depend_on_the_order_of_rows() -> None:
    order = np.array([5, 2, 0, 4, 3, 1])
    one, other = slides().aggregate("mean"), slides().take(order).aggregate("mean")
    assert one.scores.tolist() == other.scores.tolist()
    assert one.labels.tolist() == other.labels.tolist()
    assert one.known.tolist() == other.known.tolist()


def test_aggregation_requires_groups() -> None:
    original = slides()
    with pytest.raises(ValueError, match="without groups"):
        ScoredRows(original.scores, original.labels, original.known).aggregate("mean")


def test_value_of_groups() -> None:
    assert value_of_groups(("b", "a", "b"), ("north", "", "north"), "site") == ("", "north")
    with pytest.raises(DataError, match=r"group 'b'.*'north' and 'south'.*'site'"):
        value_of_groups(("b", "a", "b"), ("north", "north", "south"), "site")


def random_rows(images: int = 60, group: tuple[str, ...] | None = None) -> ScoredRows:
    generator = np.random.default_rng(0)
    labels = (generator.random((images, 3)) < 0.4).astype(np.float32)
    scores = generator.random(labels.shape) * 0.7 + 0.3 * labels
    return ScoredRows(scores, labels, generator.random(labels.shape) < 0.7, group)


def test_interval_is_centered_on_the_estimate() -> None:
    rows = random_rows()
    result = with_interval(rows, draws=200, seed=5)
    arrays = (rows.scores, rows.labels, rows.known)
    areas = bootstrapped_areas(*arrays, resamples(60, None, draws=200, seed=5))
    precision, auroc = average_precision(*arrays).nanmean().item(), area_under_roc(*arrays).nanmean().item()
    assert (result["mAP"], result["macro_auroc"]) == (precision, auroc)
    assert result["mAP_interval"] == list(interval(centered(areas.mean_precision, precision)))
    assert result["macro_auroc_interval"] == list(interval(centered(areas.mean_auroc, auroc)))
    assert result["mAP_interval"][0] < precision < result["mAP_interval"][1]
    assert (result["images"], result["groups"], result["classes_scored"]) == (60, None, 3)


def test_whole_groups_are_resampled() -> None:
    group = tuple(f"patient {number // 20}" for number in range(60))
    result = with_interval(random_rows(group=group), draws=200, seed=0)
    arrays = (random_rows().scores, random_rows().labels, random_rows().known)
    areas = bootstrapped_areas(*arrays, resamples(60, group, draws=200, seed=0))
    assert result["mAP_interval"] == list(interval(centered(areas.mean_precision, result["mAP"])))
    assert result["groups"] == 3
    assert result["mAP_interval"] != with_interval(random_rows(), draws=200, seed=0)["mAP_interval"]


def test_blocks_of_resamples_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    original, progress = with_interval(random_rows(), draws=50, seed=3), list[int]()
    monkeypatch.setattr("probmcl.evaluation.bootstrap.MAX_WEIGHTS", 7 * 60)
    assert [len(block) for block in resamples_in_blocks(60, None, draws=50, seed=3)] == [7] * 7 + [1]
    assert with_interval(random_rows(), draws=50, seed=3, advance=progress.append) == original
    assert sum(progress) == 3


def test_no_interval_for_one_group_or_without_draws() -> None:
    for rows, draws in ((random_rows(group=("one",) * 60), 100), (random_rows(), 0), (random_rows(images=1), 100)):
        result = with_interval(rows, draws=draws, seed=0)
        assert result["mAP_interval"] is None
        assert result["macro_auroc_interval"] is None


def test_an_interval_stays_within_0_and_1() -> None:
    labels = np.array([[1.0], [0.0]] * 4 + [[1.0]])
    scores = np.array([[0.9], [0.1]] * 4 + [[0.05]])
    low, high = with_interval(ScoredRows(scores, labels, labels >= 0), draws=300, seed=0)["mAP_interval"]
    assert 0 <= low < high <= 1


def test_undefined_metrics_are_none() -> None:
    rows = random_rows()
    unlabeled = ScoredRows(rows.scores, np.zeros_like(rows.labels), rows.known)
    result = with_interval(unlabeled, draws=20, seed=0)
    assert (result["mAP"], result["mAP_interval"], result["macro_auroc"], result["classes_scored"]) == (
        None,
        None,
        None,
        0,
    )
    json.dumps(result.to_dict(), allow_nan=False)


def test_each_value_is_scored_separately() -> None:
    rows, values = random_rows(), ["south", "north ", ""] * 20
    result = evaluate_by_value(rows, values, draws=50, seed=0)
    assert list(result) == ["north", "south", "(blank)"]
    for number, value in enumerate(("south", "north", "(blank)")):
        subset = rows.take(np.arange(number, 60, 3))
        assert result[value] == with_interval(subset, draws=50, seed=0)
    assert sum(part["images"] for part in result.values()) == 60


def test_progress_counts_every_class_of_every_value() -> None:
    progress: list[int] = []
    evaluate_by_value(random_rows(), ["a"] * 59 + ["b"], draws=3, seed=0, advance=progress.append)
    assert sum(progress) == 2 * 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["b", "a", "b"], ["a", "b"]),
        (["100", "20", "3"], ["3", "20", "100"]),
        (["", "x", "7"], ["7", "x", "(blank)"]),
        (["nan", "1"], ["1", "nan"]),
    ],
)
def test_sorted_values(values: list[str], expected: list[str]) -> None:
    assert sorted_values(values) == expected


@pytest.mark.parametrize("images", [2, 3])
def test_few_images_have_no_interval(images: int) -> None:
    """Many resamples of few images cannot be scored, and the others are too similar for an interval."""
    labels = np.zeros((images, 1))
    labels[0] = 1.0
    result = with_interval(ScoredRows(np.linspace(1, 0, images)[:, None], labels, labels > -1), draws=200, seed=0)
    assert (result["mAP"], result["mAP_interval"], result["macro_auroc_interval"]) == (1.0, None, None)
