"""`probmcl demo`: the whole flow on embedded data, in a few minutes, without a download."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def demo(
    *, out: Annotated[Path | None, Parameter(help="a new or empty folder; by default runs/DATE-demo")] = None
) -> None:
    """Train four classifiers on scenes of handwritten digits and compare them.

    Nothing is downloaded. It takes about three minutes on two cores, and leaves the scenes, a run folder and a
    comparison behind.

    Example: probmcl demo --out digits-demo
    """
    from probmcl import files, run_folder
    from probmcl.console import Console
    from probmcl.demo import comparison, run_demo, table

    console = Console()
    folder = out or run_folder.new_folder(Path("runs"), "demo")
    rows = comparison(run_demo(folder, console))
    files.write_json(folder / "comparison.json", rows)
    console.rich.print(table(rows))
    console.print(f"everything is in {folder}")
