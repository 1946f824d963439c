import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as reference

from helpers.half_hidden import LEVELS, Table, f1, mean, share, tables
from probmcl.evaluation import best_thresholds, decisions_at, entries, multilabel_metrics, rates_at


@given(tables(), st.sampled_from(LEVELS))
def test_rates_use_only_known_labels(table: Table, threshold: float) -> None:
    rates = rates_at(*table, threshold)
    for c, pairs_of_class in enumerate(table.classes):
        decided = [score > threshold for score, _ in pairs_of_class]
        truth = [label for _, label in pairs_of_class]
        pairs = list(zip(decided, truth, strict=True))
        counts = [pairs.count(x) for x in ((True, True), (True, False), (False, True))]
        assert [column[c].item() for column in rates] == [*counts, len(pairs)]
        assert rates.positives[c].item() == sum(truth)
        assert rates.true_negatives[c].item() == pairs.count((False, False))
        expected_values = {
            "sensitivity": share([d for d, t in pairs if t]),
            "specificity": share([not d for d, t in pairs if not t]),
            "ppv": share([t for d, t in pairs if d]),
            "npv": share([not t for d, t in pairs if not d]),
            "f1": f1(pairs_of_class, threshold),
        }
        for name, value in expected_values.items():
            np.testing.assert_array_equal(getattr(rates, name)[c].item(), value, err_msg=name)


@given(tables(), st.sampled_from(LEVELS))
def test_summaries_use_only_known_labels(table: Table, threshold: float) -> None:
    result = decisions_at(*table, threshold)
    all_positive = [entry for entries in table.images for entry in entries]
    wrong = [[(score > threshold) != label for score, label in entries] for entries in table.images]
    fully_known = [not any(image) for image in wrong if len(image) == table.scores.shape[1]]
    expected_values = {
        "macro_f1": mean([f1(entries, threshold) for entries in table.classes if len({y for _, y in entries}) == 2]),
        "micro_f1": f1(all_positive, threshold),
        "sample_f1": mean([f1(entries, threshold) for entries in table.images]),
        "hamming_loss": share([entry for image in wrong for entry in image]),
        "subset_accuracy": share(fully_known),
        "images_fully_known": len(fully_known),
    }
    for name, value in expected_values.items():
        np.testing.assert_allclose(getattr(result, name), value, rtol=0, atol=1e-15, err_msg=name)


def test_match_scikit_learn_if_all_labels_are_known() -> None:
    generator = np.random.default_rng(0)
    labels = generator.random((200, 6)) < [0.5, 0.2, 0.05, 0.0, 0.9, 0.01]
    scores = (generator.random(labels.shape) * 0.8 + 0.2 * labels).astype(np.float32)
    scores[:, 3] = 0.1  # a class without positives and without decisions, whose F1 is 0 with zero_division=0
    labels[:3], scores[:3] = False, 0.0  # the same for images
    decided, rates = scores > 0.5, rates_at(scores, labels.astype(np.float32))
    result = decisions_at(scores, labels.astype(np.float32))
    scored = {
        average: reference.f1_score(labels, decided, average=average, zero_division=0)
        for average in ("micro", "samples")
    }
    with_positives = [0, 1, 2, 4, 5]
    macro = reference.f1_score(labels[:, with_positives], decided[:, with_positives], average="macro", zero_division=0)
    assert result.macro_f1 == pytest.approx(macro, abs=1e-12)
    assert result.micro_f1 == pytest.approx(scored["micro"], abs=1e-12)
    assert result.sample_f1 == pytest.approx(scored["samples"], abs=1e-12)
    assert result.hamming_loss == pytest.approx(reference.hamming_loss(labels, decided), abs=1e-12)
    assert result.subset_accuracy == pytest.approx(reference.accuracy_score(labels, decided), abs=1e-12)
    assert result.images_fully_known == 200
    (tn, fp), (fn, tp) = np.moveaxis(reference.multilabel_confusion_matrix(labels, decided), 0, -1)
    expected_values = (tp, fp, fn, tn + fp + fn + tp)
    assert [column.tolist() for column in rates] == [column.tolist() for column in expected_values]
    assert rates.true_negatives.tolist() == tn.tolist()


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(50, 4, generator=generator), torch.randint(0, 2, (50, 4), generator=generator)
    known = torch.rand(50, 4, generator=generator) < 0.5
    fully_known = decisions_at(scores, labels, known), rates_at(scores, labels, known)
    monkeypatch.setattr(entries, "BLOCK_ENTRIES", 12)
    parts = decisions_at(scores, labels, known), rates_at(scores, labels, known)
    assert parts[0] == fully_known[0]
    assert all(torch.equal(one, other) for one, other in zip(parts[1], fully_known[1], strict=True))


def test_threshold_is_exclusive_and_can_differ_per_class() -> None:
    scores, labels = torch.tensor([[0.8, 0.8], [0.9, 0.4]]), torch.ones(2, 2)
    assert rates_at(scores, labels, None, 0.8).true_positives.tolist() == [1, 0]
    assert rates_at(scores, labels, None, torch.tensor([0.1, 0.5])).true_positives.tolist() == [2, 1]


def test_decisions_are_nan_without_known_labels() -> None:
    result = decisions_at(torch.rand(2, 2), torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool))
    assert result.images_fully_known == 0
    assert all(value != value for value in result[:-1])


SCORES = [-np.inf, -2.0, 0.0, 0.1, 0.125, 0.3, 0.5, 0.7, 0.875, 1.0, np.inf]

ScoreTable = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]


@st.composite
def score_tables(draw: st.DrawFn, minimum: float = -np.inf) -> ScoreTable:
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 4)))
    scores = draw(arrays(np.float64, shape, elements=st.sampled_from([s for s in SCORES if s >= minimum])))
    labels = draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0])))
    return scores, labels, draw(arrays(np.bool_, shape))


def f1_at(scores: list[float], positive: list[bool], threshold: float) -> float:
    decided = [s > threshold for s in scores]
    true_positives = sum(d and p for d, p in zip(decided, positive, strict=True))
    return 2 * true_positives / (sum(decided) + sum(positive))


def cuts(scores: list[float]) -> list[float]:
    """Return the midpoints between neighboring scores, and one threshold below all."""
    distinct = sorted(set(scores))
    lowest = distinct[0]
    before = lowest / 2 if lowest > 0 else (lowest + 2 * lowest - 1) / 2
    return [before, *((a + b) / 2 for a, b in pairwise(distinct))]


def slow_threshold(scores: list[float], positive: list[bool]) -> float:
    if not any(positive):
        return 0.5
    return min(cuts(scores), key=lambda t: (-f1_at(scores, positive, t), abs(t - 0.5), t))


@given(score_tables(minimum=-2.0))
def test_thresholds_match_an_exhaustive_search(table: ScoreTable) -> None:
    scores, labels, known = (np.where(np.isinf(table[0]), 5.0, table[0]), *table[1:])
    result = best_thresholds(scores, labels, known)
    for c, keep in enumerate(known.T):
        expected = slow_threshold(list(scores[keep, c]), list(labels[keep, c] == 1))
        assert result[c].item() == pytest.approx(expected, abs=1e-12)


@given(score_tables())
def test_best_thresholds_maximize_macro_f1(table: ScoreTable) -> None:
    scores, labels, known = table
    result = multilabel_metrics(*table, threshold=best_thresholds(*table), f1="per_class")["CF1"]
    best = []
    for c, keep in enumerate(known.T):
        class_scores, positive = list(scores[keep, c]), list(labels[keep, c] == 1)
        if any(positive) and not all(positive):
            best.append(max(f1_at(class_scores, positive, t) for t in [-1e9, -np.inf, *class_scores]))
    assert result == pytest.approx(np.mean(best) if best else np.nan, abs=1e-12, nan_ok=True)


def test_thresholds_can_be_applied_to_other_images() -> None:
    generator = np.random.default_rng(0)
    labels = generator.random((2, 60, 5)) < [0.5, 0.3, 0.2, 0.1, 0.4]
    scores = 1 / (1 + np.exp(-generator.normal(size=labels.shape) - 2 * labels + 1))
    thresholds = best_thresholds(scores[0], labels[0])
    slow = [slow_threshold(list(scores[0, :, c]), list(labels[0, :, c])) for c in range(5)]
    expected = np.mean([f1_at(list(scores[1, :, c]), list(labels[1, :, c]), slow[c]) for c in range(5)])
    result = multilabel_metrics(scores[1], labels[1], threshold=thresholds, f1="per_class")["CF1"]
    assert result == pytest.approx(expected, abs=1e-12)


def test_threshold_without_a_known_positive_is_one_half() -> None:
    scores, labels = torch.tensor([[0.2, 0.3], [0.9, 0.1]]), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    known = torch.tensor([[True, False], [True, True]])
    assert best_thresholds(scores, labels, known).tolist() == [0.5, 0.5]


def test_ties_are_resolved_toward_one_half() -> None:
    """One correct decision and two correct decisions out of four both have F1 = 2/3."""
    scores, labels = np.array([[0.9], [0.8], [0.7], [0.5], [0.2]]), np.array([[1], [0], [0], [1], [0]])
    assert f1_at(list(scores[:, 0]), [True, False, False, True, False], 0.85) == pytest.approx(2 / 3)
    assert best_thresholds(scores, labels).item() == pytest.approx(0.35)  # not 0.85
    assert best_thresholds(scores + 0.09, labels).item() == pytest.approx(0.44)
    assert best_thresholds(scores - 0.36, labels).item() == pytest.approx(0.49)


def test_minus_infinity_is_never_above_a_threshold() -> None:
    """Deciding for all four images would be best but is impossible; next best is the first image alone."""
    scores, labels = np.array([[0.5], [0.3], [-np.inf], [-np.inf]]), np.array([[1], [0], [1], [1]])
    assert best_thresholds(scores, labels).item() == pytest.approx(0.4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("start", [0.5, 1e-6, -3.0, -300.0, 0.0])
def test_adjacent_floats_are_separated(dtype: torch.dtype, start: float) -> None:
    low = torch.tensor(start, dtype=dtype)
    step = torch.finfo(dtype).eps * max(abs(start), torch.finfo(dtype).tiny)
    high = next(x for x in (low + step * 0.5**n for n in (2, 1, 0, -1, -2)) if x > low)
    scores, labels = torch.stack([low, high])[:, None], torch.tensor([[0], [1]])
    result = best_thresholds(scores, labels)
    assert result.dtype == dtype
    assert multilabel_metrics(scores, labels, threshold=result)["OF1"] == 1
    all_positive = best_thresholds(scores, torch.ones(2, 1))
    assert multilabel_metrics(scores, torch.ones(2, 1), threshold=all_positive)["OF1"] == 1
    assert all_positive.isfinite().all()


@given(score_tables(), st.sampled_from([-np.inf, np.nan, 0.6]), st.sampled_from([-1.0, np.nan, 1.0]))
def test_unknown_entries_are_ignored(table: ScoreTable, score: float, label: float) -> None:
    scores, labels, known = table
    changed = np.where(known, scores, score), np.where(known, labels, label), known
    assert torch.equal(best_thresholds(*changed), best_thresholds(*table))


def test_time_is_comparable_to_sorting() -> None:
    """4,000 images with 9,605 classes take seconds; comparing all pairs of scores would take an hour."""
    scores = torch.rand(4000, 480, generator=torch.Generator().manual_seed(0))
    assert cpu_seconds(lambda: best_thresholds(scores, scores > 0.98)) < 100 * cpu_seconds(lambda: scores.sort(dim=0))


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the minimum CPU time of three calls."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)
