"""Signals, killed processes and little shared memory: commands end promptly, with a reason, and can be resumed."""

import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from faults.conftest import NO_REPORT, SMALL
from helpers.faults import HANGS, Commands, Process, kill_after, status

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")]

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
HANGS_HERE = 120.0  # seconds after which a command hangs that takes one or two

SLOW = """
import glob, os, time, PIL.Image, PIL.ImageFile
def slowly(read):
    def slow(*args, **kwargs):
        while glob.glob({pattern!r}):
            open({marker!r} + str(os.getpid()), "w").close()
            time.sleep(3600)
        return read(*args, **kwargs)
    return slow
PIL.ImageFile.ImageFile.load = slowly(PIL.ImageFile.ImageFile.load)
PIL.Image.frombytes = slowly(PIL.Image.frombytes)  # reads the cache of decoded images
"""


def slow(folder: Path, pattern: str | Path = "/") -> str:
    """Return code that makes reading an image take an hour once a file exists, by default at once.

    Each process that reads an image then writes a file to the folder, whose name starts with `sleeping`.
    """
    return SLOW.format(pattern=str(pattern), marker=str(folder / "sleeping"))


TINY_SHM = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(done):
    if done != 0:
        print("cannot mount:", os.strerror(ctypes.get_errno()), flush=True)
        os._exit(77)  # CANNOT_MOUNT
call(libc.unshare(0x00020000))
call(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
call(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m"))
"""


CANNOT_MOUNT = 77

LOSS = """
def mine(logits, labels, known):
    return ((logits.sigmoid() - labels) ** 2 * known).mean()
"""


def options(**changed: int | Path) -> list[str]:
    """Return the options of a small training with some of them changed."""
    words = list(SMALL)
    for name, value in changed.items():
        words[words.index(f"--{name.replace('_', '-')}") + 1] = str(value)
    return words


def without_method(words: list[str]) -> list[str]:
    start = words.index("--method")
    return [*words[:start], *words[start + 2 :]]


def limit(size: int) -> str:
    return f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"


def session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    members = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if fields and int(fields[3]) == leader and fields[0] not in "ZX":
            members.append(int(entry.name))
    return members


def workers_of(process: Process) -> list[int]:
    return [pid for pid in session(process.pid) if pid != process.pid]


def two_workers(process: Process) -> list[int]:
    """Wait until a command has two workers, and return them."""
    found: list[int] = []

    def started() -> bool:
        found[:] = workers_of(process)
        return len(found) == 2

    process.wait_for(started)
    return found


def wait_until_no_process_is_left(process: Process, seconds: float = HANGS) -> None:
    end = time.monotonic() + seconds
    while session(process.pid):
        assert time.monotonic() < end, f"these processes never end: {session(process.pid)}"
        time.sleep(0.05)


# Little shared memory.


@pytest.mark.parametrize("prepare", [TINY_SHM, limit(1_000_000)], ids=["shm", "ulimit"])
def test_prediction_does_not_need_shared_memory(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, prepare: str
) -> None:
    words: list[str | Path] = ["predict", finished_run, *[photos] * 8, "--batch-size", "128"]  # 1.6 MB per batch
    expected = command(*words, "--workers", "0")
    ended = command(*words, "--workers", "2", prepare=prepare, timeout=HANGS_HERE)
    if ended.code == CANNOT_MOUNT:
        pytest.skip(ended.stdout)
    assert ended[:3] == expected[:3]


LARGE_BATCHES = options(image_size=96, batch_size=24, workers=2, epochs=1)  # 2.7 MB per batch


@pytest.fixture(scope="module")
def large_batch_run(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with large batches and enough shared memory."""
    run = tmp_path_factory.mktemp("runs") / "expected"
    ended = command("train", photos, *LARGE_BATCHES, "--out", run)
    assert ended.code == 0, ended.text
    return run


@pytest.mark.parametrize("prepare", [TINY_SHM, limit(1_600_000)], ids=["shm", "ulimit"])
def test_training_does_not_need_shared_memory(
    command: Commands, photos: Path, large_batch_run: Path, tmp_path: Path, prepare: str
) -> None:
    run = tmp_path / "run"
    ended = command("train", photos, *LARGE_BATCHES, "--out", run, prepare=prepare, timeout=HANGS_HERE)
    if ended.code == CANNOT_MOUNT:
        pytest.skip(ended.stdout)
    assert ended.code == 0, ended.text
    for name in ("model.safetensors", "evaluation.json"):
        assert (run / name).read_bytes() == (large_batch_run / name).read_bytes()


# Signals.


@pytest.mark.parametrize("number", EXIT, ids=lambda number: number.name)
def test_a_signal_while_images_are_read_ends_all_processes_at_once(
    command: Commands, photos: Path, tmp_path: Path, number: signal.Signals
) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # without the results of other tests
    run = tmp_path / "run"
    process = command.start("train", photos, *options(workers=2), "--out", run, prepare=slow(tmp_path), env=cache)
    two_workers(process)
    process.signal(number, group=True)
    ended = process.wait(HANGS_HERE)
    assert ended.code == EXIT[number]
    assert "Traceback" not in ended.text
    assert ended.stderr == ("interrupted\n" if number == signal.SIGINT else "")
    wait_until_no_process_is_left(process)
    assert not run.exists()


@pytest.mark.parametrize("number", EXIT, ids=lambda number: number.name)
def test_a_signal_in_training_leaves_a_run_that_can_be_resumed(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    prepare = slow(tmp_path, run / "views.png")
    process = command.start("train", photos, *options(workers=2), "--out", run, prepare=prepare)
    process.wait_until(run / "views.png")
    two_workers(process)
    process.signal(number, group=True)
    ended = process.wait(HANGS_HERE)
    assert ended.code == EXIT[number]
    assert ended.stderr == ("interrupted\n" if number == signal.SIGINT else "")
    assert "to resume: probmcl train --resume" in ended.stdout
    wait_until_no_process_is_left(process)
    assert status(run) == "interrupted"
    assert command("train", "--resume", run, *NO_REPORT).code == 0
    assert (run / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["train", pytest.param("compare", marks=pytest.mark.exhaustive)])
def test_the_printed_command_resumes_a_run_with_files(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, name: str
) -> None:
    """Files other than data have to be named again."""
    loss = f"{tmp_path / 'my losses.py'}:mine"
    (tmp_path / "my losses.py").write_text(LOSS)
    own = ["--loss", loss] if name == "train" else ["--methods", "asl", loss, "--seeds", "1"]
    words = [*without_method(options(workers=2, weights=finished_run)), *own, "--out", "run"]
    prepare = slow(tmp_path, tmp_path / "run" / ("." if name == "train" else "seed-0") / "views.png")
    process = command.start(name, photos, *words, prepare=prepare, cwd=tmp_path)
    process.wait_until(tmp_path / "sleeping*")
    process.signal(signal.SIGINT, group=True)
    (line,) = [line for line in process.wait(HANGS_HERE).stdout.splitlines() if line.startswith("to resume: ")]
    program, *resume = shlex.split(line.removeprefix("to resume: "))
    ended = command(*resume, *NO_REPORT, cwd=tmp_path)
    assert (program, ended.code) == ("probmcl", 0), ended.text


def test_interrupted_predictions_leave_the_finished_part_in_another_file(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path
) -> None:
    listed, part = tmp_path / "list.txt", tmp_path / "out.csv.part"
    listed.write_text(f"{photos / '0.jpg'}\n" * 50_000)
    words: list[str | Path] = ["predict", finished_run, listed, "--out", tmp_path / "out.csv", "--batch-size", "2"]
    process = command.start(*words)
    process.wait_for(lambda: part.exists() and part.stat().st_size > 0)
    process.signal(signal.SIGINT)
    ended = process.wait()
    assert ended.code == EXIT[signal.SIGINT]
    assert not (tmp_path / "out.csv").exists()
    assert str(part) in ended.stderr
    assert "Traceback" not in ended.text
    assert part.read_text().startswith("path,error,")


def test_hangup_is_ignored_under_nohup(command: Commands, photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    nohup = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    hang_up = kill_after("views.png", number=signal.SIGHUP)
    ended = command("train", photos, *SMALL, "--out", run, prepare=nohup + hang_up)
    assert ended.code == 0, ended.text
    assert status(run) == "finished"


def test_closing_the_terminal_interrupts_the_run(command: Commands, photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    terminal, other = os.openpty()
    on_terminal = (
        "import fcntl, os, sys, termios\n"
        f"terminal = os.open({os.ttyname(other)!r}, os.O_RDWR)\n"
        "fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)\n"
        "os.dup2(terminal, 1), os.dup2(terminal, 2)\n"
    )
    prepare = on_terminal + slow(tmp_path, run / "views.png")
    process = command.start("train", photos, *options(workers=2), "--out", run, prepare=prepare)
    process.wait_until(run / "views.png")
    two_workers(process)
    os.close(other)
    os.close(terminal)
    assert process.wait(HANGS_HERE).code == EXIT[signal.SIGHUP]
    assert status(run) == "interrupted"


# Killed processes.


@pytest.mark.parametrize("phase", ["reading", "training", "predicting"])
def test_killing_the_command_leaves_no_worker_behind(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, phase: str
) -> None:
    process = start_slow_phase(command, photos, finished_run, tmp_path / "run", phase)
    process.signal(signal.SIGKILL)
    process.wait()
    wait_until_no_process_is_left(process, HANGS_HERE)


@pytest.mark.parametrize("phase", ["reading", "training", "predicting"])
def test_a_killed_worker_is_reported_with_its_files_and_the_remedy(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, phase: str
) -> None:
    process = start_slow_phase(command, photos, finished_run, tmp_path / "run", phase)
    for pid in two_workers(process):  # one of them may have nothing to read
        os.kill(pid, signal.SIGKILL)
    ended = process.wait(HANGS_HERE)
    assert ended.code == 1
    assert ended.stderr.startswith("probmcl: a worker process was killed by SIGKILL, probably because memory ran out")
    assert "--workers 0" in ended.stderr
    assert str(photos) in ended.stderr
    assert len(ended.stderr.splitlines()) <= 10
    assert "Traceback" not in ended.text
    assert ("to resume:" in ended.stdout) == (phase == "training")
    wait_until_no_process_is_left(process)


def start_slow_phase(command: Commands, photos: Path, finished_run: Path, run: Path, phase: str) -> Process:
    """Start a command and wait until its two workers read images, which never ends."""
    words: list[str | Path] = ["train", photos, *options(workers=2), "--out", run]
    if phase == "predicting":
        words = ["predict", finished_run, photos, "--workers", "2", "--batch-size", "8"]
    prepare = slow(run.parent, run / "views.png" if phase == "training" else "/")
    process = command.start(*words, prepare=prepare, env={"XDG_CACHE_HOME": str(run.parent / "cache")})
    process.wait_until(run.parent / "sleeping*")
    return process


# Closed output.


def test_output_into_a_closed_pipe_ends_silently(command: Commands, photos: Path, finished_run: Path) -> None:
    closed = "import os; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)"
    ended = command("predict", finished_run, *[photos] * 20, "--workers", "2", prepare=closed)
    assert (ended.code, ended.stderr) == (1, "")
