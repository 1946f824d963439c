"""Commands in separate processes, for tests of signals, exit codes and imports."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HANGS = 1800
"""Seconds after which a process is considered to hang; a busy machine needs far less."""

PROBMCL = [sys.executable, "-m", "probmcl"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "probmcl"]


def finished(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output and exit code."""
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=cwd, check=False, timeout=HANGS)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until a process has met a condition; fail if it ends before that, or hangs."""
    end = time.monotonic() + HANGS
    while not condition():
        assert process.poll() is None, f"the process ended too early, with exit code {process.returncode}"
        assert time.monotonic() < end, "the process hangs"
        time.sleep(0.02)
