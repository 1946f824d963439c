"""Output of `probmcl evaluate`: tables and lines of text, with scores in percent."""

from collections.abc import Sequence
from dataclasses import replace

from probmcl.calibration import Calibration
from probmcl.errors import counted, listing, one_line
from probmcl.evaluation.evaluate import headline, level_headline
from probmcl.store.evaluation import (
    LEGEND,
    Abstention,
    ClassReliability,
    DecisionScores,
    Evaluation,
    IntervalScores,
    ModelEvaluation,
    ReliabilitySummary,
    RiskCoverage,
    ValueScores,
)
from probmcl.tables import MISSING, Column, Table, bracketed, percent, points

MAX_NAMES = 5  # most names in a line of text
MAX_ROWS = 20  # most classes or values in a table; the JSON file has all of them


def summary(evaluation: ModelEvaluation) -> str:
    """Return the scores of a split in one line."""
    scored = counted(evaluation.images, f"{evaluation.split} image")
    if evaluation.aggregate is not None and evaluation.groups is not None:
        groups = counted(evaluation.groups, "group")
        scored = f"{groups} by the {evaluation.aggregate} of {scored}"
    return f"{scored}: {headline(evaluation)}"


def decision_rules(evaluation: ModelEvaluation) -> Table:
    """Return the scores of a split for each decision rule."""
    scores = evaluation.at
    rows = []
    if scores.chosen is not None:
        rows.append(_decision_row(f"chosen: {evaluation.thresholds}", scores.chosen))
    rows.append(_decision_row("raw score > 0.5", scores.half))
    rows.append(_decision_row("raw score > 0.8", scores.high))
    rows.append(_decision_row("… > 0.5, top 3", evaluation.top3))
    headers = ("decision rule", "CP", "CR", "CF1", "OP", "OR", "OF1", "macro F1")
    return _table("", headers, rows)


def _decision_row(rule: str, scores: DecisionScores) -> list[str]:
    """Return the cells of a decision rule: its name and its scores in percent."""
    numbers = (scores.CP, scores.CR, scores.CF1, scores.OP, scores.OR, scores.OF1, scores.macro_F1)
    return [rule, *map(percent, numbers)]


def by_class(evaluation: Evaluation) -> Table:
    """Return the classes in order of average precision, lowest first; classes without a positive are last."""
    ranked = sorted(evaluation.ap, key=lambda name: _lowest_first_names(evaluation.ap[name]))
    rows = [_class_row(name, evaluation) for name in ranked[:MAX_ROWS]]
    title = f"{_shown_of(len(ranked))}classes, lowest AP first; rates at {_thresholds_in_words(evaluation)}"
    headers = ("class", "known", "positive", "AP", "AUROC", "sens.", "spec.", "PPV", "NPV")
    return _table(title, headers, rows)


def _class_row(name: str, evaluation: Evaluation) -> list[str]:
    """Return the cells of a class in the table of classes."""
    rates = evaluation.per_class[name]
    counts = [f"{rates.n:,}", f"{rates.positives:,}"]
    scores = [percent(evaluation.ap[name]), percent(evaluation.auroc[name])]
    percentages = map(percent, (rates.sensitivity, rates.specificity, rates.ppv, rates.npv))
    return [name, *counts, *scores, *percentages]


def _lowest_first_names(score: float | None) -> tuple[bool, float]:
    """Return a key that sorts scores in ascending order; missing scores come last."""
    return score is None, score or 0.0


def _highest_first_names(score: float | None) -> tuple[bool, float]:
    """Return a key that sorts scores in descending order; missing scores come last."""
    return score is None, -(score or 0.0)


def probabilities_by_class(evaluation: Evaluation) -> Table:
    """Return the thresholds and the reliability of each class before and after calibration, the worst class first."""
    final = evaluation.calibration.final.per_class
    ranked = sorted(final, key=lambda name: _highest_first_names(final[name].calibration_error))
    rows = []
    for name in ranked[:MAX_ROWS]:
        threshold = f"{evaluation.per_class[name].threshold:.2f}"
        before_and_after = [part.per_class[name] for part in evaluation.calibration.parts]
        rows.append([name, threshold, *_reliability_cells(before_and_after)])
    title = f"{_shown_of(len(ranked))}classes, highest calibration error first{_meaning_of_change(evaluation)}"
    headers = ("class", "threshold", "log loss", "Brier score", "calibration error")
    return _table(title, headers, rows)


def _reliability_cells(before_and_after: Sequence[ReliabilitySummary | ClassReliability]) -> tuple[str, str, str]:
    """Return the log loss, the Brier score and the calibration error.

    Each is one number, or two with an arrow between them if there is a reliability after calibration.
    """
    log_losses = [_decimal(reliability.log_loss) for reliability in before_and_after]
    brier_scores = [_decimal(reliability.brier) for reliability in before_and_after]
    errors = [percent(reliability.calibration_error) for reliability in before_and_after]
    return " → ".join(log_losses), " → ".join(brier_scores), " → ".join(errors)


def calibration_table(calibration: Calibration) -> Table:
    """Return the held-out examples, the cross-validated log loss and the threshold of each class."""
    number = len(calibration.classes)
    shown = list(calibration.classes.items())[:MAX_ROWS]
    rows = []
    for name, fitted in shown:
        examples = [f"{fitted.positives:,}", f"{fitted.negatives:,}"]
        losses = [_decimal(fitted.log_loss_before), _decimal(fitted.log_loss_after)]
        rows.append([name, *examples, *losses, f"{fitted.threshold:.3f}"])
    selection = "" if number <= MAX_ROWS else f"the first {MAX_ROWS} of "
    title = f"{selection}{counted(number, 'class', 'classes')} on held-out images"
    headers = ("class", "positive", "negative", "log loss before", "after", "threshold")
    return _table(title, headers, rows)


def by_value(by: ValueScores) -> Table:
    """Return the scores for each value of a column."""
    shown = list(by.values.items())[:MAX_ROWS]
    rows = [_value_row(value, scores) for value, scores in shown]
    number = len(by.values)
    selection = "" if number <= MAX_ROWS else f", the first {MAX_ROWS} of {number} values"
    title = f"by {by.column}{selection}; with 95 % bootstrap intervals"
    headers = ("value", "images", "groups", "classes", "chance", "mAP", "95 %", "AUROC", "95 %")
    table = _table(title, headers, rows)
    return replace(table, framed=False)  # nine columns fit on a terminal without a frame


def _value_row(value: str, scores: IntervalScores) -> list[str]:
    """Return the cells of the images with one value of a column."""
    groups = MISSING if scores.groups is None else f"{scores.groups:,}"
    return [
        value,
        f"{scores.images:,}",
        groups,
        str(scores.classes_scored),
        percent(scores.chance),
        percent(scores.mAP),
        _interval(scores.mAP_interval),
        percent(scores.macro_auroc),
        _interval(scores.macro_auroc_interval),
    ]


def _table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table with a column of names, which comes first, and columns of numbers."""
    header_of_names, *headers_of_numbers = headers
    columns = [Column.of_names(header_of_names), *map(Column, headers_of_numbers)]
    cells = [[one_line(name), *numbers] for name, *numbers in rows]  # a name must not look like other output
    return Table(title, columns, cells, framed=True)


def lines(evaluation: ModelEvaluation) -> list[str]:
    """Return the lines below the tables: notes, scores over all classes, levels, and classes that are not scored."""
    texts = [LEGEND]
    texts.extend(f"note: {note}" for note in _notes(evaluation))
    texts.append(decisions_line(evaluation))
    texts.append(probabilities_line(evaluation))
    if evaluation.ap_changes:
        texts.append(_changes_line(evaluation.ap_changes, evaluation.classes_scored))
    if evaluation.abstention is not None:
        texts.append(abstention_line(evaluation.abstention))
    texts.append(_risk_line(evaluation.risk_coverage))
    if evaluation.mAP_interval is not None:
        resamples = counted(evaluation.draws, "resample")
        texts.append(f"intervals: 95 %, bootstrap with {resamples} of {evaluation.resampled}")
    levels = evaluation.levels or {}
    texts.extend(f"level {number}: {level_headline(level, evaluation.images)}" for number, level in levels.items())
    if len(evaluation.ap) > MAX_ROWS:
        texts.append(_best_line(evaluation))
    if evaluation.renamed:
        renamed = [f"{in_data} → {in_model}" for in_data, in_model in evaluation.renamed.items()]
        texts.append(f"renamed: {_first_names(renamed)}")
    if evaluation.classes_only_in_model:
        texts.append(_unscored_line(evaluation.classes_only_in_model, "only in the model"))
    if evaluation.classes_only_in_data:
        texts.append(_unscored_line(evaluation.classes_only_in_data, "only in the data"))
    return texts


def _unscored_line(names: Sequence[str], reason: str) -> str:
    """Return one line with the number and the first names of the classes that are not scored, and the reason."""
    return f"not scored: {counted(len(names), 'class', 'classes')} {reason} ({_first_names(names)})"


def decisions_line(evaluation: Evaluation) -> str:
    """Return one line with the scores of the decisions over all classes."""
    decisions = evaluation.decisions
    unit = _unit(evaluation)
    fully_known = counted(decisions.images_fully_known, unit)
    parts = [
        f"macro F1 {percent(decisions.macro_F1)}",
        f"micro F1 {percent(decisions.micro_F1)}",
        f"sample F1 {percent(decisions.sample_F1)}",
        f"Hamming loss {percent(decisions.hamming_loss)}",
        f"subset accuracy {percent(decisions.subset_accuracy)} ({fully_known} with all labels known)",
    ]
    scores = ", ".join(parts)
    predicted = _decimal(decisions.labels_predicted, digits=2)
    true = _decimal(decisions.labels_true, digits=2)
    return f"at {_thresholds_in_words(evaluation)}: {scores}; {predicted} labels per {unit} (true: {true})"


def _unit(evaluation: Evaluation) -> str:
    """Return the noun for one row of the scores."""
    return "image" if evaluation.aggregate is None else "group"


def _thresholds_in_words(evaluation: Evaluation) -> str:
    """Return the thresholds of the decisions in words."""
    threshold = evaluation.decisions.threshold
    if threshold == "chosen":
        return "the chosen thresholds"
    return f"raw score > {threshold}"


def probabilities_line(evaluation: Evaluation) -> str:
    """Return one line with the log loss, Brier score and calibration error, before and after calibration."""
    log_loss, brier, error = _reliability_cells(evaluation.calibration.parts)
    final = evaluation.calibration.final
    base_rate_log_loss = _decimal(final.base_rate_log_loss)
    base_rate_brier = _decimal(final.base_rate_brier)
    parts = [
        f"log loss {log_loss} (base rates: {base_rate_log_loss})",
        f"Brier score {brier} (base rates: {base_rate_brier})",
        f"calibration error {error}{bracketed(final.calibration_error_interval)}",
    ]
    scores = ", ".join(parts)
    return f"probabilities: {scores}{_meaning_of_change(evaluation)}"


def _meaning_of_change(evaluation: Evaluation) -> str:
    """Return the meaning of the arrows in `_reliability_cells`, as the end of a sentence; empty without arrows."""
    if evaluation.calibration.after is None:
        return ""
    return "; before → after calibration"


def _changes_line(changes: dict[str, float], classes_scored: int) -> str:
    """Return one line with the changes of AP by isotonic regression or a class hierarchy."""
    ranked = sorted(changes, key=lambda name: -abs(changes[name]))
    largest = [f"{one_line(name)} {points(changes[name])}" for name in ranked[:MAX_NAMES]]
    names = ", ".join(largest)
    hidden = len(ranked) - MAX_NAMES
    if hidden > 0:
        names += f" and {hidden} more"
    change_of_map = sum(changes.values()) / max(classes_scored, 1)
    return f"isotonic regression or the hierarchy changes the AP of {names} (mAP: {points(change_of_map)})"


def abstention_line(abstention: Abstention) -> str:
    """Return one line with the coverage of yes and no decisions, and their error rates."""
    decided = percent(abstention.coverage) + bracketed(abstention.coverage_interval)
    wrong_yes = percent(abstention.yes_risk) + bracketed(abstention.yes_risk_interval)
    wrong_no = percent(abstention.no_risk) + bracketed(abstention.no_risk_interval)
    rates = abstention.per_class.values()
    never_yes = sum(rate.yes_risk is None for rate in rates)
    never_no = sum(rate.no_risk is None for rate in rates)
    classes_never_yes = counted(never_yes, "class is", "classes are")
    return (
        f"yes, no or not sure: decided {decided}, wrong among yes {wrong_yes}, wrong among no {wrong_no}; "
        f"{classes_never_yes} never yes, {never_no:,} never no"
    )


def _risk_line(curve: RiskCoverage) -> str:
    """Return one line with the fraction of wrong decisions among all images and among the most certain half."""
    middle = len(curve.risk) // 2 - 1  # the points of the curve are equally spaced, and the last one is all images
    half = percent(curve.risk[middle])
    everything = percent(curve.risk[-1])
    return f"wrong decisions: {everything}, and {half} in the most certain half of the images"


def _best_line(evaluation: Evaluation) -> str:
    """Return one line with the classes of the highest average precision."""
    scored = {name: ap for name, ap in evaluation.ap.items() if ap is not None}
    ranked = sorted(scored, key=lambda name: -scored[name])
    best = [f"{one_line(name)} {percent(scored[name])}" for name in ranked[:MAX_NAMES]]
    return f"best: {', '.join(best)}"


def _decimal(x: float | None, digits: int = 3) -> str:
    """Return a number with decimals, or a dash for a missing number."""
    if x is None:
        return MISSING
    return f"{x:.{digits}f}"


def _notes(evaluation: ModelEvaluation) -> list[str]:
    """Return the notes on an evaluation: classes and images that are not scored, and limits of its thresholds."""
    notes = []
    if evaluation.note is not None:
        notes.append(evaluation.note)
    if evaluation.classes_without_negatives:
        notes.append(_unscored_line(evaluation.classes_without_negatives, "without a known negative"))
    without_positives = [name for name, rates in evaluation.per_class.items() if not rates.positives]
    if without_positives:
        notes.append(_unscored_line(without_positives, "without a known positive"))
    if evaluation.not_promised:
        names = _first_names(evaluation.not_promised)
        problem = f"is not promised for some classes, which are balanced instead: {names}"
        notes.append(f"{evaluation.thresholds} {problem}")
    if evaluation.aggregate is not None and evaluation.decisions.threshold == "chosen":
        notes.append("thresholds and probabilities were fitted to images, not to groups")
    if evaluation.skipped:
        skipped = [f"{image.path} ({image.reason})" for image in evaluation.skipped]
        number = counted(len(skipped), "unreadable image")
        notes.append(f"skipped {number}: {_first_names(skipped)}")
    return notes


def _shown_of(count: int) -> str:
    """Return how many of the rows a table shows, as the beginning of its title; empty if it shows all of them."""
    if count <= MAX_ROWS:
        return ""
    return f"{MAX_ROWS} of {count} "


def _interval(interval: Sequence[float] | None) -> str:
    """Return the ends of an interval in percent, as in `77.8–80.3`, or a dash for a missing interval."""
    if interval is None:
        return MISSING
    low, high = interval
    return f"{percent(low)}–{percent(high)}"


def _first_names(names: Sequence[str]) -> str:
    """Return the first names, separated by commas, and the number of the others."""
    return listing(names, MAX_NAMES)
