"""Measures of an embedding: do images with similar labels lie close together, and do images use all directions?"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, jaccard_score
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from probmcl.evaluation import embedding as embedding_module
from probmcl.evaluation import scores as evaluation_scores
from probmcl.evaluation.embedding import retrieval, topology
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


def images(count: int = 40, *, dim: int = 5, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(count, classes, generator=generator) < 0.4).float()
    labels[:, 0] = 1 - labels[:, 1:].amax(1)  # no label set is empty
    noise = torch.randn(count, dim, generator=generator)
    return noise + torch.nn.functional.pad(labels, (0, dim - classes)), labels


def slow_jaccard(a: list[float], b: list[float], known: list[bool]) -> float:
    both = [(x, y) for x, y, seen in zip(a, b, known, strict=True) if seen]
    either = sum(x == 1 or y == 1 for x, y in both)
    return sum(x == 1 and y == 1 for x, y in both) / either if either else float(all(known))


def slow_retrieval(embedding: Tensor, labels: Tensor, known: Tensor, k: int) -> dict[str, float]:
    """Loop over queries; assumes that no cosines are equal."""
    overlaps, precision = [], []
    searched = [n for n in range(len(labels)) if known[n].any()]
    for q in searched:
        result = []
        for n in searched:
            if n != q:
                cosine = float(torch.cosine_similarity(embedding[q].double(), embedding[n].double(), dim=0))
                both = (known[q] & known[n]).tolist()
                result.append((cosine, slow_jaccard(labels[q].tolist(), labels[n].tolist(), both)))
        ranked = [overlap for _, overlap in sorted(result, reverse=True)]
        overlaps.append(np.mean(ranked[:k]))
        hits = [rank for rank, overlap in enumerate(ranked, start=1) if overlap >= 0.5]
        if hits:
            precision.append(np.mean([number / rank for number, rank in enumerate(hits, start=1)]))
    return {f"jaccard_at_{k}": float(np.mean(overlaps)), "mAP": float(np.mean(precision))}


@pytest.mark.parametrize("k", [1, 3, 10, 39, 100])
def test_matches_a_loop_over_queries(k: int) -> None:
    embedding, labels = images()
    all_known = torch.ones_like(labels, dtype=torch.bool)
    assert retrieval(embedding, labels, k=k) == pytest.approx(slow_retrieval(embedding, labels, all_known, k))


def test_matches_scikit_learn() -> None:
    embedding, labels = images(25, seed=1)
    cosine = cosine_similarity(embedding.double())
    truth = labels.numpy().astype(int)
    overlaps, precision = [], []
    for q in range(25):
        others = np.array([n for n in range(25) if n != q])
        overlap = np.array([jaccard_score(truth[q], truth[n]) for n in others])
        overlaps.append(overlap[np.argsort(-cosine[q, others])[:10]].mean())
        if (overlap >= 0.5).any():
            precision.append(average_precision_score(overlap >= 0.5, cosine[q, others]))
    expected = {"jaccard_at_10": np.mean(overlaps), "mAP": np.mean(precision)}
    assert retrieval(embedding, labels) == pytest.approx(expected)


def test_unknown_labels_are_ignored() -> None:
    embedding, labels = images(seed=2)
    known = torch.rand(labels.shape, generator=torch.Generator().manual_seed(3)) < 0.6
    known[[4, 17]] = False
    result = retrieval(embedding, labels, known, k=5)
    assert result == pytest.approx(slow_retrieval(embedding, labels, known, 5))
    for value in (torch.nan, -1.0, 1.0):
        assert retrieval(embedding, labels.where(known, value), known, k=5) == result


def test_images_without_known_labels_are_excluded() -> None:
    embedding, labels = images(12)
    known = torch.ones_like(labels, dtype=torch.bool)
    known[[2, 7]] = False
    embedding[7] = torch.nan
    rest = [n for n in range(12) if n not in (2, 7)]
    assert retrieval(embedding, labels, known) == retrieval(embedding[rest], labels[rest])


def test_an_image_is_never_its_own_neighbor() -> None:
    embedding, labels = torch.eye(4), torch.eye(4)
    assert retrieval(embedding, labels, k=3) == {"jaccard_at_3": 0.0, "mAP": None}


def test_ties_do_not_depend_on_the_order() -> None:
    """Four copies of an image are tied for the two ranks after the nearest image; the mean over all orders counts."""
    query, overlaps, copy = [1.0, 0.0, 0.0], [3.0, 0.3, 0.1], [0.7, 0.9, 0.3]
    labels = torch.tensor([[1.0, 1, 0], [1, 1, 1], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 0]])
    overlap = [1.0, 0.0, 1 / 3, 0.5]
    expected = np.mean([(2 / 3 + sum(order[:2])) / 3 for order in itertools.permutations(overlap)])
    points = torch.tensor([query, overlaps, *[copy] * 4])
    for order in itertools.islice(itertools.permutations(range(6)), 0, 720, 37):
        permutation = list(order)
        result = query_metrics(points[permutation], labels[permutation], permutation.index(0), k=3)
        assert result["jaccard_at_3"] == pytest.approx(expected)
        # The nearest image and two of the copies are relevant. The copies share one point.
        assert result["mAP"] == pytest.approx((1 + 3 / 5 + 3 / 5) / 3)


def query_metrics(points: Tensor, labels: Tensor, query: int, *, k: int) -> dict[str, float | None]:
    """Return the metrics of a single query, with a seed that selects it."""
    seed = next(s for s in range(1000) if np.random.default_rng(s).permutation(len(points))[0] == query)
    return retrieval(points, labels, k=k, queries=1, seed=seed)


def test_zero_vectors_have_cosine_zero() -> None:
    points = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.1], [0.5, 0.5]])
    labels = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    assert query_metrics(points, labels, 0, k=2) == {
        "jaccard_at_2": 0.5,
        "mAP": 0.5,
    }  # after the last image, before the third
    assert query_metrics(points, labels, 1, k=1) == {"jaccard_at_1": pytest.approx(1 / 3), "mAP": pytest.approx(1 / 3)}


@pytest.mark.parametrize("scale", [1e-300, 1e-20, 1e20, 1e300])
def test_norms_do_not_matter(scale: float) -> None:
    embedding, labels = images()
    factors = torch.linspace(1, 9, len(embedding), dtype=torch.float64)[:, None] * scale
    assert retrieval(embedding.double() * factors, labels) == pytest.approx(retrieval(embedding, labels))


def test_empty_label_sets_overlap_fully() -> None:
    embedding, labels = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), torch.tensor([[0.0], [0.0], [1.0]])
    assert retrieval(embedding, labels, k=1) == {"jaccard_at_1": pytest.approx(2 / 3), "mAP": 1.0}


def test_threshold_of_relevance_is_inclusive() -> None:
    embedding = torch.tensor([[1.0, 0.0], [1.0, 0.1]])
    labels = torch.tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert retrieval(embedding, labels, threshold=0.6)["mAP"] == 1
    assert retrieval(embedding, labels, threshold=0.61)["mAP"] is None


def test_queries_are_sampled_by_the_seed() -> None:
    embedding, labels = images()
    assert retrieval(embedding, labels, queries=None) == retrieval(embedding, labels, queries=40)
    samples = [retrieval(embedding, labels, queries=8, seed=seed) for seed in range(30)]
    assert samples[0] == retrieval(embedding, labels, queries=8)
    assert len({str(result) for result in samples}) > 20
    mean = np.mean([result["jaccard_at_10"] for result in samples])
    assert mean == pytest.approx(retrieval(embedding, labels)["jaccard_at_10"], abs=0.03)


@pytest.mark.parametrize("count", [1, 2])
def test_undefined_metrics_are_none(count: int) -> None:
    known = torch.tensor([[True], [False]])[:count]
    result = retrieval(torch.ones(count, 2), torch.ones(count, 1), known)
    assert result == {"jaccard_at_10": None, "mAP": None}


def test_metrics_are_none_without_known_labels() -> None:
    result = retrieval(torch.ones(3, 2), torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool))
    assert result == {"jaccard_at_10": None, "mAP": None}


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding, labels = images()
    embedding[20:] = embedding[:20]  # equal cosines in different blocks
    expected_result = retrieval(embedding, labels)
    for query_block, entries in ((7, 23), (40, 1)):
        monkeypatch.setattr(embedding_module, "QUERY_BLOCK", query_block)
        monkeypatch.setattr(evaluation_scores, "BLOCK_ENTRIES", entries)
        assert retrieval(embedding, labels) == pytest.approx(expected_result, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k=0"),
        ({"queries": 0}, "queries=0"),
        ({"embedding": torch.ones(3, 2)}, "embedding has 3 rows"),
        ({"embedding": torch.tensor([[1.0], [torch.inf]])}, "embedding: row 1"),
        ({"labels": torch.tensor([[1.0], [2.0]])}, "labels: row 1, class 0 is 2.0"),
    ],
)
def test_invalid_arguments_raise(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"embedding": torch.ones(2, 2), "labels": torch.ones(2, 1)} | change
    with pytest.raises(ValueError, match=message):
        retrieval(**arguments)
