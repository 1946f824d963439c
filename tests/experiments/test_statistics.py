from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from helpers.results import CLASSES, IMAGES, made_result, made_results
from helpers.rows import made_comparison
from probmcl.evaluation.bootstrap import holm
from probmcl.evaluation.scores import ScoredRows, write_scores
from probmcl.experiments.results import Result, Row
from probmcl.experiments.statistics import DRAWS, summarize
from probmcl.report.comparison_plot import to_svg


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    return made_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def rows(results: list[Result]) -> dict[str, Row]:
    return {row.title: row for row in summarize(results, None)}


def maps_of(results: Sequence[Result], name: str, head: str) -> list[float]:
    return [r.test["mAP"] for r in results if r.title == f"{name}, {head}"]


def test_row_has_mean_and_standard_deviation_over_seeds(rows: dict[str, Row], results: list[Result]) -> None:
    scores = maps_of(results, "good", "own head")
    row = rows["good, own head"]
    assert row.mAP == pytest.approx(fmean(scores))
    assert row.over_seeds == pytest.approx(stdev(scores))
    assert row.seeds == 2
    assert row.seconds == 10.5
    assert row.CF1 is not None
    assert row.probability_mAP is None


def test_better_head_on_validation_represents_its_method(rows: dict[str, Row]) -> None:
    assert {title for title, row in rows.items() if row.best_head} == {
        "good, own head",
        "same, re-probed",
        "bad, own head",
    }


def test_gains_and_p_values(rows: dict[str, Row]) -> None:
    good, same, bad = (rows[title] for title in ("good, own head", "same, re-probed", "bad, own head"))
    assert good.gain is not None
    assert good.gain == pytest.approx(good.mAP - rows["frozen probe"].mAP)
    assert good.gain_interval is not None
    assert good.gain_interval[0] > 0.05
    assert good.gain_p is not None
    assert good.gain_p < 0.01
    assert same.gain_p is not None
    assert same.gain_p > 0.05
    assert bad.gain is not None
    assert bad.gain < 0


def test_methods_are_compared_with_the_best_on_validation(rows: dict[str, Row]) -> None:
    assert rows["good, own head"].behind is None
    assert rows["frozen probe"].behind is None
    bad = rows["bad, own head"]
    assert bad.behind == pytest.approx(rows["good, own head"].mAP - bad.mAP)
    assert bad.behind_p is not None
    assert bad.behind_p < 0.05
    assert rows["good, re-probed"].behind_p is None  # it does not represent its method


def test_p_values_are_corrected_for_methods_not_for_rows(results: list[Result]) -> None:
    frozen_and_one = [r for r in results if r.name in ("frozen probe", "good")]
    (uncorrected,) = [r.gain_p for r in summarize(frozen_and_one, None) if r.gain_p is not None]
    corrected = {r.title: r.gain_p for r in summarize(results, None) if r.gain_p is not None}
    assert len(corrected) == 3
    assert corrected["good, own head"] == pytest.approx(holm([uncorrected] * 3)[0])


def test_intervals_contain_the_score_and_depend_on_groups(results: list[Result]) -> None:
    by_image = {r.title: r for r in summarize(results, None)}
    groups = [str(i // 30) for i in range(IMAGES)]
    by_group = {r.title: r for r in summarize(results, groups)}
    for row in by_image.values():
        assert row.interval is not None
        assert row.interval[0] < row.mAP < row.interval[1]
    assert by_group["good, own head"].interval != by_image["good, own head"].interval


def test_row_without_predictions_has_no_interval_and_no_p_value(results: list[Result], tmp_path: Path) -> None:
    missing = [r if r.name != "same" else Result(**{**vars(r), "folder": tmp_path}) for r in results]
    rows = {r.title: r for r in summarize(missing, None)}
    assert rows["same, re-probed"].interval is None
    assert rows["same, re-probed"].gain_p is None
    assert rows["same, re-probed"].gain is not None
    assert rows["good, own head"].gain_p is not None


def rename(result: Result, name: str, **other: Any) -> Result:
    """Return the same result under another name."""
    return Result(**{**vars(result), "name": name, "method": name, "head": "own head", **other})


def test_differences_are_over_common_seeds(tmp_path: Path) -> None:
    frozen = [made_result(tmp_path, "frozen probe", "frozen", noise=1.5 - 0.5 * seed, seed=seed) for seed in (0, 1, 2)]
    best = [made_result(tmp_path, "best", "own head", noise=0.2, seed=seed, validation=0.9) for seed in (0, 2)]
    # The copy of the probe lacks the worst seed, so its mean is higher.
    twin = [rename(r, "twin") for r in (frozen[2], frozen[1])]
    rows = {r.title: r for r in summarize([*frozen, *twin, *best], None)}
    row = rows["twin, own head"]
    assert row.mAP == pytest.approx(fmean(r.test["mAP"] for r in twin)) != rows["frozen probe"].mAP
    assert (row.seeds, row.gain, row.gain_interval, row.gain_p) == (2, 0.0, (0.0, 0.0), 1.0)
    assert row.behind == pytest.approx(best[1].test["mAP"] - frozen[2].test["mAP"])
    assert rows["best, own head"].gain == pytest.approx(
        fmean(r.test["mAP"] for r in best) - fmean(frozen[seed].test["mAP"] for seed in (0, 2))
    )


def test_rows_without_a_common_seed_have_no_difference(results: list[Result]) -> None:
    others = [rename(r, "other", seed=r.seed + 5) for r in results if r.title == "same, re-probed"]
    rows = {r.title: r for r in summarize([*results, *others], None)}
    row, same = rows["other, own head"], rows["same, re-probed"]
    assert (row.mAP, row.interval, row.seeds) == (same.mAP, same.interval, 2)
    assert {row.gain, row.gain_interval, row.gain_p, row.behind, row.behind_interval, row.behind_p} == {None}
    assert len([r for r in rows.values() if r.gain_p is not None]) == 3


def test_predictions_are_needed_only_for_common_seeds(results: list[Result], tmp_path: Path) -> None:
    (one,) = (r for r in results if r.title == "good, own head" and r.seed == 0)
    missing = [r if r.head != "frozen" or r.seed == 0 else Result(**{**vars(r), "folder": tmp_path}) for r in results]
    rows = {r.title: r for r in summarize([*missing, rename(one, "one")], None)}
    assert rows["frozen probe"].interval is None
    assert rows["good, own head"].gain_interval is None
    assert rows["one, own head"].gain_interval is not None


def test_resamples_without_known_labels_give_no_interval_and_no_p_value(results: list[Result], tmp_path: Path) -> None:
    zeros = np.zeros((IMAGES, CLASSES))
    paths = [f"{row}.jpg" for row in range(IMAGES)]
    write_scores(tmp_path / "unknown.npz", paths, ScoredRows(zeros, zeros, zeros.astype(bool)))
    unknown = {"folder": tmp_path, "predictions": "unknown.npz"}
    rows = summarize([Result(**{**vars(r), **unknown}) if r.name == "good" else r for r in results], None)
    row = next(r for r in rows if r.title == "good, own head")
    assert {row.interval, row.gain_interval, row.gain_p} == {None}
    assert row.gain is not None
    assert "nan" not in to_svg(made_comparison(*rows))


def test_number_of_draws_allows_a_small_p_value_for_many_methods() -> None:
    assert holm([2 / (DRAWS + 1)] * 50)[0] < 0.05


def test_row_has_the_note_of_its_results(results: list[Result]) -> None:
    noted = [replace(r, note="a note") if r.title == "good, own head" else r for r in results]
    assert {row.title: row.note for row in summarize(noted, None) if row.note} == {"good, own head": "a note"}
