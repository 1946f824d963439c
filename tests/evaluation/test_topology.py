import math

import pytest
import torch

from probmcl.evaluation.topology import topology
from probmcl.overlap import jaccard


def test_alignment_and_uniformity_equal_a_loop_over_pairs() -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(12, 5), (torch.rand(12, 4) < 0.4).float()
    known = torch.rand(12, 4) < 0.9
    unit = [row / row.norm() for row in features]
    overlap = jaccard(labels, known_a=known)
    positive, everything = [], []
    for i in range(12):
        for j in range(i):
            squared = float(((unit[i] - unit[j]) ** 2).sum())
            everything.append(math.exp(-2 * squared))
            if overlap[i, j] >= 0.5:
                positive.append(squared)
    measures = topology(features, labels, known)
    assert measures.alignment == pytest.approx(sum(positive) / len(positive), abs=1e-5)
    assert measures.uniformity == pytest.approx(math.log(sum(everything) / len(everything)), abs=1e-5)


def test_labels_in_clusters_agree_more_than_labels_at_random() -> None:
    torch.manual_seed(0)
    member = torch.arange(60) % 3
    labels = torch.eye(3)[member]
    clusters = torch.eye(3)[member] + 0.1 * torch.randn(60, 3)
    known = torch.ones_like(labels, dtype=torch.bool)
    ordered, random = topology(clusters, labels, known), topology(torch.randn(60, 3), labels, known)
    assert ordered.label_agreement == pytest.approx(1.0)
    assert random.label_agreement is not None
    assert random.label_agreement < 0.6
    assert ordered.alignment is not None
    assert random.alignment is not None
    assert ordered.alignment < random.alignment


def test_one_image_has_no_measures() -> None:
    assert topology(torch.ones(1, 2), torch.ones(1, 1), torch.ones(1, 1) > 0) == (None, None, None)
