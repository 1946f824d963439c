"""The sections of a report of six test images, against numbers that are computed by hand."""

import json
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from helpers.reports import (
    HAND_KNOWN,
    HAND_LABELS,
    HAND_NAMES,
    HAND_SCORES,
    finished_run,
    hand_made_run,
    write_evaluation,
)
from probmcl.console import Console
from probmcl.evaluation.scores import read_scores, scores_file, write_scores
from probmcl.report.gallery import IMAGES, MAX_PER_CLASS
from probmcl.report.page import render_page, report_json
from probmcl.report.run_report import SECTIONS, ReportContent, RunReport, run_report
from probmcl.report.scores import MIN_LABELS
from probmcl.report.training import MAX_STEPS

pytestmark = pytest.mark.slow  # it trains, or renders whole reports

CAT_AP = (1 + 2 / 3 + 3 / 4) / 3
MAP = (CAT_AP + 1 + 1) / 3
CHANCE = (3 / 6 + 2 / 6 + 1 / 5) / 3


def report_of(*folders: Path, images: bool = True) -> RunReport:
    return run_report(folders, images=images, device="cpu", console=Console.quiet())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hand_made_run(tmp_path_factory.mktemp("hand") / "run")


@pytest.fixture(scope="module")
def content(run: Path) -> ReportContent:
    return report_of(run).content


def test_headline(content: ReportContent) -> None:
    headline = content.headline
    assert (headline.images, headline.classes, headline.classes_scored) == (6, 3, 3)
    assert headline.mAP == pytest.approx(MAP)
    assert headline.chance == pytest.approx(CHANCE)
    assert headline.macro_auroc == pytest.approx((7 / 9 + 1 + 1) / 3)
    assert headline.macro_F1 == pytest.approx((2 / 3 + 4 / 5 + 1) / 3)
    errors = (HAND_SCORES - HAND_LABELS)[HAND_KNOWN]
    assert headline.brier == pytest.approx((errors**2).mean())


def test_the_frozen_probe_that_ranks_nothing_is_at_chance(content: ReportContent) -> None:
    frozen = content.headline.frozen
    assert frozen is not None
    assert frozen.mAP == pytest.approx(CHANCE)
    assert frozen.macro_auroc == 0.5
    assert frozen.gain == pytest.approx(MAP - CHANCE)
    assert frozen.gain_interval is None or frozen.gain_interval[0] <= frozen.gain <= frozen.gain_interval[1]


def test_classes(content: ReportContent) -> None:
    cat, dog, bird = content.classes
    assert [row.name for row in content.classes] == list(HAND_NAMES)
    assert [(row.train, row.test, row.unknown) for row in content.classes] == [(3, 3, 0), (12, 2, 0), (0, 1, 1)]
    assert [row.ap for row in content.classes] == pytest.approx([CAT_AP, 1, 1])
    assert (cat.true_positives, cat.false_positives, cat.false_negatives) == (2, 1, 1)
    assert (dog.precision, dog.recall, dog.f1) == pytest.approx((2 / 3, 1, 4 / 5))
    assert (bird.precision, bird.recall, bird.f1, bird.threshold) == (1, 1, 1, 0.5)


def test_curve_and_histograms_of_a_class(content: ReportContent) -> None:
    cat, _, bird = content.classes
    assert cat.precision_at_recall == [1.0] * 7 + [0.75] * 14  # the first of three positives is the first image
    assert [k for k, count in enumerate(cat.positives_by_probability) if count] == [37, 62, 87]
    assert [k for k, count in enumerate(cat.negatives_by_probability) if count] == [12, 24, 74]
    assert (sum(bird.positives_by_probability), sum(bird.negatives_by_probability)) == (1, 4)


def test_verdict(content: ReportContent) -> None:
    measured = {check.key: check.value for check in content.verdict.checks}
    assert (measured["val_images"], measured["test_images"], measured["leaks"]) == (1, 6, 1)
    assert measured["rare"] == pytest.approx(2 / 3)  # cat and bird have fewer than 10 training positives
    assert (measured["weak_classes"], measured["never_correct"], measured["not_scored"]) == (0, 0, 0)
    assert measured["unknown_labels"] == pytest.approx(1 / 18)
    assert measured["val_test"] == pytest.approx(abs(0.8 - MAP))
    assert (content.verdict.status, content.verdict.decision) == ("stop", "do not use")
    assert content.verdict.reasons[0].endswith("(validation images: 1).")


def test_gallery(content: ReportContent) -> None:
    mistakes, missed, best, uncertain = content.gallery.groups

    def numbers(group: Any) -> list[tuple[int, str]]:
        return [(int(image.path[0]), image.class_name) for image in group.images]

    assert numbers(mistakes) == [(1, "cat"), (2, "dog")]
    assert numbers(missed) == [(3, "cat")]
    assert numbers(best) == [(0, "cat"), (4, "dog")]
    p = HAND_SCORES.astype(np.float64)
    entropy = -(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean(axis=1)
    assert [number for number, _ in numbers(uncertain)] == np.argsort(-entropy).tolist()
    assert uncertain.images[0].uncertainty == pytest.approx(entropy.max(), abs=1e-4)


def test_the_most_uncertain_images_are_not_recommended_for_labeling(content: ReportContent) -> None:
    uncertain = content.gallery.groups[3]
    assert uncertain.key == "uncertain"
    assert "not the best images to label next" in uncertain.explanation


def test_labels_of_an_image_are_in_the_order_of_their_probability(content: ReportContent) -> None:
    missed = content.gallery.groups[1].images[0]
    shown = [(label.name, label.probability, label.present, label.predicted) for label in missed.labels]
    assert shown == [("cat", 0.375, True, False), ("bird", 0.25, None, False), ("dog", 0.125, False, False)]
    assert missed.more_labels == 0
    assert [(near.path, near.labels) for near in missed.nearest] == [
        ("train0.png", ["cat", "dog"]),
        ("train1.png", ["bird"]),
    ]


def test_a_group_has_a_few_images_of_each_class(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", names=[f"class {k}" for k in range(8)])
    groups = report_of(run, images=False).content.gallery.groups
    assert max(len(group.images) for group in groups) == IMAGES
    for group in groups:
        shown = [image.class_name for image in group.images]
        assert len(shown) <= IMAGES
        assert max(map(shown.count, shown), default=0) <= MAX_PER_CLASS


def test_curves(content: ReportContent) -> None:
    curves = content.curves
    assert curves.recall == [round(k / 20, 3) for k in range(21)]
    assert curves.macro == pytest.approx([1.0] * 7 + [round((0.75 + 1 + 1) / 3, 3)] * 14)
    assert [row[-1] for row in curves.quartiles] == [0.875, 1.0]
    assert curves.micro[-1] == round(6 / 9, 3)  # the last of six positives has rank 9
    assert curves.risk_coverage.coverage[-1] == 1
    assert curves.risk_coverage.risk[-1] == pytest.approx(3 / 17)


def test_reliability_has_the_bins_with_enough_labels(content: ReportContent, tmp_path: Path) -> None:
    assert content.curves.reliability["before"].labels == []
    run = finished_run(tmp_path / "run")
    rows = read_scores(scores_file(run, "test")).rows
    scores, labels = rows.scores[rows.known].astype(np.float64), rows.labels[rows.known]
    expected = []
    for low in range(10):
        inside = (scores * 10).astype(int) == low
        if inside.sum() >= MIN_LABELS:
            expected.append((scores[inside].mean(), labels[inside].mean(), inside.sum()))
    points = report_of(run, images=False).content.curves.reliability["before"]
    assert expected
    assert points.probability == pytest.approx([p for p, _, _ in expected], abs=1e-4)
    assert points.frequency == pytest.approx([frequency for _, frequency, _ in expected], abs=1e-4)
    assert points.labels == [count for _, _, count in expected]


def test_label_pairs(content: ReportContent) -> None:
    pairs = content.label_pairs
    assert pairs.classes == ["cat", "dog", "bird"]
    assert pairs.truth == [[1, 0.333, 0], [0.5, 1, 0.5], [0, 1, 1]]
    assert pairs.predicted == [[1, 0.667, 0], [0.667, 1, 0.333], [0, 1, 1]]


def test_pairs_that_no_training_image_has(content: ReportContent) -> None:
    new = content.label_pairs.never_seen
    assert new is not None
    assert (new.pairs, new.images, new.recall) == (1, 1, 1)
    assert new.recall_of_others == 3 / 4  # the label of the fourth image is missed
    (pair,) = new.most_frequent
    assert (pair.classes, pair.images, pair.both_found) == (["dog", "bird"], 1, 1)


def test_embedding(content: ReportContent) -> None:
    embedding = content.embedding
    assert embedding is not None
    assert embedding.images == 6
    assert [path[0] for path in embedding.paths] == list("012345")
    assert embedding.labels == [[0, 1], [], [0], [0], [1, 2], []]
    assert embedding.wrong == [0, 1, 1, 1, 0, 0]
    assert list(embedding.maps) == ["run", "frozen"]
    assert np.abs(embedding.maps["run"].points).max() == 1


def test_data(content: ReportContent) -> None:
    data = content.data
    assert (data.images.train, data.images.val, data.images.test, data.classes) == (2, 1, 6, 3)
    assert data.labels_per_image == 1
    assert (data.unknown.train, data.unknown.val, data.unknown.test) == (1, 0, 1)
    assert data.duplicates is not None
    assert (data.duplicates.exact, data.duplicates.near, data.skipped, data.groups_in_test) == (1, 2, 0, None)
    assert data.warnings == ["allowed: <i>leak</i>"]
    assert (data.without_train_positives, data.without_test_positives) == (["bird"], [])


def test_training(content: ReportContent) -> None:
    training = content.training
    assert [curve.stage for curve in training.curves] == ["bce", "probmcl"]
    curve = training.curves[0]
    assert (curve.step, curve.loss) == ([10, 20, 30], [0.1, 0.05, 0.03333])
    assert curve.statistics == ["similarity_positive", "similarity_negative"]
    assert (curve.similarity_positive, curve.feature_cosine) == ([0.5] * 3, msgspec.UNSET)
    kept, frozen = training.candidates
    assert (kept.name, kept.kept, kept.validation_mAP, kept.gain, kept.test_mAP) == (
        "bce, own head",
        True,
        0.8,
        0.3,
        0.8,
    )
    assert (frozen.kept, frozen.gain, frozen.seconds, kept.seconds) == (False, None, 1.5, None)
    assert (training.cost.encoder, training.cost.image_size, training.cost.seconds) == ("test_resnet", 32, 12)


def test_a_long_learning_curve_is_thinned_out_and_keeps_both_ends(tmp_path: Path) -> None:
    run = hand_made_run(tmp_path / "run")
    rows = [{"stage": "bce", "epoch": 1, "step": step, "loss": float(step)} for step in range(1, 131)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (curve,) = report_of(run, images=False).content.training.curves
    assert len(curve.step) <= MAX_STEPS
    assert (curve.step[:3], curve.step[-1], curve.loss[-1]) == ([1, 4, 7], 130, 130)
    assert curve.statistics == []


def test_reproduction(content: ReportContent, run: Path) -> None:
    stored = json.loads((run / "run.json").read_text())
    reproduction = content.reproduction
    assert shlex.split(reproduction.command) == stored["command"]
    assert (reproduction.seed, reproduction.versions, reproduction.commit) == (0, stored["versions"], None)
    assert (reproduction.data_hash, reproduction.data) == ("0123456789abcdef", "run-photos")
    assert reproduction.settings["encoder"]["name"] == "test_resnet"
    assert "schema" not in reproduction.settings
    assert reproduction.thresholds is None


def test_runs_are_compared_with_the_first(run: Path, tmp_path: Path) -> None:
    perfect = hand_made_run(tmp_path / "perfect")
    paths, rows = read_scores(scores_file(perfect, "test"))
    write_scores(scores_file(perfect, "test"), list(paths), replace(rows, scores=(rows.labels + 0.5) / 2))
    write_evaluation(perfect, HAND_NAMES)
    other = finished_run(tmp_path / "other", names=HAND_NAMES)
    runs = report_of(run, perfect, other, images=False).content.runs
    assert runs is not None
    assert [row.name for row in runs] == ["run", "perfect", "other"]
    assert runs[0].difference is None
    assert runs[1].difference is not None
    assert runs[1].difference.mAP == pytest.approx(1 - MAP)
    assert runs[2].difference is None  # its test images are others
    assert (runs[0].kept, runs[0].encoder, runs[0].test_images) == ("bce, own head", "test_resnet", 6)
    assert runs[0].mAP == pytest.approx(MAP)


def test_the_json_file_has_the_types_of_the_structs(content: ReportContent) -> None:
    stored = json.loads(report_json(content))
    assert msgspec.convert(stored, ReportContent) == content
    assert list(stored) == [field.name for field in fields(ReportContent)]
    assert stored["gallery"]["groups"][1]["images"][0]["class"] == "cat"
    assert set(stored["training"]["curves"][0]) >= {"similarity_positive"}
    assert "feature_cosine" not in stored["training"]["curves"][0]


def test_every_section_is_on_the_page_with_its_link(run: Path) -> None:
    report = report_of(run)
    page = render_page(report)
    shown = [section for name, section in SECTIONS.items() if name != "runs"]
    positions = [page.index(f'<section id="{section.anchor}"') for section in shown]
    links = [page.index(f'<a href="#{section.anchor}">{section.title}</a>') for section in shown]
    assert positions == sorted(positions)
    assert links == sorted(links)
    assert 'id="runs"' not in page
