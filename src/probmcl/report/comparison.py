"""The files and the printed summary of a comparison, and its verdict: plain sentences, no stronger than the numbers."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from probmcl.console import Console
from probmcl.errors import RunWarning
from probmcl.experiments.results import Comparison, Row
from probmcl.files import write_text
from probmcl.report import comparison_plot, comparison_tables
from probmcl.report.comparison_tables import gain_and_interval, mean_and_interval
from probmcl.tables import duration, percent, points, probability, to_rich

CHANCE = 0.05  # an adjusted p-value below this counts as a difference
CLEARLY_LESS = 0.75  # a method costs clearly less than another if it takes at most this share of its time
FEW_IMAGES, FEW_GROUPS = 500, 30  # with fewer test images, or groups of them, an interval is itself uncertain
WIDE = 0.03  # an interval this wide is uncertain; the probe is enough only if every gain this large is ruled out


def write_comparison(comparison: Comparison, folder: Path, warnings: Sequence[RunWarning]) -> None:
    """Write the tables, the references, the plot and the verdict of a comparison."""
    outputs: dict[str, Callable[[Comparison], str]] = {
        "comparison.csv": comparison_tables.to_csv,
        "comparison.md": comparison_tables.to_markdown,
        "comparison.tex": comparison_tables.to_latex,
        "methods.bib": comparison_tables.to_bibtex,
        "plot.svg": comparison_plot.to_svg,
        "verdict.txt": lambda result: "\n".join([verdict(result), *_alarms(warnings)]) + "\n",
    }
    for name, make in outputs.items():
        write_text(folder / name, make(comparison))


def print_comparison(comparison: Comparison, folder: Path, warnings: Sequence[RunWarning], console: Console) -> None:
    """Print the tables and the verdict of a comparison."""
    for table in comparison_tables.comparison_tables(comparison).values():
        console.rich.print(to_rich(table), "")
    for line in (verdict(comparison), *_alarms(warnings)):
        console.print(line)
    console.print(f"tables, plot, references and every prediction are in {folder}")


def _alarms(warnings: Sequence[RunWarning]) -> list[str]:
    return [f"warning: {warning.message}" for warning in warnings]


def verdict(comparison: Comparison) -> str:
    """Return whether any method beats the linear probe, which one to take, and what is uncertain.

    A method is chosen by its validation scores; test scores only show how certain the choice is.
    """
    methods = comparison.methods
    if not methods:
        lines = [f"There is nothing to choose from: no method was trained. The linear probe has {_probe(comparison)}."]
    elif all(row.gain_p is None for row in methods):
        lines = [f"Whether any method is better than the linear probe ({_probe(comparison)}) is open: no p-values."]
    elif not any(map(_is_better, methods)):
        lines = list(_none_is_better(comparison))
    elif _is_better(methods[0]):
        lines = list(_best_is_better(comparison))
    else:
        lines = list(_best_is_unclear(comparison))
    lines += _against_the_probe(methods)
    for note in dict.fromkeys(row.note for row in methods if row.note):
        lines.append(f"Note on {_all([row for row in methods if row.note == note])}: {note}.")
    if doubts := list(_doubts(comparison)):
        lines.append(f"Uncertain: {' '.join(doubts)}")
    if comparison.left_out:
        lines.append(f"Left out: {' '.join(comparison.left_out)}")
    return "\n".join(lines)


def _probe(comparison: Comparison) -> str:
    return f"mAP {mean_and_interval(comparison.frozen)} on these {comparison.test_images:,} test images"


def _is_better(row: Row) -> bool:
    return (row.gain or 0) > 0 and row.gain_p is not None and row.gain_p < CHANCE


def _is_level_with_best(row: Row) -> bool:
    return row.behind_p is not None and row.behind_p >= CHANCE


def _gain(row: Row, methods: Sequence[Row]) -> str:
    if row.gain is None:
        return "an unknown number of points (no seed in common with the probe)"
    judged_too = sum(other.gain_p is not None for other in methods)
    corrected = f", corrected for {judged_too} methods" if judged_too > 1 else ""
    judged = "no p-value" if row.gain_p is None else f"p {probability(row.gain_p)}{corrected}"
    return f"{gain_and_interval(row)} points ({judged})"


def _called(row: Row) -> str:
    return f"{row.name} ({row.head})"


def _all(rows: Sequence[Row], what: Callable[[Row], str] = lambda row: "") -> str:
    return "; ".join(_called(row) + what(row) for row in rows)


def _none_is_better(comparison: Comparison) -> Iterator[str]:
    methods, reasons = comparison.methods, []
    widest = max(methods, key=_most)
    if _most(widest) >= WIDE:
        reasons.append(f"a gain of up to {percent(_most(widest))} points is not ruled out for {_called(widest)}")
    if unknown := [row for row in methods if row.gain_interval is None]:
        reasons.append(f"there is no interval of the gain of {_all(unknown)}")
    if reasons:
        yield (
            f"This comparison cannot tell whether any method is better than the linear probe ({_probe(comparison)}): "
            f"none is shown to be, but {', and '.join(reasons)}."
        )
    else:
        yield (
            "The linear probe is enough: no method is better by more than chance than a linear probe on the untouched "
            f"encoder, which has {_probe(comparison)}, and a gain of {percent(WIDE)} points is ruled out for each."
        )
    best, largest = methods[0], max(methods, key=lambda row: -math.inf if row.gain is None else row.gain)
    yield f"The best on validation, {_called(best)}, gains {_gain(best, methods)}{_not_ruled_out(best)}."
    if largest is not best and largest.gain is not None and largest.gain > 0:
        yield f"The largest gain on test has {_called(largest)}: {_gain(largest, methods)}{_not_ruled_out(largest)}."
    if _most(widest) >= WIDE:
        yield "More test images would make the intervals narrower, and more seeds the means steadier."


def _most(row: Row) -> float:
    """Return the largest gain that is not ruled out."""
    return -math.inf if row.gain_interval is None else row.gain_interval[1]


def _not_ruled_out(row: Row) -> str:
    return f"; a gain of up to {percent(_most(row))} points is not ruled out" if _most(row) > 0 else ""


def _best_is_better(comparison: Comparison) -> Iterator[str]:
    methods, frozen = comparison.methods, comparison.frozen
    best, others = methods[0], methods[1:]
    alone = "the only method with results" if comparison.left_out else "the only method"
    among = f"the best of {len(methods)} methods on validation" if others else alone
    yield (
        f"{_called(best)}, {among}, is better than the linear probe on these {comparison.test_images:,} test images: "
        f"mAP {mean_and_interval(best)} instead of {mean_and_interval(frozen)}, a gain of {_gain(best, methods)}."
    )
    yield from _against_the_best(others)
    yield _recommended(best, others)


def _against_the_best(others: Sequence[Row]) -> Iterator[str]:
    level = [row for row in others if _is_level_with_best(row)]
    missing = [row for row in others if row.behind_p is None]
    ahead = [row for row in others if row not in level + missing and (row.behind or 0) < 0]
    if level:
        yield f"Cannot be told apart from it on these images: {_all(level)}."
    elif others and not missing and not ahead:
        yield "Every other method is behind it there by more than chance."
    if ahead:
        yield (
            f"Ahead of it on test by more than chance: {_all(ahead)}. Validation did not show that, and who chooses "
            "by test has no test left."
        )
    if missing:
        yield f"Not compared with it, for want of a p-value: {_all(missing)}."


def _recommended(best: Row, others: Sequence[Row]) -> str:
    as_good = [row for row in others if _is_level_with_best(row) and _is_better(row)]
    cheapest = min(as_good, key=lambda row: row.seconds, default=best)
    if cheapest is best or cheapest.seconds > CLEARLY_LESS * best.seconds:
        return f"Recommended: {_called(best)} ({duration(best.seconds)} of training)."
    risk = cheapest.behind_interval and cheapest.behind_interval[1]
    return (
        f"Recommended: {_called(cheapest)}, the cheapest of these that is better than the probe too: "
        f"{duration(cheapest.seconds)} of training instead of {duration(best.seconds)}"
        + (f"; it may be up to {percent(risk)} points behind." if risk and risk > 0 else ".")
    )


def _best_is_unclear(comparison: Comparison) -> Iterator[str]:
    methods = comparison.methods
    better = _all([row for row in methods if _is_better(row)], lambda row: f", {_gain(row, methods)}")
    yield f"Better than the linear probe ({_probe(comparison)}): {better}."
    yield (
        f"But the best on validation is {_called(methods[0])}, with a gain of {_gain(methods[0], methods)}. So this "
        "comparison does not settle which to take; more seeds or more images may."
    )


def _against_the_probe(methods: Sequence[Row]) -> Iterator[str]:
    if all(row.gain_p is None for row in methods):
        return
    worse = [row for row in methods if (row.gain or 0) < 0 and row.gain_p is not None and row.gain_p < CHANCE]
    missing = [row for row in methods if row.gain_p is None]
    unclear = [row for row in methods if row not in worse + missing and not _is_better(row)]
    if worse:
        yield f"Worse than the linear probe: {_all(worse, lambda row: f', {gain_and_interval(row)} points')}."
    if unclear and any(map(_is_better, methods)):
        yield f"Neither better nor worse than the probe by more than chance: {_all(unclear)}."
    if missing:
        yield f"Not compared with the probe, for want of a p-value: {_all(missing)}."


def _doubts(comparison: Comparison) -> Iterator[str]:
    if comparison.seeds == 1:
        yield "One seed, so how much another training would differ is not known."
    if comparison.trials == 1:
        yield "The methods are untuned: each had one learning rate and weight decay, and others may change the order."
    if comparison.test_images < FEW_IMAGES:
        yield f"Only {comparison.test_images:,} test images."
    if comparison.groups is not None and comparison.groups < FEW_GROUPS:
        yield f"Only {comparison.groups:,} groups of test images."
    if not comparison.methods:
        return
    best, frozen = comparison.methods[0], comparison.frozen
    low, high = best.gain_interval or (0.0, 0.0)
    if high - low >= WIDE:
        yield f"The interval of {_called(best)}'s gain is {percent(high - low)} points wide."
    if best.gain is not None and best.over_seeds is not None and best.over_seeds >= abs(best.gain):
        yield f"Over seeds {_called(best)} varies by ± {percent(best.over_seeds)} points, no less than its gain."
    if _is_better(best) and best.validation <= frozen.validation:
        lead = points(best.validation - frozen.validation)
        yield f"On validation it is not ahead of the probe ({lead} points): the two splits disagree."
    if fewer := [row for row in comparison.methods if row.seeds < comparison.seeds]:
        yield f"Fewer than {comparison.seeds:,} seeds: {_all(fewer, lambda row: f', {row.seeds:,}')}."
    if any(map(_is_corrected_away, comparison.methods)):
        yield "Where an interval leaves out 0 and p is not small: only p is corrected for the number of methods."
    if partly := [row for row in comparison.methods if row.fidelity.startswith("partly reconstructed")]:
        yield f"Partly reconstructed, and so no judgment of what their authors had: {_all(partly)}."


def _is_corrected_away(row: Row) -> bool:
    """Return whether the interval excludes zero, but the p-value, corrected for the other methods, is not small."""
    low, high = row.gain_interval or (0, 0)
    return (low > 0 or high < 0) and row.gain_p is not None and row.gain_p >= CHANCE
