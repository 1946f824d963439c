"""Scores for people: tables and lines of what `probmcl evaluate` found, in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text  # a name in brackets is no markup

SHOWN = 5
"""How many names a line shows: the best classes, those not in common, those renamed."""

ROWS = 20
"""How many classes or values a table shows; the file of all numbers has the rest."""


def overall(result: Mapping[str, Any]) -> Table:
    """The scores of a split, by what is decided."""
    classes = f"{result['classes_scored']} of {result['classes']} classes"
    title = f"{result['split']}: mAP {percent(result['mAP'])} %{_range(result.get('mAP_interval'))} "
    title += f"({_judged(result)}, {classes} with a positive)"
    shown = _table(title, "decided where", "CP", "CR", "CF1", "OP", "OR", "OF1")
    decisions = {f"probability > {at}": numbers for at, numbers in result["at"].items()}
    for name, numbers in {**decisions, "… > 0.5, three best": result["top3"]}.items():
        shown.add_row(name, *map(percent, numbers.values()))
    return shown


def by_class(result: Mapping[str, Any]) -> Table:
    """The classes that are worst by average precision, those without a positive last."""
    ranked = sorted(result["ap"], key=lambda name: (result["ap"][name] is None, result["ap"][name] or 0.0))
    which = "" if len(ranked) <= ROWS else f"the {ROWS} worst of {len(ranked)} "
    threshold = result["decisions"]["threshold"]
    title = f"{which}classes, worst AP first; sens., spec., PPV and NPV at probability > {threshold}"
    shown = _table(title, "class", "known", "positive", "AP", "AUROC", "sens.", "spec.", "PPV", "NPV")
    for name in ranked[:ROWS]:
        rates = result["per_class"][name]
        numbers = (result["ap"][name], result["auroc"][name])
        shares = (rates[key] for key in ("sensitivity", "specificity", "ppv", "npv"))
        shown.add_row(Text(name), f"{rates['n']:,}", f"{rates['positives']:,}", *map(percent, (*numbers, *shares)))
    return shown


def by_value(result: Mapping[str, Any]) -> Table:
    """The scores for each value of a column."""
    values = result["by"]["values"]
    which = "" if len(values) <= ROWS else f", the first {ROWS} of {len(values)} values"
    title = f"by {result['by']['column']}{which}; 95 %: the middle of resamples"
    shown = _table(title, "value", "images", "groups", "classes", "mAP", "95 %", "AUROC", "95 %")
    for value, part in list(values.items())[:ROWS]:
        groups = "–" if part["groups"] is None else f"{part['groups']:,}"
        shown.add_row(
            Text(value),
            f"{part['images']:,}",
            groups,
            str(part["classes_scored"]),
            percent(part["mAP"]),
            _ends(part["mAP_interval"]),
            percent(part["macro_auroc"]),
            _ends(part["macro_auroc_interval"]),
        )
    return shown


def decided(result: Mapping[str, Any]) -> str:
    """What decisions are worth over all classes, in a line."""
    found = result["decisions"]
    shares = {"macro F1": "macro_F1", "micro F1": "micro_F1", "sample F1": "sample_F1", "Hamming loss": "hamming_loss"}
    said = ", ".join(f"{name} {percent(found[key])}" for name, key in shares.items())
    whole = f"subset accuracy {percent(found['subset_accuracy'])} (of {found['images_fully_known']:,} fully known)"
    return f"at probability > {found['threshold']}: {said}, {whole}"


def lines(result: Mapping[str, Any]) -> list[str]:
    """What belongs to the mAP, how sure it is, the best of many classes, levels, and what was not scored."""
    said = [f"note: {note}" for note in _notes(result)]
    auroc = _range(result.get("macro_auroc_interval"))
    said.append(f"macro AUROC {percent(result['macro_auroc'])} %{auroc}")
    said.append(decided(result))
    if result.get("mAP_interval") is not None:
        said.append(f"intervals: the middle 95 % of {result['draws']:,} resamples of {result['resampled']}")
    said += [_level(number, part) for number, part in result.get("levels", {}).items()]
    scored = {name: ap for name, ap in result["ap"].items() if ap is not None}
    if len(result["ap"]) > ROWS:
        best = sorted(scored, key=lambda name: -scored[name])[:SHOWN]
        said.append(f"best: {', '.join(f'{name} {percent(scored[name])}' for name in best)}")
    if result.get("renamed"):
        said.append(f"renamed: {_few([f'{data} → {model}' for data, model in result['renamed'].items()])}")
    for side in ("model", "data"):
        names = result[f"classes_only_in_{side}"]
        if names:
            said.append(f"not scored, {_classes(len(names))} only in the {side}: {_few(names)}")
    return said


def _notes(result: Mapping[str, Any]) -> list[str]:
    """What a reader of the mAP has to know."""
    said = [result["note"]] if "note" in result else []
    certain = result["classes_without_negatives"]
    if certain:
        said.append(f"AP is 1 by definition for {_classes(len(certain))} without a known negative: {_few(certain)}")
    skipped = [f"{image['path']} ({image['reason']})" for image in result.get("skipped", ())]
    if skipped:
        images = "1 image" if len(skipped) == 1 else f"{len(skipped):,} images"
        said.append(f"skipped, {images} that cannot be used: {_few(skipped)}")
    return said


def percent(fraction: float | None) -> str:
    """A fraction for people; a dash where there is none.

    >>> percent(0.5), percent(None)
    ('50.0', '–')
    """
    return "–" if fraction is None else f"{100 * fraction:.1f}"


def _table(title: str, first: str, *numbers: str) -> Table:
    """A column of names, which may be long, and columns of numbers, which are never broken."""
    shown = Table(title=Text(title, style="bold"), title_justify="left")
    shown.add_column(first, overflow="fold")
    for column in numbers:
        shown.add_column(column, justify="right", no_wrap=True)
    return shown


def _judged(result: Mapping[str, Any]) -> str:
    """How many images were judged or, where groups were, how many of those."""
    images = f"{result['images']:,} images"
    if result.get("aggregate") is None:
        return images
    return f"{result['groups']:,} groups by the {result['aggregate']} of {images}"


def _level(number: str, part: Mapping[str, Any]) -> str:
    scored = f"{part['classes_scored']} of {part['classes']} classes"
    return f"level {number}: mAP {percent(part['mAP'])}, macro AUROC {percent(part['macro_auroc'])} ({scored})"


def _range(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f" [{_ends(ends)}]"


def _ends(ends: Sequence[float] | None) -> str:
    return "–" if ends is None else f"{percent(ends[0])}–{percent(ends[1])}"


def _classes(count: int) -> str:
    return "1 class" if count == 1 else f"{count:,} classes"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
