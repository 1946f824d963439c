"""The command line: one file per command, loaded only when it is called. A command parses, calls the library, prints.

Only this package knows how options are spelled. The library names an option as its keyword argument in backticks,
`skip_bad=0.05`; `spell_options` prints it as the user types it.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import cyclopts

from probmcl.console import Console
from probmcl.runtime.machine import keep_freed_memory

COMMANDS = {
    "check": ("probmcl.cli.check:check", "what is wrong with your data, before you train"),
    "train": ("probmcl.cli.train:train", "from images and a table to a model"),
    "compare": ("probmcl.cli.compare:compare", "which method is worth its cost on your data"),
    "evaluate": ("probmcl.cli.evaluate:evaluate", "how good a model is on labeled images"),
    "predict": ("probmcl.cli.predict:predict", "which classes are in images"),
    "methods": ("probmcl.cli.methods:methods", "what can be trained, and the settings of each method"),
    "encoders": ("probmcl.cli.encoders:encoders", "networks to start from, with sizes and licenses"),
    "cost": ("probmcl.cli.cost:cost", "what a method costs before you train it"),
    "demo": ("probmcl.cli.demo:demo", "all of it on embedded data, in a few minutes"),
}
"""The function of each command, and what the command is for."""

INTERRUPTED, TERMINATED = 130, 143

SPELLING = {"data": "DATA", "settings": "--set"}
"""Arguments that are not spelled as their Python name with dashes."""

OPTION = re.compile(r"`([a-z][a-z_]*)(?:=([^`]*))?`")


def spell_options(text: str) -> str:
    """Spell the options in a message of the library as they are typed.

    >>> spell_options("`skip_bad=0.05` cannot be combined with `folds`; see `classes.txt`")
    '--skip-bad 0.05 cannot be combined with --folds; see `classes.txt`'
    """

    def spell(option: re.Match[str]) -> str:
        name = SPELLING.get(option[1], f"--{option[1].replace('_', '-')}")
        return name if option[2] is None else f"{name} {option[2]}"

    return OPTION.sub(spell, text)


def command_console(*, stderr: bool = False) -> Console:
    """Return the console of a command; under torchrun only rank 0 prints."""
    from rich.console import Console as RichConsole

    return Console(RichConsole(quiet=not _is_main_process(), stderr=stderr, emoji=False), rewrite=spell_options)


def app() -> cyclopts.App:
    """Return all commands, none of them imported yet."""
    from probmcl import __version__

    commands = cyclopts.App(
        name="probmcl",
        help="Multi-label image classification that people can trust.",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # main() handles it
    )
    for number, (name, (function, purpose)) in enumerate(COMMANDS.items()):
        # The docstring of the called command says more than this line, which would replace it.
        help_text = None if sys.argv[1:2] == [name] else purpose
        commands.command(function, name=name, help=help_text, sort_key=number)
    return commands


def main() -> None:
    """Run a command; a user's mistake is one message on stderr and exit code 1, never a traceback."""
    # Idle threads must sleep soon instead of spinning: on busy cores, spinning made a training step ten times slower.
    # Not at once either: between two small operations, waking a thread takes longer than the work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    keep_freed_memory()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    sys.unraisablehook = _send_again
    try:
        app()()
    except KeyboardInterrupt as interrupt:
        if _is_main_process():
            print("; ".join(["interrupted", *map(str, interrupt.args)]), file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)
    except (ValueError, OSError, FloatingPointError) as error:
        _fail(spell_options(str(error)))
    except RuntimeError as error:
        # If torch was never imported, it cannot have run out of memory.
        if not isinstance(error, getattr(sys.modules.get("torch"), "OutOfMemoryError", ())):
            raise
        _fail("out of memory; a smaller --batch-size or --image-size helps")


def _fail(message: str) -> NoReturn:
    """Print a message and exit. Under torchrun rank 0 prints; the others leave it to torchrun's summary."""
    summary = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if _is_main_process():
        print(f"probmcl: {message}", file=sys.stderr)  # noqa: T201
    elif summary:  # an error on this process alone must not be lost
        Path(summary).write_text(json.dumps({"message": message, "timestamp": int(time.time())}), encoding="utf-8")
    sys.exit(1)


def _is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _send_again(lost: "sys.UnraisableHookArgs") -> None:
    """Send a signal again: Python drops an exception that a handler raises while it forks a worker."""
    number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(lost.exc_type)
    if number is None:
        sys.__unraisablehook__(lost)
    else:
        main_thread = threading.main_thread().ident  # a signal sent to the timer would not wake it
        threading.Timer(0.2, signal.pthread_kill, [main_thread, number]).start()
