"""Short texts and HTML tables of predictions, for the Python prompt and notebooks."""

from __future__ import annotations

from html import escape

from probmcl.errors import counted, one_line
from probmcl.inference.prediction import LABELS, Prediction, PredictionBlock, line

TEXT_ROWS = 3
HTML_ROWS = 10
ASSIGNED = "background: #2a6f4e; color: white; border-radius: 3px; padding: 1px 5px"
OTHER = "color: gray; padding: 1px 5px"
CELL = "text-align: left; vertical-align: top"


def text(predictions: PredictionBlock) -> str:
    """Return a summary and the lines of the first images."""
    lines = [f"Predictions({_summary(predictions)})"]
    lines += [f"  {line(image)}" for image in predictions[:TEXT_ROWS]]
    rest = len(predictions) - TEXT_ROWS
    if rest > 0:
        lines.append(f"  and {rest:,} more")
    return "\n".join(lines)


def html(predictions: PredictionBlock) -> str:
    """Return a table of the first images with their most probable classes; assigned classes are highlighted."""
    rows = "".join(_html_row(image) for image in predictions[:HTML_ROWS])
    rest = len(predictions) - HTML_ROWS
    more = f"<p>and {rest:,} more</p>" if rest > 0 else ""
    head = f"<tr><th style='{CELL}'>image</th><th style='{CELL}'>classes</th></tr>"
    return f"<div><p>{_summary(predictions)}</p><table>{head}{rows}</table>{more}</div>"


def _html_row(image: Prediction) -> str:
    """Return the table row of an image: its path, and its most probable classes or the error."""
    path = escape(one_line(image.path))
    content = _html_classes(image) if image.error is None else f"<em>{escape(one_line(image.error))}</em>"
    return f"<tr><td style='{CELL}'>{path}</td><td style='{CELL}'>{content}</td></tr>"


def _html_classes(image: Prediction) -> str:
    """Return the most probable classes of a readable image, and the number of assigned classes that are not shown."""
    labels = image.labels or ()
    shown = image.top(LABELS)
    parts = []
    for name, probability in shown:
        style = ASSIGNED if name in labels else OTHER
        parts.append(f"<span style='{style}'>{escape(one_line(name))}&nbsp;{probability:.2f}</span>")
    hidden = len(labels) - sum(name in labels for name, _ in shown)
    if hidden > 0:
        parts.append(f"and {hidden} more")
    return " ".join(parts)


def _summary(predictions: PredictionBlock) -> str:
    """Return the numbers of images and classes, the rule for decisions, and the number of unreadable images."""
    images = counted(len(predictions), "image")
    classes = counted(len(predictions.names), "class", "classes")
    if predictions.no_up_to is not None:
        rule = "yes, no or not sure"
    elif isinstance(predictions.threshold, float | int):
        rule = f"threshold {predictions.threshold:g}"
    else:
        rule = "a threshold per class"
    summary = f"{images}, {classes}, {rule}"
    unreadable = sum(reason is not None for reason in predictions.reasons)
    if unreadable:
        summary += f", {unreadable:,} unreadable"
    return summary
