"""A process that imports one source tree once, and forks a child for each command: no command waits for an import.

It is started by behavior_runner.py with `PYTHONPATH` set to the tree, reads one request per line from stdin, and writes
one reply per line to stdout. It imports nothing of the harness, so that it is the same for both trees.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

LIBRARIES = (
    *("torch", "safetensors.torch", "numpy", "scipy.stats", "PIL.Image"),
    *("sklearn.metrics", "sklearn.manifold", "sklearn.linear_model", "matplotlib.figure", "matplotlib.pyplot"),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "pandas", "pyarrow.parquet", "pydicom"),
    *("rich.console", "rich.progress", "rich.table", "jinja2", "yaml", "msgspec", "cyclopts", "python_calamine"),
)
"""Libraries that the package imports when it first needs them. Those that are not installed are left out."""

POLL_SECONDS = 0.005

MEMORY = 8 << 30
"""Bytes of address space of a command, so that a hostile file does not exhaust the machine."""

SIGNAL_AFTER = """
import fnmatch, os
replace, sent = os.replace, []
def replace_and_signal(source, target, **kwargs):
    replace(source, target, **kwargs)
    if fnmatch.fnmatch(os.path.basename(target), {pattern!r}) and not sent:
        sent.append(target)
        os.kill(os.getpid(), {number})
os.replace = replace_and_signal
"""
"""Code that sends a process a signal right after it gives a file a final name that matches a pattern."""


def import_everything() -> None:
    """Import the libraries and all modules of the package."""
    import probmcl

    for module in pkgutil.walk_packages(probmcl.__path__, "probmcl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def serve() -> None:
    """Answer requests until stdin is closed."""
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork, and results must not depend on their number
    import_everything()
    gc.collect()
    gc.freeze()  # otherwise the garbage collector of a child would copy the memory of the server
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run(request)
        print(json.dumps(wait(child, request["timeout"])), flush=True)


def wait(child: int, timeout: float) -> dict[str, Any]:
    """Return the exit code of a child, negative if a signal ended it, and its seconds of CPU time.

    After the timeout, the child is killed, and the code is None.
    """
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return {"code": os.waitstatus_to_exitcode(status), "cpu": usage.ru_utime + usage.ru_stime}
        time.sleep(POLL_SECONDS)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"code": None, "cpu": timeout}


def run(request: dict[str, Any]) -> None:
    """Run a command, or Python code, in this forked process, and end it as Python would."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        redirect(Path(request["stdout"]), Path(request["stderr"]))
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job of a shell
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup
        if request["signal"]:
            number, pattern = request["signal"]
            exec(SIGNAL_AFTER.format(number=number, pattern=pattern), {})
        if request["python"]:
            exec(compile(request["python"], "page", "exec"), {"__name__": "__page__"})
        else:
            run_command(request["words"])
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


def redirect(stdout: Path, stderr: Path) -> None:
    """Make this process the leader of a group, with files instead of the terminal."""
    os.setsid()
    for number, path in ((0, Path(os.devnull)), (1, stdout), (2, stderr)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1)  # noqa: SIM115


def run_command(words: list[str]) -> None:
    """Run `probmcl WORDS`."""
    from probmcl.cli import main

    sys.argv = ["probmcl", *words]
    main()


if __name__ == "__main__":
    serve()
