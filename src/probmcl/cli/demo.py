"""`probmcl demo`: train and compare classifiers on generated images."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def command(
    *,
    out: Annotated[Path | None, Parameter(help="new or empty folder (default: runs/DATE-demo)")] = None,
    report: Annotated[bool, Parameter(help="write a page about the kept model", negative="--no-report")] = True,
) -> None:
    """Train three methods on generated scenes of handwritten digits and compare their test scores.

    It takes about three minutes on two cores and downloads nothing. The folder then contains the images, a run, the
    scores and a report: a page that shows what the kept model learned.

    Example: probmcl demo --out digits-demo
    """
    from probmcl.console import Console
    from probmcl.demo.demo import comparison, run_demo, table
    from probmcl.report.page import write_report
    from probmcl.runtime import files
    from probmcl.store import run_folder

    console = Console()
    folder = out or run_folder.new_folder(Path("runs"), "demo")
    with console.working():
        rows = comparison(run_demo(folder, console))
    files.write_json(folder / "comparison.json", rows)
    console.rich.print(table(rows))
    console.print(f"images: {folder / 'data'}; run: {folder / 'run'}; scores: {folder / 'comparison.json'}")
    if report:
        page, decision = write_report([folder / "run"], console=console)
        console.print(f"report: {decision}; {page}")
