import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.metrics import roc_auc_score

from helpers.half_hidden import Table, auroc, tables
from probmcl.evaluation import area_under_roc


@settings(deadline=None, max_examples=150)
@given(tables())
def test_with_labels_hidden_it_is_exactly_that_of_the_known_ones(table: Table) -> None:
    found = area_under_roc(*table)
    assert found.dtype == torch.float64
    np.testing.assert_array_equal(found, [auroc(entries) for entries in table.classes])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_it_is_scikit_learns_with_ties(dtype: torch.dtype) -> None:
    generator = np.random.default_rng(0)
    labels = generator.random((500, 6)) < [0.5, 0.2, 0.05, 0.01, 0.9, 0.3]
    scores = torch.tensor((generator.normal(size=labels.shape) + labels).round(1)).to(dtype)
    known = generator.random(labels.shape) < 0.5
    wanted = [
        roc_auc_score(labels[known[:, c], c], scores[known[:, c], c].double().numpy()) for c in range(labels.shape[1])
    ]
    np.testing.assert_allclose(area_under_roc(scores, labels.astype(np.float32), known), wanted, rtol=0, atol=1e-12)


def test_a_class_without_positives_or_without_negatives_has_none() -> None:
    labels = torch.tensor([[1, 0, 1], [1, 0, 0]])
    assert area_under_roc(torch.rand(2, 3), labels).isnan().tolist() == [True, True, False]


def test_equal_scores_are_worth_one_half_and_infinite_ones_are_scores() -> None:
    scores = torch.tensor([[0.5, torch.inf], [0.5, -torch.inf], [0.5, 0.0]])
    assert area_under_roc(scores, torch.tensor([[1, 1], [0, 0], [0, 0]])).tolist() == [0.5, 1.0]


def test_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="scores: row 0, class 0 is nan"):
        area_under_roc(torch.tensor([[torch.nan]]), torch.tensor([[1]]))
