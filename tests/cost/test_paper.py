"""Table 3 of the paper, compared with our counts."""

import pytest

from probmcl.cost.paper import PAPER_ROWS, TABLE_3, PaperNetwork, paper_networks

pytestmark = pytest.mark.slow  # counting all networks takes seconds


@pytest.fixture(scope="module")
def networks() -> dict[tuple[str, str, int], PaperNetwork]:
    return {
        (network.printed.name, f"{network.row.method} {network.row.encoder}", network.row.classes): network
        for network in paper_networks()
    }


def test_every_network_can_be_counted(networks: dict[tuple[str, str, int], PaperNetwork]) -> None:
    assert len(networks) == PAPER_ROWS
    assert [network.row.problem for network in networks.values()] == [None] * len(networks)


def test_ml_gcn_matches_with_fixed_vectors(networks: dict[tuple[str, str, int], PaperNetwork]) -> None:
    for classes in (9, 80):
        network = networks["ML-GCN", "ml_gcn resnet101", classes]
        assert network.row.training_parameters == 44_904_512
        assert round(network.row.training_parameters / 1e6, 2) == network.printed.parameters
    graph = 9 * (300 * 1024 + 1024 * 2048) + 9 * 9 * (1024 + 2048)
    network = networks["ML-GCN", "ml_gcn resnet101", 9]
    assert network.row.gmac_ptflops is not None
    leaky = 9 * 1024
    assert network.row.gmac_ptflops - (graph + leaky) / 1e9 == pytest.approx(network.printed.gmac, abs=0.001)


def test_tdrg_matches_the_authors_code_but_not_the_table(
    networks: dict[tuple[str, str, int], PaperNetwork],
) -> None:
    for classes, millions in ((9, 67.8), (80, 68.3)):
        network = networks["TDRG", "tdrg:paper resnet101", classes]
        assert network.row.training_parameters is not None
        assert network.row.gmac_ptflops is not None
        assert round(network.row.training_parameters / 1e6, 1) == millions
        assert network.row.gmac_ptflops == pytest.approx(44.2, abs=0.2)
        assert network.printed.parameters > millions + 5


def test_csra_matches_only_with_9_classes_and_one_head(networks: dict[tuple[str, str, int], PaperNetwork]) -> None:
    matching = [
        key[1:]
        for key, network in networks.items()
        if key[0] == "CSRA"
        and network.row.training_parameters is not None
        and network.row.gmac_ptflops is not None
        and round(network.row.training_parameters / 1e6, 2) == network.printed.parameters
        and round(network.row.gmac_ptflops, 2) == network.printed.gmac
    ]
    assert matching == [("csra resnet101", 9)]
    assert networks["CSRA", "csra resnet101", 9].row.training_parameters == 42_518_592


def test_probmcl_matches_no_network(networks: dict[tuple[str, str, int], PaperNetwork]) -> None:
    for key, network in networks.items():
        if key[0] == "ProbMCL":
            assert network.row.prediction_parameters is not None
            assert network.row.gmac is not None
            assert network.row.prediction_parameters / 1e6 > network.printed.parameters + 0.2
            assert network.row.gmac > network.printed.gmac + 1


def test_printed_figures() -> None:
    assert {printed.name: (printed.parameters, printed.gmac) for printed in TABLE_3} == {
        "ML-GCN": (44.90, 31.39),
        "TDRG": (75.20, 64.40),
        "CSRA": (42.52, 31.39),
        "ProbMCL": (42.23, 29.65),
    }
