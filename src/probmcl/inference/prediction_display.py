"""Short texts and HTML tables of predictions, for the Python prompt and notebooks."""

from __future__ import annotations

from html import escape

from probmcl.errors import counted, one_line
from probmcl.inference.prediction import LABELS, Prediction, PredictionBlock, line

TEXT_ROWS, HTML_ROWS = 3, 10
ASSIGNED = "background: #2a6f4e; color: white; border-radius: 3px; padding: 1px 5px"
OTHER = "color: gray; padding: 1px 5px"
CELL = "text-align: left; vertical-align: top"


def text(predictions: PredictionBlock) -> str:
    """Return a summary and the lines of the first images."""
    lines = [f"Predictions({_summary(predictions)})", *(f"  {line(image)}" for image in predictions[:TEXT_ROWS])]
    rest = len(predictions) - TEXT_ROWS
    return "\n".join([*lines, *([f"  and {rest:,} more"] if rest > 0 else [])])


def html(predictions: PredictionBlock) -> str:
    """Return a table of the first images with their most probable classes; assigned classes are highlighted."""
    rows = "".join(_html_row(image) for image in predictions[:HTML_ROWS])
    rest = len(predictions) - HTML_ROWS
    more = f"<p>and {rest:,} more</p>" if rest > 0 else ""
    head = f"<tr><th style='{CELL}'>image</th><th style='{CELL}'>classes</th></tr>"
    return f"<div><p>{_summary(predictions)}</p><table>{head}{rows}</table>{more}</div>"


def _html_row(image: Prediction) -> str:
    labels = image.labels or ()
    shown = image.top(LABELS)
    cells = [
        f"<span style='{ASSIGNED if name in labels else OTHER}'>{escape(one_line(name))}&nbsp;{score:.2f}</span>"
        for name, score in shown
    ]
    hidden = len(labels) - sum(name in labels for name, _ in shown)
    cells += [f"and {hidden} more"] if hidden > 0 else []
    content = " ".join(cells) if image.error is None else f"<em>{escape(one_line(image.error))}</em>"
    return f"<tr><td style='{CELL}'>{escape(one_line(image.path))}</td><td style='{CELL}'>{content}</td></tr>"


def _summary(predictions: PredictionBlock) -> str:
    unreadable = sum(reason is not None for reason in predictions.reasons)
    classes = counted(len(predictions.names), "class", "classes")
    counts = f"{counted(len(predictions), 'image')}, {classes}"
    threshold = predictions.threshold
    rule = f"threshold {threshold:g}" if isinstance(threshold, float | int) else "a threshold per class"
    rule = rule if predictions.no_up_to is None else "yes, no or not sure"
    return f"{counts}, {rule}" + (f", {unreadable:,} unreadable" if unreadable else "")
