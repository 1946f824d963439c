"""Metrics per class and over all classes: of rankings, and of decisions at a threshold."""

from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as reference
from sklearn.metrics import average_precision_score, roc_auc_score

from helpers import half_hidden
from helpers.half_hidden import LEVELS, Table, f1, mean, share, tables
from probmcl.evaluation import area_under_roc, average_precision, decisions_at, multilabel_metrics, rates_at
from probmcl.evaluation import scores as evaluation_scores

KINDS = ["area", "voc11", "envelope"]
SCORE_LEVELS = [0.0, 0.25, 0.5, 0.75, 1.0]  # few values, so that ties are common; exact in every precision


class Ranking(NamedTuple):
    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    known: npt.NDArray[np.bool_]


@st.composite
def rankings(draw: st.DrawFn) -> Ranking:
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 5)))
    scores = draw(arrays(np.float64, shape, elements=st.sampled_from(SCORE_LEVELS)))
    labels = draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0])))
    return Ranking(scores, labels, draw(arrays(np.bool_, shape)))


def slow_average_precision(scores: list[float], positive: list[bool], kind: str) -> float:
    """Compute the AP of one class in exact fractions, with every distinct score as a threshold."""
    total = sum(positive)
    if total in (0, len(positive)):  # without positives or without negatives, no ranking is better than another
        return float("nan")
    points = [(Fraction(0), Fraction(0))]
    for limit in sorted(set(scores), reverse=True):
        retrieved = [p for s, p in zip(scores, positive, strict=True) if s >= limit]
        points.append((Fraction(sum(retrieved), total), Fraction(sum(retrieved), len(retrieved))))

    def interpolated(recall: Fraction) -> Fraction:
        return max(p for r, p in points if r >= recall)

    if kind == "voc11":
        return float(sum(interpolated(Fraction(t, 10)) for t in range(11)) / 11)
    area = Fraction(0)
    for (before, _), (recall, precision) in pairwise(points):
        area += (recall - before) * (interpolated(recall) if kind == "envelope" else precision)
    return float(area)


def slow_decisions(table: Ranking, threshold: float, top_k: int | None) -> set[tuple[int, int]]:
    decided = set()
    for n, row in enumerate(table.scores):
        ranked = sorted((c for c in range(len(row)) if table.known[n, c]), key=lambda c: (-row[c], c))
        decided |= {(n, c) for c in ranked[:top_k] if row[c] > threshold}
    return decided


def ratio(part: int, expected_result: int) -> float:
    return part / expected_result if expected_result else 0.0


def harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b else 0.0


def slow_metrics(table: Ranking, threshold: float, f1: str, top_k: int | None) -> dict[str, float]:
    truth = {(int(n), int(c)) for n, c in np.argwhere((table.labels == 1) & table.known)}
    decided = slow_decisions(table, threshold, top_k)
    aps, precisions, recalls, f1s = [], [], [], []
    for c in {c for _, c in truth}:
        p, d = {n for n, k in truth if k == c}, {n for n, k in decided if k == c}
        keep = table.known[:, c]
        if len(p) == keep.sum():  # always present
            continue
        aps.append(slow_average_precision(list(table.scores[keep, c]), list(table.labels[keep, c] == 1), "area"))
        precisions.append(ratio(len(p & d), len(d)))
        recalls.append(ratio(len(p & d), len(p)))
        f1s.append(harmonic(precisions[-1], recalls[-1]))
    count = len(aps)
    m_ap, cp, cr, mean_f1 = (sum(x) / count if count else float("nan") for x in (aps, precisions, recalls, f1s))
    overall = ratio(len(truth & decided), len(decided)), ratio(len(truth & decided), len(truth))
    cf1 = mean_f1 if f1 == "per_class" or not count else harmonic(cp, cr)
    values = (m_ap, cp, cr, cf1, *overall, harmonic(*overall), float(count))
    return dict(zip(("mAP", "CP", "CR", "CF1", "OP", "OR", "OF1", "classes_scored"), values, strict=True))


@given(rankings())
def test_area_matches_scikit_learn_on_known_entries(table: Ranking) -> None:
    for c, result in enumerate(average_precision(*table).tolist()):
        keep = table.known[:, c]
        scores, labels = table.scores[keep, c], table.labels[keep, c]
        if 0 < labels.sum() < len(labels):
            assert result == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
        else:
            assert np.isnan(result)


def test_area_matches_scikit_learn_on_many_images() -> None:
    generator = np.random.default_rng(0)
    labels = generator.random((5000, 6)) < [0.5, 0.2, 0.05, 0.01, 0.001, 0.9]
    scores = (generator.normal(size=labels.shape) + 2 * labels).round(2).astype(np.float32)
    expected = average_precision_score(labels, scores, average=None)
    np.testing.assert_allclose(average_precision(scores, labels), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@given(table=rankings())
def test_every_kind_matches_a_loop_over_thresholds(kind: str, table: Ranking) -> None:
    result = average_precision(*table, kind=kind)
    assert result.shape == table.scores.shape[1:]
    for c, keep in enumerate(table.known.T):
        expected = slow_average_precision(list(table.scores[keep, c]), list(table.labels[keep, c] == 1), kind)
        assert result[c].item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(
    rankings(),
    st.sampled_from([-1.0, *SCORE_LEVELS]),
    st.sampled_from(["harmonic", "per_class"]),
    st.sampled_from([None, 1, 2, 3, 9]),
)
def test_metrics_match_a_loop_over_classes(table: Ranking, threshold: float, f1: str, top_k: int | None) -> None:
    result = multilabel_metrics(*table, threshold=threshold, f1=f1, top_k=top_k)
    expected = slow_metrics(table, threshold, f1, top_k)
    assert list(result) == list(expected)
    assert result == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(rankings(), st.randoms(use_true_random=False), st.sampled_from(KINDS), st.sampled_from([None, 2]))
def test_order_of_the_images_does_not_matter(table: Ranking, random: Any, kind: str, top_k: int | None) -> None:
    order = list(range(len(table.scores)))
    random.shuffle(order)
    shuffled = Ranking(*(array[order] for array in table))
    assert torch.equal(average_precision(*shuffled, kind=kind).nan_to_num(-1), ap(table, kind))
    assert repr(multilabel_metrics(*shuffled, top_k=top_k)) == repr(multilabel_metrics(*table, top_k=top_k))


@pytest.mark.parametrize("kind", KINDS)
@given(table=rankings())
def test_average_precision_depends_only_on_the_ranking(kind: str, table: Ranking) -> None:
    for scores in (np.exp(3 * table.scores) - 40, table.scores**3 / 7, np.log(table.scores + 0.01)):
        assert torch.equal(ap(table._replace(scores=scores), kind), ap(table, kind))


def ap(table: Ranking, kind: str) -> torch.Tensor:
    """Average precision with -1 for NaN, so that two results can be equal."""
    return average_precision(*table, kind=kind).nan_to_num(-1)


@given(rankings(), st.sampled_from([-np.inf, np.nan, 0.6, np.inf]), st.sampled_from([-1.0, np.nan, 0.0, 1.0]))
def test_unknown_entries_are_ignored(table: Ranking, score: float, label: float) -> None:
    scores, labels = np.where(table.known, table.scores, score), np.where(table.known, table.labels, label)
    changed = Ranking(scores, labels, table.known)
    for kind in KINDS:
        assert torch.equal(ap(changed, kind), ap(table, kind))
    for top_k in (None, 1, 3):
        assert repr(multilabel_metrics(*changed, top_k=top_k)) == repr(multilabel_metrics(*table, top_k=top_k))


@pytest.mark.parametrize("positives", [3, 7, 10, 20, 30, 70])
def test_voc11_recall_levels_are_exact(positives: int) -> None:
    """Five negatives follow after `first` positives, so a rounding error would select the lower precision."""
    for first in range(1, positives + 1):
        positive = [True] * first + [False] * 5 + [True] * (positives - first)
        scores = [-float(rank) for rank in range(len(positive))]
        result = average_precision(torch.tensor(scores)[:, None], torch.tensor(positive)[:, None], kind="voc11")
        reached = sum(10 * first >= t * positives for t in range(11))
        tail = positives / (positives + 5)
        assert result.item() == pytest.approx((reached + (11 - reached) * tail) / 11, abs=1e-12)


def test_definitions_of_the_kinds() -> None:
    scores, labels = torch.tensor([[5.0], [4], [3], [2], [1]]), torch.tensor([[1], [0], [0], [1], [1]])
    assert average_precision(scores, labels).item() == pytest.approx((1 + 2 / 4 + 3 / 5) / 3)
    assert average_precision(scores, labels, kind="envelope").item() == pytest.approx((1 + 3 / 5 + 3 / 5) / 3)
    assert average_precision(scores, labels, kind="voc11").item() == pytest.approx((4 * 1 + 7 * 3 / 5) / 11)


def test_f1_of_means_and_mean_of_f1() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.9], [0.9, 0.2, 0.9], [0.9, 0.3, 0.1]])
    labels = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 0]])  # class 1 is never predicted, class 2 never present
    table = multilabel_metrics(scores, labels)
    assert (table["CP"], table["CR"], table["classes_scored"]) == pytest.approx((1 / 6, 1 / 2, 2))
    assert (table["OP"], table["OR"], table["OF1"]) == pytest.approx((1 / 5, 1 / 2, 2 / 7))
    assert table["CF1"] == pytest.approx(1 / 4)
    per_class = multilabel_metrics(scores, labels, f1="per_class")
    assert per_class == table | {"CF1": pytest.approx((1 / 2 + 0) / 2)}


def test_only_overall_metrics_are_defined_without_positives() -> None:
    table = multilabel_metrics(torch.ones(2, 3), torch.zeros(2, 3))
    assert all(np.isnan(table[name]) for name in ("mAP", "CP", "CR", "CF1"))
    assert [table[name] for name in ("OP", "OR", "OF1", "classes_scored")] == [0, 0, 0, 0]


def test_single_image() -> None:
    table = multilabel_metrics(torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 0]]))
    assert all(np.isnan(table[name]) for name in ("mAP", "CP", "CR", "CF1"))
    assert [table[name] for name in ("OP", "OR", "OF1", "classes_scored")] == [1, 1, 1, 0]


def test_class_that_is_always_present_does_not_count() -> None:
    scores, labels = torch.tensor([[0.9, 0.9], [0.2, 0.6], [0.1, 0.7]]), torch.tensor([[1, 1], [0, 1], [1, 1]])
    alone, both = multilabel_metrics(scores[:, :1], labels[:, :1]), multilabel_metrics(scores, labels)
    for name in ("mAP", "CP", "CR", "CF1", "classes_scored"):
        assert both[name] == alone[name]
    assert both["OR"] == pytest.approx(4 / 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_threshold_is_exclusive(dtype: torch.dtype, threshold: float) -> None:
    scores = torch.tensor([[threshold, threshold + 0.01]], dtype=dtype)
    assert multilabel_metrics(scores, torch.ones(1, 2), threshold=threshold)["OR"] == 0.5


@given(
    rankings(), st.lists(st.sampled_from([-1.0, *SCORE_LEVELS]), min_size=5, max_size=5), st.sampled_from([None, 1, 3])
)
def test_thresholds_can_differ_per_class(table: Ranking, thresholds: list[float], top_k: int | None) -> None:
    class_thresholds = np.array(thresholds[: table.scores.shape[1]])
    lowered = table._replace(scores=table.scores - class_thresholds)  # same decisions at threshold 0
    expected = multilabel_metrics(*lowered, threshold=0.0)
    names = ("CP", "CR", "CF1", "OP", "OR", "OF1")
    for thresholds_variant in (
        class_thresholds,
        torch.tensor(class_thresholds),
        torch.tensor(class_thresholds).float(),
    ):
        result = multilabel_metrics(*table, threshold=thresholds_variant)
        assert [result[n] for n in names] == pytest.approx([expected[n] for n in names], nan_ok=True)
    same = np.full(len(class_thresholds), 0.5)
    assert repr(multilabel_metrics(*table, threshold=same, top_k=top_k)) == repr(
        multilabel_metrics(*table, top_k=top_k)
    )


def test_threshold_applies_to_its_class() -> None:
    scores = torch.tensor([[0.3, 0.3, 0.9], [0.6, 0.6, 0.6], [0.0, 0.0, 0.0]])
    labels = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 0, 0]])
    result = multilabel_metrics(scores, labels, threshold=torch.tensor([0.1, 0.5, 0.95]), f1="per_class")
    assert result["CR"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert result["CF1"] == pytest.approx((1 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_thresholds_are_rounded_to_the_precision_of_the_scores(dtype: torch.dtype) -> None:
    scores = torch.tensor([[0.8, 0.8]], dtype=dtype)
    assert multilabel_metrics(scores, torch.ones(1, 2), threshold=np.array([0.8, 0.79]))["OR"] == 0.5


@pytest.mark.parametrize(
    ("threshold", "message"),
    [
        (torch.ones(3), r"threshold has shape \(3,\).*\(2,\)"),
        (np.ones((3, 2)), r"threshold has shape \(3, 2\).*\(2,\)"),
        (torch.ones(1), r"threshold has shape \(1,\)"),
        (torch.tensor([0.5, torch.nan]), "threshold .*NaN"),
        (float("nan"), "threshold .*NaN"),
    ],
)
def test_invalid_thresholds_raise(threshold: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        multilabel_metrics(ONES, ONES, threshold=threshold)


def test_top_k_prefers_the_lower_class_among_equal_scores() -> None:
    scores = torch.full((2, 40), 0.9)
    known = torch.ones(2, 40, dtype=torch.bool)
    known[1, :2] = False  # so that classes 2 and 3 are the best
    labels = torch.zeros(2, 40)
    labels[0, :2] = labels[1, 2:4] = 1
    table = multilabel_metrics(scores, labels, known, top_k=2)
    assert (table["OP"], table["OR"]) == (1, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_scores(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(300, 4, generator=generator).to(dtype)
    labels = torch.rand(300, 4, generator=generator) < 0.3
    assert torch.equal(average_precision(scores, labels), average_precision(scores.double(), labels))
    expected = multilabel_metrics(scores.double(), labels)
    assert multilabel_metrics(scores, labels) == expected


def test_double_precision_scores_are_not_rounded() -> None:
    scores, labels = torch.tensor([[0.5], [0.5 - 1e-12]], dtype=torch.float64), torch.tensor([[1], [0]])
    assert average_precision(scores, labels).item() == 1


def test_arrays_and_tensors_of_any_layout_are_accepted() -> None:
    scores, labels = np.random.default_rng(0).random((30, 4)), np.arange(120).reshape(30, 4) % 3 == 0
    expected = average_precision(scores, labels)
    assert expected.dtype == torch.float64
    frozen = scores.copy()
    frozen.flags.writeable = False
    layouts: list[Any] = [frozen, np.asfortranarray(scores), torch.tensor(scores, requires_grad=True)]
    for other in layouts:
        for truth in (labels.astype(np.uint8), torch.tensor(labels).long(), torch.tensor(labels).bfloat16()):
            assert torch.equal(average_precision(other, truth), expected)
    assert torch.equal(average_precision(scores[::-1], labels[::-1]), expected)


def test_binary_decisions_are_valid_scores() -> None:
    decided, labels = torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 1], [0, 1]])
    assert multilabel_metrics(decided, labels) == multilabel_metrics(decided.double(), labels)
    assert multilabel_metrics(decided.bool(), labels)["OP"] == pytest.approx(2 / 3)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    table = Ranking(
        generator.random((11, 7)).round(1), generator.random((11, 7)) < 0.4, generator.random((11, 7)) < 0.8
    )
    expected_result = [ap(table, kind) for kind in KINDS], multilabel_metrics(*table, top_k=3)
    for count in (1, 23, 40):
        monkeypatch.setattr(evaluation_scores, "BLOCK_ENTRIES", count)
        assert all(map(torch.equal, expected_result[0], (ap(table, kind) for kind in KINDS)))
        assert multilabel_metrics(*table, top_k=3) == expected_result[1]
    table.scores[9, 5], table.known[9, 5] = np.nan, True
    with pytest.raises(ValueError, match="scores: row 9, class 5 is nan"):
        average_precision(*table)


ONES = torch.ones(3, 2)
TWO = torch.tensor([[1.0, 0], [1, 2], [0, 0]])


@pytest.mark.parametrize("metric", [average_precision, multilabel_metrics])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ONES, torch.ones(3, 1)), r"labels has shape \(3, 1\).*\(3, 2\)"),
        ((ONES, ONES, torch.ones(1, 2).bool()), r"known has shape \(1, 2\).*\(3, 2\)"),
        ((ONES[:, 0], ONES[:, 0]), r"scores has shape \(3,\).*\(images, classes\)"),
        ((ONES[:0], ONES[:0]), r"scores has shape \(0, 2\).*at least 1"),
        ((ONES, TWO), "labels: row 1, class 1 is 2.0"),
        ((ONES, -TWO.long()), "labels: row 0, class 0 is -1"),
        ((ONES, TWO.where(TWO < 2, torch.nan)), "labels: row 1, class 1 is nan"),
        ((TWO.where(TWO < 2, torch.nan), ONES), "scores: row 1, class 1 is nan"),
        ((ONES, ONES, ONES), "known .*torch.bool.*torch.float32"),
    ],
)
def test_invalid_arguments_raise(metric: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric(*arguments)


def test_invalid_choices_list_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"kind='voc' .*'area', 'envelope' or 'voc11'"):
        average_precision(ONES, ONES, kind="voc")
    with pytest.raises(ValueError, match=r"f1='mean' .*'harmonic' or 'per_class'"):
        multilabel_metrics(ONES, ONES, f1="mean")
    with pytest.raises(ValueError, match="top_k=0"):
        multilabel_metrics(ONES, ONES, top_k=0)


@given(half_hidden.tables())
def test_auroc_uses_only_known_labels(table: half_hidden.Table) -> None:
    result = area_under_roc(*table)
    assert result.dtype == torch.float64
    np.testing.assert_array_equal(result, [half_hidden.auroc(entries) for entries in table.classes])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_auroc_matches_scikit_learn_with_ties(dtype: torch.dtype) -> None:
    generator = np.random.default_rng(0)
    labels = generator.random((500, 6)) < [0.5, 0.2, 0.05, 0.01, 0.9, 0.3]
    scores = torch.tensor((generator.normal(size=labels.shape) + labels).round(1)).to(dtype)
    known = generator.random(labels.shape) < 0.5
    expected_auroc = [
        roc_auc_score(labels[known[:, c], c], scores[known[:, c], c].double().numpy()) for c in range(labels.shape[1])
    ]
    np.testing.assert_allclose(
        area_under_roc(scores, labels.astype(np.float32), known), expected_auroc, rtol=0, atol=1e-12
    )


def test_auroc_is_nan_without_positives_or_negatives() -> None:
    labels = torch.tensor([[1, 0, 1], [1, 0, 0]])
    assert area_under_roc(torch.rand(2, 3), labels).isnan().tolist() == [True, True, False]


def test_auroc_of_equal_and_infinite_scores() -> None:
    scores = torch.tensor([[0.5, torch.inf], [0.5, -torch.inf], [0.5, 0.0]])
    assert area_under_roc(scores, torch.tensor([[1, 1], [0, 0], [0, 0]])).tolist() == [0.5, 1.0]


def test_auroc_with_nan_scores_raises() -> None:
    with pytest.raises(ValueError, match="scores: row 0, class 0 is nan"):
        area_under_roc(torch.tensor([[torch.nan]]), torch.tensor([[1]]))


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


def test_blocks_do_not_change_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(50, 4, generator=generator), torch.randint(0, 2, (50, 4), generator=generator)
    known = torch.rand(50, 4, generator=generator) < 0.5
    fully_known = decisions_at(scores, labels, known), rates_at(scores, labels, known)
    monkeypatch.setattr(evaluation_scores, "BLOCK_ENTRIES", 12)
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
