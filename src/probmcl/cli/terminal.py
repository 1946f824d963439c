"""The console of a command."""

import codecs
import io
import os
import sys

from probmcl.cli.spelling import spell_options
from probmcl.console import Console


def command_console(*, stderr: bool = False, holds_last: bool = False) -> Console:
    """Return a console that spells options as on the command line. Under torchrun, only rank 0 prints."""
    from rich.console import Console as RichConsole

    output = RichConsole(quiet=not is_rank_zero(), stderr=stderr, emoji=False)
    return Console(output, rewrite=spell_options, holds_last=holds_last)


def is_rank_zero() -> bool:
    """Return whether this is the only process or, under torchrun, rank 0. It does not import torch."""
    return os.environ.get("RANK", "0") == "0"


def escape_missing_characters() -> None:
    """Escape characters that the encoding of the output does not have, instead of failing in the middle of a command.

    On Windows, output that does not go to a terminal has an encoding such as cp1252, which has no − (minus).
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.errors == "strict" and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")
