"""The folder of a run or a comparison: reading and writing its files, and its manifest.

A file that a command replaces has two accepted contents until the command has written the manifest again. A process
that is killed in between leaves a valid folder.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from probmcl.errors import RunError
from probmcl.runtime.conversion import plain_values
from probmcl.runtime.files import atomic_write, open_file, refuse_special_files
from probmcl.runtime.tensor_files import content_digest, save_tensors, stream_digest
from probmcl.store import files
from probmcl.store.decoding import encoded_rows, encoded_struct, read_content, read_rows, read_struct, read_tensors
from probmcl.store.files import File, JsonFile, Role, TableFile, TensorFile
from probmcl.store.run_metadata import Split

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])

MAX_IMAGE_SIZE = 4096
"""Largest side of the square input of a model, in pixels."""

REMEDY = "restore the file, copy the folder again, or train again"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size and SHA-256 of a file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Entry:
        """Return the entry of a file with this content."""
        return cls(len(content), content_digest([content]).hex())


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a folder by name; `replacing` has the new contents of files that are being replaced."""

    files: dict[str, Entry]
    replacing: dict[str, Entry] = {}

    def __post_init__(self) -> None:
        for name in (*self.files, *self.replacing):
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{name!r} is outside the folder")


MANIFEST_FILE = files.MANIFEST.holding(Manifest)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder; the error names the file if it is damaged."""
    return read_struct(folder, MANIFEST_FILE)


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Write the manifest of the files with these names, and of all files in the folders with these names."""
    existing = sorted(_existing(folder, names))
    entries = {name: _entry(folder, name) for name in existing}
    _write(folder, Manifest(entries))


def announce_changes(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Accept new contents of files, in addition to the current ones, before they are written.

    The manifest of the folder has the size and the digest of the accepted contents, and is written again.
    """
    before = read_manifest(folder)
    # A process that was killed between `announce_changes` and `confirm_changes` leaves files with either content.
    left_behind = [name for name in before.replacing if (folder / name).is_file()]
    settled = {name: _entry(folder, name) for name in left_behind}  # what is in the folder counts as current
    new = {name: Entry.of(content) for name, content in contents.items()}
    _write(folder, Manifest(before.files | settled, replacing=new))


def confirm_changes(folder: Path) -> None:
    """Accept only the contents that were announced, after they are written."""
    before = read_manifest(folder)
    confirmed = before.files | before.replacing
    _write(folder, Manifest(dict(sorted(confirmed.items()))))


def verify_files(folder: Path, *, required: Iterable[str] = (), optional: tuple[str, ...] = ()) -> None:
    """Raise `RunError` if a file does not match the manifest; the message names the file.

    Args:
        folder: the folder with the manifest.
        required: files that must be listed if they exist.
        optional: name prefixes of files that may be missing.
    """
    manifest = read_manifest(folder)
    while True:
        try:
            return _verify(folder, manifest, required, optional)
        except RunError:
            current = read_manifest(folder)
            if current == manifest:
                raise
            manifest = current  # another process has updated the folder in the meantime


def _verify(folder: Path, manifest: Manifest, required: Iterable[str], optional: tuple[str, ...]) -> None:
    """Raise `RunError` if a file does not match this manifest; the arguments are those of `verify_files`."""
    for name in required:
        if name not in manifest.files and (folder / name).exists():
            raise RunError(f"{folder / name} is not listed in {MANIFEST_FILE}, so damage cannot be detected; {REMEDY}")
    for name in manifest.files | manifest.replacing:
        path = folder / name
        if path.is_file():
            accepted = [entries[name] for entries in (manifest.files, manifest.replacing) if name in entries]
            _verify_content(folder, name, accepted)
        elif name in manifest.files and not name.startswith(optional):
            raise RunError(f"{path} is missing, but {MANIFEST_FILE} lists it; {REMEDY}")


def _verify_content(folder: Path, name: str, accepted: Sequence[Entry]) -> None:
    """Raise `RunError` if a file has none of the accepted contents: the current one, and one that replaces it."""
    path = folder / name
    size = path.stat().st_size  # the digest of a large file takes seconds, its size does not
    if size not in [entry.size for entry in accepted]:
        sizes = f"{size:,} bytes instead of {accepted[0].size:,}"
        raise RunError(f"{path} was changed or damaged ({sizes}, according to {MANIFEST_FILE}); {REMEDY}")
    if _entry(folder, name) not in accepted:
        raise RunError(f"{path} was changed or damaged (its SHA-256 is not the one in {MANIFEST_FILE}); {REMEDY}")


def _existing(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the names of the files that exist; the name of a folder stands for all files in it."""
    for name in names:
        path = folder / name
        found = path.rglob("*") if path.is_dir() else [path]
        for file in found:
            if file.is_file() and not file.name.startswith("."):  # a killed process leaves files with a dot
                yield file.relative_to(folder).as_posix()


def _entry(folder: Path, name: str) -> Entry:
    """Return the size and the SHA-256 of a file."""
    with open_file(folder / name, root=folder) as file:
        digest = stream_digest(file)
        size = file.tell()  # the file is read to its end
        return Entry(size, digest.hex())


def _write(folder: Path, manifest: Manifest) -> None:
    """Write a manifest to its folder."""
    content = encoded_struct(MANIFEST_FILE, manifest)
    atomic_write(folder / MANIFEST_FILE, content)


def _names(*roles: Role) -> list[str]:
    """Return the files and folders of a run that have one of the roles; a folder stands for all files in it."""
    rows = [row for row in files.FILES if row.role in roles and row.owner != "comparison"]
    unique = dict.fromkeys(row.first_part for row in rows)  # in the order of the rows
    return list(unique)


INPUTS = _names("input")
DECISIVE = _names("input", "decisive")
OPTIONAL = tuple(_names("optional"))
OWN = _names("input", "decisive", "result", "optional")
"""Files and folders that a run writes; its manifest lists no others."""


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds a run or a comparison."""

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
        for file in (files.METADATA, files.CONFIG):
            folder._refuse_missing(file)
        read_content(folder.path, files.CONFIG)  # a newer version is named before the files that it has changed
        if not folder.has(files.MANIFEST):
            problem = f"{path} has no {files.MANIFEST}, without which damaged files are not detected"
            raise RunError(f"{problem}; {REMEDY}")
        is_finished = files.METADATA.name in read_manifest(folder.path).files
        required = DECISIVE if is_finished else []  # the manifest of an unfinished run lists only the inputs
        verify_files(folder.path, required=required, optional=OPTIONAL)
        folder.read(files.METADATA)
        return folder

    @property
    def checkpoints(self) -> Path:
        """The folder with the checkpoints of an unfinished run."""
        return self.path / files.CHECKPOINTS

    def has(self, file: File) -> bool:
        """True if the folder has this file."""
        return (self.path / file).is_file()

    def read(self, file: JsonFile[T]) -> T:
        """Read one of the JSON files. Another schema version and invalid content raise `RunError`."""
        self._refuse_missing(file)
        return read_struct(self.path, file)

    def _refuse_missing(self, file: File) -> None:
        """Raise `RunError` if a file that every run has is missing."""
        if not self.has(file):
            hint = "pass one written by `probmcl.train()`"
            raise RunError(f"{self.path} is not a run folder: it has no {file}; {hint}")

    def write(self, file: JsonFile[T], content: T) -> None:
        """Write one of the JSON files atomically, with the schema version."""
        atomic_write(self.path / file, encoded_struct(file, content), root=self.path)

    def read_tensors(self, file: TensorFile[T]) -> tuple[dict[str, Tensor], T]:
        """Read the tensors and the metadata of one of the safetensors files."""
        return read_tensors(self.path, file)

    def write_tensors(self, file: TensorFile[T], tensors: Mapping[str, Tensor], metadata: T) -> None:
        """Write one of the safetensors files atomically, with a checksum in its header."""
        save_tensors(self.path / file, tensors, plain_values(metadata), root=self.path)

    def read_rows(self, file: TableFile[R]) -> list[R]:
        """Read one of the CSV files."""
        return read_rows(self.path, file)

    def write_rows(self, file: TableFile[R], rows: Iterable[R]) -> None:
        """Write one of the CSV files atomically."""
        atomic_write(self.path / file, encoded_rows(file, rows), root=self.path)

    def update(self, contents: Mapping[File, bytes]) -> None:
        """Replace or add files of a run, together with their entries in the manifest."""
        has_manifest = self.has(files.MANIFEST)
        if has_manifest:
            announce_changes(self.path, {file.name: content for file, content in contents.items()})
        for file, content in contents.items():
            atomic_write(self.path / file, content, root=self.path)
        if has_manifest:
            confirm_changes(self.path)

    def seal_inputs(self) -> None:
        """Write the manifest of the files that do not change during training."""
        write_manifest(self.path, INPUTS)

    def seal_results(self) -> None:
        """Write the manifest of all files except run.json, which is written last."""
        results = [name for name in OWN if name != files.METADATA.name]
        write_manifest(self.path, results)

    def seal(self) -> None:
        """Write the manifest of all files that the run has now. Files that the user has added are not listed."""
        write_manifest(self.path, OWN)

    def complete_manifest(self) -> None:
        """Write the manifest of a finished run if a killed process left it incomplete."""
        manifest = read_manifest(self.path)
        if files.METADATA.name not in manifest.files:  # the last file that a run writes
            self.seal()

    def delete_inputs(self) -> None:
        """Delete the files of a run that was interrupted while it was being created."""
        for name in (*INPUTS, files.MANIFEST.name, files.METADATA.name):
            unfinished = f".{name}.part"  # an atomic write that was interrupted
            (self.path / name).unlink(missing_ok=True)
            (self.path / unfinished).unlink(missing_ok=True)

    def note_interrupt(self) -> None:
        """Record that the run was interrupted, if it had started."""
        if self.has(files.METADATA):
            metadata = self.read(files.METADATA)
            interrupted = msgspec.structs.replace(metadata, status="interrupted")
            self.write(files.METADATA, interrupted)

    def results(self, candidate: str) -> Path:
        """Return the folder with the predictions and metrics of a candidate that was tested."""
        return self.path / files.candidate_folder(candidate)

    def read_split(self) -> dict[str, Split]:
        """Return the split of every image, keyed by path."""
        consequence = "without it, training images cannot be excluded from the scores"
        if not self.has(files.SPLIT):
            raise RunError(f"{self.path} has no {files.SPLIT}; {consequence}")
        splits = {row.path: row.split for row in self.read_rows(files.SPLIT)}
        if not splits:
            raise RunError(f"{self.path / files.SPLIT} is empty; {consequence}")
        return splits


def delete_cache(folder: Path) -> None:
    """Delete the files of an activation cache, and its folder unless it has other files."""
    for path in folder.iterdir():
        if files.CACHE_FILE.fullmatch(path.name) and not path.is_dir():
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def is_run(folder: Path) -> bool:
    """True if a folder holds a run or a comparison."""
    return (folder / files.METADATA).is_file() or (folder / files.COMPARISON).is_file()


def refuse_used(folder: Path | str | None) -> None:
    """Raise an error if an output folder is not empty. None and missing folders are accepted."""
    if folder is None or not Path(folder).exists():
        return
    if not Path(folder).is_dir():
        raise FileExistsError(f"{folder} is a file, not a folder; choose another name")
    if any(path.name != files.LOCK.name for path in Path(folder).iterdir()):
        raise FileExistsError(f"{folder} is not empty, and existing files are never overwritten; choose another folder")


def new_folder(parent: Path, name: str) -> Path:
    """Create the folder `parent/DATE-name`, with a number appended if it already exists, and return it."""
    stem = f"{datetime.date.today():%Y-%m-%d}-{name}"
    for number in range(1, 10_000):
        unique_name = stem if number == 1 else f"{stem}-{number}"
        folder = parent / unique_name
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent} has too many runs with today's date; choose another folder")
