"""Commands in this process, or in separate processes for tests of signals, imports and the start of a process."""

import contextlib
import io
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from probmcl import cli

HANGS = 1800
"""Seconds after which a process is considered to hang; a busy machine needs far less."""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "probmcl"]


def finished(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output and exit code."""
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=cwd, check=False, timeout=HANGS)


def main(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which does not import torch again; return its output and exit code."""
    out, err, code, arguments = io.StringIO(), io.StringIO(), 0, list(map(str, words))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["probmcl", *arguments])
        patch.setattr(cli, "app", partial(partial, cli.app(), arguments))  # without arguments, cyclopts warns in tests
        patch.setattr(sys, "unraisablehook", sys.unraisablehook)  # main() sets it; restore it afterwards
        patch.setenv("GOMP_SPINCOUNT", "5000")
        patch.setattr(signal, "signal", lambda *_: None)
        patch.setattr(cli, "keep_freed_memory", lambda: True)  # it would affect all later tests
        if cwd is not None:
            patch.chdir(cwd)
        try:
            cli.main()
        except SystemExit as end:
            code = int(str(end.code))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
