"""A killed run resumes with the same result as one that was never interrupted."""

import signal
from pathlib import Path

import numpy as np
import pytest

from faults.conftest import NO_REPORT, SMALL
from helpers.faults import Commands

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("moment", ["plan*", "bce*trained*", "bce*own?head*"])
def test_killed_run_resumes_bit_identical(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, moment: str
) -> None:
    run = tmp_path / "run"
    process = command.start("train", photos, *SMALL, "--out", run)
    process.wait_until(run / "checkpoints" / moment)
    process.signal(signal.SIGKILL)
    process.wait()
    assert command("train", "--resume", run, *NO_REPORT).code == 0
    for name in ("model.safetensors", "evaluation.json"):
        assert (run / name).read_bytes() == (finished_run / name).read_bytes()
    with np.load(run / "predictions/test.npz") as ours, np.load(finished_run / "predictions/test.npz") as theirs:
        np.testing.assert_array_equal(ours["scores"], theirs["scores"])
