"""`probmcl report`: write a page that shows what a model learned, and whether to trust it."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from probmcl.cli import options
from probmcl.cli.terminal import command_console


def command(
    run: Annotated[Path, Parameter(help="run folder to describe")],
    /,
    *others: Annotated[Path, Parameter(help="other run folders to compare it with")],
    out: Annotated[Path | None, Parameter(help="the page to write (default: report.html in the run folder)")] = None,
    images: Annotated[
        bool, Parameter(help="include photographs, or leave them out if they are private", negative="--no-images")
    ] = True,
    device: options.Device = "auto",
) -> None:
    """Write a page that shows what a model learned, where it fails, and whether to use it.

    The page is one HTML file that opens without a network, and a JSON file with the same content is written next to it.
    An existing report is replaced. probmcl train writes the page at its end. Unless --no-images is used, the page
    contains test images and training images.

    Example: probmcl report runs/photos

    Example: probmcl report runs/photos runs/photos-longer --out comparison.html

    Example: probmcl report runs/chest --no-images
    """
    from probmcl.report.write_report import write_report

    console = command_console(stderr=True)
    with console.working():
        page, decision = write_report([run, *others], out, images=images, device=device, console=console, notes=console)
    command_console().print(f"report: {decision}; {page}")
