"""The statistics of an audit, against numbers that are counted by hand."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from probmcl.audit.duplicates.hashing import Fingerprint
from probmcl.audit.duplicates.search import Duplicates, NearPair
from probmcl.audit.statistics import (
    AuditStatistics,
    ClassPair,
    Conflict,
    Imbalance,
    SideLengths,
    SimilarImages,
    SplitCounts,
    statistics,
)
from probmcl.data.records import Records, Split

LABELS = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]], dtype=float)
KNOWN = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=bool)
SPLITS: tuple[Split, ...] = ("train", "train", "train", "val", "test")


def records() -> Records:
    paths = [Path(f"{row}.jpg") for row in range(5)]
    return Records.from_labels(["cat", "dog", "bird"], paths, SPLITS, LABELS, KNOWN)


def duplicates() -> Duplicates:
    sizes = [(40, 30), (20, 30), (60, 10), (40, 30), (30, 30)]
    modes = ["RGB", "L", "RGB", "RGB", "L"]
    prints = [Fingerprint(None, size, mode=mode) for size, mode in zip(sizes, modes, strict=True)]
    return Duplicates(prints, [(0, 1), (0, 3)], [NearPair(2, 4, distance=3, correlation=0.95, confirmed=True)])


@pytest.fixture(scope="module")
def counted() -> AuditStatistics:
    return replace(statistics(records(), duplicates()), summary="5 images")


def test_images_and_labels_are_counted_by_split_and_state(counted: AuditStatistics) -> None:
    assert (counted.images, counted.classes, counted.groups) == (5, 3, None)
    assert counted.splits == SplitCounts(3, 1, 1)
    assert counted.per_class["cat"].present == SplitCounts(2, 1, 0)
    assert counted.per_class["cat"].absent == SplitCounts(1, 0, 1)
    assert counted.per_class["bird"].unknown == SplitCounts(1, 0, 0)
    assert counted.per_class["bird"].absent.total == 4
    assert counted.images_without_labels == 1
    assert counted.labels_per_image == 6 / 5
    assert counted.not_known == pytest.approx(1 / 15)


def test_the_imbalance_leaves_out_classes_without_positives(counted: AuditStatistics) -> None:
    assert counted.imbalance == Imbalance("cat", 3, "cat", 3)
    assert counted["imbalance"] == {"most": ["cat", 3], "least": ["cat", 3], "ratio": 1.0}
    unlabeled = statistics(records().take(np.array([4])), Duplicates([Fingerprint(None)], [], []))
    assert unlabeled.imbalance is None


def test_pairs_of_classes_are_relative_to_the_rarer_class(counted: AuditStatistics) -> None:
    assert counted.together == [ClassPair(["cat", "dog"], images=2, share=2 / 3)]


def test_sizes_are_those_of_the_images(counted: AuditStatistics) -> None:
    assert counted.sizes.width == SideLengths(20, 40, 60)
    assert counted.sizes.height == SideLengths(10, 30, 30)
    assert list(counted.sizes.modes.items()) == [("RGB", 3), ("L", 2)]


def test_identical_images_with_different_labels_are_conflicts(counted: AuditStatistics) -> None:
    assert counted.exact_duplicates == [["0.jpg", "1.jpg"], ["0.jpg", "3.jpg"]]
    assert counted.conflicting_labels == [Conflict(["0.jpg", "1.jpg"], ["dog"])]


def test_pairs_of_similar_images_have_their_splits(counted: AuditStatistics) -> None:
    pair = SimilarImages(["2.jpg", "4.jpg"], ["train", "test"], distance=3, correlation=0.95, confirmed=True)
    assert counted.near_duplicates == [pair]
    assert counted["near_duplicates"] == [asdict(pair)]


def test_the_json_form_has_the_attributes_by_key() -> None:
    content = AuditStatistics(summary="read", images=2, splits=SplitCounts(1, 1, 0))
    assert content["splits"] == {"train": 1, "val": 1, "test": 0}
    assert content["sizes"] == {"width": None, "height": None, "modes": {}}
    expected = {key: value for key, value in asdict(content).items() if key != "repeated_rows"}
    assert list(content.items()) == list(expected.items())
