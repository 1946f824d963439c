"""Commands in processes of their own that start in milliseconds, for tests that inject faults.

A server process imports probmcl and torch once and forks a child for each command, so that a test can kill it, limit
its resources or send it signals like any process. Tests use only the command line and files.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

IMPORTED_ONCE = (
    *("probmcl.inference", "probmcl.run.train", "probmcl.report.page", "probmcl.experiments.runner"),
    *("probmcl.cli.options", "matplotlib.figure", "matplotlib.backends.backend_agg", "sklearn.metrics"),
)
"""Modules that the commands would import each time."""

HANGS = 600.0
"""Seconds after which a command is considered to hang; a busy machine needs far less."""


class Ended(NamedTuple):
    """An ended command. `code` is negative if a signal ended it; `peak` is its peak memory in bytes."""

    code: int
    stdout: str
    stderr: str
    peak: int

    @property
    def text(self) -> str:
        """Everything that the command printed."""
        return self.stdout + self.stderr


@dataclass(eq=False)
class Process:
    """A running command in a process group of its own."""

    server: Commands
    pid: int
    folder: Path

    def output(self) -> str:
        """Return everything that it has printed so far."""
        return "".join((self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process, or to its group, as a terminal does."""
        (os.killpg if group else os.kill)(self.pid, number)

    def wait(self, timeout: float = HANGS) -> Ended:
        """Wait until it ends. After the timeout, its group is killed and the test fails."""
        reply = self.server.request(wait=self.pid, timeout=timeout)
        if reply["code"] is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.server.request(wait=self.pid, timeout=HANGS)
            raise AssertionError(f"the command hangs; it printed:\n{self.output()}")
        stdout, stderr = ((self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return Ended(reply["code"], stdout, stderr, reply["peak"])

    def wait_until(self, path: Path) -> None:
        """Wait until a file matching the last part of `path`, which may be a pattern, exists; fail if it ends first."""
        self.wait_for(lambda: any(path.parent.glob(path.name)))

    def wait_for(self, condition: Any) -> None:
        """Wait until a condition holds; fail if the command ends before that."""
        end = time.monotonic() + HANGS
        while not condition():
            reply = self.server.request(wait=self.pid, timeout=0.0)
            assert reply["code"] is None, f"the command ended too early:\n{self.output()}"
            assert time.monotonic() < end, f"the condition never holds:\n{self.output()}"
            time.sleep(0.005)


class Commands:
    """Starts commands in forked processes; their output goes to files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def request(self, **content: Any) -> dict[str, Any]:
        """Send a request to the server and return its reply."""
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(content) + "\n")
        reply: dict[str, Any] = json.loads(self.server.stdout.readline())
        return reply

    def start(
        self, *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, prepare: str = ""
    ) -> Process:
        """Start `probmcl WORDS`. `prepare` is Python code that the process runs first, for example to set limits."""
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        content = {"words": [*map(str, words)], "cwd": str(cwd or folder), "env": dict(env or {}), "prepare": prepare}
        return Process(self, self.request(start=content, folder=str(folder))["pid"], folder)

    def __call__(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prepare: str = "",
        timeout: float = HANGS,
    ) -> Ended:
        """Run `probmcl WORDS` to its end."""
        return self.start(*words, cwd=cwd, env=env, prepare=prepare).wait(timeout)

    def close(self) -> None:
        """End the server."""
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()


@contextlib.contextmanager
def open_commands(folder: Path) -> Iterator[Commands]:
    """Start a server and end it at the end of the context."""
    commands = Commands(folder)
    try:
        yield commands
    finally:
        commands.close()


def kill_after(pattern: str, *, count: int = 1, number: int = signal.SIGKILL) -> str:
    """Return code for `prepare` that kills the process right after it gives a file a final name that matches a pattern.

    Unlike a test that polls for the file, this always stops the process at the same place, on any machine.

    Args:
        pattern: pattern of the file name, without its folder.
        count: which of the files with such a name, counted from 1.
        number: the signal that the process sends to itself.
    """
    return f"""
import fnmatch, os
replace, renamed = os.replace, []
def kill(source, target, **kwargs):
    replace(source, target, **kwargs)
    if fnmatch.fnmatch(os.path.basename(target), {pattern!r}):
        renamed.append(target)
        if len(renamed) == {count}:
            os.kill(os.getpid(), {int(number)})
os.replace = kill
"""


def refused(ended: Ended, *parts: str) -> None:
    """Check that a command was refused with one message that has these parts."""
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    assert ended.stderr.count("probmcl: ") == 1, ended.stderr
    for part in parts:
        assert part in ended.stderr


def status(run: Path) -> str:
    """Return the status of a run."""
    text: str = json.loads((run / "run.json").read_text())["status"]
    return text


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


def relist(run: Path) -> None:
    """Update the manifest entries of changed files, as a stranger would."""
    path = run / "manifest.json"
    if not path.exists():
        return
    files = json.loads(path.read_text())["files"]
    for name in files:
        if (run / name).is_file():
            content = (run / name).read_bytes()
            files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(path, files=files)


# The server process.


def serve() -> None:
    """Fork a child for each request on stdin. The server never trains, because autograd does not survive a fork."""
    import torch

    from probmcl.encoders import Encoder
    from probmcl.encoders.stages import stages

    torch.set_num_threads(1)
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    stages(Encoder("test_convnext", image_size=32))  # cached, and runs without autograd
    gc.collect()
    gc.freeze()  # otherwise each child's collector would search, and thereby copy, the memory of the server
    ended: dict[int, tuple[int, int]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                _run(request["start"], Path(request["folder"]))
            reply: dict[str, Any] = {"pid": pid}
        else:
            code, peak = _wait(request["wait"], request["timeout"], ended)
            reply = {"code": code, "peak": peak}
        print(json.dumps(reply), flush=True)  # noqa: T201


def _wait(pid: int, timeout: float, ended: dict[int, tuple[int, int]]) -> tuple[int | None, int]:
    end = time.monotonic() + timeout
    while pid not in ended:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            ended[pid] = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        elif time.monotonic() >= end:
            return None, 0
        else:
            time.sleep(0.005)
    return ended[pid]


def _run(request: Mapping[str, Any], folder: Path) -> None:
    """Run a command in this forked process, and end it as Python would."""
    import threading

    code = 1
    try:
        os.setsid()
        for number, name in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv = ["probmcl", *request["words"]]
        exec(request["prepare"], {})
        from probmcl.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
