"""The command line: one file a command, loaded only when it is called, each thin over the library."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import cyclopts

from probmcl.runtime.malloc import keep_freed_memory

COMMANDS = {
    "check": ("probmcl.cli.check:check", "what is wrong with your data, before you train"),
    "train": ("probmcl.api:train", "from images and a table to a model"),
    "compare": ("probmcl.experiments.compare:compare", "which method is worth its cost on your data"),
    "evaluate": ("probmcl.cli.evaluate:evaluate", "how good a model is on labeled images"),
    "predict": ("probmcl.cli.predict:predict", "which classes are in images"),
    "methods": ("probmcl.cli.methods:methods", "what can be trained, and the settings of each method"),
    "encoders": ("probmcl.cli.encoders:encoders", "networks to start from, with sizes and licenses"),
    "cost": ("probmcl.cli.cost:cost", "what a method costs before you train it"),
    "demo": ("probmcl.cli.demo:demo", "all of it on embedded data, in a few minutes"),
}
"""Where each command is, and what it does."""

INTERRUPTED, TERMINATED = 130, 143


def app() -> cyclopts.App:
    """All commands, none of them imported yet."""
    from probmcl import __version__

    commands = cyclopts.App(
        name="probmcl",
        help="Multi-label image classification that people can trust.",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # it is ours to answer
    )
    for number, (name, (place, what)) in enumerate(COMMANDS.items()):
        # A command that is called says more of itself than this line, which would take its place.
        said = None if sys.argv[1:2] == [name] else what
        commands.command(place, name=name, help=said, sort_key=number)
    return commands


def main() -> None:
    """Run a command; a user's mistake is one sentence on stderr and exit code 1, never a traceback."""
    # Threads that wait must soon sleep, not spin on: on two busy cores spinning made a training step ten times slower.
    # Not at once either: between two small operations it takes longer to wake a thread than to do the work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    keep_freed_memory()
    signal.signal(signal.SIGTERM, _terminated)
    sys.unraisablehook = _send_again
    try:
        app()()
    except KeyboardInterrupt:
        if _is_first():
            print("interrupted; what was reached is kept", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)
    except (ValueError, OSError, FloatingPointError) as error:
        _fail(str(error))
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        _fail("out of memory; a smaller --batch-size or --image-size helps")


def _fail(message: str) -> NoReturn:
    """Say it and end. Of torchrun's processes the first one speaks; the others leave it to torchrun's summary."""
    summary = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if _is_first():
        print(f"probmcl: {message}", file=sys.stderr)  # noqa: T201
    elif summary:  # an error that this process alone has met must not be lost
        Path(summary).write_text(json.dumps({"message": message, "timestamp": int(time.time())}), encoding="utf-8")
    sys.exit(1)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _out_of_memory(error: RuntimeError) -> bool:
    """Whether it is torch's; where torch was never loaded it cannot be."""
    return isinstance(error, getattr(sys.modules.get("torch"), "OutOfMemoryError", ()))


def _send_again(lost: sys.UnraisableHookArgs) -> None:
    """Send a stop signal once more: Python drops what a handler raises while it forks a worker."""
    number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(lost.exc_type)
    if number is None:
        sys.__unraisablehook__(lost)
    else:
        threading.Timer(0.2, signal.raise_signal, [number]).start()


def _terminated(signal_number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)
