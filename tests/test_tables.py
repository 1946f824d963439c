import csv
import io
import re

import pytest
from rich.console import Console

from probmcl.tables import Cell, Column, Table, duration, points, to_csv, to_latex, to_markdown, to_rich


def table(name: str, *, framed: bool = False) -> Table:
    """Return a table of two rows: a name, text that may wrap, and two numbers, one of them bold."""
    columns = [Column.of_names("method"), Column("description", words=True), Column("mAP"), Column("images seen")]
    rows: list[list[Cell | str]] = [
        [name, "a few words", Cell("79.1 [77.8, 80.3]", bold=True), "24,000"],
        ["b", "", "<0.1", "–"],
    ]
    return Table("Scores [x]", columns, rows, "conditions", ["b_b: a note"], framed=framed)


def printed(shown: Table, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(to_rich(shown))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("width", [50, 80, 120])
def test_numbers_do_not_wrap_and_long_names_are_complete(width: int, framed: bool) -> None:
    name = "a_package.with_a_module:AndTheNameOfAClass"
    text = printed(table(name, framed=framed), width)
    assert max(map(len, text.splitlines())) <= width
    assert "79.1 [77.8, 80.3]" in text
    assert "24,000" in text
    first = "".join(re.split(r" {2,}|│|┃", line.strip(" │┃"))[0].strip() for line in text.splitlines())
    assert name in first


def test_brackets_in_names_and_titles_are_not_markup() -> None:
    text = printed(table("[red]x[/red]"))
    assert "[red]x[/red]" in text
    assert "Scores [x]" in text


def test_line_breaks_in_a_cell_are_kept() -> None:
    assert "a\n  b\nb" in "\n".join(line[:4].rstrip() for line in printed(table("a\n  b")).splitlines())


def test_caption_and_notes_follow_the_table() -> None:
    lines = [line.strip() for line in printed(table("a")).splitlines()]
    assert lines[-2:] == ["conditions", "b_b: a note"]
    assert to_markdown(table("a")).endswith("| b |  | <0.1 | – |\n\nconditions\n\nb\\_b: a note\n")


def test_markdown_escapes_text_and_marks_bold_cells() -> None:
    lines = to_markdown(table("a|b_c*d`<e>")).splitlines()
    assert lines[0] == "### Scores [x]"
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[4] == r"| a\|b\_c\*d\`\<e\> | a few words | **79.1 [77.8, 80.3]** | 24,000 |"
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines[2:6]} == {6}


def test_latex_escapes_text_and_cites_keys() -> None:
    row: list[Cell | str] = [Cell(r"a_b&c%d#e$f{g}h~i^j\k<l--m", citation="key2020"), "±", Cell("−1.2", bold=True), "–"]
    text = to_latex(Table("", table("").columns, [row]), label="tab:x", caption="95 %")
    assert r"\caption{95 \%}" in text
    assert r"\label{tab:x}" in text
    assert r"\begin{tabular}{lrrr}" in text
    (line,) = (line for line in text.splitlines() if line.startswith("a"))
    name = r"a\_b\&c\%d\#e\$f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k$<$l-{}-m~\cite{key2020}"
    assert line == name + r" & $\pm$ & \textbf{$-$1.2} & \textendash{} \\"


def test_csv_keeps_commas_quotes_and_line_breaks() -> None:
    records: list[dict[str, object]] = [{"name": 'a "b", c\nd', "x": None}, {"name": "e", "x": 0.1}]
    assert list(csv.DictReader(io.StringIO(to_csv(records)))) == [
        {"name": 'a "b", c\nd', "x": ""},
        {"name": "e", "x": "0.1"},
    ]


def test_a_difference_that_rounds_to_zero_has_a_plus_sign() -> None:
    assert [points(value) for value in (-0.0004, 0.0, -0.0006)] == ["+0.0", "+0.0", "−0.1"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.0 s"), (99.4, "99 s"), (100.0, "1.7 min"), (7200.0, "2.0 h"), (172_800.0, "2.0 d")]
)
def test_a_duration_has_a_readable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
