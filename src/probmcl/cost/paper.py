"""Table 3 of the paper, "Computational training cost", beside what the networks that it names cost here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from probmcl.cost.rows import Choice, Row, choices, label_space, survey
from probmcl.data.word_vectors import words_of
from probmcl.settings import method_settings

CLASSES = (9, 80)
"""Of ADP, and of MS-COCO, which the table's caption names."""

SIZE = 448
"""Side of the images of all its methods."""


@dataclass(frozen=True)
class Printed:
    """A column of the table: the method, parameters in millions and GMAC as printed, and what we found about them.

    `networks` are what it may have been counted on: the method here with a preset, and an encoder.
    """

    name: str
    parameters: float
    gmac: float
    networks: tuple[tuple[str, str], ...]
    note: str


TABLE_3 = (
    Printed(
        "ML-GCN",
        44.90,
        31.39,
        (("ml_gcn", "resnet101"),),
        "fits, with word vectors that are not learned and up to 20 classes, or without the graph, which the authors' "
        "code keeps as a parameter (44.91 with 80). The printed GMAC is that of ResNet-101 alone: ptflops did not see "
        "the products of the graph.",
    ),
    Printed(
        "TDRG",
        75.20,
        64.40,
        (("tdrg:paper", "resnet101"),),
        "fits no network that we know; the authors' code has 67.8 M with 9 classes and 68.3 M with 80, as ours. Two "
        "ResNet-101 and the heads without their transformer come to 64.0 GMAC, and the authors' class does hold the "
        "encoder twice, which a counter may follow twice: a guess, and it explains no parameters.",
    ),
    Printed(
        "CSRA",
        42.52,
        31.39,
        (("csra", "resnet101"), ("csra:paper", "resnet101")),
        "fits 9 classes and one head, and nothing else; on MS-COCO the authors have 80 classes and six heads.",
    ),
    Printed(
        "ProbMCL",
        42.23,
        29.65,
        (("probmcl:paper", "tresnet_v2_l"), ("probmcl:paper", "tresnet_l"), ("probmcl:paper", "resnet101")),
        "fits no network that we know: it is less than ResNet-101 without any head (42.50 M, 31.39 GMAC) and than "
        "either TResNet-L, even without the mixture network that training adds.",
    ),
)


@dataclass(frozen=True)
class Beside:
    """A column of the printed table, and a network of ours that it may have been counted on."""

    printed: Printed
    row: Row


def table_3() -> Iterator[Beside]:
    """Every printed column beside our networks, with 9 and with 80 classes."""
    with tempfile.TemporaryDirectory() as folder:
        for printed in TABLE_3:
            for method, encoder in printed.networks:
                chosen = _choice(method, Path(folder))
                yield from (Beside(printed, row) for row in survey([chosen], [encoder], [SIZE], CLASSES))


def networks() -> int:
    """How many rows `table_3` has."""
    return len(CLASSES) * sum(len(printed.networks) for printed in TABLE_3)


def _choice(method: str, folder: Path) -> Choice:
    """The method as its authors count it: ML-GCN has word vectors from a file, whatever their numbers are."""
    (chosen,) = choices([method])
    if chosen.method != "ml_gcn":
        return chosen
    words = {word for name in label_space(max(CLASSES)).names for word in words_of(name)}
    zeros = " 0" * chosen.settings.vector_size
    (folder / "vectors.txt").write_text("".join(f"{word}{zeros}\n" for word in words), encoding="utf-8")
    return Choice("ml_gcn", "default", method_settings("ml_gcn", changes={"vectors": str(folder / "vectors.txt")}))
