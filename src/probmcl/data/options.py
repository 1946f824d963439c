"""Options for reading and checking data, each declared once.

`ReadOptions` and `DataChecks` are shared by `probmcl.data.read`, `train`, `compare`, `check`, `Model.evaluate` and the
run folder. The command line turns every field into an option with the help text below: a field `skip_bad` is typed
--skip-bad. To add an option, add a field and use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probmcl.errors import OptionError


@dataclass(frozen=True)
class ReadOptions:
    """How data are read; None leaves a choice to what the data look like.

    Attributes:
        format: table, folders, coco, voc or adp, if DATA could be two of them
        path_column: column of image paths
        labels_column: column of label lists
        split_column: column of train, val and test
        group: column (patient, slide) whose images stay in one split
        weight_column: column that says how often an image is trained on
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
    rows: Literal["images", "labels"] | None = None
    blank: tuple[str, ...] = ()
    minus_one: tuple[str, ...] = ()
    none_label: str | None = None
    ignore: tuple[str, ...] = ()
    hierarchy: Path | None = None


@dataclass(frozen=True)
class DataChecks:
    """What is required of data before a run starts, and how they are split.

    Attributes:
        range: gray levels of 16-bit and float images that become black and white: auto, full or LOW,HIGH
        split_file: split.csv of an earlier run, or folds.csv with `fold`, to use again
        folds: number of folds to divide the images into; `fold` is the test fold
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
        from probmcl.data.intensity import parse_range

        parse_range(self.range)
        if self.skip_bad is not None and not 0 <= self.skip_bad < 1:  # NaN is not between either
            raise OptionError("skip_bad", f"{self.skip_bad:g}", "must be a share between 0 and 1, as 0.05 for 5 %")
        if self.split_file is not None and not self.split_file.is_file():
            raise OptionError("split_file", self.split_file, "does not exist")
        if self.folds is not None and self.folds < 2:
            raise OptionError("folds", self.folds, "must be at least 2")
        if self.folds is not None and self.split_file is not None:
            raise OptionError("folds", self.folds, "cannot be combined with `split_file`, which has folds of its own")
        if self.folds is not None and (self.fold is None or not 1 <= self.fold <= self.folds):
            raise OptionError("folds", self.folds, f"needs `fold`, the number of the test fold, 1 to {self.folds}")
        if self.fold is not None and self.folds is None and self.split_file is None:
            raise OptionError("fold", self.fold, "needs `folds=K`, or a folds.csv as `split_file`")
