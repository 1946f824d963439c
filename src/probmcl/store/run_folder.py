"""The folder of a run or a comparison: reading and writing its files, its manifest, and new folders."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from probmcl.errors import RunError
from probmcl.runtime.files import (
    atomic_write,
    convert_file,
    csv_content,
    json_bytes,
    read_json,
    read_table,
    refuse_special_files,
    write_json,
)
from probmcl.runtime.lock import LOCK
from probmcl.store import files, manifest
from probmcl.store.manifest import MANIFEST
from probmcl.store.rows import Role
from probmcl.store.run_metadata import RunMetadata
from probmcl.version import __version__

SCHEMA = 3
"""Version of the JSON files below, the only one that is read."""

MAX_CLASSES = 100_000
"""Largest number of classes of a run. Loading a model with more would take minutes or exhaust the memory."""

MAX_IMAGE_SIZE = 4096
"""Largest side of the square input of a model, in pixels."""

CONFIG, LABELS, PREPROCESSING, METADATA = map(str, (files.CONFIG, files.LABELS, files.PREPROCESSING, files.METADATA))
SPLIT, FOLDS, IMAGES = map(str, (files.SPLIT, files.FOLDS, files.IMAGES))
MODEL, VIEWS, METRICS = map(str, (files.MODEL, files.VIEWS, files.METRICS))
EVALUATION, RETRIEVAL, CALIBRATION = map(str, (files.EVALUATION, files.RETRIEVAL, files.CALIBRATION))
CHECKPOINTS, NEIGHBORS, REPORT, REPORT_DATA = map(
    str, (files.CHECKPOINTS, files.NEIGHBORS, files.REPORT, files.REPORT_DATA)
)
OUT_OF_FOLD, OTHER_IMAGES = files.OUT_OF_FOLD.key, files.OTHER_IMAGES.key
FROZEN, CANDIDATES, CONTRASTIVE = map(str, (files.FROZEN, files.CANDIDATES, files.CONTRASTIVE))
COMPARISON = str(files.COMPARISON)
PREDICTIONS = files.SCORES.first_part


def _names(*roles: Role) -> tuple[str, ...]:
    """Return the files and folders of a run that have one of the roles; a folder stands for all files in it."""
    rows = [row for row in files.FILES if row.role in roles and row.owner != "comparison"]
    return tuple(dict.fromkeys(row.first_part for row in rows))


INPUTS = _names("input")
DECISIVE = _names("input", "decisive")
OPTIONAL = _names("optional")
OWN = _names("input", "decisive", "result", "optional")


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds a run."""

    path: Path

    @classmethod
    def existing(cls, path: Path | str) -> RunFolder:
        """Return a run folder whose files match its manifest.

        Raise `RunError` if the folder does not hold a run, contains a symlink, was written by a newer version, or has a
        file that was changed.
        """
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise RunError(f"{path} is not a folder; pass a run folder written by `probmcl.train()`")
        refuse_special_files(folder.path)
        folder.read(CONFIG, missing_hint=METADATA)
        if folder.has(MANIFEST):
            # The manifest of an unfinished run lists the inputs.
            complete = METADATA in manifest.read_manifest(folder.path).files
            manifest.verify(folder.path, required=DECISIVE if complete else (), optional=OPTIONAL)
        else:
            raise RunError(f"{path} has no {MANIFEST}, without which damaged files are not detected; {manifest.REMEDY}")
        folder.read(METADATA)
        return folder

    @property
    def checkpoints(self) -> Path:
        """The folder with the checkpoints of an unfinished run."""
        return self.path / CHECKPOINTS

    @property
    def metadata(self) -> RunMetadata:
        """The content of run.json."""
        return convert_file(self.read(METADATA), RunMetadata, self.path / METADATA)

    def has(self, name: str) -> bool:
        """True if the run has a file with this name."""
        return (self.path / name).is_file()

    def read(self, name: str, *, missing_hint: str = "") -> Any:
        """Read one of the run's JSON files. Another schema version and invalid content of run.json raise `RunError`."""
        for required in filter(None, (missing_hint, name)):
            if not self.has(required):
                hint = "pass one written by `probmcl.train()`"
                raise RunError(f"{self.path} is not a run folder: it has no {required}; {hint}")
        content = self.read_results(self.path / name)
        if name == METADATA:
            convert_file(content, RunMetadata, self.path / name)
        return content

    def _read_object(self, path: Path) -> dict[str, Any]:
        """Read a JSON object below the folder; refuse another schema version."""
        content = read_json(path, root=self.path)
        if not isinstance(content, dict):
            raise RunError(f"{path}: expected a JSON object; the file is damaged or was edited")
        schema = content.get("schema")
        if type(schema) is int and schema > SCHEMA:
            newest = f"{SCHEMA}, the newest version that probmcl {__version__} can read"
            raise RunError(f"{path}: schema version {schema} is newer than {newest}; {self._update_hint()}")
        if schema != SCHEMA:
            raise RunError(f"{path}: schema version {schema!r} is not valid; the file is damaged or was edited")
        return content

    def _update_hint(self) -> str:
        """Return how to read a run of a newer version, with the version that wrote it if the run names it."""
        with contextlib.suppress(RunError, OSError, KeyError, TypeError):
            version = read_json(self.path / METADATA, root=self.path)["versions"]["probmcl"]
            if isinstance(version, str) and len(version) < 30:
                return f"it was written by probmcl {version}, so update to that version"
        return "update probmcl"

    def read_results(self, path: Path) -> Any:
        """Read a JSON file of results below the folder, such as the evaluation of a candidate."""
        return {key: value for key, value in self._read_object(path).items() if key != "schema"}

    def write(self, name: str, content: object) -> None:
        """Write one of the run's JSON files atomically, with the schema version."""
        write_json(self.path / name, with_schema(content), root=self.path)

    def update(self, contents: Mapping[str, bytes]) -> None:
        """Replace or add files of a run, together with their entries in the manifest."""
        listed = self.has(MANIFEST)
        if listed:
            manifest.announce(self.path, contents)
        for name, content in contents.items():
            atomic_write(self.path / name, content, root=self.path)
        if listed:
            manifest.confirm(self.path)

    def seal_inputs(self) -> None:
        """Write the manifest of the files that do not change during training."""
        manifest.write_manifest(self.path, INPUTS)

    def seal_results(self) -> None:
        """Write the manifest of all files except run.json, which is written last."""
        manifest.write_manifest(self.path, [name for name in OWN if name != METADATA])

    def seal(self) -> None:
        """Write the manifest of all files that the run has now. Files that the user has added are not listed."""
        manifest.write_manifest(self.path, OWN)

    def complete_manifest(self) -> None:
        """Write the manifest of a finished run if a killed process left it incomplete."""
        if METADATA not in manifest.read_manifest(self.path).files:
            self.seal()

    def delete_inputs(self) -> None:
        """Delete the files of a run that was interrupted while it was being created."""
        for name in (*INPUTS, MANIFEST, METADATA):
            for file in (name, f".{name}.part"):
                (self.path / file).unlink(missing_ok=True)

    def note_interrupt(self) -> None:
        """Record that the run was interrupted, if it had started."""
        if self.has(METADATA):
            self.write(METADATA, self.read(METADATA) | {"status": "interrupted"})

    def results(self, candidate: str) -> Path:
        """Return the folder with the predictions and metrics of a candidate that was tested but not kept."""
        return self.path / FROZEN if candidate == FROZEN else self.path / CANDIDATES / candidate

    def read_split(self) -> dict[str, str]:
        """Return the split of every image, keyed by path."""
        path = self.path / SPLIT
        if not path.is_file():
            raise RunError(
                f"{self.path} has no {SPLIT}; without it, training images cannot be excluded from the scores"
            )
        splits, rows = dict[str, str](), read_table(path, root=self.path)
        if next(rows, None) != ["path", "split"]:
            raise RunError(f"{path}, row 1: expected the columns path and split; the file is damaged or was edited")
        for number, row in enumerate(rows, start=2):
            if len(row) != 2 or not row[0] or row[1] not in ("train", "val", "test"):
                raise RunError(f"{path}, row {number}: expected a path and a split (train, val or test), got {row}")
            splits[row[0]] = row[1]
        if not splits:
            raise RunError(f"{path} is empty; without it, training images cannot be excluded from the scores")
        return splits


def with_schema(content: object) -> dict[str, Any]:
    """Return the content of a JSON file of a run as an object with the schema version first."""
    return {"schema": SCHEMA, **msgspec.to_builtins(content, enc_hook=str)}


def json_file(content: object) -> bytes:
    """Return the bytes of a JSON file of a run, for `RunFolder.update`."""
    return json_bytes(with_schema(content))


def delete_cache(folder: Path) -> None:
    """Delete the files of an activation cache, and its folder unless it has other files."""
    for path in folder.iterdir():
        if files.CACHE_FILE.fullmatch(path.name) and not path.is_dir():
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def is_run(folder: Path) -> bool:
    """True if a folder holds a run or a comparison."""
    return any((folder / name).is_file() for name in (METADATA, COMPARISON))


def refuse_used(folder: Path | str | None) -> None:
    """Raise an error if an output folder is not empty. None and missing folders are accepted."""
    if folder is None or not Path(folder).exists():
        return
    if not Path(folder).is_dir():
        raise FileExistsError(f"{folder} is a file, not a folder; choose another name")
    if any(path.name != LOCK for path in Path(folder).iterdir()):
        raise FileExistsError(f"{folder} is not empty, and existing files are never overwritten; choose another folder")


def new_folder(parent: Path, name: str) -> Path:
    """Create the folder `parent/DATE-name`, with a number appended if it already exists."""
    stem = f"{datetime.date.today():%Y-%m-%d}-{name}"
    for number in range(1, 10_000):
        folder = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent} has too many runs with today's date; choose another folder")


def write_rows(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Write a CSV file atomically."""
    atomic_write(path, csv_content(header, rows))


def environment(seed: int) -> dict[str, Any]:
    """Return the information needed to repeat a run: command, seed, versions, commit and start time."""
    packages = ("torch", "timm", "torchvision", "numpy", "pillow")
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "seed": seed,
        "versions": {"python": platform.python_version(), "probmcl": __version__}
        | {name: importlib.metadata.version(name) for name in packages},
        "commit": _commit(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    source = Path(__file__).parents[3]
    if not (source / ".git").exists():
        return None
    git = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, encoding="utf-8", check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
