"""Tables of a comparison for the terminal, Markdown, LaTeX (with a bibliography) and CSV."""

import importlib.resources
import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from probmcl import tables
from probmcl.experiments.results import Comparison, Row
from probmcl.store.evaluation import LEGEND
from probmcl.tables import MISSING, Cell, Column, Table, bracketed, duration, figures, percent, points, probability

CSV_ROW = """
    name head method seeds best_head validation mAP interval macro_auroc over_seeds gain gain_interval gain_p behind
    behind_interval behind_p CP CR CF1 OP OR OF1 macro_F1 jaccard_at_10 retrieval_mAP probability_jaccard_at_10
    probability_mAP learning_rate weight_decay images_seen seconds parameters gmac training_speed prediction_speed
    peak_memory fidelity reference fingerprint note emits_set
""".split()  # noqa: SIM905  # a list would take forty lines
CSV_CONDITIONS = ("trials", "test_images", "groups", "classes", "encoder", "data", "draws", "chance")
"""Columns of the CSV file: `CSV_ROW` differs between rows, `CSV_CONDITIONS` is the same in every line."""

BIBTEX_ENTRY = re.compile(r"^@\w+\{(?P<key>[^,\s]+),.*?^\}", re.MULTILINE | re.DOTALL)
"""An entry of a BibTeX file, from its first line to the line with its closing brace."""


def mean_and_interval(row: Row) -> str:
    """Return the mAP of a row with its interval, as in `79.1 [77.8, 80.3]`."""
    return percent(row.mAP) + bracketed(row.interval)


def gain_and_interval(row: Row) -> str:
    """Return the gain of a row over the frozen probe with its interval, as in `+1.2 [+0.3, +2.1]`."""
    return points(row.gain) + bracketed(row.gain_interval, points)


class Quantity(NamedTuple):
    """A column: its header, its cells and, if the highest value is shown in bold, the value to rank by."""

    header: str
    cell: Callable[[Row], str]
    score: Callable[[Row], float | None] | None = None
    words: bool = False


class Section(NamedTuple):
    """The columns of one table, narrow enough for a page; `note` returns the note on a row, or an empty string."""

    title: str
    quantities: tuple[Quantity, ...]
    note: Callable[[Row], str] = lambda row: ""


def _score(header: str, field: str) -> Quantity:
    """Return a column of percentages, with the highest in bold; `field` is the field of the row that has the score."""
    return Quantity(
        header,
        cell=lambda row: percent(getattr(row, field)),
        score=lambda row: getattr(row, field),
    )


def _number(header: str, field: str, write: Callable[[float], str]) -> Quantity:
    """Return a column of numbers that are not ranked; `write` formats a number, and a missing one is a dash."""

    def cell(row: Row) -> str:
        value = getattr(row, field)
        return MISSING if value is None else write(value)

    return Quantity(header, cell)


SECTIONS: dict[str, Section] = {
    "quality": Section(
        "Accuracy",
        (
            _score("val mAP", "validation"),
            Quantity("mAP", mean_and_interval, lambda row: row.mAP),
            _score("AUROC", "macro_auroc"),
            _number("over seeds", "over_seeds", lambda deviation: f"± {percent(deviation)}"),
            Quantity("gain over frozen", gain_and_interval, lambda row: row.gain),
            Quantity("p", lambda row: probability(row.gain_p)),
        ),
        note=lambda row: row.note,
    ),
    "decisions": Section(
        f"Decisions at a threshold of 0.5; for macro F1, at thresholds chosen on validation ({LEGEND})",
        (*(_score(name, name) for name in ("CP", "CR", "CF1", "OP", "OR", "OF1")), _score("macro F1", "macro_F1")),
        note=lambda row: (
            "predicts a set of labels without thresholds, so macro F1 also uses 0.5" if row.emits_set else ""
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
        "Cost",
        (
            _number("training", "seconds", duration),
            _number("training images/s", "training_speed", figures),
            _number("prediction images/s", "prediction_speed", figures),
            _number("peak memory, MB", "peak_memory", lambda count: figures(count / 1e6)),
            _number("parameters, M", "parameters", lambda count: figures(count / 1e6)),
            _number("GMAC", "gmac", figures),
        ),
    ),
    "origin": Section(
        "Methods and settings",
        (
            Quantity("fidelity", lambda row: row.fidelity, words=True),
            _number("seeds", "seeds", str),
            _number("images seen", "images_seen", "{:,}".format),
            _number("learning rate", "learning_rate", "{:g}".format),
            _number("weight decay", "weight_decay", "{:g}".format),
            Quantity("fingerprint", lambda row: row.fingerprint),
        ),
    ),
}
"""The tables of a comparison; their keys are part of the LaTeX labels."""


def comparison_tables(comparison: Comparison) -> dict[str, Table]:
    """Return a table for each section in `SECTIONS`, under the same key."""
    return {key: _table(section, comparison) for key, section in SECTIONS.items()}


def _table(section: Section, comparison: Comparison) -> Table:
    """Return a table with a row for each classifier, and a column for each quantity of a section."""
    rows = comparison.ordered
    known = references()
    columns = [Column.of_names("classifier")]
    cells = [[_title_cell(row, known)] for row in rows]
    for quantity in section.quantities:
        columns.append(Column(quantity.header, words=quantity.words))
        best = _best_rows(quantity, rows)
        for number, row in enumerate(rows):
            is_best = number in best
            cells[number].append(Cell(quantity.cell(row), bold=is_best))
    notes_below = notes(section, comparison)
    return Table(section.title, columns, cells, comparison.protocol, notes_below)


def _title_cell(row: Row, known: Collection[str]) -> Cell:
    """Return a cell with the title of a row. It cites the reference of the row if that is one of the known keys."""
    citation = row.reference if row.reference in known else ""
    return Cell(row.title, citation=citation)


def _best_rows(quantity: Quantity, rows: tuple[Row, ...]) -> set[int]:
    """Return the indices of the rows with the highest score after rounding, so that all ties are bold."""
    if quantity.score is None:
        return set()
    scores = {}
    for number, row in enumerate(rows):
        score = quantity.score(row)
        if score is not None:
            scores[number] = score
    highest = percent(max(scores.values(), default=None))
    return {number for number, score in scores.items() if percent(score) == highest}


def notes(section: Section, comparison: Comparison) -> list[str]:
    """Return the notes below a table, each with the titles of the rows that it applies to."""
    titles_by_note: dict[str, list[str]] = {}
    for row in comparison.ordered:
        note = section.note(row)
        if note:
            titles_by_note.setdefault(note, []).append(row.title)
    return [f"{'; '.join(titles)}: {note}" for note, titles in titles_by_note.items()]


def comparison_csv(comparison: Comparison) -> str:
    """Return all fields of all rows as CSV. Scores are fractions; intervals have two columns, `_low` and `_high`."""
    conditions = {name: getattr(comparison, name) for name in CSV_CONDITIONS}
    lines = [dict(_fields(row)) | conditions for row in comparison.ordered]
    return tables.to_csv(lines)


def _fields(row: Row) -> Iterator[tuple[str, object]]:
    """Yield the columns of a row in the CSV file and their values, in the order of `CSV_ROW`."""
    for name in CSV_ROW:
        value = getattr(row, name)
        if name.endswith("interval"):
            low, high = value or (None, None)
            yield f"{name}_low", low
            yield f"{name}_high", high
        elif isinstance(value, bool):
            yield name, str(value).lower()
        else:
            yield name, value


def comparison_markdown(comparison: Comparison) -> str:
    """Return all tables as Markdown, each under a heading, followed by the list of methods that were left out."""
    parts = [tables.to_markdown(table) for table in comparison_tables(comparison).values()]
    if comparison.left_out:
        items = [f"- {tables.markdown_text(sentence)}" for sentence in comparison.left_out]
        parts.extend(["### Left out", "", *items, ""])
    return "\n".join(parts)


def comparison_latex(comparison: Comparison) -> str:
    """Return all tables as LaTeX floats; the document needs the booktabs package."""
    parts = [r"% \usepackage{booktabs}"]
    for sentence in comparison.left_out:
        one_line = " ".join(sentence.split())
        parts.append(f"% left out: {one_line}")
    dataset = re.sub("[^a-z0-9]+", "-", comparison.data.lower()).strip("-")  # special characters break a label
    for key, table in comparison_tables(comparison).items():
        caption = f"{table.title}. {table.caption}."
        has_scores = any(quantity.score for quantity in SECTIONS[key].quantities)
        if has_scores:
            caption += " Scores are in percent; the highest are in bold."
        label = f"tab:{dataset}-{key}"
        parts.append(tables.to_latex(table, label=label, caption=caption))
    return "\n".join(parts)


def references() -> dict[str, str]:
    """Return the entries of references.bib by key."""
    file = importlib.resources.files("probmcl.methods").joinpath("references.bib")
    text = file.read_text(encoding="utf-8")
    return {entry["key"]: entry[0] for entry in BIBTEX_ENTRY.finditer(text)}


def comparison_bibtex(comparison: Comparison) -> str:
    """Return the BibTeX entries that the rows cite, without duplicates, in the order of the rows."""
    known = references()
    cited = dict.fromkeys(row.reference for row in comparison.ordered if row.reference)  # distinct, in this order
    entries = []
    for key in cited:
        missing = f"% no entry for {key} in references.bib"  # BibTeX skips text between entries
        entries.append(known.get(key, missing))
    return "\n\n".join([*entries, ""])
