"""Tables for the terminal, Markdown, LaTeX and CSV, and formatting of numbers."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import rich.table
from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

from probmcl.errors import printable

MISSING = "–"  # shown for a missing number

# Text that a spreadsheet takes for a formula, unless it is a number.
FORMULA = re.compile(r"[\s']*[=+\-@]")
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)

_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": "$<$", ">": "$>$", "±": r"$\pm$", "−": "$-$", "·": r"$\cdot$", "–": r"\textendash{}", "…": r"\dots{}"}
    | {special: f"\\{special}" for special in "&%$#_{}"}
)


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
        title_justify="left",
        caption_justify="left",
        box=HEAVY_HEAD if table.framed else SIMPLE_HEAD,
        show_edge=table.framed,
        pad_edge=table.framed,
        collapse_padding=not table.framed,
    )
    if table.title:
        shown.title = Text(printable(table.title), style="bold")
    if table.below:
        shown.caption = Text(printable("\n".join(table.below)))
    rows = list(table.cells())
    for number, column in enumerate(table.columns):
        column_and_cell_of_row = [row[number] for row in rows]
        texts = [printable(cell.text) for _, cell in column_and_cell_of_row]
        _add_column(shown, column, texts, framed=table.framed)
    for row in rows:
        shown.add_row(*[_rich_cell(column, cell) for column, cell in row])
    return shown


def _add_column(shown: rich.table.Table, column: Column, texts: Sequence[str], *, framed: bool) -> None:
    """Add a column to a table for the terminal; `texts` are those of its cells, which are added later.

    In a table that is not framed, a column of numbers is as wide as its widest number or the longest word of its
    header, which may wrap.
    """
    header = printable(column.header)
    width = None
    if not column.words and not framed:
        unbreakable = [*header.split(), *texts]
        width = max(len(text) for text in unbreakable)
    no_wrap = framed and not column.words
    shown.add_column(Text(header), justify=column.align, overflow="fold", no_wrap=no_wrap, width=width)


def _rich_cell(column: Column, cell: Cell) -> "Text | _Wrapped":
    """Return a cell for the terminal; only text wraps."""
    text = Text(printable(cell.text), "bold" if cell.bold else "")
    return _Wrapped(text) if column.words else text


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
    """Breaks lines at spaces and after colons, if `break_on_hyphens` is false."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=:))")


def to_markdown(table: Table) -> str:
    """Return a Markdown heading and table, followed by the caption and the notes as paragraphs."""
    rows = [[column.header for column in table.columns]]
    rows.append(["---" if column.align == "left" else "---:" for column in table.columns])
    rows += [[_markdown_cell(column, cell) for column, cell in row] for row in table.cells()]

    lines = [f"### {table.title}", ""]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines.append("")
    for text in table.below:
        lines += [markdown_text(text), ""]
    return "\n".join(lines)


def _markdown_cell(column: Column, cell: Cell) -> str:
    """Return a cell in Markdown; numbers need no escapes."""
    text = markdown_text(cell.text) if column.words else cell.text
    return f"**{text}**" if cell.bold else text


def markdown_text(text: str) -> str:
    """Escape Markdown's special characters.

    >>> print(markdown_text("my_loss|x, re-probed"))
    my\\_loss\\|x, re-probed
    """
    one_line_text = " ".join(text.split())
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", one_line_text)


def to_latex(table: Table, *, label: str, caption: str) -> str:
    """Return a LaTeX `table*` environment. It requires the booktabs package."""
    alignment = "".join("l" if column.align == "left" else "r" for column in table.columns)
    header = " & ".join(latex_text(column.header) for column in table.columns)
    rows = [" & ".join(_latex_cell(cell) for _, cell in row) for row in table.cells()]
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{latex_text(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        rf"{header} \\",
        r"\midrule",
        *[rf"{row} \\" for row in rows],
        r"\bottomrule",
        r"\end{tabular}",
        *[rf"\par\smallskip {latex_text(note)}." for note in table.notes],
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _latex_cell(cell: Cell) -> str:
    """Return a cell in LaTeX, with its citation."""
    text = latex_text(cell.text)
    if cell.bold:
        text = rf"\textbf{{{text}}}"
    if cell.citation:
        text = rf"{text}~\cite{{{cell.citation}}}"
    return text


def latex_text(text: str) -> str:
    """Escape LaTeX's special characters.

    >>> print(latex_text("my_loss & 95 %"))
    my\\_loss \\& 95 \\%
    """
    escaped = " ".join(text.split()).translate(_LATEX)
    return escaped.replace("--", "-{}-")  # otherwise a ligature makes one long dash


def to_csv(records: Sequence[Mapping[str, object]]) -> str:
    """Return CSV with a header. All records must have the same keys. Text that looks like a formula is escaped."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: _csv_value(value) for key, value in record.items()})
    return text.getvalue()


def _csv_value(value: object) -> object:
    """Escape text that looks like a formula; other values are returned unchanged."""
    return plain_cell(value) if isinstance(value, str) else value


def plain_cell(text: str) -> str:
    """Return the text of a CSV cell, with a leading ' if a spreadsheet would take it for a formula.

    >>> [plain_cell(text) for text in ("=1+2", "@cat", "-0.5", "'=1", "it's")]
    ["'=1+2", "'@cat", '-0.5', "''=1", "it's"]
    """
    looks_like_formula = FORMULA.match(text) and not NUMBER.fullmatch(text)
    return f"'{text}" if looks_like_formula else text


def original_cell(text: str) -> str:
    """Return the text of a cell before `plain_cell`.

    >>> [original_cell(text) for text in ("'=1+2", "'@cat", "-0.5", "''=1", "it's", "'quoted'")]
    ['=1+2', '@cat', '-0.5', "'=1", "it's", "'quoted'"]
    """
    was_escaped = text.startswith("'") and FORMULA.match(text, 1)
    return text[1:] if was_escaped else text


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
    if interval is None:
        return ""
    ends = ", ".join(map(write, interval))
    return f" [{ends}]"


def points(difference: float | None) -> str:
    """Format the difference between two fractions in percentage points, with its sign.

    >>> points(0.012), points(-0.004), points(-0.0001), points(None)
    ('+1.2', '−0.4', '+0.0', '–')
    """
    if difference is None:
        return MISSING
    return f"{100 * difference:+z.1f}".replace("-", "−")  # z: never -0.0


def probability(p: float | None) -> str:
    """Format a p-value with three decimals.

    >>> probability(0.0123), probability(0.0004), probability(None)
    ('0.012', '<0.001', '–')
    """
    if p is None:
        return MISSING
    if p < 0.001:
        return "<0.001"
    return f"{p:.3f}"


def figures(value: float) -> str:
    """Format a number with two significant digits, or without decimals if it is at least 10.

    >>> figures(4.26), figures(0.381), figures(1234.5)
    ('4.3', '0.38', '1,234')
    """
    if value >= 9.95 or value == 0:  # from 9.95, one decimal would give 10.0
        return f"{value:,.0f}"
    if value >= 0.95:
        return f"{value:.1f}"
    return f"{value:.2g}"


def duration(seconds: float) -> str:
    """Format a measured time in seconds, minutes, hours or days.

    >>> duration(0.34), duration(48.0), duration(754.0), duration(14_000.0), duration(400_000.0)
    ('0.3 s', '48 s', '13 min', '3.9 h', '4.6 d')
    """
    if seconds < 9.5:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    hours = seconds / 3600
    if seconds < 100 * 60:
        return f"{figures(minutes)} min"
    if seconds < 48 * 3600:
        return f"{figures(hours)} h"
    return f"{figures(seconds / 86_400)} d"


def rough_duration(seconds: float) -> str:
    """Format an estimated time in whole seconds or minutes, or in hours if it is at least 90 minutes.

    >>> rough_duration(42.0), rough_duration(130.0), rough_duration(9000.0)
    ('42 s', '2 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
