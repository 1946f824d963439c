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
    """Run a command in a process of its own; return its output and exit code."""
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=HANGS)


def main(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `probmcl WORDS` in this process, which does not import torch again; return its output and exit code."""
    arguments = [str(word) for word in words]
    stdout = io.StringIO()
    stderr = io.StringIO()
    exit_code = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        _keep_changes_inside_the_command(patch)
        patch.setattr(sys, "argv", ["probmcl", *arguments])
        app_with_arguments = partial(cli.app(), arguments)  # if cyclopts finds the arguments itself, it warns in tests
        patch.setattr(cli, "app", lambda: app_with_arguments)
        if cwd is not None:
            patch.chdir(cwd)
        try:
            cli.main()
        except SystemExit as end:
            exit_code = int(str(end.code))
    return subprocess.CompletedProcess(arguments, exit_code, stdout.getvalue(), stderr.getvalue())


def _keep_changes_inside_the_command(patch: pytest.MonkeyPatch) -> None:
    """Restore or prevent what `cli.main` changes in a process, because later tests run in this one."""
    patch.setattr(sys, "unraisablehook", sys.unraisablehook)  # main() replaces the hook; the patch restores it
    patch.setenv("GOMP_SPINCOUNT", "5000")  # main() sets it if it is missing
    patch.setattr(signal, "signal", lambda *_: None)
    patch.setattr(cli, "keep_freed_memory", lambda: True)
