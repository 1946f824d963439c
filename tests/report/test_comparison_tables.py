import csv
import dataclasses
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.rows import demo_comparison, made_best, made_comparison, made_frozen, made_row, stored_comparison
from probmcl.experiments.results import Comparison, Row
from probmcl.report.comparison_tables import (
    SECTIONS,
    comparison_bibtex,
    comparison_csv,
    comparison_latex,
    comparison_markdown,
    comparison_tables,
    references,
)
from probmcl.tables import Table, to_rich

DEMO = demo_comparison()


def shown(table: Table, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(to_rich(table))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def terminal(comparison: Comparison) -> list[Table]:
    return list(comparison_tables(comparison).values())


def bold_cells(table: Table, header: str) -> list[str]:
    return [cell.text for row in table.cells() for column, cell in row if cell.bold and column.header == header]


def lines_of(text: str, start: str) -> list[list[str]]:
    """Return the cells of all Markdown rows whose first cell is `start`."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


# Order.


def test_frozen_probe_is_first_then_rows_by_validation() -> None:
    # By test mAP the order would be reversed.
    rows = [made_row("a", mAP=0.9, validation=0.7), made_row("b", mAP=0.7, validation=0.9), made_frozen(validation=0.1)]
    assert [row.name for row in made_comparison(*rows).ordered] == ["frozen probe", "b", "a"]


def test_best_method_is_first_among_ties() -> None:
    rows = [made_row("a", mAP=0.82), made_best("z", mAP=0.82), made_frozen()]
    assert made_comparison(*rows).methods[0].name == "z"


def test_better_head_represents_a_method() -> None:
    assert [row.title for row in DEMO.methods] == [
        "asl, own head",
        "csra, re-probed",
        "probmcl, re-probed",
        "bce, own head",
        "own_loss.py:my_loss & more, own head",
        "ml_gcn, own head",
        "probmcl:paper, re-probed",
    ]


@pytest.mark.parametrize("rows", [(), (made_frozen(), made_frozen())])
def test_comparison_needs_exactly_one_frozen_probe(rows: tuple[Row, ...]) -> None:
    with pytest.raises(ValueError, match=f"got {len(rows)}"):
        _ = made_comparison(*rows).frozen


# Captions and notes.


@pytest.mark.parametrize(
    ("changes", "conditions"),
    [
        ({"trials": 1}, ["untuned"]),
        ({"trials": 5}, ["best of 5 trials on validation"]),
        ({"seeds": 1}, ["1 seed"]),
        ({"seeds": 7, "images_seen": 12_345}, ["7 seeds", "12,345 images seen"]),
        ({"groups": None, "draws": 500}, ["500 resamples of images"]),
        ({"groups": 321}, ["2,000 resamples of 321 groups"]),
    ],
)
def test_every_caption_has_the_conditions(changes: dict[str, Any], conditions: list[str]) -> None:
    comparison = dataclasses.replace(DEMO, **changes)
    texts = [" ".join(shown(table).split()) for table in terminal(comparison)]
    texts += comparison_markdown(comparison).split("### ")[1 : 1 + len(SECTIONS)]
    texts += re.findall(r"\\caption\{.*", comparison_latex(comparison))
    assert len(texts) == 3 * len(SECTIONS)
    assert all(condition in text for condition in conditions for text in texts)


def test_tuned_comparison_is_never_called_untuned() -> None:
    tuned = dataclasses.replace(DEMO, trials=2)
    assert not any(
        "untuned" in text
        for text in (comparison_markdown(tuned), comparison_latex(tuned), *map(shown, terminal(tuned)))
    )


NOTED = made_comparison(
    made_frozen(),
    made_best("pla", note="it ranks a_set.", emits_set=True),
    made_row("pla:paper", note="it ranks a_set.", emits_set=True),
    made_row("pla", "re-probed", best_head=False),
)
"""A method with a note on the mAP of its own head."""


@pytest.mark.parametrize("key", SECTIONS)
def test_note_appears_once_below_each_table_that_it_applies_to(key: str) -> None:
    note = {
        "quality": "pla, own head; pla:paper, own head: it ranks a_set.",
        "decisions": "pla, own head; pla:paper, own head: predicts a set of labels",
        "retrieval": "pla, own head; pla:paper, own head: it ranks a_set.",
    }.get(key)
    number = list(SECTIONS).index(key)
    texts = [
        " ".join(shown(terminal(NOTED)[number], 200).split()),
        comparison_markdown(NOTED).split("### ")[1 + number].replace("\\", ""),
        comparison_latex(NOTED).split(r"\end{table*}")[number].replace("\\", ""),
    ]
    for text in texts:
        assert text.count("pla, own head; ") == (note is not None)
        assert note is None or note in text


def test_only_the_conditions_are_below_a_table_without_notes() -> None:
    assert r"\smallskip" not in comparison_latex(DEMO)
    assert all(
        part.rstrip().endswith("of images") for part in comparison_markdown(DEMO).split("### ")[1 : 1 + len(SECTIONS)]
    )


# Terminal.


def body(text: str) -> list[list[str]]:
    """Return the lines of the first column of each row below the rule, and the text of its other columns."""
    rows: list[list[str]] = []
    for line in text.split("─\n")[1].split("voc, test split")[0].splitlines():
        name, _, rest = (part.strip() for part in line.partition("  "))
        if re.search(r"\S {2,}\S", rest):  # only the first line of a row has numbers
            rows.append(["", ""])
        rows[-1][0] += f"{name}\n" if name else ""
        rows[-1][1] += f" {rest}"
    return rows


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("number", range(len(SECTIONS)))
def test_terminal_table_is_complete_and_wraps_between_words(number: int, width: int) -> None:
    longest = made_row("ml_gcn:published", fidelity="partly reconstructed, our settings", validation=0.1)
    comparison = dataclasses.replace(DEMO, rows=(*DEMO.rows, longest))
    text = shown(terminal(comparison)[number], width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    section = list(SECTIONS.values())[number]
    for (name, cells), row in zip(body(text), comparison.ordered, strict=True):
        assert re.sub(r"(?<=:)\n", "", name.strip()).replace("\n", " ") == row.title
        for column in section.quantities:
            assert set(column.cell(row).split()) <= set(cells.split())
            assert column.words or column.cell(row) in cells


def test_long_name_is_wrapped_and_not_truncated() -> None:
    name = "a_rather_long_package.with_a_long_module:AndALongNameOfAClass"
    for table in terminal(made_comparison(made_frozen(), made_best(name))):
        text = shown(table)
        assert max(map(len, text.splitlines())) <= 100
        first = "".join(re.split(r"\s{2,}", line.strip())[0] for line in text.splitlines()).replace(" ", "")
        assert f"{name},ownhead" in first


def test_all_rows_with_the_highest_rounded_score_are_bold() -> None:
    rows = [made_best("a", mAP=0.81239), made_row("b", mAP=0.81161), made_row("c", mAP=0.8109), made_frozen()]
    quality = terminal(made_comparison(*rows))[0]
    assert bold_cells(quality, "mAP") == ["81.2 [80.0, 82.3]", "81.2 [80.0, 82.3]"]
    assert bold_cells(quality, "gain over frozen") == ["+3.0 [+2.0, +4.0]"]
    assert bold_cells(quality, "p") == []


def test_column_without_numbers_has_dashes_and_no_bold_cell() -> None:
    rows = [made_best(macro_F1=None, gmac=None, peak_memory=None), made_frozen(macro_F1=None)]
    decisions = terminal(made_comparison(*rows))[1]
    assert bold_cells(decisions, "macro F1") == []
    assert [row[-1][1].text for row in decisions.cells()] == ["–", "–"]


# Number formats.


def test_scores_are_in_percent_with_intervals() -> None:
    row = made_best("x", mAP=0.7912, interval=(0.7784, 0.8031), over_seeds=0.0021, gain_p=0.0004)
    (cells, *_) = lines_of(comparison_markdown(made_comparison(made_frozen(0.7612), row)), "x, own head")
    assert cells[1:] == ["**79.1**", "**79.1 [77.8, 80.3]**", "**94.1**", "± 0.2", "**+3.0 [+2.0, +4.0]**", "<0.001"]


def test_costs_have_units() -> None:
    row = made_best("x", seconds=754.0, parameters=44_904_512, gmac=31.2, peak_memory=None, training_speed=4.26)
    cells = lines_of(comparison_markdown(made_comparison(made_frozen(), row)), "x, own head")[
        list(SECTIONS).index("cost")
    ]
    assert cells[1:] == ["13 min", "4.3", "188", "–", "45", "31"]


# CSV.


def read_csv(comparison: Comparison) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(comparison_csv(comparison))))


def test_csv_has_every_field_of_every_row_exactly() -> None:
    lines = read_csv(DEMO)
    assert len(lines) == len(DEMO.rows)
    for line, row in zip(lines, DEMO.ordered, strict=True):
        for field in dataclasses.fields(Row):
            value = getattr(row, field.name)
            if field.name.endswith("interval"):
                bounds = [line[f"{field.name}_{end}"] for end in ("low", "high")]
                assert bounds == ["", ""] if value is None else tuple(map(float, bounds)) == value
            elif isinstance(value, bool):
                assert line[field.name] == str(value).lower()
            else:
                assert line[field.name] == ("" if value is None else str(value))


def test_csv_repeats_the_conditions_in_every_line() -> None:
    assert {(line["trials"], line["draws"], line["groups"], line["data"]) for line in read_csv(DEMO)} == {
        ("1", "2000", "", "voc")
    }
    header = comparison_csv(DEMO).splitlines()[0].split(",")
    assert len(header) == len(set(header))


def test_csv_quotes_commas_quotes_and_line_breaks() -> None:
    name = 'a "b", c\nd'
    assert [line["name"] for line in read_csv(made_comparison(made_frozen(), made_best(name)))][1] == name


# Files.


@pytest.mark.parametrize(
    ("name", "render"),
    [
        ("comparison.csv", comparison_csv),
        ("comparison.md", comparison_markdown),
        ("comparison.tex", comparison_latex),
        ("methods.bib", comparison_bibtex),
    ],
)
def test_files_match_the_expected_output(name: str, render: Callable[[Comparison], str]) -> None:
    expected = (Path(__file__).parent / "expected" / name).read_text(encoding="utf-8")
    assert render(stored_comparison()) == expected


# Markdown.


def test_markdown_lists_methods_that_were_left_out() -> None:
    assert comparison_markdown(DEMO).endswith(
        "### Left out\n\n- kmcl diverged at step 40 with each of its learning rates.\n"
    )
    assert "Left out" not in comparison_markdown(made_comparison(made_frozen()))


# LaTeX.


def test_latex_tables_are_complete() -> None:
    text = comparison_latex(DEMO)
    tables = re.findall(r"\\begin\{table\*\}(.*?)\\end\{table\*\}", text, re.DOTALL)
    assert len(tables) == len(SECTIONS) == text.count(r"\begin{") / 2
    for key, table in zip(SECTIONS, tables, strict=True):
        assert rf"\label{{tab:voc-{key}}}" in table
        positions = [table.index(rf"\{rule}rule") for rule in ("top", "mid", "bottom")]
        assert positions == sorted(positions)
        columns = len(re.search(r"\\begin\{tabular\}\{(l?r*)\}", table)[1])  # type: ignore[index]
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len(rows) == 1 + len(DEMO.rows)
        assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {columns}


def test_latex_sets_signs_in_math_mode_and_the_best_in_bold() -> None:
    row = made_best("x", gain=-0.012, gain_interval=(-0.02, 0.001), over_seeds=0.002)
    line = next(
        line for line in comparison_latex(made_comparison(made_frozen(), row)).splitlines() if line.startswith("x,")
    )
    assert line == (
        r"x, own head & \textbf{82.0} & \textbf{82.0 [80.8, 83.1]} & \textbf{97.0} & $\pm$ 0.2 & "
        r"\textbf{$-$1.2 [$-$2.0, +0.1]} & 0.004 \\"
    )


def test_latex_cites_only_entries_of_the_bibliography() -> None:
    rows = [made_frozen(), made_best("asl", reference="ridnik2021asl"), made_row("x", reference="missing2020")]
    text = comparison_latex(made_comparison(*rows))
    assert set(re.findall(r"\\cite\{(.*?)\}", text)) == {"ridnik2021asl"}
    assert text.count(r"asl, own head~\cite{ridnik2021asl} &") == len(SECTIONS)


# BibTeX.


def test_bibliography_has_each_cited_entry_once() -> None:
    keys = re.findall(r"^@\w+\{(.*),$", comparison_bibtex(DEMO), re.MULTILINE)
    assert keys == ["ridnik2021asl", "sajedi2024probmcl", "chen2019mlgcn"]


def test_bibliography_has_probmcl_only_if_it_was_compared() -> None:
    others = [row for row in DEMO.rows if row.method != "probmcl"]
    assert "sajedi2024probmcl" not in comparison_bibtex(dataclasses.replace(DEMO, rows=tuple(others)))


def test_entries_are_complete() -> None:
    assert len(references()) >= 8
    for key, entry in references().items():
        assert re.match(rf"@\w+\{{{key},", entry)
        assert entry.count("{") == entry.count("}")
        assert "year = " in entry


def test_reference_without_an_entry_is_a_comment() -> None:
    text = comparison_bibtex(made_comparison(made_frozen(), made_best(reference="missing2020")))
    assert text.startswith("% ")
    assert "missing2020" in text


def test_bibliography_is_empty_without_citations() -> None:
    assert comparison_bibtex(made_comparison(made_frozen())) == ""


@pytest.mark.parametrize("module", ["comparison_tables", "comparison_plot", "comparison"])
def test_report_does_not_load_torch(module: str) -> None:
    code = f"import sys, probmcl.report.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
