"""Options for reading and checking data, each declared once: the command line makes an option of every field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from probmcl.errors import DataError, OptionError

if TYPE_CHECKING:
    from probmcl.data.formats.table.policy import LabelPolicy

Rows = Literal["images", "labels"]


@dataclass(frozen=True)
class ReadOptions:
    """How data are read; a choice that is None depends on what the data look like.

    Attributes:
        format: table, folders, coco, voc or adp, if DATA could be two of them
        path_column: column of image paths
        labels_column: column of label lists, or of one label per row
        split_column: column of train, val and test; '' for none
        group: column (patient, slide) whose images stay in one split; '' for none
        weight_column: column that says how often an image is trained on; '' for none
        rows: what a row of the table is: a whole image, or one label of an image
        blank: what a blank cell means, negative or unknown; CLASS=… for one class
        minus_one: what -1 means: unknown (default), negative, positive or soft:P; CLASS=… for one class
        none_label: label that means none of the others; '' if every label is a class
        ignore: columns of the table that are not classes
        hierarchy: CSV file with the columns child and parent, both names of classes
    """

    format: str | None = None
    path_column: str | None = None
    labels_column: str | None = None
    split_column: str | None = None
    group: str | None = None
    weight_column: str | None = None
    rows: Rows | None = None
    blank: tuple[str, ...] = ()
    minus_one: tuple[str, ...] = ()
    none_label: str | None = None
    ignore: tuple[str, ...] = ()
    hierarchy: Path | None = None

    def __post_init__(self) -> None:
        if self.rows not in (None, *get_args(Rows)):
            raise OptionError("rows", self.rows, "must be images (one row per image) or labels (one row per label)")
        if self.blank or self.minus_one:
            _ = self.policy  # refuses a wrong meaning before anything is read

    @property
    def policy(self) -> LabelPolicy:
        """The meaning of a blank cell and of -1."""
        from probmcl.data.formats.table.policy import LabelPolicy

        return LabelPolicy.of(self.blank, self.minus_one)

    def set_options(self) -> dict[str, Any]:
        """Return the options that differ from their default, by name.

        >>> ReadOptions(group="patient", none_label="").set_options()
        {'group': 'patient', 'none_label': ''}
        """
        return {name: value for name, value in vars(self).items() if value not in (None, ())}


@dataclass(frozen=True)
class DataChecks:
    """Requirements on data before a run starts, and how they are split.

    Attributes:
        range: gray levels of 16-bit and float images that become black and white: auto, full or LOW,HIGH
        split_file: split.csv of an earlier run to use again, or its folds.csv together with a test fold
        folds: number of folds to divide the images into, one of which is the test fold
        fold: number of the test fold, from 1
        skip_bad: largest share of unreadable images to skip; by default any is an error
        allow_leaks: train even if images or groups of train are also in val or test
    """

    range: str = "auto"
    split_file: Path | None = None
    folds: int | None = None
    fold: int | None = None
    skip_bad: float | None = None
    allow_leaks: bool = False

    def __post_init__(self) -> None:
        if self.range not in ("auto", "full"):
            from probmcl.data.intensity import parse_range

            parse_range(self.range)
        refuse_share(self.skip_bad)
        if self.split_file is not None and not self.split_file.is_file():
            raise OptionError("split_file", self.split_file, "does not exist")
        if self.folds is not None and self.folds < 2:
            raise OptionError("folds", self.folds, "must be at least 2")
        if self.folds is not None and self.split_file is not None:
            raise OptionError("folds", self.folds, "cannot be combined with `split_file`")
        if self.folds is not None and (self.fold is None or not 1 <= self.fold <= self.folds):
            raise OptionError("folds", self.folds, f"needs `fold`, the number of the test fold, 1 to {self.folds}")
        if self.fold is not None and self.folds is None and self.split_file is None:
            raise OptionError("fold", self.fold, "needs `folds=K`, or a folds.csv as `split_file`")


def refuse_share(share: float | None) -> None:
    """Refuse a `skip_bad` that is not a share: a percentage, NaN, or all images.

    >>> refuse_share(5.0)
    Traceback (most recent call last):
    ...
    probmcl.errors.OptionError: `skip_bad=5` must be a share between 0 and 1, as 0.05 for 5 %
    """
    if share is not None and not 0 <= share < 1:  # NaN is not between either
        raise OptionError("skip_bad", f"{share:g}", "must be a share between 0 and 1, as 0.05 for 5 %")


@dataclass(frozen=True)
class SkippedImage:
    """An unreadable image that a run does without."""

    path: str
    reason: str = ""


@dataclass(frozen=True)
class DataSource:
    """Where the images of a run come from, so that they can be read again, and the problems that were allowed."""

    data: Path
    images: Path | None = None
    options: ReadOptions = ReadOptions()
    skipped: tuple[SkippedImage, ...] = ()
    leaks_allowed: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Path | str, images: Path | str | None, options: ReadOptions) -> DataSource:
        """Return a source with absolute paths, which mean the same from any working directory."""
        options = replace(options, hierarchy=options.hierarchy and Path(options.hierarchy).resolve())
        return cls(Path(data).resolve(), None if images is None else Path(images).resolve(), options)

    def with_changes(self, images: Path | str | None, options: ReadOptions) -> DataSource:
        """Return the same source with another folder of images, if given, and the options that are set."""
        changed = replace(self.options, **options.set_options())
        return replace(self, images=self.images if images is None else Path(images), options=changed)

    def to_json(self) -> dict[str, Any]:
        """Return the plain dict that `parse` reads, for JSON."""
        import msgspec

        return dict(msgspec.to_builtins(self, enc_hook=str))

    @classmethod
    def parse(cls, content: Any) -> DataSource:
        """Return the source that `to_json` has written; a wrong type or an unknown key is an error.

        >>> source = DataSource(Path("labels.csv"), options=ReadOptions(blank=("negative",)))
        >>> DataSource.parse(source.to_json()) == source
        True
        """
        import msgspec

        try:
            source = msgspec.convert(content, cls, dec_hook=lambda kind, value: kind(value))
        except (msgspec.ValidationError, TypeError) as error:
            raise DataError(f"the source of the data is not as a run writes it: {error}") from error
        for keys, fields in ((content.keys(), vars(source)), (content.get("options", {}).keys(), vars(source.options))):
            unknown = sorted(keys - fields.keys())
            if unknown:
                raise DataError(f"the source of the data has an unknown key {unknown[0]!r}")
        return source
