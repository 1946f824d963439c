import json

import numpy as np
import pytest

from probmcl.errors import DataError
from probmcl.evaluation import area_under_roc, average_precision, centered, interval, resamples
from probmcl.evaluation.bootstrap import bootstrapped_areas, resamples_in_blocks
from probmcl.evaluation.groups import ScoredRows, by_value, sorted_values, value_of_groups, with_interval


def slides() -> ScoredRows:
    """Return four images of slide b and two of slide a, with all combinations of known and unknown labels."""
    scores = np.array([[0.25, 0.5], [0.75, 0.5], [0.5, 0.0], [0.0, 1.0], [0.5, 0.25], [1.0, 0.75]], dtype=np.float32)
    labels = np.array([[0, 0], [1, 0], [0, 1], [0, 0], [0, 0], [0, 0]], dtype=np.float32)
    known = np.array([[1, 1], [1, 0], [0, 0], [1, 0], [0, 1], [0, 0]], dtype=np.bool_)
    return ScoredRows(scores, labels, known, ("b", "b", "b", "b", "a", "a"))


def test_a_slide_has_the_mean_of_its_images() -> None:
    found = slides().aggregate("mean")
    assert found.scores.tolist() == [[0.75, 0.5], [0.375, 0.5]]
    assert found.group == ("a", "b")
    assert found.images is not None
    assert found.images.tolist() == [2, 4]
    assert len(found) == 2


def test_or_their_maximum() -> None:
    assert slides().aggregate("max").scores.tolist() == [[1.0, 0.75], [0.75, 1.0]]


@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_label_is_there_in_any_absent_in_all_that_are_known_or_not_known(how: str) -> None:
    found = slides().aggregate(how)  # type: ignore[arg-type]
    # Slide a: class 0 is unknown, class 1 is absent in its only known image. Slide b: class 0 is present in one image,
    # class 1 is absent in its only known image; the 1 of an unknown label does not count.
    assert found.labels.tolist() == [[0, 0], [1, 0]]
    assert found.known.tolist() == [[False, True], [True, True]]


def test_groups_may_be_scattered() -> None:
    order = np.array([5, 2, 0, 4, 3, 1])
    one, other = slides().aggregate("mean"), slides().take(order).aggregate("mean")
    assert one.scores.tolist() == other.scores.tolist()
    assert one.labels.tolist() == other.labels.tolist()
    assert one.known.tolist() == other.known.tolist()


def test_without_groups_there_is_nothing_to_aggregate() -> None:
    whole = slides()
    with pytest.raises(ValueError, match="without groups"):
        ScoredRows(whole.scores, whole.labels, whole.known).aggregate("mean")


def test_a_group_has_the_value_of_its_images() -> None:
    assert value_of_groups(("b", "a", "b"), ("north", "", "north"), "site") == ("", "north")
    with pytest.raises(DataError, match=r"group 'b'.*'north' and 'south'.*'site'"):
        value_of_groups(("b", "a", "b"), ("north", "north", "south"), "site")


def made(images: int = 60, group: tuple[str, ...] | None = None) -> ScoredRows:
    generator = np.random.default_rng(0)
    labels = (generator.random((images, 3)) < 0.4).astype(np.float32)
    scores = generator.random(labels.shape) * 0.7 + 0.3 * labels
    return ScoredRows(scores, labels, generator.random(labels.shape) < 0.7, group)


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
    monkeypatch.setattr("probmcl.evaluation.bootstrap.MAX_WEIGHTS", 7 * 60)
    assert [len(block) for block in resamples_in_blocks(60, None, draws=50, seed=3)] == [7] * 7 + [1]
    assert with_interval(made(), draws=50, seed=3, advance=told.append) == whole
    assert sum(told) == 3


def test_one_group_alone_and_no_draws_have_no_interval() -> None:
    for judged, draws in ((made(group=("one",) * 60), 100), (made(), 0), (made(images=1), 100)):
        found = with_interval(judged, draws=draws, seed=0)
        assert found["mAP_interval"] is None
        assert found["macro_auroc_interval"] is None


def test_an_interval_stays_within_0_and_1() -> None:
    labels = np.array([[1.0], [0.0]] * 4 + [[1.0]])
    scores = np.array([[0.9], [0.1]] * 4 + [[0.05]])
    low, high = with_interval(ScoredRows(scores, labels, labels >= 0), draws=300, seed=0)["mAP_interval"]
    assert 0 <= low < high <= 1


def test_nothing_to_score_is_none_and_fits_into_json() -> None:
    judged = made()
    nothing = ScoredRows(judged.scores, np.zeros_like(judged.labels), judged.known)
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
    by_value(made(), ["a"] * 59 + ["b"], draws=3, seed=0, advance=told.append)
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
def test_values_come_sorted_values(values: list[str], wanted: list[str]) -> None:
    assert sorted_values(values) == wanted
