"""Contract tests of all methods on several processes: loss and gradients must equal those of a single process."""

from typing import Any

import pytest
import torch

from helpers import processes
from helpers.processes import CASES

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
"""Terms that do not depend on the number of processes. Collapse statistics do, since each process uses its own rows."""


@pytest.mark.parametrize("known", processes.KNOWN)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_loss_and_the_gradients_of_one(case: str, known: str, two_processes: Any) -> None:
    expected = one(case, known)
    for results in two_processes:
        found = results[f"{case}, known: {known}"]
        for term in GLOBAL & set(expected["means"]):
            torch.testing.assert_close(found["means"][term], expected["means"][term], rtol=1e-7, atol=1e-9)
        assert found["gradients"].keys() == expected["gradients"].keys()
        for key, gradient in expected["gradients"].items():
            torch.testing.assert_close(found["gradients"][key], gradient, rtol=1e-6, atol=1e-9)


def one(case: str, known: str) -> processes.Results:
    """Return the result of a step of one process on all images."""
    name, config = CASES[case]
    method = processes.method(name, config)
    return processes.step(method, processes.batch(method.n_views, known))


@pytest.mark.parametrize("case", CASES)
def test_there_is_something_to_compare(case: str, two_processes: Any) -> None:
    first, second = (results[f"{case}, known: {processes.KNOWN[0]}"] for results in two_processes)
    assert first["own_loss"] != second["own_loss"]  # the processes have different images
    assert any(gradient.abs().max() > 1e-6 for gradient in first["gradients"].values())


def test_the_batch_has_unknown_labels_unevenly_spread() -> None:
    _, labels, known = processes.batch(1, processes.KNOWN[0])
    assert known is not None
    here, there = known.chunk(processes.WORLD)
    assert here.sum() > there.sum() > 0
    assert labels[~known].isnan().all()
