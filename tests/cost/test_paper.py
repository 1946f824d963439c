"""Table 3 of the paper, compared with our counts."""

import pytest

from probmcl.cost.paper import PAPER_ROWS, TABLE_3, PaperNetwork, paper_networks


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str, int], PaperNetwork]:
    return {(one.printed.name, f"{one.row.method} {one.row.encoder}", one.row.classes): one for one in paper_networks()}


@pytest.mark.slow
def test_every_network_can_be_counted(found: dict[tuple[str, str, int], PaperNetwork]) -> None:
    assert len(found) == PAPER_ROWS
    assert [one.row.problem for one in found.values()] == [None] * len(found)


def test_ml_gcn_fits_without_learned_vectors(found: dict[tuple[str, str, int], PaperNetwork]) -> None:
    for classes in (9, 80):
        one = found["ML-GCN", "ml_gcn resnet101", classes]
        assert one.row.training_parameters == 44_904_512
        assert round(one.row.training_parameters / 1e6, 2) == one.printed.parameters
    graph = 9 * (300 * 1024 + 1024 * 2048) + 9 * 9 * (1024 + 2048)
    one = found["ML-GCN", "ml_gcn resnet101", 9]
    assert one.row.gmac_ptflops is not None
    leaky = 9 * 1024
    assert one.row.gmac_ptflops - (graph + leaky) / 1e9 == pytest.approx(one.printed.gmac, abs=0.001)


def test_tdrg_has_the_size_of_the_authors_code_and_not_what_is_printed(
    found: dict[tuple[str, str, int], PaperNetwork],
) -> None:
    for classes, millions in ((9, 67.8), (80, 68.3)):
        one = found["TDRG", "tdrg:paper resnet101", classes]
        assert one.row.training_parameters is not None
        assert one.row.gmac_ptflops is not None
        assert round(one.row.training_parameters / 1e6, 1) == millions
        assert one.row.gmac_ptflops == pytest.approx(44.2, abs=0.2)
        assert one.printed.parameters > millions + 5


def test_csra_fits_9_classes_and_one_head_and_nothing_else(found: dict[tuple[str, str, int], PaperNetwork]) -> None:
    fitting = [
        key[1:]
        for key, one in found.items()
        if key[0] == "CSRA"
        and one.row.training_parameters is not None
        and one.row.gmac_ptflops is not None
        and round(one.row.training_parameters / 1e6, 2) == one.printed.parameters
        and round(one.row.gmac_ptflops, 2) == one.printed.gmac
    ]
    assert fitting == [("csra resnet101", 9)]
    assert found["CSRA", "csra resnet101", 9].row.training_parameters == 42_518_592


def test_no_network_has_what_is_printed_for_probmcl(found: dict[tuple[str, str, int], PaperNetwork]) -> None:
    for key, one in found.items():
        if key[0] == "ProbMCL":
            assert one.row.prediction_parameters is not None
            assert one.row.gmac is not None
            assert one.row.prediction_parameters / 1e6 > one.printed.parameters + 0.2
            assert one.row.gmac > one.printed.gmac + 1


def test_the_printed_figures_are_those_of_the_paper() -> None:
    assert {printed.name: (printed.parameters, printed.gmac) for printed in TABLE_3} == {
        "ML-GCN": (44.90, 31.39),
        "TDRG": (75.20, 64.40),
        "CSRA": (42.52, 31.39),
        "ProbMCL": (42.23, 29.65),
    }
