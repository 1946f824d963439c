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
    verdict = comparison_verdict(comparison)
    lines = [verdict, *_warning_lines(warnings)]
    write_text(folder / files.VERDICT, "\n".join(lines) + "\n")


def print_comparison(comparison: Comparison, folder: Path, warnings: Sequence[RunWarning], console: Console) -> None:
    """Print the tables and the verdict of a comparison."""
    tables = comparison_tables.comparison_tables(comparison)
    for table in tables.values():
        console.rich.print(to_rich(table), "")
    console.print(comparison_verdict(comparison))
    for line in _warning_lines(warnings):
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
        probe = _describe_probe(comparison)
        lines = [f"There is nothing to compare: no method was trained. The linear probe has {probe}."]
    elif all(row.gain_p is None for row in methods):
        probe = _describe_probe(comparison)
        lines = [f"Without p-values, no method can be compared with the linear probe ({probe})."]
    elif not any(map(_is_better, methods)):
        lines = list(_none_is_better(comparison))
    elif _is_better(methods[0]):
        lines = list(_best_is_better(comparison))
    else:
        lines = list(_best_is_unclear(comparison))
    lines.extend(_against_the_probe(methods))
    lines.extend(_notes(methods))
    limitations = list(_limitations(comparison))
    if limitations:
        lines.append(f"Limitations: {' '.join(limitations)}")
    if comparison.left_out:
        lines.append(f"Left out: {' '.join(comparison.left_out)}")
    return "\n".join(lines)


def _notes(methods: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each distinct note, with the methods that have it."""
    noted: dict[str, list[Row]] = {}
    for row in methods:
        if row.note:
            noted.setdefault(row.note, []).append(row)
    for note, rows in noted.items():
        yield f"Note on {_labels(rows)}: {note}."


def _describe_probe(comparison: Comparison) -> str:
    """Return the scores of the frozen probe in words, with the number of test images."""
    scores = _describe_scores(comparison, comparison.frozen)
    return f"{scores} on {counted(comparison.test_images, 'test image')}"


def _describe_scores(comparison: Comparison, row: Row) -> str:
    """Return the mAP of a row with its interval and the level of chance, and the AUROC, in words."""
    chance = ""
    if comparison.chance is not None:
        chance = f" (chance {percent(comparison.chance)})"
    return f"mAP {mean_and_interval(row)}{chance}, AUROC {percent(row.macro_auroc)}"


def _is_better(row: Row) -> bool:
    """Return whether a method is significantly better than the probe on test."""
    return _is_significant(row) and (row.gain or 0) > 0


def _is_worse(row: Row) -> bool:
    """Return whether a method is significantly worse than the probe on test."""
    return _is_significant(row) and (row.gain or 0) < 0


def _is_significant(row: Row) -> bool:
    """Return whether the gain of a method over the probe has a small p-value; a gain without one is not significant."""
    return row.gain_p is not None and row.gain_p < SIGNIFICANCE


def _is_level_with_best(row: Row) -> bool:
    """Return whether the difference of a method from the best one on validation is tested and not significant."""
    return row.behind_p is not None and row.behind_p >= SIGNIFICANCE


def _describe_gain(row: Row, methods: Sequence[Row]) -> str:
    """Return the gain of a method over the probe in words, with its interval and its p-value.

    The p-value is corrected for the number of methods that have one.
    """
    if row.gain is None:
        return "unknown size (no seed in common with the probe)"
    tests = sum(other.gain_p is not None for other in methods)
    correction = ""
    if tests > 1:
        correction = f", corrected for {tests} methods"
    p_value = "no p-value"
    if row.gain_p is not None:
        p_value = f"p-value {probability(row.gain_p)}{correction}"
    return f"{gain_and_interval(row)} points ({p_value})"


def _label(row: Row) -> str:
    return f"{row.name} ({row.head})"


def _labels(rows: Sequence[Row], detail: Callable[[Row], str] = lambda row: "") -> str:
    """Return the names and heads of some rows, each followed by its detail."""
    labels = [_label(row) + detail(row) for row in rows]
    return "; ".join(labels)


def _none_is_better(comparison: Comparison) -> Iterator[str]:
    """Yield the verdict if no method is significantly better than the probe."""
    methods = comparison.methods
    widest = max(methods, key=_upper_bound)
    yield _inconclusive_or_enough(comparison, widest)
    best = methods[0]
    gain_of_best = _describe_gain(best, methods) + _not_ruled_out(best)
    yield f"The best method on validation, {_label(best)}, has a gain of {gain_of_best}."
    largest = max(methods, key=_gain_if_known)
    if largest is not best and _gain_if_known(largest) > 0:
        largest_gain = _describe_gain(largest, methods) + _not_ruled_out(largest)
        yield f"Largest gain on test: {_label(largest)}, {largest_gain}."
    if _upper_bound(widest) >= RELEVANT_GAIN:
        yield "More test images would narrow the intervals, and more seeds would make the means more stable."


def _inconclusive_or_enough(comparison: Comparison, widest: Row) -> str:
    """Return whether the probe is enough, which needs a relevant gain to be ruled out for every method.

    `widest` is the method with the largest gain that is not ruled out.
    """
    probe = _describe_probe(comparison)
    reasons = []
    upper_bound = _upper_bound(widest)
    if upper_bound >= RELEVANT_GAIN:
        reasons.append(f"a gain of up to {percent(upper_bound)} points is not ruled out for {_label(widest)}")
    without_interval = [row for row in comparison.methods if row.gain_interval is None]
    if without_interval:
        reasons.append(f"no confidence interval is available for {_labels(without_interval)}")
    if reasons:
        return (
            "The comparison is inconclusive: no method is significantly better than the linear probe "
            f"({probe}), but {', and '.join(reasons)}."
        )
    return (
        "The linear probe is enough: no method is significantly better than a linear probe on the frozen encoder "
        f"({probe}), and a gain of {percent(RELEVANT_GAIN)} points is ruled out for every method."
    )


def _gain_if_known(row: Row) -> float:
    """Return the gain over the probe; −∞ if it is not known, so that it is never the largest one."""
    return -math.inf if row.gain is None else row.gain


def _upper_bound(row: Row) -> float:
    """Return the largest gain over the probe that is not ruled out; −∞ without a confidence interval."""
    if row.gain_interval is None:
        return -math.inf
    _, high = row.gain_interval
    return high


def _not_ruled_out(row: Row) -> str:
    """Return how large the gain over the probe may be, as the end of a sentence; empty if a gain is ruled out."""
    upper_bound = _upper_bound(row)
    if upper_bound > 0:
        return f"; a gain of up to {percent(upper_bound)} points is not ruled out"
    return ""


def _best_is_better(comparison: Comparison) -> Iterator[str]:
    """Yield the verdict if the best method on validation is significantly better than the probe on test."""
    methods = comparison.methods
    best, *others = methods
    if others:
        rank = f"the best of {len(methods)} methods on validation"
    elif comparison.left_out:
        rank = "the only method with results"
    else:
        rank = "the only method"
    images = counted(comparison.test_images, "test image")
    frozen = comparison.frozen
    yield (
        f"{_label(best)}, {rank}, is significantly better than the linear probe on {images}: "
        f"{_describe_scores(comparison, best)}, versus mAP {mean_and_interval(frozen)}, "
        f"AUROC {percent(frozen.macro_auroc)}, a gain of {_describe_gain(best, methods)} in mAP."
    )
    yield from _against_the_best(others)
    yield _recommendation(best, others)


def _against_the_best(others: Sequence[Row]) -> Iterator[str]:
    """Yield how the other methods compare on test with the best method on validation."""
    level = [row for row in others if _is_level_with_best(row)]
    untested = [row for row in others if row.behind_p is None]
    different = [row for row in others if row.behind_p is not None and not _is_level_with_best(row)]
    ahead = [row for row in different if (row.behind or 0) < 0]
    if level:
        yield f"Not significantly different from it on test: {_labels(level)}."
    elif others and not untested and not ahead:
        yield "All other methods are significantly worse on test."
    if ahead:
        yield (
            f"Significantly better than it on test: {_labels(ahead)}. "
            "Validation did not show this, and a method chosen by its test score needs a new test set."
        )
    if untested:
        yield f"Not compared with it, because there is no p-value: {_labels(untested)}."


def _recommendation(best: Row, others: Sequence[Row]) -> str:
    """Recommend the best method, or a method that is as good on test and takes much less time to train."""
    as_good = [row for row in others if _is_level_with_best(row) and _is_better(row)]
    cheapest = min(as_good, key=lambda row: row.seconds, default=best)
    longest_time = MAX_TIME_RATIO * best.seconds
    if cheapest is best or cheapest.seconds > longest_time:
        return f"Recommended: {_label(best)}, {duration(best.seconds)} of training."
    sentence = (
        f"Recommended: {_label(cheapest)}, the cheapest of these methods that also beats the probe: "
        f"{duration(cheapest.seconds)} of training instead of {duration(best.seconds)}."
    )
    _, largest_loss = cheapest.behind_interval or (0.0, 0.0)
    if largest_loss > 0:
        sentence += f" Its mAP may be up to {percent(largest_loss)} points lower."
    return sentence


def _best_is_unclear(comparison: Comparison) -> Iterator[str]:
    """Yield the verdict if a method is significantly better than the probe, but not the best one on validation."""
    methods = comparison.methods
    better = [row for row in methods if _is_better(row)]
    gains = _labels(better, lambda row: f", {_describe_gain(row, methods)}")
    yield f"Significantly better than the linear probe ({_describe_probe(comparison)}): {gains}."
    best = methods[0]
    yield (
        f"However, the best method on validation is {_label(best)}, with a gain of {_describe_gain(best, methods)}. "
        "This comparison does not settle which method to use; more seeds or more images may."
    )


def _against_the_probe(methods: Sequence[Row]) -> Iterator[str]:
    """Yield the methods that are worse than the probe, that do not differ from it, and that are not tested."""
    if all(row.gain_p is None for row in methods):
        return
    better = [row for row in methods if _is_better(row)]
    worse = [row for row in methods if _is_worse(row)]
    untested = [row for row in methods if row.gain_p is None]
    unclear = [row for row in methods if row not in better + worse + untested]
    if worse:
        losses = _labels(worse, lambda row: f", {gain_and_interval(row)} points")
        yield f"Significantly worse than the linear probe: {losses}."
    if unclear and better:
        yield f"Not significantly different from the linear probe: {_labels(unclear)}."
    if untested:
        yield f"Not compared with the linear probe, because there is no p-value: {_labels(untested)}."


def _limitations(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence for every reason to doubt the comparison."""
    yield from _limitations_of_the_protocol(comparison)
    if comparison.methods:
        yield from _limitations_of_the_best(comparison)
        yield from _limitations_of_methods(comparison)


def _limitations_of_the_protocol(comparison: Comparison) -> Iterator[str]:
    """Yield the limitations due to few seeds, trials, test images or groups."""
    if comparison.seeds == 1:
        yield "There is only one seed, so the variation between training runs is unknown."
    if comparison.trials == 1:
        yield "The methods are untuned: each had one learning rate and weight decay, and tuning may change their order."
    if comparison.test_images < MIN_IMAGES:
        yield _only(comparison.test_images, "test image", "test images")
    if comparison.groups is not None and comparison.groups < MIN_GROUPS:
        yield _only(comparison.groups, "group of test images", "groups of test images")


def _limitations_of_the_best(comparison: Comparison) -> Iterator[str]:
    """Yield the reasons to doubt the gain of the best method on validation."""
    best = comparison.methods[0]
    frozen = comparison.frozen
    if best.gain_interval is not None:
        low, high = best.gain_interval
        width = high - low
        if width >= RELEVANT_GAIN:
            yield f"The interval for the gain of {_label(best)} is {percent(width)} points wide."
    if best.gain is not None and best.over_seeds is not None:
        deviation = best.over_seeds
        if deviation >= abs(best.gain):
            yield f"Over seeds, {_label(best)} varies by ± {percent(deviation)} points, at least as much as its gain."
    lead = best.validation - frozen.validation
    if _is_better(best) and best.validation <= frozen.validation:
        yield f"On validation, {_label(best)} is not ahead of the probe ({points(lead)} points)."


def _limitations_of_methods(comparison: Comparison) -> Iterator[str]:
    """Yield the limitations of individual methods: missing seeds, corrected p-values, and uncertain implementations."""
    methods = comparison.methods
    fewer_seeds = [row for row in methods if row.seeds < comparison.seeds]
    if fewer_seeds:
        seeds = _labels(fewer_seeds, lambda row: f", {row.seeds:,}")
        yield f"Fewer than {comparison.seeds:,} seeds: {seeds}."
    if any(map(_is_corrected_away, methods)):
        yield "Some intervals exclude 0 although p is not small: only p is corrected for the number of methods."
    partly = [row for row in methods if row.fidelity.startswith("partly reconstructed")]
    if partly:
        yield f"Partly reconstructed, so results may differ from the original implementation: {_labels(partly)}."


def _only(number: int, noun: str, plural: str) -> str:
    """Return a sentence such as `There are only 30 test images.` about a number that is too small."""
    verb = "is" if number == 1 else "are"
    return f"There {verb} only {counted(number, noun, plural)}."


def _is_corrected_away(row: Row) -> bool:
    """Return whether the interval excludes zero, but the p-value, corrected for the other methods, is not small."""
    if row.gain_interval is None or row.gain_p is None:
        return False
    low, high = row.gain_interval
    excludes_zero = low > 0 or high < 0
    return excludes_zero and row.gain_p >= SIGNIFICANCE
