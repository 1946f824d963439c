"""Table 3 of the paper, "Computational training cost", and our counts for the networks in it."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from probmcl.cost.rows import CostRow, cost_row, label_space, meta_encoder
from probmcl.readers.class_knowledge import words_of
from probmcl.settings import MethodSpec

CLASSES = (9, 80)  # ADP, and MS-COCO, which the caption mentions
SIZE = 448  # image size of all methods in the table


@dataclass(frozen=True)
class PaperColumn:
    """A column of the table: the printed parameters (in millions) and GMAC of a method, and our findings."""

    name: str
    parameters: float
    gmac: float
    networks: tuple[tuple[str, str], ...]  # candidates: method (with preset) and encoder
    note: str


TABLE_3 = (
    PaperColumn(
        "ML-GCN",
        44.90,
        31.39,
        (("ml_gcn", "resnet101"),),
        "matches with fixed word vectors and up to 20 classes, or without the graph, which is a parameter in the "
        "authors' code (44.91 M with 80 classes). The printed GMAC is for ResNet-101 alone: ptflops does not count "
        "the matrix products of the graph.",
    ),
    PaperColumn(
        "TDRG",
        75.20,
        64.40,
        (("tdrg:paper", "resnet101"),),
        "matches no network that we know. The authors' code and ours have 67.8 M parameters with 9 classes and 68.3 M "
        "with 80. Two ResNet-101 encoders and the heads without the transformer have 64.0 GMAC; the authors' class "
        "references the encoder twice, so it may have been counted twice, but this does not explain the parameters.",
    ),
    PaperColumn(
        "CSRA",
        42.52,
        31.39,
        (("csra", "resnet101"), ("csra:paper", "resnet101")),
        "matches only 9 classes and one head; on MS-COCO the authors use 80 classes and six heads.",
    ),
    PaperColumn(
        "ProbMCL",
        42.23,
        29.65,
        (("probmcl:paper", "tresnet_v2_l"), ("probmcl:paper", "tresnet_l"), ("probmcl:paper", "resnet101")),
        "matches no network that we know: it is below ResNet-101 without a head (42.50 M, 31.39 GMAC) and below both "
        "versions of TResNet-L, even without the mixture network that is added in training.",
    ),
)

PAPER_ROWS = len(CLASSES) * sum(len(column.networks) for column in TABLE_3)
"""Number of networks that `paper_networks` yields."""


class PaperNetwork(NamedTuple):
    """A column of the printed table, and our counts for a network that it may refer to."""

    printed: PaperColumn
    row: CostRow


def paper_networks() -> Iterator[PaperNetwork]:
    """Yield our counts for each printed column, with 9 and with 80 classes."""
    with tempfile.TemporaryDirectory() as folder:
        vectors = _write_vectors(Path(folder) / "vectors.txt")
        for printed in TABLE_3:
            for method, encoder_name in printed.networks:
                spec = MethodSpec.parse(method)
                settings = None
                if method == "ml_gcn":  # the authors count it with fixed word vectors
                    settings = replace(spec.settings, vectors=vectors)
                for classes in CLASSES:
                    row = cost_row(spec, meta_encoder(encoder_name, SIZE), classes, settings)
                    yield PaperNetwork(printed, row)


def _write_vectors(path: Path) -> str:
    """Write a file with zero word vectors for all classes, since only their shape matters, and return its path."""
    words = set()
    for name in label_space(max(CLASSES)).names:
        words.update(words_of(name))
    zeros = " 0" * MethodSpec("ml_gcn").settings.vector_size
    text = "".join(f"{word}{zeros}\n" for word in words)
    path.write_text(text, encoding="utf-8", newline="\n")
    return str(path)
