"""What every method promises on several processes: the loss and the gradients of one process on all images."""

import dataclasses
from typing import Any

import pytest
import torch

from helpers import processes
from probmcl.methods import METHODS, find_method
from probmcl.methods.joint import Config as Joint
from probmcl.methods.mulsupcon import Config as MulSupCon
from probmcl.methods.probmcl import PAPER, Config

CASES: processes.Cases = {
    f"{name}-{preset}": (name, config) for name in METHODS for preset, config in find_method(name).presets.items()
} | {
    "probmcl-balanced": ("probmcl", dataclasses.replace(PAPER, contrastive_weight="balanced", overlap="cosine")),
    "probmcl-mean": ("probmcl", dataclasses.replace(PAPER, contrastive_weight="balanced", reduction="mean")),
    "probmcl-sum": ("probmcl", Config(reduction="sum", component_weight="density", overlap="cosine_literal")),
    "probmcl-anchors": ("probmcl", Config(anchors="labels")),
    "probmcl-anchors-sum": ("probmcl", Config(anchors="labels", reduction="sum", component_weight="density")),
    "mulsupcon-images": ("mulsupcon", MulSupCon(average="images")),
    "joint-asl-supcon": ("joint", Joint(classification="asl", contrast="supcon")),
    "joint-asl-probmcl": ("joint", Joint(classification="asl", contrast="probmcl")),
    "joint-bce-probmcl": ("joint", Joint(classification="bce", contrast="probmcl")),
}
GLOBAL = {
    "loss",
    "likelihood",
    "contrastive",
    "contrastive_weight",
    "anchored",
    "classification",
    "reconstruction",
    "contrast",
    "plain",
    "attended",
    "fused",
    "structural",
    "semantic",
    "constraint",
}
"""What is the same on any number of processes; signs of collapse are watched by each on its own images."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[processes.Results]:
    return processes.run(processes.steps, tmp_path_factory.mktemp("steps"), CASES)


@pytest.mark.parametrize("known", processes.KNOWN)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_loss_and_the_gradients_of_one(case: str, known: str, two: Any) -> None:
    expected = one(case, known)
    for results in two:
        found = results[f"{case}, known: {known}"]
        for term in GLOBAL & set(expected["means"]):
            torch.testing.assert_close(found["means"][term], expected["means"][term], rtol=1e-7, atol=1e-9)
        assert found["gradients"].keys() == expected["gradients"].keys()
        for key, gradient in expected["gradients"].items():
            torch.testing.assert_close(found["gradients"][key], gradient, rtol=1e-6, atol=1e-9)


def one(case: str, known: str) -> processes.Results:
    """A step of one process on all images."""
    name, config = CASES[case]
    method = processes.method(name, config)
    return processes.step(method, processes.batch(method.n_views, known))


@pytest.mark.parametrize("case", CASES)
def test_there_is_something_to_compare(case: str, two: Any) -> None:
    first, second = (results[f"{case}, known: {processes.KNOWN[0]}"] for results in two)
    assert first["own_loss"] != second["own_loss"]  # the processes have different images
    assert any(gradient.abs().max() > 1e-6 for gradient in first["gradients"].values())


def test_the_batch_has_unknown_labels_unevenly_spread() -> None:
    _, labels, known = processes.batch(1, processes.KNOWN[0])
    assert known is not None
    here, there = known.chunk(processes.WORLD)
    assert here.sum() > there.sum() > 0
    assert labels[~known].isnan().all()
