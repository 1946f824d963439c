"""What every command promises: help without torch, clear errors, the right exit code."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.commands import HANGS, wait_until
from probmcl import cli
from probmcl.cli import COMMANDS

RUN = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"


def probmcl(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_what_it_does_and_an_example(command: str) -> None:
    answer = probmcl(command, "--help")
    assert answer.returncode == 0
    assert re.search(rf"probmcl {command}", answer.stdout)
    assert "Example" in answer.stdout


def test_help_lists_every_command_and_loads_no_torch() -> None:
    said = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    answer = subprocess.run([sys.executable, "-c", said + RUN, "--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert all(command in answer.stdout for command in COMMANDS)
    assert answer.stdout.splitlines()[-1] == "False"


def test_a_wrong_flag_is_answered_with_the_nearest_and_a_usage_error() -> None:
    answer = probmcl("demo", "--uot", "x")
    assert answer.returncode == 2
    assert "--uot" in answer.stdout + answer.stderr
    assert "--out" in answer.stdout + answer.stderr


def test_a_wrong_command_is_a_usage_error() -> None:
    assert probmcl("dmeo").returncode == 2


def test_the_version_is_the_packages() -> None:
    from probmcl import __version__

    assert probmcl("--version").stdout.strip() == __version__


@pytest.mark.slow
def test_a_folder_in_use_is_refused_in_one_sentence_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    answer = probmcl("demo", "--out", str(tmp_path))
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "not empty" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_the_demo_leaves_a_folder_that_says_so(tmp_path: Path, signal_number: int, code: int) -> None:
    command = [sys.executable, "-c", RUN, "demo", "--out", str(tmp_path / "run")]
    about = tmp_path / "run" / "run" / "run.json"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(about.exists, process)
            process.send_signal(signal_number)
            _, errors = process.communicate(timeout=HANGS)
        finally:
            process.kill()
    assert process.returncode == code
    assert json.loads(about.read_text())["status"] == "interrupted"
    assert errors.endswith("interrupted\n") or signal_number == signal.SIGTERM


def test_a_signal_that_python_drops_is_sent_again() -> None:
    """As it does when one arrives in a callback of os.fork."""
    code = (
        "import os, signal, time, probmcl.cli as cli\n"
        "def drop():\n    signal.raise_signal(signal.SIGINT)\n    time.sleep(0.01)\n"
        "def forking():\n"
        "    os.register_at_fork(after_in_parent=drop)\n"
        "    if os.fork() == 0:\n        os._exit(0)\n"
        f"    time.sleep({2 * HANGS})\n"
        "cli.app = lambda: forking\n"
        "cli.main()"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANGS)
    assert answer.returncode == 130
    assert answer.stderr == "interrupted\n"


class Ended(NamedTuple):
    code: int
    said: str


def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception) -> Ended:
    """How a command that raises this error ends."""

    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "app", lambda: command)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return Ended(caught.value.code, capsys.readouterr().err)


@pytest.mark.parametrize("rank", [None, "0"])
def test_an_error_is_said_by_the_only_or_first_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str | None
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert ended(monkeypatch, capsys, ValueError("no such thing")) == Ended(1, "probmcl: no such thing\n")


@pytest.mark.slow
def test_another_process_leaves_its_error_to_the_summary_of_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    began = int(time.time())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert ended(monkeypatch, capsys, ValueError("no such thing")) == Ended(1, "")
    failure = ProcessFailure(local_rank=1, pid=1, exitcode=1, error_file=str(tmp_path / "error.json"))
    assert failure.message == "no such thing"
    assert began <= failure.timestamp <= time.time()
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    assert ended(monkeypatch, capsys, ValueError("no such thing")) == Ended(1, "")


def test_too_little_memory_is_answered_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.delenv("RANK", raising=False)
    answer = ended(monkeypatch, capsys, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert answer == Ended(1, "probmcl: out of memory; a smaller --batch-size or --image-size helps\n")


@pytest.mark.slow
@pytest.mark.parametrize("with_torch", ["import torch\n", ""])
def test_any_other_error_of_this_kind_keeps_its_traceback_and_loads_no_torch(with_torch: str) -> None:
    code = (
        f"{with_torch}import sys, probmcl.cli as cli\n"
        "def command(): raise RuntimeError('a defect')\n"
        "cli.app = lambda: command\n"
        "try:\n    cli.main()\n"
        f"finally:\n    assert ('torch' in sys.modules) == {bool(with_torch)}\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1] == "RuntimeError: a defect"
