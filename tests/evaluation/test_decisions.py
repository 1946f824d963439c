import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from helpers.half_hidden import LEVELS, Table, f1, mean, share, tables
from probmcl.evaluation import decisions_at, entries, rates_at


@given(tables(), st.sampled_from(LEVELS))
def test_with_labels_hidden_rates_are_exactly_those_of_the_known_ones(table: Table, threshold: float) -> None:
    rates = rates_at(*table, threshold)
    for c, pairs_of_class in enumerate(table.classes):
        decided = [score > threshold for score, _ in pairs_of_class]
        truth = [label for _, label in pairs_of_class]
        pairs = list(zip(decided, truth, strict=True))
        counts = [pairs.count(x) for x in ((True, True), (True, False), (False, True))]
        assert [column[c].item() for column in rates] == [*counts, len(pairs)]
        assert rates.positives[c].item() == sum(truth)
        assert rates.true_negatives[c].item() == pairs.count((False, False))
        wanted = {
            "sensitivity": share([d for d, t in pairs if t]),
            "specificity": share([not d for d, t in pairs if not t]),
            "ppv": share([t for d, t in pairs if d]),
            "npv": share([not t for d, t in pairs if not d]),
            "f1": f1(pairs_of_class, threshold),
        }
        for name, value in wanted.items():
            np.testing.assert_array_equal(getattr(rates, name)[c].item(), value, err_msg=name)


@given(tables(), st.sampled_from(LEVELS))
def test_with_labels_hidden_summaries_are_those_of_the_known_ones(table: Table, threshold: float) -> None:
    found = decisions_at(*table, threshold)
    everything = [entry for entries in table.images for entry in entries]
    wrong = [[(score > threshold) != label for score, label in entries] for entries in table.images]
    whole = [not any(image) for image in wrong if len(image) == table.scores.shape[1]]
    wanted = {
        "macro_f1": mean([f1(entries, threshold) for entries in table.classes]),
        "micro_f1": f1(everything, threshold),
        "sample_f1": mean([f1(entries, threshold) for entries in table.images]),
        "hamming_loss": share([entry for image in wrong for entry in image]),
        "subset_accuracy": share(whole),
        "images_fully_known": len(whole),
    }
    for name, value in wanted.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=0, atol=1e-15, err_msg=name)


def test_with_everything_known_they_are_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    labels = generator.random((200, 6)) < [0.5, 0.2, 0.05, 0.0, 0.9, 0.01]
    scores = (generator.random(labels.shape) * 0.8 + 0.2 * labels).astype(np.float32)
    scores[:, 3] = 0.1  # neither there nor decided for: scikit-learn says F1 is 0, and asks for zero_division
    labels[:3], scores[:3] = False, 0.0  # images likewise
    decided, rates = scores > 0.5, rates_at(scores, labels.astype(np.float32))
    found = decisions_at(scores, labels.astype(np.float32))
    scored = {
        average: reference.f1_score(labels, decided, average=average, zero_division=0)
        for average in ("macro", "micro", "samples")
    }
    assert found.macro_f1 == pytest.approx(scored["macro"], abs=1e-12)
    assert found.micro_f1 == pytest.approx(scored["micro"], abs=1e-12)
    assert found.sample_f1 == pytest.approx(scored["samples"], abs=1e-12)
    assert found.hamming_loss == pytest.approx(reference.hamming_loss(labels, decided), abs=1e-12)
    assert found.subset_accuracy == pytest.approx(reference.accuracy_score(labels, decided), abs=1e-12)
    assert found.images_fully_known == 200
    (tn, fp), (fn, tp) = np.moveaxis(reference.multilabel_confusion_matrix(labels, decided), 0, -1)
    wanted = (tp, fp, fn, tn + fp + fn + tp)
    assert [column.tolist() for column in rates] == [column.tolist() for column in wanted]
    assert rates.true_negatives.tolist() == tn.tolist()


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(50, 4, generator=generator), torch.randint(0, 2, (50, 4), generator=generator)
    known = torch.rand(50, 4, generator=generator) < 0.5
    whole = decisions_at(scores, labels, known), rates_at(scores, labels, known)
    monkeypatch.setattr(entries, "BLOCK_ENTRIES", 12)
    parts = decisions_at(scores, labels, known), rates_at(scores, labels, known)
    assert parts[0] == whole[0]
    assert all(torch.equal(one, other) for one, other in zip(parts[1], whole[1], strict=True))


def test_a_score_at_the_threshold_is_not_decided_for_and_each_class_may_have_its_own() -> None:
    scores, labels = torch.tensor([[0.8, 0.8], [0.9, 0.4]]), torch.ones(2, 2)
    assert rates_at(scores, labels, None, 0.8).true_positives.tolist() == [1, 0]
    assert rates_at(scores, labels, None, torch.tensor([0.1, 0.5])).true_positives.tolist() == [2, 1]


def test_where_nothing_is_known_there_is_nothing_to_tell() -> None:
    found = decisions_at(torch.rand(2, 2), torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool))
    assert found.images_fully_known == 0
    assert all(value != value for value in found[:-1])
