import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve

from probmcl.report.scores import BINS, RECALLS, histogram, precision_at_recall


@pytest.mark.parametrize("seed", range(5))
def test_precision_at_recall_equals_the_envelope_of_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    p, positive = generator.random(200).round(2), generator.random(200) < 0.2
    precision, recall, _ = precision_recall_curve(positive, p)
    expected = [precision[:-1][recall[:-1] >= r - 1e-12].max() for r in RECALLS]
    assert precision_at_recall(p, positive, RECALLS) == pytest.approx(expected, abs=6e-4)


def test_a_class_without_positives_has_no_curve() -> None:
    assert precision_at_recall(np.array([0.1, 0.2]), np.array([False, False]), RECALLS) == []


@pytest.mark.parametrize("threshold", [0, 1, 29, 50, 57, 99])
def test_sums_of_the_histogram_are_decisions(threshold: int) -> None:
    p = np.concatenate([np.random.default_rng(0).random(500), np.arange(0, 101) / 100])
    assert sum(histogram(p)[threshold:]) == pytest.approx((p > threshold / BINS).sum() + (threshold == 0))
