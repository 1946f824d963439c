"""Commands in processes of their own: for signals, exit codes and what a fresh interpreter loads."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HANGS = 1800
"""Seconds after which a process is taken to hang; nothing else is concluded from the time that one takes."""

PROBMCL = [sys.executable, "-m", "probmcl"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "probmcl"]


def finished(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What a command, given with its interpreter, has printed, and its exit code."""
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=cwd, check=False, timeout=HANGS)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that a process does; where it has ended without, or hangs, that is an error."""
    end = time.monotonic() + HANGS
    while not condition():
        assert process.poll() is None, f"the process ended with {process.returncode} too early"
        assert time.monotonic() < end, "the process hangs"
        time.sleep(0.02)
