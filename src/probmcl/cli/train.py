"""`probmcl train`: from images and a table to a model."""

from probmcl import api
from probmcl.cli.options import as_command

train = as_command(
    api.train,
    lambda run, console: console.print(f"next: probmcl predict {run.folder} IMAGES --out predictions.csv"),
    """Train a model on your images, and keep it only if it beats a linear probe.

    First it fits a linear probe on the frozen encoder and saves it: a usable model within minutes. Then it prints the
    plan, trains the methods, fits a probe on each, and keeps the best on validation. Test images decide nothing.

    Example: probmcl train photos/labels.csv --images photos/ --budget 10m

    Example: probmcl train photos/ --method probmcl --set temperature=0.2 --epochs 10

    Example: probmcl train photos/ --loss my_losses.py:my_loss

    Example: probmcl train xrays.csv --images xrays/ --group "Patient ID" --minus-one unknown Edema=positive

    Example: probmcl train --resume runs/2026-11-15-photos

    Before anything is trained every image is read once, and data that would spoil the run are refused: files that
    cannot be read (--skip-bad), the same image or patient in train and test (--allow-leaks). See probmcl check.

    Under torchrun the same command uses several processes: torchrun --nproc-per-node 2 -m probmcl train photos/
    """,
)
