"""Faults in one of several processes: all end, the cause is printed, and one process can resume the run."""

import signal
import socket
from pathlib import Path

import numpy as np
import pytest

from faults.conftest import NO_REPORT, SMALL
from helpers.faults import Commands, Ended, status

pytestmark = pytest.mark.slow

IN_RANK_1 = """
import os, signal, sys
import probmcl.training.fit
loop = sys.modules["probmcl.training.fit"]
update = loop._apply_step
def faulty(state, loss, mean_loss, buffers):
    faulty.step += 1
    if faulty.step == 4 and os.environ["RANK"] == "1":
        {fault}
    return update(state, loss, mean_loss, buffers)
faulty.step = 0
loop._apply_step = faulty
"""
"""Code that injects a fault into step 4 of 6 of the second process."""

NAN_LOSS = """
import os
from torch.nn.functional import binary_cross_entropy_with_logits as bce
calls = []
def nan_in_rank_1(logits, labels, known):
    calls.append(None)
    return bce(logits, labels) * (float("nan") if os.environ["RANK"] == "1" and len(calls) == 6 else 1.0)
"""


def train_with_ranks(command: Commands, ranks: int, *words: str | Path, prepare: str = "") -> list[Ended]:
    """Run `probmcl train WORDS` in several processes that form a group, as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environments = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **group} for rank in range(ranks)]
    processes = [command.start("train", *words, env=env, prepare=prepare) for env in environments]
    return [process.wait() for process in processes]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_several_processes_have_the_scores_of_one(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, ranks: int
) -> None:
    run = tmp_path / "run"
    for ended in train_with_ranks(command, ranks, photos, *SMALL, "--out", run):
        assert ended.code == 0, ended.text
    with np.load(run / "predictions/test.npz") as ours, np.load(finished_run / "predictions/test.npz") as theirs:
        np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-4)


@pytest.mark.parametrize("fault", ["os.kill(os.getpid(), signal.SIGKILL)", "raise RuntimeError('a bug in rank 1')"])
def test_a_fault_in_one_process_ends_all(command: Commands, photos: Path, tmp_path: Path, fault: str) -> None:
    run = tmp_path / "run"
    first, second = train_with_ranks(command, 2, photos, *SMALL, "--out", run, prepare=IN_RANK_1.format(fault=fault))
    assert first.code == 1
    assert second.code == (-signal.SIGKILL if "kill" in fault else 1)
    assert "a bug in rank 1" in second.stderr or "kill" in fault
    assert status(run) == "failed"
    ended = command("train", "--resume", run, *NO_REPORT)
    assert ended.code == 0, ended.text


def test_a_batch_with_nan_in_one_process_is_skipped_in_all(command: Commands, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(NAN_LOSS)
    words = [*SMALL[: SMALL.index("--method")], *SMALL[SMALL.index("--method") + 2 :]]
    loss = f"{tmp_path / 'losses.py'}:nan_in_rank_1"
    first, second = train_with_ranks(command, 2, photos, *words, "--loss", loss, "--out", tmp_path / "run")
    assert (first.code, second.code) == (0, 0), first.text + second.text
    (line,) = [line for line in first.stdout.splitlines() if "; skipped " in line]
    assert line.count(".jpg") == 8  # the images of both processes
