import numpy as np
import pytest

from probmcl.evaluation.judged import ScoredRows, aggregated, value_of_groups


def slides() -> ScoredRows:
    """Four images of slide b, two of a; classes in every combination of known and not."""
    scores = np.array([[0.25, 0.5], [0.75, 0.5], [0.5, 0.0], [0.0, 1.0], [0.5, 0.25], [1.0, 0.75]], dtype=np.float32)
    labels = np.array([[0, 0], [1, 0], [0, 1], [0, 0], [0, 0], [0, 0]], dtype=np.float32)
    known = np.array([[1, 1], [1, 0], [0, 0], [1, 0], [0, 1], [0, 0]], dtype=np.bool_)
    return ScoredRows.of_images(scores, labels, known, ("b", "b", "b", "b", "a", "a"))


def test_a_slide_has_the_mean_of_its_images() -> None:
    found = aggregated(slides(), "mean")
    assert found.scores.tolist() == [[0.75, 0.5], [0.375, 0.5]]
    assert found.group == ("a", "b")
    assert found.images.tolist() == [2, 4]
    assert (len(found), found.groups, found.units) == (2, 2, 2)


def test_or_their_maximum() -> None:
    assert aggregated(slides(), "max").scores.tolist() == [[1.0, 0.75], [0.75, 1.0]]


@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_label_is_there_in_any_absent_in_all_that_are_known_or_not_known(how: str) -> None:
    found = aggregated(slides(), how)  # type: ignore[arg-type]
    # a: class 0 known in none, class 1 absent in the only one; b: class 0 present in one, and class 1 absent in the
    # only one that is known: that another has a 1 there does not count, since it is not known.
    assert found.labels.tolist() == [[0, 0], [1, 0]]
    assert found.known.tolist() == [[False, True], [True, True]]


def test_groups_may_be_scattered() -> None:
    order = np.array([5, 2, 0, 4, 3, 1])
    one, other = aggregated(slides(), "mean"), aggregated(slides().take(order), "mean")
    assert one.scores.tolist() == other.scores.tolist()
    assert one.labels.tolist() == other.labels.tolist()
    assert one.known.tolist() == other.known.tolist()


def test_without_groups_there_is_nothing_to_aggregate() -> None:
    whole = slides()
    with pytest.raises(ValueError, match=r"name the column of groups \(--group\)"):
        aggregated(ScoredRows.of_images(whole.scores, whole.labels, whole.known), "mean")


def test_a_group_has_the_value_of_its_images() -> None:
    assert value_of_groups(("b", "a", "b"), ("north", "", "north"), "site") == ("", "north")
    with pytest.raises(ValueError, match=r"group 'b' has images with 'north' and 'south' in column 'site'.*--by site"):
        value_of_groups(("b", "a", "b"), ("north", "north", "south"), "site")
