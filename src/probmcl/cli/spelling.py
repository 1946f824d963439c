"""The spelling of options and commands on the command line.

Library messages write options and calls as in Python, in backticks: `skip_bad=0.05`. `spell_options` replaces them with
their spelling on the command line.
"""

import ast
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from probmcl.cli.commands import COMMANDS
from probmcl.errors import Reading

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
