"""A comparison as tables: for the terminal, for a spreadsheet, for a page, for a paper and its bibliography."""

from __future__ import annotations

import csv
import dataclasses
import importlib.resources
import io
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from probmcl.experiments.rows import Comparison, Row

NONE = "–"


def percent(fraction: float | None) -> str:
    """A fraction in percent; a dash where there is none.

    >>> percent(0.7912), percent(None)
    ('79.1', '–')
    """
    return NONE if fraction is None else f"{100 * fraction:.1f}"


def points(difference: float | None) -> str:
    """A difference of two fractions in percentage points, always with its sign.

    >>> points(0.012), points(-0.004), points(-0.0001), points(None)
    ('+1.2', '−0.4', '+0.0', '–')
    """
    return NONE if difference is None else f"{100 * difference:+z.1f}".replace("-", "−")


def probability(p: float | None) -> str:
    """A p-value with three decimals.

    >>> probability(0.0123), probability(0.0004), probability(None)
    ('0.012', '<0.001', '–')
    """
    return NONE if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float) -> str:
    """A time in the unit in which people would say it.

    >>> duration(0.34), duration(48.0), duration(754.0), duration(14_000.0), duration(400_000.0)
    ('0.3 s', '48 s', '13 min', '3.9 h', '4.6 d')
    """
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"
    for unit, length, most in (("min", 60, 100), ("h", 3600, 48)):
        if seconds < length * most:
            return _figures(seconds / length) + f" {unit}"
    return _figures(seconds / 86_400) + " d"


def mean_and_interval(row: Row) -> str:
    """The mAP of a row and its interval: 79.1 [77.8, 80.3]."""
    return percent(row.mAP) + (f" [{', '.join(map(percent, row.interval))}]" if row.interval else "")


def gain_and_interval(row: Row) -> str:
    """The gain of a row over the frozen probe and its interval: +1.2 [+0.3, +2.1]."""
    return points(row.gain) + (f" [{', '.join(map(points, row.gain_interval))}]" if row.gain_interval else "")


class Column(NamedTuple):
    """A column: what it is called, what it says of a row, and, if the highest is the best, the number behind that.

    One that `folds` holds words, and takes several lines where the terminal is narrow; numbers always stand in one.
    """

    header: str
    cell: Callable[[Row], str]
    score: Callable[[Row], float | None] | None = None
    folds: bool = False


class Section(NamedTuple):
    """Columns that are read together, and fit the width of a page together; `note` is what a row needs beside them."""

    title: str
    columns: tuple[Column, ...]
    note: Callable[[Row], str] = lambda row: ""


def _score(header: str, field: str) -> Column:
    return Column(header, lambda row: percent(getattr(row, field)), lambda row: getattr(row, field))


def _cost(header: str, field: str, unit: float = 1.0) -> Column:
    def cell(row: Row) -> str:
        value = getattr(row, field)
        return NONE if value is None else _figures(value / unit)

    return Column(header, cell)


def _figures(value: float) -> str:
    """Two significant figures at least, and every figure of a whole number."""
    return f"{value:,.0f}" if value >= 9.95 or value == 0 else f"{value:.2g}" if value < 0.95 else f"{value:.1f}"


def _exactly(value: float | None) -> str:
    return NONE if value is None else f"{value:g}"


SECTIONS: dict[str, Section] = {
    "quality": Section(
        "How good",
        (
            _score("validation", "validation"),
            Column("mAP", mean_and_interval, lambda row: row.mAP),
            Column("over seeds", lambda row: NONE if row.over_seeds is None else f"± {percent(row.over_seeds)}"),
            Column("gain over frozen", gain_and_interval, lambda row: row.gain),
            Column("p", lambda row: probability(row.gain_p)),
        ),
        note=lambda row: row.note,
    ),
    "decisions": Section(
        "Decisions: yes above 0.5; for macro F1, above thresholds chosen on validation",
        (
            *(_score(name, name) for name in ("CP", "CR", "CF1", "OP", "OR", "OF1")),
            _score("macro F1", "macro_F1"),
        ),
        note=lambda row: (
            "a set of labels has no threshold to choose, so that macro F1 is at 0.5 too" if row.emits_set else ""
        ),
    ),
    "retrieval": Section(
        "Retrieval by label overlap",
        (
            _score("embedding: Jaccard@10", "jaccard_at_10"),
            _score("embedding: mAP", "retrieval_mAP"),
            _score("probabilities: Jaccard@10", "probability_jaccard_at_10"),
            _score("probabilities: mAP", "probability_mAP"),
        ),
        note=lambda row: row.note if row.emits_set else "",
    ),
    "cost": Section(
        "What it costs",
        (
            Column("training", lambda row: duration(row.seconds)),
            _cost("trained images/s", "training_speed"),
            _cost("predicted images/s", "prediction_speed"),
            _cost("peak memory, MB", "peak_memory", 1e6),
            _cost("parameters, M", "parameters", 1e6),
            _cost("GMAC", "gmac"),
        ),
    ),
    "origin": Section(
        "What was compared",
        (
            Column("fidelity", lambda row: row.fidelity, folds=True),
            Column("seeds", lambda row: f"{row.seeds}"),
            Column("images seen", lambda row: f"{row.images_seen:,}"),
            Column("learning rate", lambda row: _exactly(row.learning_rate)),
            Column("weight decay", lambda row: _exactly(row.weight_decay)),
            Column("fingerprint", lambda row: row.fingerprint),
        ),
    ),
}
"""Every table of a comparison, by its key in labels."""


def best_rows(column: Column, rows: tuple[Row, ...]) -> set[int]:
    """Which rows are in bold: those that have the highest score as it is printed, so that equals are treated alike."""
    if column.score is None:
        return set()
    scores = {number: score for number, row in enumerate(rows) if (score := column.score(row)) is not None}
    highest = percent(max(scores.values(), default=None))
    return {number for number, score in scores.items() if percent(score) == highest}


def notes(section: Section, comparison: Comparison) -> list[str]:
    """What a table says of some of its rows below it: a sentence for each note, with the rows that it is about."""
    about: dict[str, list[str]] = {}
    for row in comparison.ordered:
        if note := section.note(row):
            about.setdefault(note, []).append(row.title)
    return [f"{'; '.join(titles)}: {note}" for note, titles in about.items()]


def terminal(comparison: Comparison) -> list[Table]:
    """Tables that fit 80 columns, each saying under which conditions its numbers were found."""
    return [_terminal(section, comparison) for section in SECTIONS.values()]


def _terminal(section: Section, comparison: Comparison) -> Table:
    table = Table(
        title=section.title,
        title_style="bold",
        title_justify="left",
        caption=Text("\n".join([comparison.protocol, *notes(section, comparison), ""])),
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("classifier", overflow="fold")
    for column in section.columns:
        words = [*column.header.split(), *(column.cell(row) for row in comparison.rows)]
        width = None if column.folds else max(map(len, words))
        table.add_column(column.header, justify="right", overflow="fold", width=width)
    for title, cells_and_bold in _body(section, comparison):
        table.add_row(_Title(title), *(Text(cell, "bold" if bold else "") for cell, bold in cells_and_bold))
    return table


class _Title:
    """What a row is, in as many lines as it needs: they end at a space or a colon, inside a word only if they must."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, Text(self.title))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        wrapper = _TitleWrapper(options.max_width, break_on_hyphens=False)
        yield Text("\n".join(wrapper.wrap(self.title)), overflow="fold")


class _TitleWrapper(textwrap.TextWrapper):
    """Breaks lines behind a colon too: `probmcl:paper` is a method and its preset."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=:))")


def _body(section: Section, comparison: Comparison) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Each row: what it is, then its cells and whether they are in bold."""
    rows = comparison.ordered
    bold = [best_rows(column, rows) for column in section.columns]
    for number, row in enumerate(rows):
        yield (
            row.title,
            [(column.cell(row), number in best) for column, best in zip(section.columns, bold, strict=True)],
        )


def to_csv(comparison: Comparison) -> str:
    """Every field of every row, one line each; fractions, not percent; an interval is `_low` and `_high`.

    The columns after those of a row are the same in every line: what all rows have in common.
    """
    shared = {
        field.name: getattr(comparison, field.name)
        for field in dataclasses.fields(comparison)
        if field.name not in {"rows", "left_out", *(field.name for field in dataclasses.fields(Row))}
    }
    lines = [dict(_fields(row)) | shared for row in comparison.ordered]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _fields(row: Row) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if field.name.endswith("interval"):
            low, high = value or (None, None)
            yield from ((f"{field.name}_low", low), (f"{field.name}_high", high))
        elif isinstance(value, bool):
            yield field.name, "true" if value else "false"
        else:
            yield field.name, value


def to_markdown(comparison: Comparison) -> str:
    """Each table under its heading, and what was left out."""
    parts = [_markdown(section, comparison) for section in SECTIONS.values()]
    left_out = [f"- {_markdown_text(sentence)}" for sentence in comparison.left_out]
    return "\n".join([*parts, *(["### Left out", "", *left_out, ""] if left_out else [])])


def _markdown(section: Section, comparison: Comparison) -> str:
    headers = ["classifier", *(column.header for column in section.columns)]
    lines = [_line(headers), _line(["---", *("---:" for _ in section.columns)])]
    for title, cells in _body(section, comparison):
        written = [f"**{cell}**" if bold else cell for cell, bold in cells]
        lines.append(_line([_markdown_text(title), *written]))
    below = [part for text in (comparison.protocol, *notes(section, comparison)) for part in (_markdown_text(text), "")]
    return "\n".join([f"### {section.title}", "", *lines, "", *below])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: str) -> str:
    """Text that means itself: nothing in it is markup.

    >>> print(_markdown_text("my_loss|x, re-probed"))
    my\\_loss\\|x, re-probed
    """
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))


def to_latex(comparison: Comparison) -> str:
    """Each table as a floating environment over the page's width; needs the package booktabs."""
    head = [r"% \usepackage{booktabs}"]
    head += [f"% left out: {' '.join(sentence.split())}" for sentence in comparison.left_out]
    return "\n".join([*head, *(_latex(key, section, comparison) for key, section in SECTIONS.items())])


def _latex(key: str, section: Section, comparison: Comparison) -> str:
    headers = " & ".join(_latex_text(column.header) for column in section.columns)
    caption = f"{section.title}. {comparison.protocol}."
    if any(column.score for column in section.columns):
        caption += " Scores are in percent, the highest in bold."
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_latex_text(caption)}}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', comparison.data.lower()).strip('-')}-{key}}}",
        rf"\begin{{tabular}}{{l{'r' * len(section.columns)}}}",
        r"\toprule",
        rf"classifier & {headers} \\",
        r"\midrule",
        *_latex_lines(section, comparison),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip {_latex_text(note)}." for note in notes(section, comparison)),
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _latex_lines(section: Section, comparison: Comparison) -> Iterator[str]:
    cited = {row.title: rf"~\cite{{{row.reference}}}" for row in comparison.rows if row.reference in entries()}
    for title, cells in _body(section, comparison):
        written = [rf"\textbf{{{_latex_text(cell)}}}" if bold else _latex_text(cell) for cell, bold in cells]
        yield " & ".join([_latex_text(title) + cited.get(title, ""), *written]) + r" \\"


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "−": "$-$",
        "·": r"$\cdot$",
        "–": r"\textendash{}",
        "…": r"\dots{}",
        **{special: f"\\{special}" for special in "&%$#_{}"},
    }
)


def _latex_text(text: str) -> str:
    """Text that means itself: nothing in it is a command.

    >>> print(_latex_text("my_loss & 95 %"))
    my\\_loss \\& 95 \\%
    """
    return " ".join(text.split()).translate(_LATEX).replace("--", "-{}-")  # not one long dash


def entries() -> dict[str, str]:
    """Every entry of references.bib by its key."""
    text = importlib.resources.files("probmcl.methods").joinpath("references.bib").read_text(encoding="utf-8")
    return {found[1]: found[0] for found in re.finditer(r"^@\w+\{([^,\s]+),.*?^\}", text, re.MULTILINE | re.DOTALL)}


def to_bibtex(comparison: Comparison) -> str:
    """The entries that the rows cite, each once, in the order of the rows."""
    known = entries()
    cited = dict.fromkeys(row.reference for row in comparison.ordered if row.reference)
    # BibTeX skips what stands between entries.
    return "\n\n".join([known.get(key, f"% no entry for {key} in references.bib") for key in cited] + [""])
