"""Contract tests of all methods on several processes: results must equal those of a single process."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import probmcl
from helpers import processes
from helpers.processes import CASES
from probmcl.methods.base import Method

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
def test_two_processes_have_the_loss_and_gradients_of_one(case: str, known: str, two_processes: Any) -> None:
    expected = single_process(case, known)
    for results in two_processes:
        result = results[f"{case}, known: {known}"]
        for term in GLOBAL & set(expected["means"]):
            torch.testing.assert_close(result["means"][term], expected["means"][term], rtol=1e-7, atol=1e-9)
        assert result["gradients"].keys() == expected["gradients"].keys()
        for key, gradient in expected["gradients"].items():
            torch.testing.assert_close(result["gradients"][key], gradient, rtol=1e-6, atol=1e-9)


def single_process(case: str, known: str) -> processes.Results:
    """Return the result of a step of one process on all images."""
    method = single_method(case)
    return processes.step(method, processes.batch(method.n_views, known))


@lru_cache(maxsize=1)
def single_method(case: str) -> Method:
    return processes.method(*CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_processes_have_different_losses_and_nonzero_gradients(case: str, two_processes: Any) -> None:
    first, second = (results[f"{case}, known: {processes.KNOWN[0]}"] for results in two_processes)
    assert first["own_loss"] != second["own_loss"]  # the processes have different images
    assert any(gradient.abs().max() > 1e-6 for gradient in first["gradients"].values())


def test_two_processes_train_the_model_of_one(two_processes: Any, tmp_path: Path) -> None:
    first, second = two_processes
    assert first["run"] == second["run"]
    one = probmcl.train(first["table"], **processes.TRAINING, tune="all", report=False, out=tmp_path / "one")
    processes.assert_same_model(one.folder, Path(first["run"]))


def test_unknown_labels_are_unevenly_distributed() -> None:
    _, labels, known = processes.batch(1, processes.KNOWN[0])
    assert known is not None
    first_half, second_half = known.chunk(processes.WORLD)
    assert first_half.sum() > second_half.sum() > 0
    assert labels[~known].isnan().all()
