"""Output of a comparison: its files, the printed tables, and a verdict that claims no more than the statistics show."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from probmcl.console import Console
from probmcl.errors import RunWarning, counted
from probmcl.experiments.results import Comparison, Row
from probmcl.report import comparison_plot, comparison_tables
from probmcl.report.comparison_tables import gain_and_interval, mean_and_interval
from probmcl.runtime.files import write_text
from probmcl.store import files
from probmcl.store.files import File
from probmcl.tables import duration, percent, points, probability, to_rich

SIGNIFICANCE = 0.05  # for p-values that are corrected for the number of methods
MAX_TIME_RATIO = 0.75  # a cheaper method is recommended if it trains in at most this fraction of the best method's time
MIN_IMAGES, MIN_GROUPS = 500, 30  # with fewer test images, or groups of them, the intervals are unreliable
RELEVANT_GAIN = 0.03  # the probe is enough only if gains this large are ruled out; wider intervals are a limitation


def write_comparison(comparison: Comparison, folder: Path, warnings: Sequence[RunWarning]) -> None:
    """Write the tables, the references, the plot and the verdict of a comparison."""
    outputs: dict[File, Callable[[Comparison], str]] = {
        files.COMPARISON_TABLE: comparison_tables.comparison_csv,
        files.COMPARISON_TEXT: comparison_tables.comparison_markdown,
        files.COMPARISON_LATEX: comparison_tables.comparison_latex,
        files.REFERENCES: comparison_tables.comparison_bibtex,
        files.PLOT: comparison_plot.to_svg,
    }
    for file, render in outputs.items():
        write_text(folder / file, render(comparison))
    lines = [comparison_verdict(comparison), *_warning_lines(warnings)]
    write_text(folder / files.VERDICT, "\n".join(lines) + "\n")


def print_comparison(comparison: Comparison, folder: Path, warnings: Sequence[RunWarning], console: Console) -> None:
    """Print the tables and the verdict of a comparison."""
    for table in comparison_tables.comparison_tables(comparison).values():
        console.rich.print(to_rich(table), "")
    for line in (comparison_verdict(comparison), *_warning_lines(warnings)):
        console.print(line)
    console.print(f"tables, plot, references and predictions are in {folder}")


def _warning_lines(warnings: Sequence[RunWarning]) -> list[str]:
    return [f"warning: {warning.message}" for warning in warnings]


def comparison_verdict(comparison: Comparison) -> str:
    """Report whether any method beats the linear probe, which one to use, and the limitations of the comparison.

    Methods are chosen by their validation scores. Test scores only show how certain that choice is.
    """
    methods = comparison.methods
    if not methods:
        lines = [f"There is nothing to compare: no method was trained. The linear probe has {_probe(comparison)}."]
    elif all(row.gain_p is None for row in methods):
        lines = [f"Without p-values, no method can be compared with the linear probe ({_probe(comparison)})."]
    elif not any(map(_is_better, methods)):
        lines = list(_none_is_better(comparison))
    elif _is_better(methods[0]):
        lines = list(_best_is_better(comparison))
    else:
        lines = list(_best_is_unclear(comparison))
    lines += _against_the_probe(methods)
    lines += _notes(methods)
    limitations = list(_limitations(comparison))
    if limitations:
        lines.append(f"Limitations: {' '.join(limitations)}")
    if comparison.left_out:
        lines.append(f"Left out: {' '.join(comparison.left_out)}")
    return "\n".join(lines)


def _notes(methods: Sequence[Row]) -> Iterator[str]:
    for note in dict.fromkeys(row.note for row in methods):
        if note:
            noted = [row for row in methods if row.note == note]
            yield f"Note on {_join(noted)}: {note}."


def _probe(comparison: Comparison) -> str:
    return f"{_scores(comparison, comparison.frozen)} on {counted(comparison.test_images, 'test image')}"


def _scores(comparison: Comparison, row: Row) -> str:
    chance = "" if comparison.chance is None else f" (chance {percent(comparison.chance)})"
    return f"mAP {mean_and_interval(row)}{chance}, AUROC {percent(row.macro_auroc)}"


def _is_better(row: Row) -> bool:
    return _is_significant(row) and (row.gain or 0) > 0


def _is_worse(row: Row) -> bool:
    return _is_significant(row) and (row.gain or 0) < 0


def _is_significant(row: Row) -> bool:
    return row.gain_p is not None and row.gain_p < SIGNIFICANCE


def _is_level_with_best(row: Row) -> bool:
    return row.behind_p is not None and row.behind_p >= SIGNIFICANCE


def _gain(row: Row, methods: Sequence[Row]) -> str:
    if row.gain is None:
        return "unknown size (no seed in common with the probe)"
    tests = sum(other.gain_p is not None for other in methods)
    corrected = f", corrected for {tests} methods" if tests > 1 else ""
    p_value = "no p-value" if row.gain_p is None else f"p-value {probability(row.gain_p)}{corrected}"
    return f"{gain_and_interval(row)} points ({p_value})"


def _label(row: Row) -> str:
    return f"{row.name} ({row.head})"


def _join(rows: Sequence[Row], detail: Callable[[Row], str] = lambda row: "") -> str:
    return "; ".join(_label(row) + detail(row) for row in rows)


def _none_is_better(comparison: Comparison) -> Iterator[str]:
    methods = comparison.methods
    widest = max(methods, key=_upper_bound)
    yield _inconclusive_or_enough(comparison, widest)
    best = methods[0]
    yield f"The best method on validation, {_label(best)}, has a gain of {_gain(best, methods)}{_not_ruled_out(best)}."
    largest = max(methods, key=lambda row: -math.inf if row.gain is None else row.gain)
    if largest is not best and largest.gain is not None and largest.gain > 0:
        yield f"Largest gain on test: {_label(largest)}, {_gain(largest, methods)}{_not_ruled_out(largest)}."
    if _upper_bound(widest) >= RELEVANT_GAIN:
        yield "More test images would narrow the intervals, and more seeds would make the means more stable."


def _inconclusive_or_enough(comparison: Comparison, widest: Row) -> str:
    """Return whether the probe is enough, which needs a relevant gain to be ruled out for every method.

    `widest` is the method with the largest gain that is not ruled out.
    """
    reasons = []
    if _upper_bound(widest) >= RELEVANT_GAIN:
        reasons.append(f"a gain of up to {percent(_upper_bound(widest))} points is not ruled out for {_label(widest)}")
    unknown = [row for row in comparison.methods if row.gain_interval is None]
    if unknown:
        reasons.append(f"no confidence interval is available for {_join(unknown)}")
    if reasons:
        return (
            "The comparison is inconclusive: no method is significantly better than the linear probe "
            f"({_probe(comparison)}), but {', and '.join(reasons)}."
        )
    return (
        "The linear probe is enough: no method is significantly better than a linear probe on the frozen encoder "
        f"({_probe(comparison)}), and a gain of {percent(RELEVANT_GAIN)} points is ruled out for every method."
    )


def _upper_bound(row: Row) -> float:
    """Return the largest gain that is not ruled out."""
    return -math.inf if row.gain_interval is None else row.gain_interval[1]


def _not_ruled_out(row: Row) -> str:
    upper_bound = _upper_bound(row)
    return f"; a gain of up to {percent(upper_bound)} points is not ruled out" if upper_bound > 0 else ""


def _best_is_better(comparison: Comparison) -> Iterator[str]:
    methods, frozen = comparison.methods, comparison.frozen
    best, others = methods[0], methods[1:]
    alone = "the only method with results" if comparison.left_out else "the only method"
    among = f"the best of {len(methods)} methods on validation" if others else alone
    yield (
        f"{_label(best)}, {among}, is significantly better than the linear probe on "
        f"{counted(comparison.test_images, 'test image')}: {_scores(comparison, best)}, versus mAP "
        f"{mean_and_interval(frozen)}, AUROC {percent(frozen.macro_auroc)}, a gain of {_gain(best, methods)} in mAP."
    )
    yield from _against_the_best(others)
    yield _recommendation(best, others)


def _against_the_best(others: Sequence[Row]) -> Iterator[str]:
    level = [row for row in others if _is_level_with_best(row)]
    missing = [row for row in others if row.behind_p is None]
    different = [row for row in others if row not in level + missing]
    ahead = [row for row in different if (row.behind or 0) < 0]
    if level:
        yield f"Not significantly different from it on test: {_join(level)}."
    elif others and not missing and not ahead:
        yield "All other methods are significantly worse on test."
    if ahead:
        yield (
            f"Significantly better than it on test: {_join(ahead)}. Validation did not show this, and a method chosen "
            "by its test score needs a new test set."
        )
    if missing:
        yield f"Not compared with it, because there is no p-value: {_join(missing)}."


def _recommendation(best: Row, others: Sequence[Row]) -> str:
    as_good = [row for row in others if _is_level_with_best(row) and _is_better(row)]
    cheapest = min(as_good, key=lambda row: row.seconds, default=best)
    if cheapest is best or cheapest.seconds > MAX_TIME_RATIO * best.seconds:
        return f"Recommended: {_label(best)}, {duration(best.seconds)} of training."
    sentence = (
        f"Recommended: {_label(cheapest)}, the cheapest of these methods that also beats the probe: "
        f"{duration(cheapest.seconds)} of training instead of {duration(best.seconds)}."
    )
    _, risk = cheapest.behind_interval or (0.0, 0.0)
    if risk > 0:
        sentence += f" Its mAP may be up to {percent(risk)} points lower."
    return sentence


def _best_is_unclear(comparison: Comparison) -> Iterator[str]:
    methods = comparison.methods
    better = _join([row for row in methods if _is_better(row)], lambda row: f", {_gain(row, methods)}")
    yield f"Significantly better than the linear probe ({_probe(comparison)}): {better}."
    yield (
        f"However, the best method on validation is {_label(methods[0])}, with a gain of {_gain(methods[0], methods)}. "
        "This comparison does not settle which method to use; more seeds or more images may."
    )


def _against_the_probe(methods: Sequence[Row]) -> Iterator[str]:
    if all(row.gain_p is None for row in methods):
        return
    worse = [row for row in methods if _is_worse(row)]
    missing = [row for row in methods if row.gain_p is None]
    unclear = [row for row in methods if row not in worse + missing and not _is_better(row)]
    if worse:
        losses = _join(worse, lambda row: f", {gain_and_interval(row)} points")
        yield f"Significantly worse than the linear probe: {losses}."
    if unclear and any(map(_is_better, methods)):
        yield f"Not significantly different from the linear probe: {_join(unclear)}."
    if missing:
        yield f"Not compared with the linear probe, because there is no p-value: {_join(missing)}."


def _limitations(comparison: Comparison) -> Iterator[str]:
    yield from _limitations_of_the_protocol(comparison)
    if comparison.methods:
        yield from _limitations_of_the_best(comparison)
        yield from _limitations_of_methods(comparison)


def _limitations_of_the_protocol(comparison: Comparison) -> Iterator[str]:
    if comparison.seeds == 1:
        yield "There is only one seed, so the variation between training runs is unknown."
    if comparison.trials == 1:
        yield "The methods are untuned: each had one learning rate and weight decay, and tuning may change their order."
    if comparison.test_images < MIN_IMAGES:
        yield _only(comparison.test_images, "test image", "test images")
    if comparison.groups is not None and comparison.groups < MIN_GROUPS:
        yield _only(comparison.groups, "group of test images", "groups of test images")


def _limitations_of_the_best(comparison: Comparison) -> Iterator[str]:
    best, frozen = comparison.methods[0], comparison.frozen
    low, high = best.gain_interval or (0.0, 0.0)
    if high - low >= RELEVANT_GAIN:
        yield f"The interval for the gain of {_label(best)} is {percent(high - low)} points wide."
    if best.gain is not None and best.over_seeds is not None and best.over_seeds >= abs(best.gain):
        yield f"Over seeds, {_label(best)} varies by ± {percent(best.over_seeds)} points, at least as much as its gain."
    if _is_better(best) and best.validation <= frozen.validation:
        lead = points(best.validation - frozen.validation)
        yield f"On validation, {_label(best)} is not ahead of the probe ({lead} points)."


def _limitations_of_methods(comparison: Comparison) -> Iterator[str]:
    fewer = [row for row in comparison.methods if row.seeds < comparison.seeds]
    if fewer:
        yield f"Fewer than {comparison.seeds:,} seeds: {_join(fewer, lambda row: f', {row.seeds:,}')}."
    if any(map(_is_corrected_away, comparison.methods)):
        yield "Some intervals exclude 0 although p is not small: only p is corrected for the number of methods."
    partly = [row for row in comparison.methods if row.fidelity.startswith("partly reconstructed")]
    if partly:
        yield f"Partly reconstructed, so results may differ from the original implementation: {_join(partly)}."


def _only(number: int, noun: str, plural: str) -> str:
    return f"There {'is' if number == 1 else 'are'} only {counted(number, noun, plural)}."


def _is_corrected_away(row: Row) -> bool:
    """Return whether the interval excludes zero, but the p-value, corrected for the other methods, is not small."""
    low, high = row.gain_interval or (0, 0)
    return (low > 0 or high < 0) and row.gain_p is not None and row.gain_p >= SIGNIFICANCE
