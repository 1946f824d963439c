"""The kinds of rows in the table of files (`files`): a file by name, and files whose content is typed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Generic, Literal, TypeVar

from probmcl.runtime.conversion import TypeForm

T = TypeVar("T")
Row = TypeVar("Row", bound="File")
R = TypeVar("R", bound=tuple[Any, ...])

Role = Literal["input", "decisive", "result", "optional", "checkpoint", "unlisted"]
"""What depends on a file of a run.

- input: written before training, and changed only if changed images are accepted. The manifest of an unfinished run
  lists the inputs.
- decisive: decides what a finished run predicts and reports. Its manifest must list these files and the inputs.
- result: listed in the manifest; a missing or changed file is damage.
- optional: listed in the manifest, but no command needs it. Deleting it is allowed; changing it is damage.
- checkpoint: needed to resume the run. It contains a digest of its content instead of being listed.
- unlisted: without a digest, like all files of a comparison.
"""

Owner = Literal["run", "comparison", "both"]


@dataclass(frozen=True)
class File:
    """A row: one file of a run or a comparison. In a path or a message, it stands for its name.

    >>> from pathlib import Path
    >>> scores = File("predictions/*.npz", "result", "raw scores", "at the end")
    >>> (Path("run") / scores.named("test").inside("frozen")).as_posix()
    'run/frozen/predictions/test.npz'

    Attributes:
        name: path relative to the folder; `*` stands for a key that `named` inserts.
        role: what depends on the file.
        content: what it contains, for the documentation.
        written: when it is written, for the documentation.
        owner: the kind of folder that has it.
    """

    name: str
    role: Role
    content: str
    written: str
    owner: Owner = "run"

    def __str__(self) -> str:
        return self.name

    def __fspath__(self) -> str:
        return self.name

    @property
    def key(self) -> str:
        """The name without folder and suffix.

        >>> File("predictions/val.npz", "result", "raw scores", "at the end").key
        'val'
        """
        return PurePosixPath(self.name).stem

    @property
    def first_part(self) -> str:
        """The name or, for a file in a folder of the run, the name of that folder."""
        return PurePosixPath(self.name).parts[0]

    def named(self: Row, key: str) -> Row:
        """Return the row of one file, for a row that describes several."""
        return replace(self, name=self.name.replace("*", key))

    def describes(self, name: str) -> bool:
        """Return whether a file of the run is one of those that the row describes."""
        return fnmatchcase(name, self.name)

    def inside(self: Row, folder: File | str) -> Row:
        """Return the row of the same file in a folder of the run, such as that of a candidate."""
        return replace(self, name=str(PurePosixPath(folder) / self.name))

    def holding(self, kind: TypeForm[T]) -> JsonFile[T]:
        """Bind the row to the class of its content. A package that comes after `store` does this once for its class."""
        return JsonFile(self.name, self.role, self.content, self.written, self.owner, kind=kind)


@dataclass(frozen=True)
class Folder(File):
    """A folder of a run. Its role is that of all files in it, unless they have rows of their own."""


@dataclass(frozen=True)
class JsonFile(File, Generic[T]):
    """A JSON file that holds one value of a class."""

    kind: TypeForm[T] = field(kw_only=True)


@dataclass(frozen=True)
class TensorFile(File, Generic[T]):
    """A safetensors file; its metadata is one value of a class."""

    kind: TypeForm[T] = field(kw_only=True)


@dataclass(frozen=True)
class TableFile(File, Generic[R]):
    """A CSV file; the class of its rows has one field per column."""

    kind: TypeForm[R] = field(kw_only=True)
