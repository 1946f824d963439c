"""`probmcl train`: train a model on labeled images."""

import shlex
from typing import TYPE_CHECKING

from probmcl import api
from probmcl.cli.options import Given, Layout, command_console, command_of, refuse_data_as_value
from probmcl.console import Console
from probmcl.settings.options import TrainOptions

if TYPE_CHECKING:
    from probmcl.run.results import Run


@command_of(TrainOptions, Layout(has_defaults=False))
def command(given: Given) -> None:
    """Train a model on labeled images and keep it only if it beats a linear probe.

    All images and labels are checked first, as in probmcl check. Then a linear probe is fitted on the frozen encoder
    and saved, so the run can be used for prediction within minutes. Finally, the methods are trained, and the candidate
    that scores best on validation is kept. Test images are used only for the final score.

    Example: probmcl train photos/labels.csv --images photos/ --budget 10m

    Example: probmcl train photos/ --method probmcl --set temperature=0.2

    Example: probmcl train photos/ --loss my_losses.py:my_loss

    Example: probmcl train xrays.csv --group "Patient ID" --minus-one unknown

    Example: probmcl train --resume runs/2026-11-15-photos

    Example: torchrun --nproc-per-node 2 -m probmcl train photos/
    """
    refuse_data_as_value(given)
    console = command_console(holds_last=True)
    with console.working():
        run = api.train(**given, console=console)
    print_next(run, console)
    console.print_held()


def print_next(run: "Run", console: Console) -> None:
    """Print the command that predicts: the images without labels, if the data have such images."""
    from probmcl.readers.options import METADATA_FILE
    from probmcl.store.run_folder import RunFolder

    data = RunFolder(run.folder).read(METADATA_FILE).data
    images = "IMAGES"
    if data is not None and data.unlabeled:
        images = shlex.join(data.unlabeled)
    folder = shlex.quote(str(run.folder))
    console.print(f"next: probmcl predict {folder} {images} --out predictions.csv")
