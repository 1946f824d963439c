"""All commands: help without torch, error messages and exit codes."""

import io
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.commands import HANGS, main
from probmcl import cli
from probmcl.cli.commands import COMMANDS
from probmcl.cli.options import command_line, escape_missing_characters
from probmcl.errors import Question, Reading
from probmcl.readers.options import ReadOptions

pytestmark = pytest.mark.slow  # it starts processes

RUN = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"
SMALL = "--encoder test_resnet --weights none --image-size 32 --probe-epochs 1"


def probmcl(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_usage_line_and_an_example(command: str) -> None:
    answer = probmcl(command, "--help")
    assert answer.returncode == 0
    assert re.search(rf"probmcl {command}", answer.stdout)
    assert "Example" in answer.stdout


def test_help_lists_every_command_and_does_not_import_torch() -> None:
    report = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    answer = subprocess.run([sys.executable, "-c", report + RUN, "--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert all(command in answer.stdout for command in COMMANDS)
    assert answer.stdout.splitlines()[-1] == "False"


def test_an_unknown_option_is_a_usage_error_with_a_suggestion() -> None:
    answer = probmcl("demo", "--uot", "x")
    assert answer.returncode == 2
    assert "--uot" in answer.stdout + answer.stderr
    assert "--out" in answer.stdout + answer.stderr


def test_an_unknown_command_is_a_usage_error() -> None:
    assert probmcl("dmeo").returncode == 2


def test_version_prints_the_version_of_the_package() -> None:
    from probmcl import __version__

    assert probmcl("--version").stdout.strip() == __version__


@pytest.mark.slow
def test_a_folder_in_use_is_an_error_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    answer = main("demo", "--out", tmp_path)
    assert answer.returncode == 1
    assert "not empty" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_signal_whose_exception_is_dropped_is_sent_again() -> None:
    """Python drops exceptions of a signal handler that runs in a callback of os.fork."""
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


class Exit(NamedTuple):
    code: int
    stderr: str


def exit_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception) -> Exit:
    """Return the exit code and the message of a command that raises an error."""

    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "app", lambda: command)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return Exit(caught.value.code, capsys.readouterr().err)


@pytest.mark.parametrize("rank", [None, "0"])
def test_an_error_is_printed_on_rank_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str | None
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert exit_of(monkeypatch, capsys, ValueError("no such thing")) == Exit(1, "probmcl: no such thing\n")


def test_a_question_shows_the_command_of_each_reading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    words = ["train", "my labels.csv", "--ignore", "id", "site", "--separator", ",", "--blank", "cat=negative"]
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/probmcl", *words])
    readings = [
        Reading("one label per cell", {"separator": ";", "blank": "unknown"}, ("row 2: a `b=c`", "row 3: d")),
        Reading("a list", {"separator": "-", "ignore": "note 1"}, ("row 2: a, b", "row 3: d")),
    ]
    code, stderr = exit_of(monkeypatch, capsys, Question("labels.csv: what is the `separator`?", readings))
    monkeypatch.undo()
    assert code == 1
    lines = stderr.splitlines()
    assert lines[0] == "probmcl: labels.csv: what is the --separator?"
    assert lines[2:4] == ["    row 2: a `b=c`", "    row 3: d"]
    commands = [shlex.split(line) for line in lines if line.strip().startswith("probmcl ")]
    parsed = [cli.app().parse_args(command[1:], exit_on_error=False, print_error=False)[1] for command in commands]
    assert [bound.arguments["data"] for bound in parsed] == [Path("my labels.csv")] * 2
    assert [bound.arguments["read"] for bound in parsed] == [
        ReadOptions(ignore=("id", "site"), separator=";", blank=("cat=negative", "unknown")),
        ReadOptions(ignore=("id", "site", "note 1"), separator="-", blank=("cat=negative",)),
    ]


@pytest.mark.parametrize("name", ReadOptions().__dataclass_fields__)
@pytest.mark.parametrize("value", ["x y", "-", "''"])
def test_options_of_a_reading_are_parsed_back(name: str, value: str) -> None:
    valid = {"rows": "labels", "annotators": "any", "blank": "a=negative", "minus_one": "soft:0.5"}
    value = valid.get(name, value)
    for words in (["train", "data"], ["train", "--", "-data"]):
        command = shlex.split(command_line(words, {name: value}))
        _, bound, _ = cli.app().parse_args(command[1:], exit_on_error=False, print_error=False)
        assert getattr(bound.arguments["read"], name) in (value, (value,), Path(value))
        assert bound.arguments["data"] == Path(words[-1])


@pytest.mark.slow
def test_other_ranks_write_their_error_for_the_summary_of_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    started = int(time.time())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert exit_of(monkeypatch, capsys, ValueError("no such thing")) == Exit(1, "")
    failure = ProcessFailure(local_rank=1, pid=1, exitcode=1, error_file=str(tmp_path / "error.json"))
    assert failure.message == "no such thing"
    assert started <= failure.timestamp <= time.time()
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    assert exit_of(monkeypatch, capsys, ValueError("no such thing")) == Exit(1, "")


def test_out_of_memory_suggests_a_smaller_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.delenv("RANK", raising=False)
    answer = exit_of(monkeypatch, capsys, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert answer.code == 1
    assert answer.stderr.startswith("probmcl: out of memory")
    assert "--batch-size" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("with_torch", ["import torch\n", ""])
def test_another_runtime_error_keeps_its_traceback_and_does_not_import_torch(with_torch: str) -> None:
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


def test_characters_that_the_output_cannot_encode_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, a file that a command prints to has an encoding such as cp1252, which has × but no minus sign."""
    output, unlike_a_file = io.BytesIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "cp1252", newline="", write_through=True))
    monkeypatch.setattr(sys, "stderr", unlike_a_file)
    escape_missing_characters()
    print("2 × −3")  # noqa: T201
    assert output.getvalue().decode("cp1252") == "2 × \\u22123\n"
