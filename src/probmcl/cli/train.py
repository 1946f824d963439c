"""`probmcl train`: train a model on labeled images."""

import shlex
from typing import TYPE_CHECKING

from probmcl import api
from probmcl.cli.options import as_command
from probmcl.console import Console

if TYPE_CHECKING:
    from probmcl.run.results import Run


def print_next(run: "Run", console: Console) -> None:
    """Print the command that predicts: the images without labels, if the data have such images."""
    from probmcl.readers.options import METADATA_FILE
    from probmcl.store.run_folder import RunFolder

    data = RunFolder(run.folder).read(METADATA_FILE).data
    images = shlex.join(() if data is None else data.unlabeled) or "IMAGES"
    console.print(f"next: probmcl predict {shlex.quote(str(run.folder))} {images} --out predictions.csv")


command = as_command(
    api.train,
    print_next,
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
    """,
)
