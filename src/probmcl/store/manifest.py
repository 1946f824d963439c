"""The manifest of a run: name, size and SHA-256 of its files, so that a damaged or missing file is noticed.

A file that a command replaces has two accepted contents until the command has written the manifest again. A process
that is killed in between leaves a valid folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from probmcl.errors import RunError
from probmcl.runtime.digests import content_digest, stream_digest
from probmcl.runtime.files import atomic_write, open_file
from probmcl.store import files
from probmcl.store.decoding import encoded_struct, read_struct


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
    _write(folder, Manifest({name: _entry(folder, name) for name in sorted(_existing(folder, names))}))


def announce_changes(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Accept new contents of files, in addition to the current ones, before they are written."""
    before = read_manifest(folder)
    # A process that was killed between `announce_changes` and `confirm_changes` leaves files with either content.
    settled = {name: _entry(folder, name) for name in before.replacing if (folder / name).is_file()}
    new = {name: Entry.of(content) for name, content in contents.items()}
    _write(folder, Manifest({**before.files, **settled}, new))


def confirm_changes(folder: Path) -> None:
    """Accept only the contents that were announced, after they are written."""
    before = read_manifest(folder)
    _write(folder, Manifest(dict(sorted({**before.files, **before.replacing}.items()))))


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
    for name in required:
        if name not in manifest.files and (folder / name).exists():
            raise RunError(f"{folder / name} is not listed in {MANIFEST_FILE}, so damage cannot be detected; {REMEDY}")
    for name in {**manifest.files, **manifest.replacing}:
        path = folder / name
        accepted = [entries[name] for entries in (manifest.files, manifest.replacing) if name in entries]
        if not path.is_file():
            if name in manifest.files and not name.startswith(optional):
                raise RunError(f"{path} is missing, but {MANIFEST_FILE} lists it; {REMEDY}")
            continue
        size = path.stat().st_size
        if size not in [entry.size for entry in accepted]:
            sizes = f"{size:,} bytes instead of {accepted[0].size:,}"
            raise RunError(f"{path} was changed or damaged ({sizes}, according to {MANIFEST_FILE}); {REMEDY}")
        if _entry(folder, name) not in accepted:
            raise RunError(f"{path} was changed or damaged (its SHA-256 is not the one in {MANIFEST_FILE}); {REMEDY}")


REMEDY = "restore the file, copy the folder again, or train again"


def _existing(folder: Path, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = folder / name
        for file in path.rglob("*") if path.is_dir() else (path,):
            if file.is_file() and not file.name.startswith("."):  # a file of a killed process
                yield file.relative_to(folder).as_posix()


def _entry(folder: Path, name: str) -> Entry:
    with open_file(folder / name, root=folder) as file:
        digest = stream_digest(file)
        return Entry(file.tell(), digest.hex())


def _write(folder: Path, manifest: Manifest) -> None:
    atomic_write(folder / MANIFEST_FILE, encoded_struct(MANIFEST_FILE, manifest))
