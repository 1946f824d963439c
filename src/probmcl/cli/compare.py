"""`probmcl compare`: several methods with one encoder, one budget and one evaluation."""

from probmcl import api
from probmcl.cli.options import as_command

compare = as_command(
    api.compare,
    lambda comparison, console: None,
    """Compare methods fairly: one encoder, the same images seen by each, one evaluation, and a verdict.

    Every method has a row for its own head, if it has one, and a row for a linear probe on its encoder; the probe on
    the frozen encoder is always there. Test images decide nothing. Tables, a plot and the verdict are written into the
    folder; an interrupted comparison continues with --resume, and nothing that is finished is computed again.

    Example: probmcl compare photos/ --methods bce,asl,probmcl --budget 2h

    Example: probmcl compare photos/ --methods all --epochs 6 --seeds 3 --trials 3

    Example: probmcl compare --resume runs/2026-11-15-photos-comparison --add elsewhere/results.jsonl
    """,
)
