"""Options for reading and checking data. Each is declared once: every field becomes a command-line option."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from probmcl.errors import DataError, OptionError
from probmcl.store.files import METADATA
from probmcl.store.run_metadata import RunMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from probmcl.readers.label_policy import LabelPolicy

Rows = Literal["images", "labels"]
Annotators = Literal["majority", "any", "unknown"]


@dataclass(frozen=True)
class ReadOptions:
    """How data are read. Options that are not given are detected from the data.

    An option with several values also accepts a list or a string. Commas separate values, unless a value contains them.

    Attributes:
        format: table, hugging_face, folders, coco, voc, yolo, label_studio or adp (default: detected)
        path_column: column with the image paths (default: detected)
        labels_column: column with a list of labels, or with one label per row (default: detected)
        split_column: column with train, val or test (default: detected; '' for none)
        group: column with units to keep in one split, such as patients (default: detected; '' for none)
        weight_column: column with sampling weights for training (default: detected; '' for none)
        separator: text between the labels in a list, such as ';' (default: detected)
        rows: whether a row of the table is an image or one label of an image (default: detected)
        annotators: how labels of several annotators are merged: majority (ties are unknown), any or unknown
        blank: meaning of a blank cell: negative or unknown; CLASS=MEANING sets it for one class
        minus_one: meaning of -1: unknown (default), negative, positive or soft:P; CLASS=MEANING for one class
        unknown_label: labels that mean "not known", such as todo: the image has no known label
        none_label: label for images without any class, such as 'No Finding' (default: detected; '' for none)
        ignore: columns of the table to ignore
        hierarchy: CSV file with the columns child and parent, which contain class names
    """

    format: str | None = None
    path_column: str | None = None
    labels_column: str | None = None
    split_column: str | None = None
    group: str | None = None
    weight_column: str | None = None
    separator: str | None = None
    rows: Rows | None = None
    annotators: Annotators | None = None
    blank: tuple[str, ...] = ()
    minus_one: tuple[str, ...] = ()
    unknown_label: tuple[str, ...] = ()
    none_label: str | None = None
    ignore: tuple[str, ...] = ()
    hierarchy: Path | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.default == ()):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if self.rows not in (None, *get_args(Rows)):
            raise OptionError("rows", self.rows, "must be images (one row per image) or labels (one row per label)")
        if self.annotators not in (None, *get_args(Annotators)):
            raise OptionError("annotators", self.annotators, f"must be {', '.join(get_args(Annotators))}")
        if self.blank or self.minus_one:
            _ = self.policy  # rejects an invalid meaning before any file is read

    @property
    def policy(self) -> LabelPolicy:
        """The meanings of a blank cell and of -1."""
        from probmcl.readers.label_policy import LabelPolicy

        return LabelPolicy.of(self.blank, self.minus_one)

    def set_options(self) -> dict[str, Any]:
        """Return the options that were set, by name.

        >>> ReadOptions(group="patient", none_label="").set_options()
        {'group': 'patient', 'none_label': ''}
        """
        return {name: value for name, value in vars(self).items() if value not in (None, ())}


@dataclass(frozen=True)
class DataChecks:
    """How data are split, and the problems that training tolerates.

    Attributes:
        range: intensities to map to black and white in 16-bit and float images: auto, full or LOW,HIGH
        split_file: split.csv from another run to reuse, or its folds.csv together with a test fold
        folds: number of cross-validation folds
        fold: fold to test on, counted from 1
        skip_bad: largest share of missing and unreadable images to skip, such as 0.05 (default: any is an error)
        allow_leaks: train even if images or groups in train are also in val or test
    """

    range: str = "auto"
    split_file: Path | None = None
    folds: int | None = None
    fold: int | None = None
    skip_bad: float | None = None
    allow_leaks: bool = False

    def __post_init__(self) -> None:
        if self.range not in ("auto", "full"):
            from probmcl.data.pixels import parse_range

            parse_range(self.range)
        refuse_share(self.skip_bad)
        if self.split_file is not None:
            object.__setattr__(self, "split_file", Path(self.split_file))  # in Python, it may be a string
        if self.split_file is not None and not self.split_file.is_file():
            raise OptionError("split_file", self.split_file, "does not exist")
        if self.folds is not None and self.folds < 2:
            raise OptionError("folds", self.folds, "must be at least 2")
        if self.folds is not None and self.split_file is not None:
            raise OptionError("folds", self.folds, "cannot be combined with `split_file`")
        if self.folds is not None and (self.fold is None or not 1 <= self.fold <= self.folds):
            raise OptionError("folds", self.folds, f"needs `fold`, the fold to test on (1 to {self.folds})")
        if self.fold is not None and self.folds is None and self.split_file is None:
            raise OptionError("fold", self.fold, "needs `folds=K` or a folds.csv as `split_file`")


def refuse_share(share: float | None) -> None:
    """Refuse a `skip_bad` outside [0, 1), such as a percentage or NaN.

    >>> refuse_share(5.0)
    Traceback (most recent call last):
    ...
    probmcl.errors.OptionError: `skip_bad=5` must be a share between 0 and 1, such as 0.05 for 5 %
    """
    if share is not None and not 0 <= share < 1:  # also refuses NaN
        raise OptionError("skip_bad", share, "must be a share between 0 and 1, such as 0.05 for 5 %")


@dataclass(frozen=True)
class SkippedImage:
    """A missing or unreadable image that a run leaves out."""

    path: str
    reason: str = ""


@dataclass(frozen=True)
class DataSource:
    """The data of a run: the arguments for reading them again, and images that it does not use.

    Attributes:
        skipped: unreadable images.
        leaks_allowed: descriptions of leaks that were allowed.
        unlabeled: folders of images without labels.
        roots: the folders that contain the table and the images; see `folders`.
    """

    data: Path
    images: Path | None = None
    options: ReadOptions = ReadOptions()
    skipped: tuple[SkippedImage, ...] = ()
    leaks_allowed: tuple[str, ...] = ()
    unlabeled: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()

    @classmethod
    def of(cls, data: Path | str, images: Path | str | None, options: ReadOptions) -> DataSource:
        """Return a source with absolute paths, so it does not depend on the working directory."""
        options = replace(options, hierarchy=options.hierarchy and Path(options.hierarchy).resolve())
        return cls(Path(data).resolve(), None if images is None else Path(images).resolve(), options)

    def with_changes(self, images: Path | str | None, options: ReadOptions) -> DataSource:
        """Return a copy with another image folder, if given, and with the options that are set in `options`.

        The user names these files and folders, so they may be read.
        """
        named = [Path(path).resolve() for path in (images, options.hierarchy) if path is not None]
        changed = replace(self.options, **options.set_options())
        folder = self.images if images is None else Path(images).resolve()
        return replace(self, images=folder, options=changed, roots=(*self.folders, *named))

    def with_roots(self, paths: Iterable[Path | str]) -> DataSource:
        """Return a copy with the folders that contain the table, the hierarchy and these images, behind any links."""
        roots, known = tuple(_prefix(os.path.realpath(folder)) for folder in self.folders), dict[str, str]()
        images = {os.path.dirname(_real_path(path, known)) for path in paths}  # noqa: PTH120
        others = [folder for folder in images if not _prefix(folder).startswith(roots)]
        return replace(self, roots=(*self.folders, *([Path(os.path.commonpath(others))] if others else [])))

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders outside of which nothing is read if only a run names the data.

        >>> [str(folder) for folder in DataSource(Path("/data/labels.csv"), images=Path("/photos")).folders]
        ['/data', '/photos']
        """
        if self.roots:
            return self.roots
        named = [path for path in (self.data, self.images, self.options.hierarchy) if path is not None]
        return tuple(dict.fromkeys(path.parent if path.suffix and not path.is_dir() else path for path in named))

    def refuse_outside(self, paths: Iterable[Path | str], remedy: str = "specify `data` or `images`") -> None:
        """Raise `DataError` if a path is outside `folders`. The message ends with the remedy.

        >>> source = DataSource(Path("/data/labels.csv"), roots=(Path("/data"),))
        >>> source.refuse_outside(["/data/a.jpg", "/etc/passwd"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        probmcl.errors.DataError: /etc/passwd is outside the data of the run (/data), so it is not read; specify ...
        """
        roots, known = tuple(_prefix(os.path.realpath(folder)) for folder in self.folders), dict[str, str]()
        for path in paths:
            if not _prefix(_real_path(path, known)).startswith(roots):
                folders = ", ".join(map(str, self.folders))
                problem = f"{path} is outside the data of the run ({folders}), so it is not read"
                raise DataError(f"{problem}; {remedy}")


METADATA_FILE = METADATA.holding(RunMetadata[DataSource])
"""The row of run.json, with the data of the run."""


def _prefix(folder: str) -> str:
    """Return what the paths inside of a folder start with."""
    return os.path.join(folder, "")  # noqa: PTH118


def _real_path(path: Path | str, known: dict[str, str]) -> str:
    """Return the path behind links. `known` caches folders, since there may be a million files."""
    text = os.path.abspath(path)  # noqa: PTH100
    if os.path.islink(text):  # noqa: PTH114
        return os.path.realpath(text)
    folder, name = os.path.split(text)
    if folder not in known:
        known[folder] = os.path.realpath(folder)
    return os.path.join(known[folder], name)  # noqa: PTH118
