"""`probmcl compare`: compare methods using the same encoder, budget and evaluation."""

from probmcl import api
from probmcl.cli.options import Given, Layout, command_console, command_of, refuse_data_as_value
from probmcl.settings.options import CompareOptions


@command_of(CompareOptions, Layout(has_defaults=False))
def command(given: Given) -> None:
    """Compare methods using the same encoder, evaluation and number of training images seen.

    For each method, the tables have a row for its own head, if it has one, and a row for a linear probe on its encoder.
    Another row is for the probe on the frozen encoder. Settings are chosen on validation images, never on test images.
    The tables, a plot and a verdict are written to the folder.

    Example: probmcl compare photos/ --methods bce asl probmcl --budget 2h

    Example: probmcl compare photos/ --epochs 6 --seeds 3 --trials 3

    Example: probmcl compare --resume runs/2026-11-15-photos-comparison
    """
    refuse_data_as_value(given)
    console = command_console()
    with console.working():
        api.compare(**given, console=console)
