"""Output of `probmcl evaluate`: tables and lines of text, with scores in percent."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probmcl.calibration import Calibration
from probmcl.errors import counted, listing, one_line
from probmcl.evaluation.headline import headline
from probmcl.store.evaluation import LEGEND
from probmcl.tables import MISSING, Column, Table, bracketed, percent, points

MAX_NAMES = 5  # most names in a line of text
MAX_ROWS = 20  # most classes or values in a table; the JSON file has all of them
LOSSES = ("log loss", "Brier score")


def summary(result: Mapping[str, Any]) -> str:
    """Return the scores of a split in one line."""
    groups = f"{counted(result['groups'], 'group')} by the {result['aggregate']} of " if result.get("aggregate") else ""
    images = counted(result["images"], f"{result['split']} image")
    return f"{groups}{images}: {headline(result)}"


def decision_rules(result: Mapping[str, Any]) -> Table:
    """Return the scores of a split for each decision rule."""
    at = dict(result["at"])
    decisions = {f"chosen: {result['thresholds']}": at.pop("chosen")} if "chosen" in at else {}
    decisions |= {f"raw score > {threshold}": numbers for threshold, numbers in at.items()}
    decisions["… > 0.5, top 3"] = result["top3"]
    rows = [[name, *map(percent, numbers.values())] for name, numbers in decisions.items()]
    return _table("", ("decision rule", "CP", "CR", "CF1", "OP", "OR", "OF1", "macro F1"), rows)


def by_class(result: Mapping[str, Any]) -> Table:
    """Return the classes in order of average precision, lowest first; classes without a positive are last."""
    ranked = sorted(result["ap"], key=lambda name: (result["ap"][name] is None, result["ap"][name] or 0.0))
    selection = "" if len(ranked) <= MAX_ROWS else f"{MAX_ROWS} of {len(ranked)} "
    rows = []
    for name in ranked[:MAX_ROWS]:
        rates = result["per_class"][name]
        shares = [rates[key] for key in ("sensitivity", "specificity", "ppv", "npv")]
        numbers = map(percent, (result["ap"][name], result["auroc"][name], *shares))
        rows.append([name, f"{rates['n']:,}", f"{rates['positives']:,}", *numbers])
    title = f"{selection}classes, lowest AP first; rates at {_rule(result)}"
    return _table(title, ("class", "known", "positive", "AP", "AUROC", "sens.", "spec.", "PPV", "NPV"), rows)


def probabilities_by_class(result: Mapping[str, Any]) -> Table:
    """Return the thresholds and the reliability of each class before and after calibration, the worst class first."""
    measures = [part["per_class"] for part in result["calibration"].values()]
    errors = {name: numbers["calibration_error"] for name, numbers in measures[-1].items()}
    ranked = sorted(errors, key=lambda name: (errors[name] is None, -(errors[name] or 0.0)))
    selection = "" if len(ranked) <= MAX_ROWS else f"{MAX_ROWS} of {len(ranked)} "
    rows = []
    for name in ranked[:MAX_ROWS]:
        parts = [part[name] for part in measures]
        losses = [" → ".join(_decimal(part[key]) for part in parts) for key in ("log_loss", "brier")]
        error = " → ".join(percent(part["calibration_error"]) for part in parts)
        rows.append([name, f"{result['per_class'][name]['threshold']:.2f}", *losses, error])
    change = "; before → after calibration" if len(measures) > 1 else ""
    title = f"{selection}classes, highest calibration error first{change}"
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


def by_value(result: Mapping[str, Any]) -> Table:
    """Return the scores for each value of a column."""
    values = result["by"]["values"]
    selection = "" if len(values) <= MAX_ROWS else f", the first {MAX_ROWS} of {len(values)} values"
    rows = []
    for value, part in list(values.items())[:MAX_ROWS]:
        groups = MISSING if part["groups"] is None else f"{part['groups']:,}"
        row = [value, f"{part['images']:,}", groups, str(part["classes_scored"]), percent(part["chance"])]
        for key in ("mAP", "macro_auroc"):
            row += [percent(part[key]), _interval(part[f"{key}_interval"])]
        rows.append(row)
    title = f"by {result['by']['column']}{selection}; with 95 % bootstrap intervals"
    headers = ("value", "images", "groups", "classes", "chance", "mAP", "95 %", "AUROC", "95 %")
    return replace(_table(title, headers, rows), framed=False)  # nine columns fit on a terminal without a frame


def _table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    first, *numbers = headers
    cells = [[one_line(name), *values] for name, *values in rows]  # a name must not look like other output
    return Table(title, [Column.of_names(first), *map(Column, numbers)], cells, framed=True)


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the tables: notes, scores over all classes, levels, and classes that are not scored."""
    texts = [LEGEND, *(f"note: {note}" for note in _notes(result)), decisions_line(result), probabilities_line(result)]
    texts += [changes_line(result)] if result.get("ap_changes") else []
    texts += [abstention_line(result["abstention"])] if "abstention" in result else []
    texts.append(_risk_line(result["risk_coverage"]))
    if result.get("mAP_interval") is not None:
        resamples = counted(result["draws"], "resample")
        texts.append(f"intervals: 95 %, bootstrap with {resamples} of {result['resampled']}")
    for number, part in result.get("levels", {}).items():
        texts.append(f"level {number}: {headline({**part, 'images': result['images']})}")
    scored = {name: ap for name, ap in result["ap"].items() if ap is not None}
    if len(result["ap"]) > MAX_ROWS:
        best = sorted(scored, key=lambda name: -scored[name])[:MAX_NAMES]
        texts.append(f"best: {', '.join(f'{one_line(name)} {percent(scored[name])}' for name in best)}")
    if result.get("renamed"):
        texts.append(f"renamed: {_first([f'{data} → {model}' for data, model in result['renamed'].items()])}")
    for side in ("model", "data"):
        names = result[f"classes_only_in_{side}"]
        if names:
            texts.append(f"not scored: {counted(len(names), 'class', 'classes')} only in the {side} ({_first(names)})")
    return texts


def decisions_line(result: Mapping[str, Any]) -> str:
    """Return one line with the scores of the decisions over all classes."""
    decisions = result["decisions"]
    shares = {"macro F1": "macro_F1", "micro F1": "micro_F1", "sample F1": "sample_F1", "Hamming loss": "hamming_loss"}
    parts = [f"{name} {percent(decisions[key])}" for name, key in shares.items()]
    fully_known = f"({counted(decisions['images_fully_known'], _unit(result))} with all labels known)"
    parts.append(f"subset accuracy {percent(decisions['subset_accuracy'])} {fully_known}")
    predicted, true = (f"{decisions[f'labels_{key}']:.2f}" for key in ("predicted", "true"))
    return f"at {_rule(result)}: {', '.join(parts)}; {predicted} labels per {_unit(result)} (true: {true})"


def _unit(result: Mapping[str, Any]) -> str:
    return "group" if result.get("aggregate") else "image"


def _rule(result: Mapping[str, Any]) -> str:
    threshold = result["decisions"]["threshold"]
    return "the chosen thresholds" if threshold == "chosen" else f"raw score > {threshold}"


def probabilities_line(result: Mapping[str, Any]) -> str:
    """Return one line with the log loss, Brier score and calibration error, before and after calibration."""
    parts = list(result["calibration"].values())
    losses = [" → ".join(_decimal(part[key]) for part in parts) for key in ("log_loss", "brier")]
    base = [_decimal(parts[-1][f"base_rate_{key}"]) for key in ("log_loss", "brier")]
    error = " → ".join(percent(part["calibration_error"]) for part in parts)
    error += bracketed(parts[-1]["calibration_error_interval"])
    change = "; before → after calibration" if len(parts) > 1 else ""
    losses = [f"{name} {loss} (base rates: {rate})" for name, loss, rate in zip(LOSSES, losses, base, strict=True)]
    return f"probabilities: {', '.join(losses)}, calibration error {error}{change}"


def changes_line(result: Mapping[str, Any]) -> str:
    """Return one line with the changes of AP by isotonic regression or a class hierarchy."""
    changes = result["ap_changes"]
    ranked = sorted(changes, key=lambda name: -abs(changes[name]))
    names = [f"{one_line(name)} {points(changes[name])}" for name in ranked[:MAX_NAMES]]
    rest = f" and {len(ranked) - MAX_NAMES} more" if len(ranked) > MAX_NAMES else ""
    mean = points(sum(changes.values()) / max(result["classes_scored"], 1))
    return f"isotonic regression or the hierarchy changes the AP of {', '.join(names)}{rest} (mAP: {mean})"


def abstention_line(abstention: Mapping[str, Any]) -> str:
    """Return one line with the coverage of yes and no decisions, and their error rates."""
    names = {"coverage": "decided", "yes_risk": "wrong among yes", "no_risk": "wrong among no"}
    parts = [
        f"{text} {percent(abstention[key])}{bracketed(abstention[f'{key}_interval'])}" for key, text in names.items()
    ]
    rates = abstention["per_class"].values()
    never_yes, never_no = (sum(rate[f"{decision}_risk"] is None for rate in rates) for decision in ("yes", "no"))
    never = f"{counted(never_yes, 'class is', 'classes are')} never yes, {never_no:,} never no"
    return f"yes, no or not sure: {', '.join(parts)}; {never}"


def _risk_line(curve: Mapping[str, Sequence[float | None]]) -> str:
    half, everything = (percent(curve["risk"][index]) for index in (len(curve["risk"]) // 2 - 1, -1))
    return f"wrong decisions: {everything}, and {half} in the most certain half of the images"


def _decimal(x: float | None) -> str:
    return MISSING if x is None else f"{x:.3f}"


def _notes(result: Mapping[str, Any]) -> list[str]:
    notes = [result["note"]] if "note" in result else []
    unscored = {"negative": result["classes_without_negatives"]}
    unscored["positive"] = [name for name, rates in result["per_class"].items() if not rates["positives"]]
    for kind, names in unscored.items():
        if names:
            classes = counted(len(names), "class", "classes")
            notes.append(f"not scored: {classes} without a known {kind} ({_first(names)})")
    if result.get("not_promised"):
        names = _first(result["not_promised"])
        notes.append(f"{result['thresholds']} is not promised for some classes, which are balanced instead: {names}")
    if result.get("aggregate") and result["decisions"]["threshold"] == "chosen":
        notes.append("thresholds and probabilities were fitted to images, not to groups")
    skipped = [f"{image['path']} ({image['reason']})" for image in result.get("skipped", ())]
    if skipped:
        notes.append(f"skipped {counted(len(skipped), 'unreadable image')}: {_first(skipped)}")
    return notes


def _interval(interval: Sequence[float] | None) -> str:
    return MISSING if interval is None else "–".join(map(percent, interval))


def _first(names: Sequence[str]) -> str:
    return listing(names, MAX_NAMES)
