"""The results of `similarity.py`: a table, ratios, a JSON file and a plot."""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

VARIANTS = ("naive", "tiled", "features")


@dataclass
class Row:
    """Measurements of one variant at one size; values that were not measured may be predicted."""

    dim: int
    classes: int
    variant: str
    components: int  # per mixture that are not negligible
    error_rows: int  # rows used to measure errors
    seconds: list[float] = field(default_factory=list)
    bytes: int | None = None
    similarity_error: float | None = None
    gradient_error: float | None = None
    predicted_seconds: float | None = None
    predicted_bytes: int | None = None

    def time(self, *, best: bool = False) -> float | None:
        """Return the median or best time of the rounds, or the extrapolated time."""
        return (min if best else statistics.median)(self.seconds) if self.seconds else self.predicted_seconds

    @property
    def note(self) -> str:
        """A remark on values that were not measured, or an empty string."""
        if self.seconds:
            return ""
        if self.predicted_seconds is not None:
            return "extrapolated"
        return f"not run (predicted {shown(self.predicted_bytes, 1e9)} GB)"


def shown(value: float | None, unit: float = 1.0, form: str = ".3g") -> str:
    """Format a number for a table; None is a dash.

    >>> shown(0.01234), shown(2.179e14, unit=1e9), shown(None)
    ('0.0123', '217,900', '–')
    """
    return "–" if value is None else f"{value / unit:{form if value / unit < 1000 else ',.0f'}}"


def table(rows: list[Row]) -> str:
    """Return all results as a Markdown table."""
    head = ["n", "C", "components", "variant", "median s", "best s", "peak MB", "error of Sim", "error of gradients"]
    lines = [[*head, "rows", "note"], ["---"] * (len(head) + 2)]
    for r in rows:
        size = [f"{r.dim:,}", f"{r.classes:,}", f"{r.components:,}", r.variant]
        cost = [shown(r.time()), shown(r.time(best=True)), shown(r.bytes, 1e6)]
        error = [shown(r.similarity_error, form=".1e"), shown(r.gradient_error, form=".1e"), str(r.error_rows)]
        lines.append([*size, *cost, *error, r.note])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratios(rows: list[Row]) -> list[str]:
    """Return time ratios of the variants at 80 classes (or the fewest), and of the most classes to that number."""
    lines = []
    for dim in dict.fromkeys(row.dim for row in rows):
        by_size = {(row.variant, row.classes): row for row in rows if row.dim == dim}
        sizes = sorted({classes for _, classes in by_size})
        base, most = 80 if 80 in sizes else sizes[0], sizes[-1]
        compared = [((variant, base), ("features", base)) for variant in ("naive", "tiled")]
        if most != base:
            compared.append((("features", most), ("features", base)))
        lines += [ratio(by_size[a], by_size[b]) for a, b in compared if a in by_size and b in by_size]
    return lines


def ratio(a: Row, b: Row) -> str:
    """Return the ratio of the median and of the best times as text, with the notes of both rows."""
    title = f"n = {a.dim:,}: {a.variant} at C = {a.classes:,} / {b.variant} at C = {b.classes:,}"
    times = [(a.time(best=best), b.time(best=best)) for best in (False, True)]
    medians, best = (shown(None if x is None or y is None else x / y) for x, y in times)
    return f"{title}: {medians} (medians), {best} (best)" + "".join(f"; {r.variant} {r.note}" for r in (a, b) if r.note)


def save(results: list[Row], folder: Path, *, rows: int, threads: int) -> None:
    """Write all results with date, machine and commit, and the plot if matplotlib is installed."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    machine = {"cores": os.cpu_count(), "threads": threads, "processor": platform.machine()}
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine | {"python": platform.python_version(), "torch": torch.__version__},
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None,
        "rows": rows,
        "results": [asdict(row) for row in results],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "similarity.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        draw(results, folder / "similarity.png")


def draw(rows: list[Row], file: Path) -> None:
    """Plot time and memory against C on log axes; hollow markers are values that were not measured."""
    colors = dict(zip(VARIANTS, ("#555555", "#d95f02", "#1b9e77"), strict=True))
    styles = dict(zip(dict.fromkeys(row.dim for row in rows), itertools.cycle(("-", "--", ":")), strict=False))
    panels: dict[str, Callable[[Row], float | None]] = {
        "seconds, forward + backward": Row.time,
        "peak memory, GB": lambda row: (row.bytes or row.predicted_bytes or math.nan) / 1e9,
    }
    sizes = sorted({row.classes for row in rows})
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels))
    for axis, (label, value) in zip(axes, panels.items(), strict=True):
        for variant, dim in itertools.product(colors, styles):
            line = sorted(
                (r.classes, value(r) or math.nan, r.note) for r in rows if (r.variant, r.dim) == (variant, dim)
            )
            if line:
                classes, values, notes = zip(*line, strict=True)
                axis.plot(classes, values, styles[dim], color=colors[variant], label=f"{variant}, n = {dim:,}")
                face_colors = ["white" if note else colors[variant] for note in notes]
                axis.scatter(classes, values, s=25, edgecolors=colors[variant], facecolors=face_colors, zorder=3)
        axis.set(xscale="log", yscale="log", xlabel="classes C", ylabel=label)
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize="small")
    if any(row.note for row in rows):
        figure.supxlabel("hollow: not measured (time extrapolated, memory predicted)", fontsize="small")
    figure.savefig(file, dpi=150)
