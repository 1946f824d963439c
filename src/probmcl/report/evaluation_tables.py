"""Output of `probmcl evaluate`: tables and lines of text, with scores in percent."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probmcl.calibration import Calibration
from probmcl.errors import counted, listing, one_line
from probmcl.evaluation.evaluate import headline, level_headline
from probmcl.store.evaluation import (
    LEGEND,
    Abstention,
    DecisionScores,
    Evaluation,
    IntervalScores,
    ModelEvaluation,
    RiskCoverage,
    ValueScores,
)
from probmcl.tables import MISSING, Column, Table, bracketed, percent, points

MAX_NAMES = 5  # most names in a line of text
MAX_ROWS = 20  # most classes or values in a table; the JSON file has all of them


def summary(evaluation: ModelEvaluation) -> str:
    """Return the scores of a split in one line."""
    images = counted(evaluation.images, f"{evaluation.split} image")
    if evaluation.aggregate is not None and evaluation.groups is not None:
        images = f"{counted(evaluation.groups, 'group')} by the {evaluation.aggregate} of {images}"
    return f"{images}: {headline(evaluation)}"


def decision_rules(evaluation: ModelEvaluation) -> Table:
    """Return the scores of a split for each decision rule."""
    at = evaluation.at
    rows = []
    if at.chosen is not None:
        rows.append(_decision_row(f"chosen: {evaluation.thresholds}", at.chosen))
    rows.append(_decision_row("raw score > 0.5", at.half))
    rows.append(_decision_row("raw score > 0.8", at.high))
    rows.append(_decision_row("… > 0.5, top 3", evaluation.top3))
    return _table("", ("decision rule", "CP", "CR", "CF1", "OP", "OR", "OF1", "macro F1"), rows)


def _decision_row(rule: str, scores: DecisionScores) -> list[str]:
    numbers = (scores.CP, scores.CR, scores.CF1, scores.OP, scores.OR, scores.OF1, scores.macro_F1)
    return [rule, *map(percent, numbers)]


def by_class(evaluation: Evaluation) -> Table:
    """Return the classes in order of average precision, lowest first; classes without a positive are last."""
    ap = evaluation.ap
    ranked = sorted(ap, key=lambda name: (ap[name] is None, ap[name] or 0.0))
    rows = []
    for name in ranked[:MAX_ROWS]:
        rates = evaluation.per_class[name]
        scores = (ap[name], evaluation.auroc[name])
        shares = (rates.sensitivity, rates.specificity, rates.ppv, rates.npv)
        rows.append([name, f"{rates.n:,}", f"{rates.positives:,}", *map(percent, (*scores, *shares))])
    title = f"{_selection(len(ranked))}classes, lowest AP first; rates at {_rule(evaluation)}"
    return _table(title, ("class", "known", "positive", "AP", "AUROC", "sens.", "spec.", "PPV", "NPV"), rows)


def probabilities_by_class(evaluation: Evaluation) -> Table:
    """Return the thresholds and the reliability of each class before and after calibration, the worst class first."""
    errors = {name: part.calibration_error for name, part in evaluation.calibration.final.per_class.items()}
    ranked = sorted(errors, key=lambda name: (errors[name] is None, -(errors[name] or 0.0)))
    rows = []
    for name in ranked[:MAX_ROWS]:
        parts = [part.per_class[name] for part in evaluation.calibration.parts]
        threshold = f"{evaluation.per_class[name].threshold:.2f}"
        log_loss = _change(_decimal(part.log_loss) for part in parts)
        brier = _change(_decimal(part.brier) for part in parts)
        error = _change(percent(part.calibration_error) for part in parts)
        rows.append([name, threshold, log_loss, brier, error])
    title = f"{_selection(len(ranked))}classes, highest calibration error first{_meaning_of_change(evaluation)}"
    return _table(title, ("class", "threshold", "log loss", "Brier score", "calibration error"), rows)


def calibration_table(calibration: Calibration) -> Table:
    """Return the held-out examples, the cross-validated log loss and the threshold of each class."""
    rows = []
    for name, fitted in list(calibration.classes.items())[:MAX_ROWS]:
        losses = (_decimal(fitted.log_loss_before), _decimal(fitted.log_loss_after))
        rows.append([name, f"{fitted.positives:,}", f"{fitted.negatives:,}", *losses, f"{fitted.threshold:.3f}"])
    selection = "" if len(calibration.classes) <= MAX_ROWS else f"the first {MAX_ROWS} of "
    title = f"{selection}{counted(len(calibration.classes), 'class', 'classes')} on held-out images"
    headers = ("class", "positive", "negative", "log loss before", "after", "threshold")
    return _table(title, headers, rows)


def by_value(by: ValueScores) -> Table:
    """Return the scores for each value of a column."""
    rows = [_value_row(value, scores) for value, scores in list(by.values.items())[:MAX_ROWS]]
    count = len(by.values)
    selection = "" if count <= MAX_ROWS else f", the first {MAX_ROWS} of {count} values"
    title = f"by {by.column}{selection}; with 95 % bootstrap intervals"
    headers = ("value", "images", "groups", "classes", "chance", "mAP", "95 %", "AUROC", "95 %")
    return replace(_table(title, headers, rows), framed=False)  # nine columns fit on a terminal without a frame


def _value_row(value: str, scores: IntervalScores) -> list[str]:
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
    first, *numbers = headers
    cells = [[one_line(name), *values] for name, *values in rows]  # a name must not look like other output
    return Table(title, [Column.of_names(first), *map(Column, numbers)], cells, framed=True)


def lines(evaluation: ModelEvaluation) -> list[str]:
    """Return the lines below the tables: notes, scores over all classes, levels, and classes that are not scored."""
    texts = [LEGEND]
    texts += [f"note: {note}" for note in _notes(evaluation)]
    texts += [decisions_line(evaluation), probabilities_line(evaluation)]
    if evaluation.ap_changes:
        texts.append(_changes_line(evaluation.ap_changes, evaluation.classes_scored))
    if evaluation.abstention is not None:
        texts.append(abstention_line(evaluation.abstention))
    texts.append(_risk_line(evaluation.risk_coverage))
    if evaluation.mAP_interval is not None:
        resamples = counted(evaluation.draws, "resample")
        texts.append(f"intervals: 95 %, bootstrap with {resamples} of {evaluation.resampled}")
    for number, level in (evaluation.levels or {}).items():
        texts.append(f"level {number}: {level_headline(level, evaluation.images)}")
    if len(evaluation.ap) > MAX_ROWS:
        texts.append(_best_line(evaluation))
    if evaluation.renamed:
        texts.append(f"renamed: {_first([f'{data} → {model}' for data, model in evaluation.renamed.items()])}")
    for side, names in (("model", evaluation.classes_only_in_model), ("data", evaluation.classes_only_in_data)):
        if names:
            texts.append(f"not scored: {counted(len(names), 'class', 'classes')} only in the {side} ({_first(names)})")
    return texts


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
    predicted = _decimal(decisions.labels_predicted, digits=2)
    labels = f"{predicted} labels per {unit} (true: {_decimal(decisions.labels_true, digits=2)})"
    return f"at {_rule(evaluation)}: {', '.join(parts)}; {labels}"


def _unit(evaluation: Evaluation) -> str:
    return "image" if evaluation.aggregate is None else "group"


def _rule(evaluation: Evaluation) -> str:
    threshold = evaluation.decisions.threshold
    return "the chosen thresholds" if threshold == "chosen" else f"raw score > {threshold}"


def probabilities_line(evaluation: Evaluation) -> str:
    """Return one line with the log loss, Brier score and calibration error, before and after calibration."""
    parts = evaluation.calibration.parts
    final = evaluation.calibration.final
    log_loss = _change(_decimal(part.log_loss) for part in parts)
    brier = _change(_decimal(part.brier) for part in parts)
    error = _change(percent(part.calibration_error) for part in parts)
    texts = [
        f"log loss {log_loss} (base rates: {_decimal(final.base_rate_log_loss)})",
        f"Brier score {brier} (base rates: {_decimal(final.base_rate_brier)})",
        f"calibration error {error}{bracketed(final.calibration_error_interval)}",
    ]
    return f"probabilities: {', '.join(texts)}{_meaning_of_change(evaluation)}"


def _change(values: Iterable[str]) -> str:
    """Return a value, or the values before and after calibration."""
    return " → ".join(values)


def _meaning_of_change(evaluation: Evaluation) -> str:
    return "" if evaluation.calibration.after is None else "; before → after calibration"


def _changes_line(changes: dict[str, float], classes_scored: int) -> str:
    """Return one line with the changes of AP by isotonic regression or a class hierarchy."""
    ranked = sorted(changes, key=lambda name: -abs(changes[name]))
    names = [f"{one_line(name)} {points(changes[name])}" for name in ranked[:MAX_NAMES]]
    rest = f" and {len(ranked) - MAX_NAMES} more" if len(ranked) > MAX_NAMES else ""
    mean = points(sum(changes.values()) / max(classes_scored, 1))
    return f"isotonic regression or the hierarchy changes the AP of {', '.join(names)}{rest} (mAP: {mean})"


def abstention_line(abstention: Abstention) -> str:
    """Return one line with the coverage of yes and no decisions, and their error rates."""
    parts = [
        f"decided {percent(abstention.coverage)}{bracketed(abstention.coverage_interval)}",
        f"wrong among yes {percent(abstention.yes_risk)}{bracketed(abstention.yes_risk_interval)}",
        f"wrong among no {percent(abstention.no_risk)}{bracketed(abstention.no_risk_interval)}",
    ]
    rates = abstention.per_class.values()
    never_yes = sum(rate.yes_risk is None for rate in rates)
    never_no = sum(rate.no_risk is None for rate in rates)
    never = f"{counted(never_yes, 'class is', 'classes are')} never yes, {never_no:,} never no"
    return f"yes, no or not sure: {', '.join(parts)}; {never}"


def _risk_line(curve: RiskCoverage) -> str:
    half = percent(curve.risk[len(curve.risk) // 2 - 1])
    everything = percent(curve.risk[-1])
    return f"wrong decisions: {everything}, and {half} in the most certain half of the images"


def _best_line(evaluation: Evaluation) -> str:
    scored = {name: ap for name, ap in evaluation.ap.items() if ap is not None}
    best = sorted(scored, key=lambda name: -scored[name])[:MAX_NAMES]
    return f"best: {', '.join(f'{one_line(name)} {percent(scored[name])}' for name in best)}"


def _decimal(x: float | None, digits: int = 3) -> str:
    return MISSING if x is None else f"{x:.{digits}f}"


def _notes(evaluation: ModelEvaluation) -> list[str]:
    notes = [] if evaluation.note is None else [evaluation.note]
    without_positives = [name for name, rates in evaluation.per_class.items() if not rates.positives]
    for kind, names in (("negative", evaluation.classes_without_negatives), ("positive", without_positives)):
        if names:
            classes = counted(len(names), "class", "classes")
            notes.append(f"not scored: {classes} without a known {kind} ({_first(names)})")
    if evaluation.not_promised:
        problem = "is not promised for some classes, which are balanced instead"
        notes.append(f"{evaluation.thresholds} {problem}: {_first(evaluation.not_promised)}")
    if evaluation.aggregate is not None and evaluation.decisions.threshold == "chosen":
        notes.append("thresholds and probabilities were fitted to images, not to groups")
    if evaluation.skipped:
        skipped = [f"{image.path} ({image.reason})" for image in evaluation.skipped]
        notes.append(f"skipped {counted(len(skipped), 'unreadable image')}: {_first(skipped)}")
    return notes


def _selection(count: int) -> str:
    return "" if count <= MAX_ROWS else f"{MAX_ROWS} of {count} "


def _interval(interval: Sequence[float] | None) -> str:
    return MISSING if interval is None else "–".join(map(percent, interval))


def _first(names: Sequence[str]) -> str:
    return listing(names, MAX_NAMES)
