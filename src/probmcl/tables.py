"""Tables for the terminal, Markdown, LaTeX and CSV, and formatting of numbers."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import rich.table
from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

from probmcl.errors import printable

MISSING = "–"  # shown for a missing number


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    header: str
    align: Literal["left", "right"] = "right"
    words: bool = False  # True for text, which is wrapped and escaped; numbers are not wrapped

    @classmethod
    def of_names(cls, header: str) -> "Column":
        """Return a left-aligned column of text."""
        return cls(header, "left", words=True)


@dataclass(frozen=True)
class Cell:
    """A cell. `citation` is a BibTeX key, used only in LaTeX."""

    text: str
    bold: bool = False
    citation: str = ""


@dataclass(frozen=True)
class Table:
    """A table, independent of the output format."""

    title: str  # above the table; may be empty
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]  # a `Cell` if the text is bold or has a citation, otherwise a string
    caption: str = ""  # one line below the table
    notes: Sequence[str] = ()  # notes on individual rows, below the caption
    framed: bool = False  # draw lines between cells in the terminal; otherwise it is narrower and headers may wrap

    def cells(self) -> Iterator[list[tuple[Column, Cell]]]:
        """Yield each row as a list of (column, cell) pairs."""
        for row in self.rows:
            cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
            yield list(zip(self.columns, cells, strict=True))

    @property
    def below(self) -> list[str]:
        """The caption and the notes."""
        return [text for text in (self.caption, *self.notes) if text]


def to_rich(table: Table) -> rich.table.Table:
    """Return a table for the terminal. Text may wrap; numbers do not."""
    shown = rich.table.Table(
        title=Text(printable(table.title), style="bold") if table.title else None,
        title_justify="left",
        caption=Text(printable("\n".join(table.below))) if table.below else None,
        caption_justify="left",
        box=HEAVY_HEAD if table.framed else SIMPLE_HEAD,
        show_edge=table.framed,
        pad_edge=table.framed,
        collapse_padding=not table.framed,
    )
    rows = [[(column, replace(cell, text=printable(cell.text))) for column, cell in row] for row in table.cells()]
    for number, column in enumerate(table.columns):
        header = printable(column.header)
        parts = [*header.split(), *(row[number][1].text for row in rows)]
        width = None if column.words or table.framed else max(map(len, parts))
        no_wrap = table.framed and not column.words
        shown.add_column(Text(header), justify=column.align, overflow="fold", no_wrap=no_wrap, width=width)
    for row in rows:
        texts = ((column, Text(cell.text, "bold" if cell.bold else "")) for column, cell in row)
        shown.add_row(*(_Wrapped(text) if column.words else text for column, text in texts))
    return shown


class _Wrapped:
    """Text that wraps at spaces and after colons (`probmcl:paper`), and inside a word only if the word is too long."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        wrapper = _Wrapper(options.max_width, break_on_hyphens=False)
        lines = (wrapper.fill(line) for line in self.text.plain.split("\n"))
        yield Text("\n".join(lines), self.text.style, overflow="fold")


class _Wrapper(textwrap.TextWrapper):
    wordsep_simple_re = re.compile(r"(\s+|(?<=:))")


def to_markdown(table: Table) -> str:
    """Return a Markdown heading and table, followed by the caption and the notes as paragraphs."""
    lines = [[column.header for column in table.columns]]
    lines.append(["---" if column.align == "left" else "---:" for column in table.columns])
    for row in table.cells():
        texts = ((markdown_text(cell.text) if column.words else cell.text, cell.bold) for column, cell in row)
        lines.append([f"**{text}**" if bold else text for text, bold in texts])
    below = [part for text in table.below for part in (markdown_text(text), "")]
    return "\n".join([f"### {table.title}", "", *(f"| {' | '.join(line)} |" for line in lines), "", *below])


def markdown_text(text: str) -> str:
    """Escape Markdown's special characters.

    >>> print(markdown_text("my_loss|x, re-probed"))
    my\\_loss\\|x, re-probed
    """
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))


def to_latex(table: Table, *, label: str, caption: str) -> str:
    """Return a LaTeX `table*` environment. It requires the booktabs package."""
    columns = "".join("l" if column.align == "left" else "r" for column in table.columns)
    start = [r"\begin{table*}[t]", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{3pt}"]
    start += [rf"\caption{{{latex_text(caption)}}}", rf"\label{{{label}}}", rf"\begin{{tabular}}{{{columns}}}"]
    header = " & ".join(latex_text(column.header) for column in table.columns)
    rows = [" & ".join(_latex_cell(cell) for _, cell in row) for row in table.cells()]
    body = [r"\toprule", rf"{header} \\", r"\midrule", *(rf"{row} \\" for row in rows), r"\bottomrule"]
    notes = [rf"\par\smallskip {latex_text(note)}." for note in table.notes]
    return "\n".join([*start, *body, r"\end{tabular}", *notes, r"\end{table*}", ""])


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{latex_text(cell.text)}}}" if cell.bold else latex_text(cell.text)
    return text + (rf"~\cite{{{cell.citation}}}" if cell.citation else "")


_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": "$<$", ">": "$>$", "±": r"$\pm$", "−": "$-$", "·": r"$\cdot$", "–": r"\textendash{}", "…": r"\dots{}"}
    | {special: f"\\{special}" for special in "&%$#_{}"}
)


def latex_text(text: str) -> str:
    """Escape LaTeX's special characters.

    >>> print(latex_text("my_loss & 95 %"))
    my\\_loss \\& 95 \\%
    """
    return " ".join(text.split()).translate(_LATEX).replace("--", "-{}-")  # otherwise a ligature makes one long dash


def to_csv(records: Sequence[Mapping[str, object]]) -> str:
    """Return CSV with a header. All records must have the same keys. Text that looks like a formula is escaped."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: plain_cell(x) if isinstance(x, str) else x for key, x in record.items()})
    return text.getvalue()


FORMULA = re.compile(r"[\s']*[=+\-@]")
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)


def plain_cell(text: str) -> str:
    """Return the text of a CSV cell, with a leading ' if a spreadsheet would take it for a formula.

    >>> [plain_cell(text) for text in ("=1+2", "@cat", "-0.5", "'=1", "it's")]
    ["'=1+2", "'@cat", '-0.5', "''=1", "it's"]
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def original_cell(text: str) -> str:
    """Return the text of a cell before `plain_cell`.

    >>> [original_cell(text) for text in ("'=1+2", "'@cat", "-0.5", "''=1", "it's", "'quoted'")]
    ['=1+2', '@cat', '-0.5', "'=1", "it's", "'quoted'"]
    """
    return text[1:] if text.startswith("'") and FORMULA.match(text, 1) else text


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.7912), percent(None)
    ('79.1', '–')
    """
    return MISSING if fraction is None else f"{100 * fraction:.1f}"


def bracketed(interval: Sequence[float] | None, write: Callable[[float], str] = percent) -> str:
    """Format an interval to follow a number, or return '' if there is none.

    >>> f"79.1{bracketed((0.778, 0.803))}"
    '79.1 [77.8, 80.3]'
    """
    return "" if interval is None else f" [{', '.join(map(write, interval))}]"


def points(difference: float | None) -> str:
    """Format the difference between two fractions in percentage points, with its sign.

    >>> points(0.012), points(-0.004), points(-0.0001), points(None)
    ('+1.2', '−0.4', '+0.0', '–')
    """
    return MISSING if difference is None else f"{100 * difference:+z.1f}".replace("-", "−")


def probability(p: float | None) -> str:
    """Format a p-value with three decimals.

    >>> probability(0.0123), probability(0.0004), probability(None)
    ('0.012', '<0.001', '–')
    """
    return MISSING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def figures(value: float) -> str:
    """Format a number with two significant digits, or without decimals if it is at least 10.

    >>> figures(4.26), figures(0.381), figures(1234.5)
    ('4.3', '0.38', '1,234')
    """
    return f"{value:,.0f}" if value >= 9.95 or value == 0 else f"{value:.2g}" if value < 0.95 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Format a measured time in seconds, minutes, hours or days.

    >>> duration(0.34), duration(48.0), duration(754.0), duration(14_000.0), duration(400_000.0)
    ('0.3 s', '48 s', '13 min', '3.9 h', '4.6 d')
    """
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"
    for unit, length, most in (("min", 60, 100), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{figures(seconds / length)} {unit}"
    return f"{figures(seconds / 86_400)} d"


def rough_duration(seconds: float) -> str:
    """Format an estimated time in whole seconds or minutes, or in hours if it is at least 90 minutes.

    >>> rough_duration(42.0), rough_duration(130.0), rough_duration(9000.0)
    ('42 s', '2 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
