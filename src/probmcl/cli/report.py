"""`probmcl report`: write a page that shows what a model learned, and whether to trust it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from probmcl.cli.options import Given, Layout, command_console, own_command_of
from probmcl.settings.declaration import Argument
from probmcl.settings.model_options import ReportOptions


@dataclass(frozen=True)
class ReportCommand:
    """The runs of a report: on the command line, the first one has a name of its own."""

    run: Annotated[Path, Argument("run folder to describe")]
    others: Annotated[tuple[Path, ...], Argument("other run folders to compare it with")] = ()


@own_command_of(ReportCommand, ReportOptions, Layout(types={"out": Path | None}, replaced=["runs"]))
def command(own: ReportCommand, given: Given) -> None:
    """Write a page that shows what a model learned, where it fails, and whether to use it.

    The page is one HTML file that opens without a network, and a JSON file with the same content is written next to it.
    An existing report is replaced. probmcl train writes the page at its end. Unless --no-images is used, the page
    contains test images and training images.

    Example: probmcl report runs/photos

    Example: probmcl report runs/photos runs/photos-longer --out comparison.html

    Example: probmcl report runs/chest --no-images
    """
    from probmcl.report.page import write_report

    console = command_console(stderr=True)
    with console.working():
        page, decision = write_report([own.run, *own.others], **given, console=console, notes=console)
    command_console().print(f"report: {decision}; {page}")
