"""The command line: one module per command, imported only when the command runs.

A command parses its options, calls the library and prints the result. Library messages write options and calls as in
Python, in backticks: `skip_bad=0.05`. `spell_options` replaces them with their spelling on the command line.
"""

import ast
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import cyclopts

from probmcl.console import Console
from probmcl.errors import Question, Reading, printable
from probmcl.runtime.machine import keep_freed_memory

COMMANDS = {
    "check": ("probmcl.cli.check:check", "Check images and labels for problems before training."),
    "train": ("probmcl.cli.train:train", "Train a model on labeled images."),
    "compare": ("probmcl.cli.compare:compare", "Compare methods on your data."),
    "evaluate": ("probmcl.cli.evaluate:evaluate", "Evaluate a trained model on labeled images."),
    "predict": ("probmcl.cli.predict:predict", "Predict the classes of images."),
    "explain": ("probmcl.cli.explain:explain", "Show which parts of images labels were predicted from."),
    "calibrate": ("probmcl.cli.calibrate:calibrate", "Fit probabilities and thresholds again."),
    "report": ("probmcl.cli.report:report", "Write a page about a trained model."),
    "methods": ("probmcl.cli.methods:methods", "List the methods, or show the settings of one."),
    "encoders": ("probmcl.cli.encoders:encoders", "List encoders with their sizes and licenses."),
    "cost": ("probmcl.cli.cost:cost", "Show the parameters and operations of methods."),
    "demo": ("probmcl.cli.demo:demo", "Train and compare methods on generated images."),
}
"""The function of each command, and its summary in `probmcl --help`."""

INTERRUPTED = 128 + signal.SIGINT
"""As in a shell, exit codes are 128 plus the number of the signal: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM."""

OUT_OF_MEMORY = "out of memory; use a smaller --batch-size or --image-size"

SPELLING = {"data": "DATA", "settings": "--set"}
"""Parameters whose option is not just the Python name with dashes."""

OPTION = re.compile(r"`([a-z][a-z_]*)(?:=([^`]*))?`")
CALL = re.compile(r"`(probmcl\.[a-z]+\([^`]*\))`")
NOT_PYTHON = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
"""Errors of parsing text in backticks, which may be a placeholder or come from a file."""


def spell_options(text: str) -> str:
    """Spell the options and calls in a library message as they are typed on the command line.

    >>> spell_options("`skip_bad=0.05` cannot be combined with `folds`; see `classes.txt`")
    '--skip-bad 0.05 cannot be combined with --folds; see `classes.txt`'
    >>> spell_options('choose one with `group="Patient ID"` or `group=COLUMN`')
    "choose one with --group 'Patient ID' or --group COLUMN"
    >>> spell_options('to resume: `probmcl.train(resume="runs/photos")`')
    'to resume: probmcl train --resume runs/photos'
    >>> spell_options('`probmcl.compare(resume="runs/x", methods=["asl", "mine.py:loss"])`')
    'probmcl compare --resume runs/x --methods asl mine.py:loss'
    >>> spell_options('first run `probmcl.load("runs/photos").calibrate()`')
    'first run probmcl calibrate runs/photos'
    """
    text = CALL.sub(lambda call: _spell_call(call[1]), text)
    return OPTION.sub(lambda option: _spell_option(option[1], option[2]), text)


def _spell_call(text: str) -> str:
    """Spell a call of the form `probmcl.COMMAND(…)` or `probmcl.load(RUN).COMMAND()`; other text is not changed."""
    try:
        match ast.parse(text, mode="eval").body:
            case ast.Call(ast.Attribute(ast.Name("probmcl"), command), arguments, keywords) if command in COMMANDS:
                pass
            case ast.Call(ast.Attribute(ast.Call(ast.Attribute(ast.Name("probmcl"), "load"), arguments), command), []):
                keywords = []
            case _:
                return text
        words = [str(ast.literal_eval(argument)) for argument in arguments]
        for option in keywords:
            words += _value_words(str(option.arg), ast.literal_eval(option.value))
    except NOT_PYTHON:
        return text
    return shlex.join(["probmcl", command, *words])


def _value_words(name: str, value: object) -> list[str]:
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list):
        return [_spelled(name), *map(str, value)]
    return option_words({name: str(value)})


def _spell_option(name: str, text: str | None) -> str:
    try:
        value = None if text is None else ast.literal_eval(text)
    except NOT_PYTHON:  # a placeholder such as FOLDER
        return f"{_spelled(name)} {text}"
    if value is None or value is True:
        return _spelled(name)
    if isinstance(value, str):
        return shlex.join(option_words({name: value}))
    return f"{_spelled(name)} {shlex.join(map(str, value)) if isinstance(value, list) else text}"


def _spelled(name: str) -> str:
    return SPELLING.get(name, f"--{name.replace('_', '-')}")


def reading_lines(readings: Iterable[Reading], words: Sequence[str]) -> list[str]:
    """Return, for each reading, its meaning, example rows and the command that chooses it, alone on a line.

    >>> absent = Reading("a blank means absent", {"blank": "negative"}, ("row 2: cat", "row 3: dog"))
    >>> print(*reading_lines([absent], ["train", "my labels.csv"]), sep="\\n")
      a blank means absent:
        row 2: cat
        row 3: dog
        probmcl train 'my labels.csv' --blank negative
    """
    lines: list[str] = []
    for reading in readings:
        example = [*reading.rows, command_line(words, reading.options)]
        lines += [f"  {spell_options(reading.meaning)}:", *(f"    {line}" for line in example)]
    return lines


def command_line(words: Sequence[str], options: Mapping[str, str]) -> str:
    """Return a command for the shell: `words` with options added, or replaced if they take a single value.

    >>> command_line(["train", "photos", "--skip-bad", "0.01", "--ignore", "site"], {"skip_bad": "0.3", "ignore": "id"})
    'probmcl train photos --ignore site --skip-bad 0.3 --ignore id'
    >>> command_line(["train", "--", "-photos"], {"allow_leaks": "True", "separator": "-"})
    'probmcl train --allow-leaks --separator=- -- -photos'
    """
    words = list(words)
    for name in options:
        if not isinstance(_default(name), tuple | bool):  # a list is extended, and a flag is not repeated
            words = without_option(words, _spelled(name))
    end = words.index("--") if "--" in words else len(words)
    return shlex.join(["probmcl", *words[:end], *option_words(options), *words[end:]])


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return options as the words of a command line.

    >>> option_words({"split_column": "", "allow_leaks": "True", "none_label": "-"})
    ['--split-column', '', '--allow-leaks', '--none-label=-']
    """
    words: list[str] = []
    for name, value in options.items():
        if isinstance(_default(name), bool):  # a flag
            words.append(_spelled(name))
        else:
            words += [f"{_spelled(name)}={value}"] if value.startswith("-") else [_spelled(name), value]
    return words


def _default(name: str) -> object:
    from probmcl.readers.options import DataChecks, ReadOptions

    return (vars(ReadOptions()) | vars(DataChecks())).get(name)


def without_option(words: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option that takes one value.

    >>> without_option(["check", "photos", "--out", "a.json", "--seed=1"], "--out")
    ['check', 'photos', '--seed=1']
    >>> without_option(["train", "--skip_bad=0.1", "photos"], "--skip-bad")
    ['train', 'photos']
    """
    kept: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.replace("_", "-").partition("=")
        if name != option:
            kept.append(word)
        elif not equals:
            next(remaining, None)
    return kept


def command_console(*, stderr: bool = False, holds_last: bool = False) -> Console:
    """Return a console that spells options as on the command line. Under torchrun, only rank 0 prints."""
    from rich.console import Console as RichConsole

    output = RichConsole(quiet=not _is_main_process(), stderr=stderr, emoji=False)
    return Console(output, rewrite=spell_options, holds_last=holds_last)


def app() -> cyclopts.App:
    """Return the application with all commands, without importing them."""
    from probmcl import __version__
    from probmcl.cli.options import format_error

    commands = cyclopts.App(
        name="probmcl",
        help="Train, evaluate and compare models for multi-label image classification.",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # handled by main()
        error_formatter=format_error,
    )
    for number, (name, (function, summary)) in enumerate(COMMANDS.items()):
        # A summary would replace the command's docstring, which is shown by its own --help.
        help_text = None if sys.argv[1:2] == [name] else summary
        commands.command(function, name=name, help=help_text, sort_key=number)
    return commands


def main() -> None:
    """Run a command. User errors print one message on stderr, without a traceback, and exit with code 1."""
    # Idle OpenMP threads spin briefly and then sleep. On busy cores, long spinning made a training step ten times
    # slower. Without any spinning, waking a thread takes longer than a small operation.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    keep_freed_memory()
    _exit_on_signals()
    sys.unraisablehook = _resend_signal
    warnings.formatwarning = _format_warning
    try:
        app()()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, as in `probmcl predict … | head`
        _discard_output([1])
        sys.exit(1)  # like rich
    except KeyboardInterrupt as interrupt:
        if _is_main_process():
            print(printable("; ".join(["interrupted", *map(str, interrupt.args)])), file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)
    except Question as question:
        _fail("\n".join([spell_options(question.problem), *reading_lines(question.readings, sys.argv[1:])]))
    except (ValueError, OSError, FloatingPointError) as error:
        _fail(spell_options(str(error)))
    except RuntimeError as error:
        # torch is not imported here: if it is not loaded yet, the error cannot come from it.
        if not isinstance(error, getattr(sys.modules.get("torch"), "OutOfMemoryError", ())):
            raise
        _fail(OUT_OF_MEMORY)
    except MemoryError:
        _fail(OUT_OF_MEMORY)


def _exit_on_signals() -> None:
    """Exit on SIGTERM and SIGHUP like on Ctrl-C, so that a run records its status. `nohup` ignores SIGHUP."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def hang_up(number: int, frame: object) -> NoReturn:
        _discard_output(terminals)  # printing to a closed terminal would raise another error
        sys.exit(128 + number)

    signal.signal(signal.SIGHUP, hang_up)


def _discard_output(descriptors: Iterable[int]) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)


def _fail(message: str) -> NoReturn:
    """Print a message and exit. Under torchrun, only rank 0 prints; other ranks write it for torchrun's summary."""
    summary = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if _is_main_process():
        print(f"probmcl: {printable(message)}", file=sys.stderr)  # noqa: T201
    elif summary:  # rank 0 may have no error to print
        Path(summary).write_text(json.dumps({"message": message, "timestamp": int(time.time())}), encoding="utf-8")
    sys.exit(1)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as Python prints it, with control characters escaped."""
    return printable(f"{filename}:{lineno}: {category.__name__}: {message}\n")


def _is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _resend_signal(lost: "sys.UnraisableHookArgs") -> None:
    """Resend a signal whose exception was lost: Python drops exceptions that a handler raises during a fork."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        number: int = signal.SIGINT
    elif isinstance(lost.exc_value, SystemExit) and isinstance(lost.exc_value.code, int):
        number = lost.exc_value.code - 128
    else:
        sys.__unraisablehook__(lost)
        return
    main_thread = threading.main_thread().ident  # a signal to the timer thread would not wake it
    threading.Timer(0.2, signal.pthread_kill, [main_thread, number]).start()
