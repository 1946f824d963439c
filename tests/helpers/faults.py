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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

IMPORTED_ONCE = (
    *("probmcl.inference", "probmcl.run.train", "probmcl.report.page", "probmcl.experiments.runner"),
    *("probmcl.cli.options", "matplotlib.figure", "matplotlib.backends.backend_agg", "sklearn.metrics"),
)
"""Modules that the commands would import each time."""

HANGS = 600.0
"""Seconds after which a command is considered to hang; a busy machine needs far less."""

POLL_SECONDS = 0.005
"""Pause between two looks at a running command."""


class Ended(NamedTuple):
    """An ended command. `code` is negative if a signal ended the command; `peak` is its peak memory in bytes."""

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
    """A running command in a process group of its own; its output is in `folder`."""

    server: Commands
    pid: int
    folder: Path

    @property
    def stdout(self) -> str:
        """The output on stdout so far."""
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """The output on stderr so far."""
        return (self.folder / "stderr").read_text(errors="replace")

    def output(self) -> str:
        """Return everything that the command has printed so far."""
        return self.stdout + self.stderr

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process, or to its whole group, as a terminal does."""
        if group:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)

    def wait(self, timeout: float = HANGS) -> Ended:
        """Wait until the command ends. After the timeout, its group is killed and the test fails."""
        reply = self.server.request(wait=self.pid, timeout=timeout)
        if reply["code"] is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.server.request(wait=self.pid, timeout=HANGS)
            raise AssertionError(f"the command hangs; it printed:\n{self.output()}")
        return Ended(reply["code"], self.stdout, self.stderr, reply["peak"])

    def wait_until(self, path: Path) -> None:
        """Wait until a file exists; its name may be a pattern. Fail if the command ends before that."""
        self.wait_for(lambda: any(path.parent.glob(path.name)))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; fail if the command ends before that."""
        deadline = time.monotonic() + HANGS
        while not condition():
            reply = self.server.request(wait=self.pid, timeout=0.0)
            assert reply["code"] is None, f"the command ended too early:\n{self.output()}"
            assert time.monotonic() < deadline, f"the condition never holds:\n{self.output()}"
            time.sleep(POLL_SECONDS)


class Commands:
    """Starts commands in forked processes; their output goes to files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = 0
        server_command = [sys.executable, __file__]
        self.server = subprocess.Popen(
            server_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def request(self, **content: Any) -> dict[str, Any]:
        """Send a request to the server as a line of JSON, and return its reply."""
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(content) + "\n")
        reply: dict[str, Any] = json.loads(self.server.stdout.readline())
        return reply

    def start(
        self, *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, prepare: str = ""
    ) -> Process:
        """Start `probmcl WORDS`. `prepare` is Python code that the process runs first, for example to set limits."""
        self.started += 1
        folder = self.folder / str(self.started)
        folder.mkdir()
        command = {
            "words": [str(word) for word in words],
            "cwd": str(cwd or folder),
            "env": dict(env or {}),
            "prepare": prepare,
        }
        reply = self.request(start=command, folder=str(folder))
        return Process(self, reply["pid"], folder)

    def __call__(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prepare: str = "",
        timeout: float = HANGS,
    ) -> Ended:
        """Run `probmcl WORDS` to its end; `start` and `Process.wait` describe the arguments."""
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
    """Return code for `prepare` that kills the process right after a file has got its final name.

    A test that polls for the file would stop the process at another place each time; this code does not.

    Args:
        pattern: pattern of the file name, without its folder.
        count: which of the files with such a name, counted from 1.
        number: the signal that the process sends to itself.
    """
    return f"""
import fnmatch, os
replace = os.replace
matching = []
def replace_and_kill(source, target, **kwargs):
    replace(source, target, **kwargs)
    if fnmatch.fnmatch(os.path.basename(target), {pattern!r}):
        matching.append(target)
        if len(matching) == {count}:
            os.kill(os.getpid(), {int(number)})
os.replace = replace_and_kill
"""


def refused(ended: Ended, *parts: str) -> None:
    """Check that a command was refused with a single message, which has these parts."""
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    assert ended.stderr.count("probmcl: ") == 1, ended.stderr
    for part in parts:
        assert part in ended.stderr


def status(run: Path) -> str:
    """Return the status of a run, such as "finished"."""
    metadata = json.loads((run / "run.json").read_text())
    return str(metadata["status"])


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file at its top level."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


def relist(run: Path) -> None:
    """Update the sizes and checksums in the manifest, as a stranger would after changing files."""
    manifest = run / "manifest.json"
    if not manifest.exists():
        return
    entries = json.loads(manifest.read_text())["files"]
    for name in entries:
        if (run / name).is_file():
            content = (run / name).read_bytes()
            entries[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(manifest, files=entries)


# The server process.


def serve() -> None:
    """Fork a child for each request on stdin. The server never trains, because autograd does not survive a fork."""
    _import_everything()
    ended: dict[int, _Exit] = {}
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any]
        if "start" in request:
            reply = {"pid": _start(request["start"], Path(request["folder"]))}
        else:
            reply = _wait(request["wait"], request["timeout"], ended)._asdict()
        print(json.dumps(reply), flush=True)  # noqa: T201


class _Exit(NamedTuple):
    """The exit code of a process, None while it runs, and its peak memory in bytes."""

    code: int | None
    peak: int


def _import_everything() -> None:
    """Do once what every command would do first: import modules and build an encoder."""
    import torch

    from probmcl.encoders import Encoder
    from probmcl.encoders.stages import stages

    torch.set_num_threads(1)
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    stages(Encoder("test_convnext", image_size=32))  # cached, and runs without autograd
    gc.collect()
    gc.freeze()  # otherwise each child's collector would search, and thereby copy, the memory of the server


def _start(command: Mapping[str, Any], folder: Path) -> int:
    """Fork a child that runs a command, and return its process id; the child never returns."""
    pid = os.fork()
    if pid == 0:
        _run(command, folder)
    return pid


def _wait(pid: int, timeout: float, ended: dict[int, _Exit]) -> _Exit:
    """Wait at most `timeout` seconds for a child. `ended` remembers its exit, because the system tells it only once."""
    deadline = time.monotonic() + timeout
    while pid not in ended:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            ended[pid] = _Exit(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)  # Linux counts in KiB
        elif time.monotonic() >= deadline:
            return _Exit(None, 0)
        else:
            time.sleep(POLL_SECONDS)
    return ended[pid]


def _run(command: Mapping[str, Any], folder: Path) -> NoReturn:
    """Run a command in this forked process, and end the process as Python would."""
    import threading

    code = 1
    try:
        os.setsid()  # a process group of its own
        _redirect(folder)
        os.environ.update(command["env"])
        os.chdir(command["cwd"])
        sys.argv = ["probmcl", *command["words"]]
        exec(command["prepare"], {})
        from probmcl.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, which os._exit does not
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect(folder: Path) -> None:
    """Read from nothing and write to the files `stdout` and `stderr` of a folder, in this process and its children."""
    for number, name in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1)


def _exit_code(end: SystemExit) -> int:
    """Return the exit code of a process that ends in this way: None is 0, and a message is 1."""
    if isinstance(end.code, int):
        return end.code
    return int(end.code is not None)


if __name__ == "__main__":
    serve()
