"""`probmcl compare`: compare methods with one encoder, one budget and one evaluation."""

from probmcl import api
from probmcl.cli.options import as_command

compare = as_command(
    api.compare,
    lambda comparison, console: None,
    """Compare methods with one encoder, one evaluation and the same number of images seen.

    The tables have a row for the own head of each method, if it has one, a row for a linear probe on its encoder, and
    a row for the probe on the frozen encoder. Settings are chosen on validation images, never on test images. Tables,
    a plot and a verdict are written into the folder.

    Example: probmcl compare photos/ --methods bce,asl,probmcl --budget 2h

    Example: probmcl compare photos/ --epochs 6 --seeds 3 --trials 3

    Example: probmcl compare --resume runs/2026-11-15-photos-comparison
    """,
)
