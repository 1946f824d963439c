"""Exceptions whose messages are meant for users, and suggestions for misspelled names.

Messages write options and calls as Python does, in backticks: `skip_bad=0.05`, `group="patient"`,
`probmcl.train(resume="runs/photos")`. The command line prints them as they are typed there. `keyword` and `call` format
values; a placeholder in capitals, as in `images=FOLDER`, is not quoted.
"""

import difflib
import json
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Number = int | float | None

WarningKind = Literal["collapse", "diverged", "skipped", "leak", "seen_before", "data_changed", "chance", "calibration"]

LISTED = 5  # number of entries that a message shows of a long list

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tabs and line feeds, characters that change the writing direction, and lone surrogates."""


class ProbmclError(ValueError):
    """An error that the user can fix; the message explains how."""


class DataError(ProbmclError):
    """Data that cannot be used; the message gives the file, the row or column, the value and the remedy."""


@dataclass(frozen=True)
class Reading:
    """One way to read ambiguous data: its meaning, the options that choose it, and the labels of example rows."""

    meaning: str
    options: Mapping[str, str]
    rows: tuple[str, ...] = ()


class Question(DataError):  # noqa: N818  # it asks the user to choose
    """Data that can be read in several ways with different labels. The user has to choose one.

    >>> blank = "does a blank mean absent or unknown?"
    >>> absent = Reading("a blank means absent", {"blank": "negative"}, ("row 2: cat", "row 3: dog"))
    >>> unknown = Reading("a blank means unknown", {"blank": "unknown"}, ("row 2: cat, dog unknown", "row 3: dog"))
    >>> print(Question(f"labels.csv: {blank}", [absent, unknown]))
    labels.csv: does a blank mean absent or unknown?
      a blank means absent: read=ReadOptions(blank="negative")
        row 2: cat
        row 3: dog
      a blank means unknown: read=ReadOptions(blank="unknown")
        row 2: cat, dog unknown
        row 3: dog
    """

    def __init__(self, problem: str, readings: Sequence[Reading]) -> None:
        super().__init__(problem)
        self.problem, self.readings = problem, tuple(readings)

    def __str__(self) -> str:
        lines = [self.problem]
        for reading in self.readings:
            lines.append(f"  {reading.meaning}: read=ReadOptions({_arguments(reading.options)})")
            lines += [f"    {row}" for row in reading.rows]
        return "\n".join(lines)


class OptionError(ProbmclError):
    """An invalid option value, or a combination of options that is not allowed.

    >>> print(OptionError("folds", 1, "must be at least 2"))
    `folds=1` must be at least 2
    >>> print(OptionError("group", "patient", "is not a column of labels.csv"))
    `group="patient"` is not a column of labels.csv
    """

    def __init__(self, name: str, value: object, problem: str) -> None:
        super().__init__(f"{keyword(name, value)} {problem}")


class SettingsError(ProbmclError):
    """An unknown recipe or setting, or an invalid setting value."""


class WeightsError(ProbmclError):
    """Weights that do not exist or do not fit the encoder."""


class RunError(ProbmclError):
    """A folder that does not hold a run, or a run that cannot be used."""


class WorkerError(ProbmclError):
    """A worker process that ended unexpectedly, for example because memory ran out."""


class ImageError(ProbmclError):
    """An image file that cannot be read, with its path and the reason.

    >>> str(ImageError(Path("photos/7.jpg"), "the file is empty"))
    'photos/7.jpg: the file is empty'
    >>> str(ImageError(Path("two\\nlines.jpg"), "the file is empty"))
    'two\\\\nlines.jpg: the file is empty'
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # unpickling in the main process calls __init__ with these arguments
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{one_line(self.path)}: {self.reason}"


@dataclass(frozen=True)
class RunWarning:
    """A problem that does not stop a run and is stored with it.

    `kind` names the problem: the features collapsed, a method diverged and was left out, some of its batches were
    skipped, a leak between splits was allowed, the run that provides the weights was trained on images that are held
    out here, images changed while the run was interrupted, the kept model is not clearly better than chance, or there
    were too few images to calibrate it well.
    """

    kind: WarningKind
    message: str


def check_range(
    *, at_least: Number = None, above: Number = None, at_most: Number = None, below: Number = None, **values: Number
) -> None:
    """Raise `ValueError` if a number is outside a range, NaN or infinite; None is always allowed.

    >>> check_range(at_least=0, below=1, dropout=0.1, clip=1.5)
    Traceback (most recent call last):
    ValueError: clip=1.5 must be at least 0 and below 1
    """
    possible_bounds = [
        ("at least", operator.ge, at_least),
        ("above", operator.gt, above),
        ("at most", operator.le, at_most),
        ("below", operator.lt, below),
    ]
    bounds = [(words, holds, limit) for words, holds, limit in possible_bounds if limit is not None]
    any_infinite = False
    invalid = []
    for name, value in values.items():
        if value is None:
            continue
        is_infinite = isinstance(value, float) and not math.isfinite(value)  # or NaN
        any_infinite = any_infinite or is_infinite
        if is_infinite or not all(holds(value, limit) for _, holds, limit in bounds):
            invalid.append(f"{name}={value}")
    if not invalid:
        return
    allowed = " and ".join(f"{words} {limit}" for words, _, limit in bounds)
    if any_infinite:
        allowed = f"a finite number {allowed}".rstrip()  # there may be no bounds
    raise ValueError(f"{', '.join(invalid)} must be {allowed}")


def keyword(name: str, value: object) -> str:
    """Return an option and its value for a message, as a keyword argument in backticks.

    >>> keyword("group", "Patient ID"), keyword("skip_bad", 0.05), keyword("ignore", ["site", "date"])
    ('`group="Patient ID"`', '`skip_bad=0.05`', '`ignore=["site", "date"]`')
    """
    return f"`{name}={_as_code(value)}`"


def call(function: str, options: Mapping[str, object]) -> str:
    """Return a call of a public function, for a message.

    >>> call("train", {"resume": Path("runs/photos")})
    '`probmcl.train(resume="runs/photos")`'
    """
    return f"`probmcl.{function}({_arguments(options)})`"


def calibrate_call(run: Path) -> str:
    """Return the call that calibrates a run, for a message.

    >>> calibrate_call(Path("runs/photos"))
    '`probmcl.load("runs/photos").calibrate()`'
    """
    return f"`probmcl.load({_as_code(run)}).calibrate()`"


def _arguments(options: Mapping[str, object]) -> str:
    """Return options as the keyword arguments of a call."""
    return ", ".join(f"{name}={_as_code(value)}" for name, value in options.items())


def _as_code(value: object) -> str:
    """Return the Python code of a value, as short as possible: a path as text, a tuple as a list, 5.0 as 5.

    Text has double quotes, as in JSON.
    """
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, list | tuple):
        items = ", ".join(_as_code(item) for item in value)
        return f"[{items}]"
    if isinstance(value, dict):
        items = ", ".join(f"{_as_code(key)}: {_as_code(item)}" for key, item in value.items())
        return f"{{{items}}}"
    if isinstance(value, float):
        short = f"{value:g}"
        if float(short) == value:  # no digit is lost
            return short
    return repr(value)


def printable(text: str) -> str:
    r"""Escape control characters, with which a name could control the terminal; line feeds and tabs are kept.

    An undecodable byte of a file name, which Python represents as a surrogate, is shown as the byte.

    >>> print(printable("\x1b[2Jcat\r\ndog \u202egpj.exe \udcff"))
    \x1b[2Jcat\r
    dog \u202egpj.exe \xff
    """
    return CONTROL.sub(lambda found: _escape(found[0]), text)


def one_line(text: object) -> str:
    r"""Escape control characters including line feeds and tabs.

    >>> print(one_line(Path("two\nlines.jpg")))
    two\nlines.jpg
    """
    return printable(str(text)).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    """Return the escape sequence of a character that cannot be printed."""
    is_undecodable_byte = "\udc80" <= character <= "\udcff"  # Python's error handler "surrogateescape" adds 0xDC00
    if is_undecodable_byte:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return repr(character)[1:-1]  # without the quotes


def plain(error: Exception) -> str:
    """Return the message of another library without backticks, which mark options and calls in our messages.

    >>> plain(ValueError("Expected `int`, got `str` - at `$.seed`"))
    "Expected 'int', got 'str' - at '$.seed'"
    """
    return str(error).replace("`", "'")


def quoted(values: Iterable[str]) -> str:
    """Return quoted values joined by "and", for messages."""
    return " and ".join(repr(value) for value in values)


def listing(values: Iterable[str], most: int = 8) -> str:
    """Return the first values, each on one line, and the number of remaining ones, for messages.

    >>> listing("abcdefghijk")
    'a, b, c, d, e, f, g, h and 3 more'
    """
    values = [value for value in values if value]
    shown = ", ".join(map(one_line, values[:most]))
    rest = len(values) - most
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, for messages; `plural` defaults to the noun with an s. Either may include a verb.

    >>> counted(1, "image"), counted(1234, "image"), counted(0, "class", "classes")
    ('1 image', '1,234 images', '0 classes')
    >>> counted(1, "row is", "rows are"), counted(2, "row is", "rows are")
    ('1 row is', '2 rows are')
    """
    if number == 1:
        return f"{number} {noun}"
    return f"{number:,} {plural or f'{noun}s'}"


def listed(items: Sequence[str]) -> list[str]:
    """Return indented lines with the first five items and the number of the others.

    >>> listed(["a.jpg", "b.jpg"])
    ['  a.jpg', '  b.jpg']
    >>> listed([f"{number}.jpg" for number in range(1007)])[4:]
    ['  4.jpg', '  and 1,002 more']
    """
    lines = [f"  {item}" for item in items[:LISTED]]
    rest = len(items) - LISTED
    if rest > 0:
        lines.append(f"  and {rest:,} more")
    return lines


def suggestion(word: str, choices: Iterable[str]) -> str:
    """Return a hint with the choices most similar to a word or, if none is similar, all choices (up to 30).

    >>> suggestion("temprature", ["temperature", "threshold"])
    "did you mean 'temperature'?"
    >>> suggestion("zzz", ["bce", "asl"])
    'available: bce, asl'
    """
    choices = list(choices)
    if not choices:
        return "none are available"
    near = difflib.get_close_matches(word, choices, n=3, cutoff=0.75)
    if near:
        names = " or ".join(repr(name) for name in near)
        return f"did you mean {names}?"
    if len(choices) > 30:  # too many to list
        return f"none of {len(choices)} names is similar"
    return f"available: {', '.join(choices)}"
