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
from probmcl.evaluation import decisions_at, entries, rates_at


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
    assert all(value != value for value in result._replace(images_fully_known=np.nan))  # type: ignore[arg-type]


SCORES = [-np.inf, -2.0, 0.0, 0.1, 0.125, 0.3, 0.5, 0.7, 0.875, 1.0, np.inf]

ScoreTable = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]


@st.composite
def score_tables(draw: st.DrawFn, minimum: float = -np.inf) -> ScoreTable:
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 4)))
    scores = draw(arrays(np.float64, shape, elements=st.sampled_from([s for s in SCORES if s >= minimum])))
    labels = draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0])))
    return scores, labels, draw(arrays(np.bool_, shape))
