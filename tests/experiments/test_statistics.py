"""Rows from results that are made up, so that what they must say is known."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch

from helpers.rows import made_comparison
from probmcl.evaluation.bootstrap import holm
from probmcl.evaluation.evaluate import evaluate
from probmcl.experiments.results import Result, merged, read_results, write_results
from probmcl.experiments.rows import Row
from probmcl.experiments.statistics import DRAWS, rows_of
from probmcl.report.comparison_plot import to_svg

IMAGES, CLASSES = 300, 4
FINGERPRINT = {"data": "d", "split": "s", "encoder": "e", "augmentation": "a", "budget": "b", "all": "0123456789ab"}


def labels() -> torch.Tensor:
    return (torch.rand(IMAGES, CLASSES, generator=torch.Generator().manual_seed(0)) < 0.4).float()


def result(folder: Path, name: str, head: Any, *, noise: float, seed: int = 0, validation: float = 0.5) -> Result:
    """A classifier that sees the labels through so much noise; its file of predictions is written."""
    truth = labels()
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {head} {seed}".encode()))
    scores = torch.sigmoid(truth + noise * torch.randn(truth.shape, generator=generator))
    place = folder / f"{name} {head} {seed}.npz"
    np.savez(place, scores=scores.numpy(), labels=truth.numpy(), known=np.ones(truth.shape, dtype=bool))
    return Result(
        name=name,
        head=head,
        method=None if head == "frozen" else name,
        seed=seed,
        validation=validation,
        test=evaluate(scores, truth, None, names=list("abcd"), split="test"),
        macro_F1=0.5,
        by_embedding={"jaccard_at_10": 0.2, "mAP": 0.1},
        by_probabilities={"jaccard_at_10": 0.3, "mAP": None},
        learning_rate=None if head == "frozen" else 1e-3,
        weight_decay=None if head == "frozen" else 1e-4,
        trials=1,
        images_seen=1000,
        seconds=10.0 + seed,
        parameters=5,
        gmac=1.0,
        training_speed=None,
        prediction_speed=2.0,
        peak_memory=None,
        fidelity="standard",
        reference="",
        fingerprint=FINGERPRINT,
        predictions=place.name,
        folder=folder,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """A good method with two heads, one that is as the probe, one that is worse; two seeds of each."""
    folder = tmp_path_factory.mktemp("results")
    found = []
    for seed in (0, 1):
        found += [
            result(folder, "frozen probe", "frozen", noise=1.5, seed=seed),
            result(folder, "good", "own head", noise=0.5, seed=seed, validation=0.8),
            result(folder, "good", "re-probed", noise=0.6, seed=seed, validation=0.7),
            result(folder, "same", "re-probed", noise=1.5, seed=seed, validation=0.6),
            result(folder, "bad", "own head", noise=4.0, seed=seed, validation=0.3),
        ]
    return found


@pytest.fixture(scope="module")
def rows(results: list[Result]) -> dict[str, Row]:
    return {row.title: row for row in rows_of(results, None)}


def of(results: Sequence[Result], name: str, head: str) -> list[float]:
    return [r.test["mAP"] for r in results if r.title == (name, head)]


def test_a_row_has_the_mean_over_seeds_and_their_spread(rows: dict[str, Row], results: list[Result]) -> None:
    scores = of(results, "good", "own head")
    row = rows["good, own head"]
    assert row.mAP == pytest.approx(fmean(scores))
    assert row.over_seeds == pytest.approx(stdev(scores))
    assert row.seeds == 2
    assert row.seconds == 10.5
    assert row.CF1 is not None
    assert row.probability_mAP is None


def test_the_better_head_on_validation_stands_for_its_method(rows: dict[str, Row]) -> None:
    assert {title for title, row in rows.items() if row.best_head} == {
        "good, own head",
        "same, re-probed",
        "bad, own head",
    }


def test_a_clear_gain_is_told_from_none_and_from_a_loss(rows: dict[str, Row]) -> None:
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


def test_differences_are_to_the_best_on_validation(rows: dict[str, Row]) -> None:
    assert rows["good, own head"].behind is None
    assert rows["frozen probe"].behind is None
    bad = rows["bad, own head"]
    assert bad.behind == pytest.approx(rows["good, own head"].mAP - bad.mAP)
    assert bad.behind_p is not None
    assert bad.behind_p < 0.05
    assert rows["good, re-probed"].behind_p is None  # it does not stand for its method


def test_p_values_are_corrected_over_methods_not_over_rows(results: list[Result]) -> None:
    frozen_and_one = [r for r in results if r.name in ("frozen probe", "good")]
    (alone,) = [r.gain_p for r in rows_of(frozen_and_one, None) if r.gain_p is not None]
    together = {r.title: r.gain_p for r in rows_of(results, None) if r.gain_p is not None}
    assert len(together) == 3
    assert together["good, own head"] == pytest.approx(holm([alone, alone, alone])[0])


def test_intervals_are_around_the_score_and_wider_where_images_belong_together(results: list[Result]) -> None:
    by_image = {r.title: r for r in rows_of(results, None)}
    groups = [str(i // 30) for i in range(IMAGES)]
    by_group = {r.title: r for r in rows_of(results, groups)}
    for row in by_image.values():
        assert row.interval is not None
        assert row.interval[0] < row.mAP < row.interval[1]
    assert by_group["good, own head"].interval != by_image["good, own head"].interval


def test_a_row_without_its_predictions_has_no_interval_and_no_p(results: list[Result], tmp_path: Path) -> None:
    lost = [r if r.name != "same" else Result(**{**vars(r), "folder": tmp_path}) for r in results]
    rows = {r.title: r for r in rows_of(lost, None)}
    assert rows["same, re-probed"].interval is None
    assert rows["same, re-probed"].gain_p is None
    assert rows["same, re-probed"].gain is not None
    assert rows["good, own head"].gain_p is not None


def copied(result: Result, name: str, **other: Any) -> Result:
    """The same predictions under another name."""
    return Result(**{**vars(result), "name": name, "method": name, "head": "own head", **other})


def test_a_difference_is_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    frozen = [result(tmp_path, "frozen probe", "frozen", noise=1.5 - 0.5 * seed, seed=seed) for seed in (0, 1, 2)]
    best = [result(tmp_path, "best", "own head", noise=0.2, seed=seed, validation=0.9) for seed in (0, 2)]
    # The copy of the probe has lost the seed that was worst, so that its mean is higher.
    twin = [copied(r, "twin") for r in (frozen[2], frozen[1])]
    rows = {r.title: r for r in rows_of([*frozen, *twin, *best], None)}
    row = rows["twin, own head"]
    assert row.mAP == pytest.approx(fmean(r.test["mAP"] for r in twin)) != rows["frozen probe"].mAP
    assert (row.seeds, row.gain, row.gain_interval, row.gain_p) == (2, 0.0, (0.0, 0.0), 1.0)
    assert row.behind == pytest.approx(best[1].test["mAP"] - frozen[2].test["mAP"])
    assert rows["best, own head"].gain == pytest.approx(
        fmean(r.test["mAP"] for r in best) - fmean(frozen[seed].test["mAP"] for seed in (0, 2))
    )


def test_rows_that_share_no_seed_have_no_difference(results: list[Result]) -> None:
    elsewhere = [copied(r, "elsewhere", seed=r.seed + 5) for r in results if r.title == ("same", "re-probed")]
    rows = {r.title: r for r in rows_of([*results, *elsewhere], None)}
    row, same = rows["elsewhere, own head"], rows["same, re-probed"]
    assert (row.mAP, row.interval, row.seeds) == (same.mAP, same.interval, 2)
    assert {row.gain, row.gain_interval, row.gain_p, row.behind, row.behind_interval, row.behind_p} == {None}
    assert len([r for r in rows.values() if r.gain_p is not None]) == 3


def test_the_predictions_of_a_seed_that_is_not_shared_are_not_needed(results: list[Result], tmp_path: Path) -> None:
    (one,) = (r for r in results if r.title == ("good", "own head") and r.seed == 0)
    lost = [r if r.head != "frozen" or r.seed == 0 else Result(**{**vars(r), "folder": tmp_path}) for r in results]
    rows = {r.title: r for r in rows_of([*lost, copied(one, "one")], None)}
    assert rows["frozen probe"].interval is None
    assert rows["good, own head"].gain_interval is None
    assert rows["one, own head"].gain_interval is not None


def test_resamples_that_cannot_be_scored_give_no_interval_and_no_p(results: list[Result], tmp_path: Path) -> None:
    nothing = np.zeros((IMAGES, CLASSES))
    np.savez(tmp_path / "unknown.npz", scores=nothing, labels=nothing, known=nothing.astype(bool))
    unknown = {"folder": tmp_path, "predictions": "unknown.npz"}
    rows = rows_of([Result(**{**vars(r), **unknown}) if r.name == "good" else r for r in results], None)
    row = next(r for r in rows if r.title == "good, own head")
    assert {row.interval, row.gain_interval, row.gain_p} == {None}
    assert row.gain is not None
    assert "nan" not in to_svg(made_comparison(*rows))


def test_the_draws_are_enough_for_a_small_p_among_many_methods() -> None:
    assert holm([2 / (DRAWS + 1)] * 50)[0] < 0.05


def test_results_are_the_same_after_writing_and_reading(results: list[Result], tmp_path: Path) -> None:
    write_results(tmp_path / "results.jsonl", results)
    again = read_results(tmp_path / "results.jsonl")
    assert [vars(r) | {"folder": None} for r in again] == [vars(r) | {"folder": None} for r in results]
    assert again[0].folder == tmp_path


def test_results_from_before_there_were_notes_are_read_and_have_none(results: list[Result], tmp_path: Path) -> None:
    write_results(tmp_path / "results.jsonl", [replace(results[0], note="mind this"), *results[1:]])
    assert [r.note for r in read_results(tmp_path)[:2]] == ["mind this", ""]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    old = "".join(json.dumps({key: value for key, value in line.items() if key != "note"}) + "\n" for line in lines)
    (tmp_path / "old.jsonl").write_text(old)
    assert {r.note for r in read_results(tmp_path / "old.jsonl")} == {""}


def test_a_row_has_the_note_of_its_results(results: list[Result]) -> None:
    noted = [replace(r, note="mind this") if r.title == ("good", "own head") else r for r in results]
    assert {row.title: row.note for row in rows_of(noted, None) if row.note} == {"good, own head": "mind this"}


def test_rows_of_another_protocol_are_refused_by_what_differs(results: list[Result]) -> None:
    other = Result(**{**vars(results[1]), "fingerprint": FINGERPRINT | {"budget": "x", "split": "y", "all": "z"}})
    with pytest.raises(ValueError, match=r"--add there.jsonl: its split and budget differ"):
        merged(results, [other], Path("there.jsonl"))


def test_rows_of_the_same_protocol_join_and_ours_stay(results: list[Result]) -> None:
    new = Result(**{**vars(results[1]), "name": "new"})
    same = Result(**{**vars(results[1]), "validation": 0.0})
    found = merged(results, [new, same], Path("there.jsonl"))
    assert [r.name for r in found] == [r.name for r in results] + ["new"]


def test_a_line_that_is_no_result_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"name": "bce"}\n')
    with pytest.raises(ValueError, match=r"results.jsonl: line 1: .*give the results.jsonl of a comparison"):
        read_results(tmp_path / "results.jsonl")
    with pytest.raises(ValueError, match="cannot be read"):
        read_results(tmp_path / "nowhere.jsonl")
