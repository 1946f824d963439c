"""Runs cases of behavior_matrix.py in one source tree, and records texts, exit codes and files on disk.

A record is a folder with `record.json` and the files that the case wrote or changed. Records of the reference are kept
if the user names a folder for them; a record is used again as long as the definition of its case stays the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import Any

import behavior_damage
from behavior_matrix import Case

TOOLS = Path(__file__).resolve().parent
SECONDS = 300.0
"""Seconds after which a command is considered to hang."""

LARGE = 100_000_000
"""Size of files in bytes above which only their size is compared."""

RECORD_VERSION = 3
"""To be raised whenever records are written differently: old ones are then made again."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # no case downloads anything
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",  # a time in a table must not change how its lines are wrapped
    "TZ": "UTC",
    "NO_COLOR": "1",
}

SIGNALS = {"kill": SIGKILL, "interrupt": SIGINT, "terminate": SIGTERM, "hangup": SIGHUP}

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "probmcl")


@dataclass(frozen=True)
class Tree:
    """A checkout of the source.

    Attributes:
        folder: its top folder.
        records: folder with one record per case.
        work: folder in which its cases run, while they do.
    """

    folder: Path
    records: Path
    work: Path = Path()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all its processes."""
        return {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(self.folder / "src")}

    def record(self, name: str) -> Path:
        """Return the folder of the record of a case."""
        return self.records / flat(name)


def flat(name: str) -> str:
    """Return the name of a case as the name of one folder."""
    return name.replace("/", "__")


# Inputs.


def make_inputs(reference: Path, folder: Path) -> Path:
    """Write the inputs of all cases once, with the test helpers of the reference, and return their folder."""
    script = TOOLS / "behavior_inputs.py"
    inputs = folder / f"inputs-{hashlib.sha256(script.read_bytes()).hexdigest()[:8]}"
    if inputs.exists():
        return inputs
    part = Path(tempfile.mkdtemp(prefix="inputs-part-", dir=folder))
    paths = os.pathsep.join(str(reference / name) for name in ("src", "tests"))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-P", str(script), str(part)], env=environment, check=True)
    part.rename(inputs)
    return inputs


# Processes.


class Server:
    """A process that has imported a tree and forks a child for each command."""

    def __init__(self, tree: Tree) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(TOOLS / "behavior_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=tree.environment,
        )

    def reply(self) -> dict[str, Any]:
        """Return the next reply; the first is sent when everything is imported."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the server process has ended; see its error above")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def request(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its exit code, which is None if it hangs, and its CPU time."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(content) + "\n")
        self.process.stdin.flush()
        return self.reply()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@contextmanager
def open_servers(tree: Tree, count: int) -> Iterator[SimpleQueue[Server]]:
    """Start servers, which import the tree at the same time, and end them at the end of the context."""
    servers = [Server(tree) for _ in range(count)]
    free: SimpleQueue[Server] = SimpleQueue()
    try:
        for server in servers:
            server.reply()
            free.put(server)
        yield free
    finally:
        for server in servers:
            server.close()


# Cases.


def definition(case: Case, cases: Mapping[str, Case], inputs: Path) -> str:
    """Return the checksum of everything that a case consists of, including the cases that it starts from."""
    parts = [str(RECORD_VERSION), inputs.name, json.dumps(ENVIRONMENT)]
    current: Case | None = case
    while current is not None:
        parts += [current.name, *current.steps]
        current = cases[current.start] if current.start else None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def is_recorded(tree: Tree, case: Case, cases: Mapping[str, Case], inputs: Path) -> bool:
    """Return whether a tree has a record of a case as it is defined now."""
    path = tree.record(case.name) / "record.json"
    if not path.exists():
        return False
    recorded: bool = json.loads(path.read_text())["definition"] == definition(case, cases, inputs)
    return recorded


def with_starts(names: Iterable[str], cases: Mapping[str, Case]) -> list[str]:
    """Return names of cases with those that they start from, each after its own start."""
    ordered: dict[str, None] = {}
    for name in names:
        chain = [name]
        while (start := cases[chain[-1]].start) is not None:
            chain.append(start)
        ordered.update(dict.fromkeys(reversed(chain)))
    return list(ordered)


def times(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and time of each file, to notice changes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        if not path.is_dir():
            found[path.relative_to(folder).as_posix()] = (state.st_size, state.st_mtime_ns)
    return found


def run_cases(tree: Tree, names: Collection[str], cases: Mapping[str, Case], inputs: Path, jobs: int) -> None:
    """Run cases and those that they start from. A start is finished before the cases that need its folder."""
    if not names:
        return
    before = times(inputs)
    run_in_order(tree, names, cases, inputs, jobs)
    changed = [name for name, _ in set(before.items()) ^ set(times(inputs).items())]
    if changed:
        raise RuntimeError(f"a case has changed the inputs ({', '.join(sorted(set(changed))[:5])}); delete {inputs}")


def run_in_order(tree: Tree, names: Collection[str], cases: Mapping[str, Case], inputs: Path, jobs: int) -> None:
    """Run cases in waves: those whose start is finished run at the same time."""
    waiting = with_starts(names, cases)
    starts = {cases[name].start for name in waiting}
    finished: set[str] = set()
    with open_servers(tree, jobs) as servers, ThreadPoolExecutor(jobs) as pool:

        def run(name: str) -> None:
            server = servers.get()
            try:
                run_case(tree, cases[name], cases, inputs, server)
                if name not in starts:
                    shutil.rmtree(tree.work / flat(name))
            finally:
                servers.put(server)

        while waiting:
            ready = [name for name in waiting if cases[name].start is None or cases[name].start in finished]
            for _ in pool.map(run, ready):
                pass
            finished.update(ready)
            waiting = [name for name in waiting if name not in finished]


def run_case(tree: Tree, case: Case, cases: Mapping[str, Case], inputs: Path, server: Server) -> None:
    """Run the steps of a case in a folder of its own, and write its record."""
    folder = tree.work / flat(case.name)
    if case.start is None:
        folder.mkdir()
    else:
        shutil.copytree(tree.work / flat(case.start), folder, symlinks=True)
    before = contents(folder)
    execution = Execution(tree, folder, inputs, server)
    steps = [execution.run(step) for step in case.steps]
    record = {
        "definition": definition(case, cases, inputs),
        "places": {str(tree.work): "WORK", str(inputs): "INPUTS", str(tree.folder): "TREE"},
        "steps": steps,
    }
    write_record(tree.record(case.name), folder, before, record)


class Execution:
    """Runs the steps of one case.

    Attributes:
        cwd: the working directory, which the step `cd` changes.
    """

    def __init__(self, tree: Tree, folder: Path, inputs: Path, server: Server) -> None:
        self.tree, self.folder, self.inputs, self.server = tree, folder, inputs, server
        self.cwd = folder
        self.cache = tree.work / "caches" / folder.name  # the cache of one case must not help another

    def run(self, step: str) -> dict[str, Any]:
        """Run a step and return its exit code and output; a step that changes files has none unless it fails."""
        words = behavior_damage.split(step)
        words = [word.replace("INPUTS", str(self.inputs)).replace("CASE", str(self.folder)) for word in words]
        verb, *rest = words
        match verb:
            case "probmcl":
                return self.fork(step, words=rest)
            case "kill" | "interrupt" | "terminate" | "hangup":
                return self.fork(step, signal=(SIGNALS[verb], rest[0]), words=rest[2:])
            case "python":
                return self.fork(step, python=rest[0])
            case "page":
                code = page_code(self.tree.folder / "docs" / "python.md", " ".join(rest))
                return self.fork(step, python=f"import torch\ntorch.manual_seed(0)\n{code}")
            case "torchrun":
                return self.torchrun(step, rest)
            case "cd":
                self.cwd = self.folder / rest[0]
                return {"step": step}
        try:
            behavior_damage.change(self.cwd, words)
        except (OSError, KeyError, IndexError, ValueError, TypeError) as error:
            return {"step": step, "stderr": f"the step is impossible: {type(error).__name__}: {error}"}
        return {"step": step}

    def fork(
        self, step: str, words: Sequence[str] = (), python: str = "", signal: tuple[int, str] | None = None
    ) -> dict[str, Any]:
        """Run a command or Python code in a child of the server."""
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache.parent) as outputs:
            stdout, stderr = Path(outputs, "stdout"), Path(outputs, "stderr")
            request = {
                "words": words,
                "python": python,
                "signal": signal,
                "cwd": str(self.cwd),
                "environment": {"XDG_CACHE_HOME": str(self.cache)},
                "stdout": str(stdout),
                "stderr": str(stderr),
                "timeout": SECONDS,
            }
            reply = self.server.request(request)
            return {"step": step, **reply, "stdout": text(stdout), "stderr": text(stderr)}

    def torchrun(self, step: str, words: Sequence[str]) -> dict[str, Any]:
        """Run a command in two processes."""
        environment = {**self.tree.environment, "XDG_CACHE_HOME": str(self.cache)}
        ended = subprocess.run(
            [sys.executable, *TORCHRUN, *words],
            cwd=self.cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * SECONDS,
        )
        return {"step": step, "code": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}


def text(path: Path) -> str:
    """Return the output of a command."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def page_code(page: Path, heading: str) -> str:
    """Return the Python blocks of a section that the page marks to be run."""
    section = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    if section is None:
        return f"raise SystemExit('{page.name} has no section {heading!r}')"
    return "\n".join(re.findall(r"<!-- run -->\n```python\n(.*?)```", section[1], re.DOTALL))


# Records.


def contents(folder: Path) -> dict[str, str]:
    """Return the kind of each path below a folder, and the checksum of its content if it is a file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        elif path.is_file() and path.stat().st_size > LARGE:
            found[name] = f"{path.stat().st_size} bytes"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "special file"
    return found


def write_record(target: Path, folder: Path, before: Mapping[str, str], record: dict[str, Any]) -> None:
    """Write a record with the files that are new or changed. It appears whole, because its folder is renamed."""
    after = contents(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
    others = {}
    for name, content in after.items():
        if before.get(name) == content:
            continue
        path = folder / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGE:
            others[name] = content
            continue
        (part / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        if path.name == "manifest.json":
            (part / "files" / name).write_text(verified(path))
        else:
            shutil.copyfile(path, part / "files" / name)
    deleted = sorted(before.keys() - after.keys())
    (part / "record.json").write_text(json.dumps({**record, "others": others, "deleted": deleted}))
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)


def verified(manifest: Path) -> str:
    """Return a manifest in which each size and checksum is replaced by whether it is that of the file."""
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        entries = content["files"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return manifest.read_text(encoding="utf-8", errors="replace")
    for name, entry in entries:
        path = manifest.parent / name
        if not isinstance(entry, dict) or not path.is_file():
            continue
        data = path.read_bytes()
        for key, actual in (("size", len(data)), ("sha256", hashlib.sha256(data).hexdigest())):
            if key in entry:
                entry[key] = "correct" if entry[key] == actual else "wrong"
    return json.dumps(content)
