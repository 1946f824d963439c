"""Output of `probmcl evaluate`: tables and lines of text, with scores in percent."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probmcl.errors import counted
from probmcl.headline import LEGEND, headline
from probmcl.tables import MISSING, Column, Table, percent

MAX_NAMES = 5  # most names in a line of text
MAX_ROWS = 20  # most classes or values in a table; the JSON file has all of them


def summary(result: Mapping[str, Any]) -> str:
    """Return the scores of a split in one line."""
    groups = f"{counted(result['groups'], 'group')} by the {result['aggregate']} of " if result.get("aggregate") else ""
    images = counted(result["images"], f"{result['split']} image")
    return f"{groups}{images}: {headline(result)}"


def decision_rules(result: Mapping[str, Any]) -> Table:
    """Return the scores of a split for each decision rule."""
    decisions = {f"probability > {threshold}": numbers for threshold, numbers in result["at"].items()}
    decisions["… > 0.5, top 3"] = result["top3"]
    rows = [[name, *map(percent, numbers.values())] for name, numbers in decisions.items()]
    return _table("", ("decision rule", "CP", "CR", "CF1", "OP", "OR", "OF1"), rows)


def by_class(result: Mapping[str, Any]) -> Table:
    """Return the classes in order of average precision, lowest first; classes without a positive are last."""
    ranked = sorted(result["ap"], key=lambda name: (result["ap"][name] is None, result["ap"][name] or 0.0))
    selection = "" if len(ranked) <= MAX_ROWS else f"{MAX_ROWS} of {len(ranked)} "
    threshold = result["decisions"]["threshold"]
    rows = []
    for name in ranked[:MAX_ROWS]:
        rates = result["per_class"][name]
        shares = [rates[key] for key in ("sensitivity", "specificity", "ppv", "npv")]
        numbers = map(percent, (result["ap"][name], result["auroc"][name], *shares))
        rows.append([name, f"{rates['n']:,}", f"{rates['positives']:,}", *numbers])
    title = f"{selection}classes, lowest AP first; sens., spec., PPV and NPV at probability > {threshold}"
    return _table(title, ("class", "known", "positive", "AP", "AUROC", "sens.", "spec.", "PPV", "NPV"), rows)


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
    return Table(title, [Column.of_names(first), *map(Column, numbers)], rows, framed=True)


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the tables: notes, scores over all classes, levels, and classes that are not scored."""
    texts = [LEGEND, *(f"note: {note}" for note in _notes(result)), decisions_line(result)]
    if result.get("mAP_interval") is not None:
        resamples = counted(result["draws"], "resample")
        texts.append(f"intervals: 95 %, bootstrap with {resamples} of {result['resampled']}")
    for number, part in result.get("levels", {}).items():
        texts.append(f"level {number}: {headline({**part, 'images': result['images']})}")
    scored = {name: ap for name, ap in result["ap"].items() if ap is not None}
    if len(result["ap"]) > MAX_ROWS:
        best = sorted(scored, key=lambda name: -scored[name])[:MAX_NAMES]
        texts.append(f"best: {', '.join(f'{name} {percent(scored[name])}' for name in best)}")
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
    fully_known = f"({counted(decisions['images_fully_known'], 'image')} with all labels known)"
    parts.append(f"subset accuracy {percent(decisions['subset_accuracy'])} {fully_known}")
    return f"at probability > {decisions['threshold']}: {', '.join(parts)}"


def _notes(result: Mapping[str, Any]) -> list[str]:
    notes = [result["note"]] if "note" in result else []
    unscored = {"negative": result["classes_without_negatives"]}
    unscored["positive"] = [name for name, rates in result["per_class"].items() if not rates["positives"]]
    for kind, names in unscored.items():
        if names:
            classes = counted(len(names), "class", "classes")
            notes.append(f"not scored: {classes} without a known {kind} ({_first(names)})")
    skipped = [f"{image['path']} ({image['reason']})" for image in result.get("skipped", ())]
    if skipped:
        notes.append(f"skipped {counted(len(skipped), 'unreadable image')}: {_first(skipped)}")
    return notes


def _interval(interval: Sequence[float] | None) -> str:
    return MISSING if interval is None else "–".join(map(percent, interval))


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
