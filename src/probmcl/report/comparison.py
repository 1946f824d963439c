"""The files and the printed summary of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from probmcl.console import Console
from probmcl.errors import RunWarning
from probmcl.experiments.results import Comparison
from probmcl.files import write_text
from probmcl.report import comparison_plot, comparison_tables
from probmcl.report.verdict import verdict
from probmcl.tables import to_rich


def write_comparison(comparison: Comparison, folder: Path, warnings: Sequence[RunWarning]) -> None:
    """Write the tables, the references, the plot and the verdict of a comparison."""
    outputs: dict[str, Callable[[Comparison], str]] = {
        "comparison.csv": comparison_tables.to_csv,
        "comparison.md": comparison_tables.to_markdown,
        "comparison.tex": comparison_tables.to_latex,
        "methods.bib": comparison_tables.to_bibtex,
        "plot.svg": comparison_plot.to_svg,
        "verdict.txt": lambda result: "\n".join([verdict(result), *_alarms(warnings)]) + "\n",
    }
    for name, make in outputs.items():
        write_text(folder / name, make(comparison))


def print_comparison(comparison: Comparison, folder: Path, warnings: Sequence[RunWarning], console: Console) -> None:
    """Print the tables and the verdict of a comparison."""
    for table in comparison_tables.comparison_tables(comparison).values():
        console.rich.print(to_rich(table), "")
    for line in (verdict(comparison), *_alarms(warnings)):
        console.print(line)
    console.print(f"tables, plot, references and every prediction are in {folder}")


def _alarms(warnings: Sequence[RunWarning]) -> list[str]:
    return [f"ALARM: {warning.message}" for warning in warnings]
