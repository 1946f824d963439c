"""The figures of a report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from numpy import ndarray

from probmcl.report.svg import FONT, INK, MUTED, SERIES, figure_style, new_figure, to_inline_svg

WIDTH, HEIGHT = 420, 300
MAX_LINES = 30
"""Largest number of classes whose curves are all drawn."""

MAX_NAME = 16
POSITIVE, NEGATIVE = (27, 98, 165), (200, 80, 20)
"""Colors of matrices, which are readable on light and dark backgrounds."""


def report_figures(content: Mapping[str, Any]) -> dict[str, Markup]:
    """Return all figures by name; those without data are left out."""
    figures = {}
    with figure_style():
        curves = content["curves"]
        if curves["macro"]:
            figures["precision_recall"] = precision_recall(curves, content["classes"])
        figures["reliability"] = reliability(curves["reliability"])
        figures["risk_coverage"] = risk_coverage(curves["risk_coverage"])
        pairs = content["label_pairs"]
        if pairs["classes"]:
            truth, predicted = np.array(pairs["truth"]), np.array(pairs["predicted"])
            figures["truth"] = matrix(truth, pairs["classes"], "truth", "labels")
            figures["predicted"] = matrix(predicted, pairs["classes"], "predicted", "predictions")
            difference = predicted - truth
            figures["difference"] = matrix(difference, pairs["classes"], "difference", "prediction − label")
        for number, curve in enumerate(content["training"]["curves"]):
            figures[f"loss-{number}"] = loss(curve, f"loss-{number}")
            if curve["statistics"]:
                figures[f"statistics-{number}"] = statistics(curve, f"statistics-{number}")
        if content["runs"]:
            figures["runs"] = runs(content["runs"])
    return figures


def precision_recall(curves: Mapping[str, Any], classes: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw the precision–recall curves: all classes if there are few, their mean, and all decisions together."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    lines = [row["precision_at_recall"] for row in classes if row["precision_at_recall"]]
    recall = curves["recall"]
    if len(lines) <= MAX_LINES:
        for line in lines:
            axes.plot(recall, line, color=MUTED, linewidth=0.7, alpha=0.55)
    axes.fill_between(
        recall, *curves["quartiles"], color=SERIES[0], alpha=0.18, linewidth=0, label="half of the classes"
    )
    axes.plot(recall, curves["macro"], color=SERIES[0], linewidth=2.2, label="mean over classes")
    axes.plot(recall, curves["micro"], color=SERIES[1], linewidth=1.8, dashes=(5, 2), label="all decisions")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall", ylabel="precision")
    axes.legend(loc="lower left")
    return to_inline_svg(figure, "pr", "Precision–recall curves on test images")


def reliability(curves: Mapping[str, Any]) -> Markup:
    """Draw the reliability diagram, before and after calibration."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, dashes=(2, 3), label="perfect")
    styles = {"before": (SERIES[1], "s", (5, 2)), "after": (SERIES[0], "o", (1, 0))}
    for key, points in curves.items():
        color, marker, dashes = styles[key] if len(curves) > 1 else styles["after"]
        name = f"{key} calibration" if len(curves) > 1 else "scores"
        x, y = points["probability"], points["frequency"]
        axes.plot(x, y, color=color, marker=marker, markersize=4.5, linewidth=1.8, dashes=dashes, label=name)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="fraction of positives")
    axes.legend(loc="upper left")
    return to_inline_svg(figure, "rel", "Reliability diagram of all labels on test images")


def risk_coverage(curve: Mapping[str, Any]) -> Markup:
    """Draw the fraction of wrong decisions among the most certain images."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    points = [(c, r) for c, r in zip(curve["coverage"], curve["risk"], strict=True) if r is not None]
    x, y = [100 * c for c, _ in points], [100 * r for _, r in points]
    axes.plot(x, y, color=SERIES[0], marker="o", markersize=3.5, linewidth=1.8)
    axes.set(xlim=(0, 102), xlabel="most certain images kept (%)", ylabel="wrong decisions (%)")
    axes.set_ylim(bottom=0)
    return to_inline_svg(figure, "risk", "Risk–coverage curve on test images")


def matrix(values: Float[ndarray, "K K"], names: Sequence[str], key: str, title: str) -> Markup:
    """Draw a matrix of fractions; the opacity of a cell is its value, so it fits light and dark pages."""
    side = 110 + max(11 * len(names), 150)
    figure, axes = new_figure(side, side + 20)
    pixels = np.zeros((*values.shape, 4))
    pixels[..., :3] = np.where(values[..., None] < 0, NEGATIVE, POSITIVE)
    scale = np.abs(values - np.diag(np.diag(values))).max() if key == "difference" else 1.0
    pixels[..., 3] = 255 * np.abs(values) / max(scale, 1e-9)
    axes.imshow(np.clip(pixels, 0, 255).astype(np.uint8), interpolation="none")
    axes.grid(visible=False)
    short = [name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…" for name in names]
    size = FONT - 2 if len(names) > 12 else FONT - 1
    axes.set_xticks(range(len(names)), short, rotation=90, fontsize=size)
    axes.set_yticks(range(len(names)), short, fontsize=size)
    axes.set_title(title, loc="left")
    return to_inline_svg(figure, key, f"Co-occurrence of labels: {title}")


def loss(curve: Mapping[str, Any], key: str) -> Markup:
    """Draw the loss of a training stage."""
    figure, axes = new_figure(300, 190)
    axes.plot(curve["step"], _numbers(curve["loss"]), color=SERIES[0], linewidth=1.8)
    axes.set(xlabel="step", ylabel="loss")
    axes.set_title(curve["stage"], loc="left")
    return to_inline_svg(figure, key, f"Loss of {curve['stage']}")


def statistics(curve: Mapping[str, Any], key: str) -> Markup:
    """Draw the collapse statistics of a contrastive stage; the number of components is on its own axis."""
    figure, axes = new_figure(300, 230)
    others = [name for name in curve["statistics"] if name != "effective_components"]
    for name, color in zip(others, SERIES, strict=False):
        axes.plot(curve["step"], _numbers(curve[name]), color=color, linewidth=1.6, label=name.replace("_", " "))
    if "effective_components" in curve["statistics"]:
        right = axes.twinx()
        right.plot(curve["step"], _numbers(curve["effective_components"]), color=INK, linewidth=1.2, dashes=(4, 2))
        right.set_ylabel("effective components (dashed)")
        right.grid(visible=False)
    axes.set(xlabel="step")
    axes.set_title(curve["stage"], loc="left")
    figure.legend(loc="outside lower center", ncols=2, fontsize=FONT - 2)
    return to_inline_svg(figure, key, f"Collapse statistics of {curve['stage']}")


def runs(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw the test mAP of several runs with their intervals."""
    figure, axes = new_figure(WIDTH, 70 + 28 * len(rows))
    for number, row in enumerate(rows):
        if row["mAP"] is not None:
            low, high = row["mAP_interval"] or (row["mAP"], row["mAP"])
            axes.plot([100 * low, 100 * high], [number, number], color=SERIES[0], linewidth=2)
            axes.plot(100 * row["mAP"], number, color=SERIES[0], marker="o", markersize=7)
    names = [row["name"] if len(row["name"]) <= 2 * MAX_NAME else f"{row['name'][: 2 * MAX_NAME]}…" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel="test mAP (%)")
    return to_inline_svg(figure, "runs", "Test mAP of the runs")


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
