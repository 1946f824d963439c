"""The command line: one module per command, imported only when the command runs.

A command parses its options, calls the library and prints the result.
"""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import NoReturn

import cyclopts

from probmcl.cli.commands import COMMANDS
from probmcl.cli.options import escape_missing_characters, format_error, is_rank_zero, reading_lines, spell_options
from probmcl.errors import Question, printable
from probmcl.runtime.machine import discard_output, exit_on_signals, keep_freed_memory

INTERRUPTED = 128 + signal.SIGINT
"""As in a shell, exit codes are 128 plus the number of the signal: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM."""

OUT_OF_MEMORY = "out of memory; use a smaller --batch-size or --image-size"


def app() -> cyclopts.App:
    """Return the application with all commands, without importing them."""
    from probmcl.version import __version__

    commands = cyclopts.App(
        name="probmcl",
        help="Train, evaluate and compare models for multi-label image classification.",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # handled by main()
        error_formatter=format_error,
    )
    for position, name in enumerate(COMMANDS):
        function, summary = COMMANDS[name]
        is_called = sys.argv[1:2] == [name]
        # A summary would replace the command's docstring, which is shown by its own --help.
        help_text = None if is_called else summary
        commands.command(function, name=name, help=help_text, sort_key=position)
    return commands


def main() -> None:
    """Run a command. User errors print one message on stderr, without a traceback, and exit with code 1."""
    # Idle OpenMP threads spin briefly and then sleep. On busy cores, long spinning made a training step ten times
    # slower. Without any spinning, waking a thread takes longer than a small operation.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    escape_missing_characters()
    keep_freed_memory()
    exit_on_signals()
    warnings.formatwarning = _format_warning
    try:
        app()()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, as in `probmcl predict … | head`
        discard_output([1])
        sys.exit(1)  # like rich
    except KeyboardInterrupt as interrupt:
        if is_rank_zero():
            message = "; ".join(["interrupted", *map(str, interrupt.args)])
            print(printable(message), file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)
    except Question as question:
        lines = [spell_options(question.problem), *reading_lines(question.readings, sys.argv[1:])]
        _fail("\n".join(lines))
    except (ValueError, OSError, FloatingPointError) as error:
        _fail(spell_options(str(error)))
    except RuntimeError as error:
        # torch is not imported here: if it is not loaded yet, the error cannot come from it.
        out_of_memory = getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
        if not isinstance(error, out_of_memory):
            raise
        _fail(OUT_OF_MEMORY)
    except MemoryError:
        _fail(OUT_OF_MEMORY)


def _fail(message: str) -> NoReturn:
    """Print a message and exit. Under torchrun, only rank 0 prints; other ranks write it for torchrun's summary."""
    summary = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if is_rank_zero():
        print(f"probmcl: {printable(message)}", file=sys.stderr)  # noqa: T201
    elif summary:  # rank 0 may have no error to print
        content = json.dumps({"message": message, "timestamp": int(time.time())})
        Path(summary).write_text(content, encoding="utf-8", newline="\n")
    sys.exit(1)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as Python prints it, with control characters escaped."""
    return printable(f"{filename}:{lineno}: {category.__name__}: {message}\n")
