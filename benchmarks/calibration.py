"""Measure calibration, thresholds and guarantees on the stored scores of a run.

The held-out scores of a run (val and test together) are divided at random into as many images as val has, which fit
the calibration, and the rest, which test it. Every candidate whose scores are stored is measured: those of a
comparison (`comparison/seed-0`), or the kept model and the frozen probe of `probmcl train`. The tables are Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from sklearn.calibration import _SigmoidCalibration
from sklearn.metrics import precision_recall_curve

from probmcl.calibration import Calibration, ThresholdRule, choose_thresholds, fit_calibration
from probmcl.calibration.maps import logits
from probmcl.evaluation import average_precision, decisions_at, interval, multilabel_metrics, resamples
from probmcl.evaluation.reliability import reliability
from probmcl.evaluation.scores import ScoredRows, read_scores, scores_file

MIN_TEST_POSITIVES = 30


@dataclass(frozen=True, eq=False)
class Division:
    """Held-out scores of a candidate, divided into a part for fitting and a part for testing."""

    fit: ScoredRows
    test: ScoredRows
    names: tuple[str, ...]
    base_rate: ndarray  # prevalence of each class in the training split

    @cached_property
    def calibrated(self) -> tuple[Calibration, ndarray, ndarray]:
        """The calibration, and the probabilities of both parts."""
        parents = np.full(len(self.names), -1)  # no class has a parent
        fitted = fit_calibration(self.fit, self.names, parents=parents)
        fit, test = (fitted.probabilities(part.scores, parents) for part in (self.fit, self.test))
        return fitted, fit, test


def divisions(run: Path, candidate: Path, count: int, images: int | None) -> Iterator[Division]:
    """Yield random divisions of a candidate's held-out scores, with `images` or as many as val for fitting."""
    val, test = (read_scores(scores_file(candidate, split)).rows for split in ("val", "test"))
    pairs = ((getattr(val, key), getattr(test, key)) for key in ("scores", "labels", "known"))
    scores, positive, known = (np.concatenate(pair) for pair in pairs)
    rows = ScoredRows(scores, positive, known)
    labels = json.loads((run / "labels.json").read_text(encoding="utf-8"))
    train = sum(line.endswith(",train") for line in (run / "split.csv").read_text(encoding="utf-8").splitlines())
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(len(rows))
        fit, tested = (rows.take(np.sort(part)) for part in np.split(order, [images or len(val)]))
        yield Division(fit, tested, tuple(labels["names"]), np.array(labels["counts"]) / train)


def platt(division: Division) -> ndarray:
    """Return the test probabilities of scikit-learn's Platt scaling, fitted to each class."""
    columns = []
    for c in range(len(division.names)):
        known, y = division.fit.known[:, c], division.fit.labels[:, c]
        z = logits(division.fit.scores[:, c])
        fitted = _SigmoidCalibration().fit(z[known], y[known])
        columns.append(fitted.predict(logits(division.test.scores[:, c])))
    return np.stack(columns, axis=1)


def log_loss(p: ndarray, rows: ScoredRows) -> float:
    """Return the mean log loss over all known entries."""
    measures = reliability(p, rows.labels, rows.known)
    return float(np.nansum(measures.log_loss * measures.known) / measures.known.sum())


def probability_row(division: Division) -> dict[str, float]:
    """Measure the probabilities on the test part, before and after calibration."""
    calibration, _, p = division.calibrated
    test, raw = division.test, reliability(division.test.scores, division.test.labels, division.test.known)
    after = reliability(p, test.labels, test.known)
    base = np.broadcast_to(np.clip(division.base_rate, 1e-6, 1), p.shape)
    base_brier = reliability(base, test.labels, test.known).brier
    positives = ((test.labels == 1) & test.known).sum(0)
    frequent = positives >= MIN_TEST_POSITIVES
    before_ap, after_ap = (average_precision(s, test.labels, test.known).numpy() for s in (test.scores, p))
    return {
        "log loss, raw": log_loss(test.scores, test),
        "calibrated": log_loss(p, test),
        "ratio to Platt": log_loss(p, test) / log_loss(platt(division), test),
        "base rate": log_loss(base, test),
        "error, raw": float(np.nanmean(raw.calibration_error)),
        "error": float(np.nanmean(after.calibration_error)),
        "Brier, raw": float(np.nansum(raw.brier)),
        "Brier": float(np.nansum(after.brier)),
        "Brier, base rate": float(np.nansum(base_brier)),
        "classes below base rate": float((after.brier < base_brier)[frequent].mean()),
        "largest change of AP": float(np.nanmax(np.abs(after_ap - before_ap))),
        "labels assigned / true": float(((p > calibration.threshold) & test.known).sum() / positives.sum()),
    }


def counted_f1_thresholds(rows: ScoredRows) -> ndarray:
    """Return the thresholds with the highest F1 as counted on labeled images."""
    thresholds = []
    for c in range(rows.scores.shape[1]):
        known, y = rows.known[:, c], rows.labels[:, c]
        if not y[known].any():
            thresholds.append(0.5)
            continue
        precision, recall, values = precision_recall_curve(y[known], rows.scores[known, c])
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        thresholds.append(np.nextafter(values[f1[:-1].argmax()], 0))
    return np.array(thresholds)


def threshold_row(division: Division, draws: int) -> dict[str, Any]:
    """Measure macro F1 and the number of assigned labels for several thresholds."""
    _, fit_p, p = division.calibrated
    test, fit = division.test, division.fit
    chosen = {
        rule: choose_thresholds(ThresholdRule.parse(rule), fit_p, fit.labels, fit.known).values
        for rule in ("0.5", "balanced", "f1")
    }
    variants = {"raw 0.5": (test.scores, np.full(len(division.names), 0.5))}
    variants |= {f"calibrated {rule}" if rule == "0.5" else rule: (p, values) for rule, values in chosen.items()}
    variants["F1 counted"] = (test.scores, counted_f1_thresholds(fit))
    result: dict[str, Any] = {}
    for name, (scores, thresholds) in variants.items():
        decisions = decisions_at(scores, test.labels, test.known, thresholds)
        result[name] = (decisions.labels_predicted / decisions.labels_true, decisions.macro_f1)
    if draws:
        weights = resamples(len(test), None, draws=draws)
        samples = [_macro_f1(*variants[name], test, weights) for name in ("balanced", "raw 0.5")]
        result["interval"] = interval(samples[0] - samples[1])
    return result


def _macro_f1(scores: ndarray, thresholds: ndarray, rows: ScoredRows, weights: ndarray) -> ndarray:
    decided, positive = (scores > thresholds) & rows.known, (rows.labels == 1) & rows.known
    masks = (decided & positive, decided, positive)
    hits, predicted, positives = (weights.astype(np.float32) @ mask.astype(np.float32) for mask in masks)
    f1 = 2 * hits / np.maximum(predicted + positives, 1)
    mean: ndarray = np.nanmean(np.where(positives > 0, f1, np.nan), axis=1)
    return mean


def guarantee(division: Division, rule: str) -> tuple[list[float], list[float], list[float]]:
    """Return test precision and recall of the promised classes, and their number."""
    _, fit_p, p = division.calibrated
    chosen = choose_thresholds(ThresholdRule.parse(rule), fit_p, division.fit.labels, division.fit.known)
    assert chosen.promised is not None
    decided = (p > chosen.values) & division.test.known
    positive = (division.test.labels == 1) & division.test.known
    tested = chosen.promised & positive.any(0) & decided.any(0)
    hits = (decided & positive).sum(0)[tested]
    precision, recall = hits / decided.sum(0)[tested], hits / positive.sum(0)[tested]
    return precision.tolist(), recall.tolist(), [float(chosen.promised.sum())]


def speed(images: int, classes: int) -> str:
    """Compare the time to fit with that of `multilabel_metrics` on the same matrix."""
    rng = np.random.default_rng(0)
    z = rng.normal(-2, 2, size=(images, classes))
    labels = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(np.float32)
    scores = (1 / (1 + np.exp(-z / 2 - 1))).astype(np.float32)
    rows, names = ScoredRows(scores, labels, np.ones(labels.shape, dtype=bool)), [str(c) for c in range(classes)]
    seconds = []
    for work in (
        lambda: multilabel_metrics(scores, labels),
        lambda: fit_calibration(rows, names, parents=np.full(classes, -1)),
    ):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    ratio = seconds[1] / seconds[0]
    return f"{images:,} × {classes:,}: fit {seconds[1]:.1f} s, multilabel_metrics {seconds[0]:.2f} s, ratio {ratio:.0f}"


def report(run: Path, count: int, draws: int, images: int | None) -> Iterator[str]:
    """Yield Markdown tables for all candidates of a run; numbers are means over the divisions."""
    candidates = {"frozen": run / "frozen"} | {path.name: path for path in sorted(run.glob("candidates/*"))}
    stored = {name: path for name, path in candidates.items() if scores_file(path, "test").is_file()}
    everything = {name: list(divisions(run, path, count, images)) for name, path in stored.items()}
    rows = {name: [probability_row(division) for division in parts] for name, parts in everything.items()}
    headers = list(next(iter(rows.values()))[0])
    yield f"\n## {run.name}: probabilities\n\n| candidate | {' | '.join(headers)} |\n|---|{'---|' * len(headers)}"
    for name, measured in rows.items():
        yield f"| {name} | {' | '.join(f'{np.mean([part[key] for part in measured]):.4g}' for key in headers)} |"
    yield f"\n## {run.name}: labels assigned / true, macro F1\n"
    for number, (name, parts) in enumerate(everything.items()):
        found = [threshold_row(division, draws if not index else 0) for index, division in enumerate(parts)]
        keys = [key for key in found[0] if key != "interval"]
        if not number:
            yield f"| candidate | {' | '.join(keys)} | balanced − raw 0.5 |\n|---|{'---|' * (len(keys) + 1)}"
        means = {key: np.mean([part[key] for part in found], axis=0) for key in keys}
        cells = [f"×{ratio:.2f}, {100 * f1:.1f}" for ratio, f1 in means.values()]
        gain = 100 * (means["balanced"][1] - means["raw 0.5"][1])
        low, high = (100 * end for end in found[0]["interval"])
        yield f"| {name} | {' | '.join(cells)} | {gain:+.1f} [{low:+.1f}, {high:+.1f}] |"
    yield f"\n## {run.name}: guarantees, {count} divisions\n"
    yield f"| candidate | rule | classes promised | precision | recall | pairs that keep it |\n|---{'|---' * 5}|"
    for name, parts in everything.items():
        for rule in ("recall:0.9", "precision:0.8"):
            kind, _, value = rule.partition(":")
            outcomes = [guarantee(division, rule) for division in parts]
            precision, recall, promised = (np.concatenate(part) for part in zip(*outcomes, strict=True))
            kept = np.mean((recall if kind == "recall" else precision) >= float(value))
            numbers = f"{promised.mean():.1f} of {len(parts[0].names)} | {precision.mean():.3f} | {recall.mean():.3f}"
            yield f"| {name} | {rule} | {numbers} | {100 * kept:.0f} % |"


def main() -> None:
    """Print the tables of every run, then the speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", help="run folders with predictions/ of val and test")
    parser.add_argument("--divisions", type=int, default=20, help="random divisions of the held-out scores")
    parser.add_argument("--images", type=int, help="images to fit the calibration to (default: as many as in val)")
    parser.add_argument("--draws", type=int, default=1000, help="bootstrap resamples of the test part")
    parser.add_argument("--speed", type=int, nargs=2, default=(40_000, 80), help="images and classes for the speed")
    args = parser.parse_args()
    for run in args.runs:
        for line in report(run, args.divisions, args.draws, args.images):
            print(line, flush=True)
    print(f"\n{speed(*args.speed)}")


if __name__ == "__main__":
    main()
