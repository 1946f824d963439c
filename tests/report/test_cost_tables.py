import csv
import io
import json

import pytest
from rich.console import Console

from probmcl.cost.paper import PaperColumn, PaperNetwork
from probmcl.cost.rows import CostRow
from probmcl.cost.speed import Speed
from probmcl.report.cost_tables import cost_tables, paper_record, paper_table, record
from probmcl.tables import to_csv, to_markdown, to_rich

SPEED = Speed("cpu", 8, 0.25, 8.0, 0.05, 2_500_000_000)
BCE = CostRow("bce", "resnet101", 448, 9, 1, True, 42_518_601, 42_518_601, 31.1974, 31.3898, 31.1974, speed=SPEED)
PAPER = CostRow("probmcl:paper", "resnet101", 448, 9, 2, False, 46_962_267, 42_518_601, 31.1974, 31.3898, 62.4039)
CANNOT = CostRow("csra", "resnet101", 448, 9, 1, True, problem="csra needs maps")
LONG = CostRow("ml_decoder:paper", "resnet101", 448, 9, 1, True, 49_596_233, 49_596_233, 31.7786, 31.9711, 31.7786)
OTHER = CostRow("bce", "vit_small_patch16_224", 224, 1, 1, True, 21_700_000, 21_700_000, 4.6, 4.62, 4.6)


def lines(width: int, *rows: CostRow) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    for table in cost_tables(rows):
        console.print(to_rich(table))
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_rows_stay_on_one_line_at_any_width(width: int) -> None:
    printed = lines(width, BCE, PAPER, CANNOT, LONG)
    assert max(map(len, printed)) <= width
    assert any(line.startswith("ml_decoder:paper ") for line in printed)
    (row,) = [line.split() for line in printed if line.startswith("probmcl:paper")]
    assert row == ["probmcl:paper", "46.96", "42.52", "probe", "31.20", "31.39", "2", "62.40"]


def test_reason_for_missing_numbers_is_below_the_table() -> None:
    printed = lines(80, BCE, CANNOT)
    (row,) = [line.split() for line in printed if line.startswith("csra ")]
    assert set(row[1:]) == {"–"}
    assert "csra: needs maps" in [line.strip() for line in printed]


def test_one_table_per_encoder_size_and_number_of_classes() -> None:
    assert [table.title for table in cost_tables([PAPER, OTHER])] == [
        "resnet101, 448 px, 9 classes",
        "vit_small_patch16_224, 224 px, 1 class",
    ]


def test_measurements_have_a_separate_table() -> None:
    _, measured = cost_tables([BCE, PAPER])
    assert measured.title == "measured on cpu, batch size 8"
    assert measured.rows == [["bce", "250.0", "8.0", "50.0", "2,500"]]


def test_records_have_the_same_keys_whether_measured_or_not() -> None:
    keys = list(record(BCE))
    assert keys == list(record(PAPER)) == list(record(CANNOT))
    assert json.loads(json.dumps(record(BCE)))["peak_memory"] == 2_500_000_000
    assert record(PAPER)["peak_memory"] is None
    first, second = csv.DictReader(io.StringIO(to_csv([record(BCE), record(CANNOT)])))
    assert (first["training_parameters"], first["gmac"], first["problem"]) == ("42518601", "31.1974", "")
    assert (second["gmac"], second["problem"]) == ("", "csra needs maps")


def test_markdown_has_the_table_and_its_notes() -> None:
    (table,) = cost_tables([PAPER, CANNOT])
    text = to_markdown(table)
    assert "### resnet101, 448 px, 9 classes\n" in text
    assert "| probmcl:paper | 46.96 | 42.52 | probe | 31.20 | 31.39 | 2 | 62.40 |\n" in text
    assert "\ncsra: needs maps\n" in text


def test_paper_numbers_appear_once_above_ours() -> None:
    printed = PaperColumn("ProbMCL", 42.23, 29.65, (), "fits nothing")
    networks = [PaperNetwork(printed, PAPER), PaperNetwork(printed, BCE)]
    table = paper_table(networks)
    assert table.rows == [
        ["ProbMCL (paper)", "", "", "42.23", "", "", "29.65"],
        ["probmcl:paper", "resnet101", "9", "46.96", "42.52", "31.20", "31.39"],
        ["bce", "resnet101", "9", "42.52", "42.52", "31.20", "31.39"],
    ]
    assert table.notes == ["ProbMCL: fits nothing"]
    assert paper_record(networks[0])["printed_gmac"] == 29.65
