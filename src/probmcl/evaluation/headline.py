"""Printed scores: one line per split, and the warning about a model no better than chance."""

from collections.abc import Mapping
from typing import Any

from probmcl.errors import counted
from probmcl.tables import bracketed, percent


def headline(result: Mapping[str, Any], *, gain: str = "") -> str:
    """Return the mAP of an evaluation in percent, with its chance level and the macro AUROC.

    Intervals are included if the evaluation has them, and `gain` if it is not empty. If no class could be scored, the
    line gives the reason instead.

    >>> headline({"images": 80, "classes": 4, "classes_scored": 3, "mAP": 0.849, "chance": 0.831, "macro_auroc": 0.552})
    'mAP 84.9 (chance 83.1), AUROC 55.2, over 3 of 4 classes'
    >>> headline({"images": 1, "classes": 4, "classes_scored": 0, "mAP": None, "chance": None, "macro_auroc": None})
    'mAP undefined: with only 1 image, no class has both a positive and a negative'
    """
    if result["mAP"] is None:
        return f"mAP undefined: {_reason(result)}"
    text = f"mAP {percent(result['mAP'])}{bracketed(result.get('mAP_interval'))}"
    # The chance level is missing in the runs of version 0.1.
    details = [gain, "" if result.get("chance") is None else f"chance {percent(result['chance'])}"]
    text += f" ({', '.join(filter(None, details))})" if any(details) else ""
    text += f", AUROC {percent(result['macro_auroc'])}{bracketed(result.get('macro_auroc_interval'))}"
    scored, classes = result["classes_scored"], result["classes"]
    return text if scored == classes else f"{text}, over {scored:,} of {counted(classes, 'class', 'classes')}"


def _reason(result: Mapping[str, Any]) -> str:
    alone = "with only 1 image, " if result["images"] == 1 else ""
    return f"{alone}no class has both a positive and a negative"


def chance_warning(result: Mapping[str, Any]) -> str:
    """Return a warning if the model is not better than chance on a split, or '' if both intervals are above chance.

    AUROC must be above 50 % too: with few images, the mAP of a random ranking is higher than the mean prevalence. For
    one positive among five images, it is 46 % instead of 20 %.
    """
    remedy = "check the labels, or add images"
    if result["mAP"] is None:
        return f"the model could not be scored on the {result['split']} split: {_reason(result)}; {remedy}"
    for key, name, chance in (("mAP", "mAP", result["chance"]), ("macro_auroc", "AUROC", 0.5)):
        interval = result[f"{key}_interval"]
        if interval is None or interval[0] <= chance:
            score = f"{result['split']} {name} {percent(result[key])}{bracketed(interval)}"
            return f"{score} is not clearly above chance ({percent(chance)}); {remedy}"
    return ""
