"""The options of the methods of `Model` and of reports, each declared once as in `probmcl.settings.options`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NewType

from probmcl.console import Console
from probmcl.readers.options import ReadOptions
from probmcl.settings.declaration import Argument, Group, Option, Options
from probmcl.settings.options import ImagesOption, ReadOption, WorkersOption

if TYPE_CHECKING:
    from probmcl.data.loader import Source
else:
    Source = NewType("Source", object)  # the module of the real one imports torch

DATA, METHOD, TRAINING, DECISIONS, COMPUTE, EVALUATION = Group

ExplainedLabels = Literal["decided", "all"] | Sequence[str]
"""The labels to explain: those that the model assigns to an image, all classes, or the classes in a list."""

# Options that several methods have.

NewImagesOption = Annotated[
    Source | Sequence[Source],
    Argument(
        "image files, folders, patterns such as 'photos/**/*.jpg', or .txt files with paths",
        in_python="; or images in memory, see `Model`",
    ),
]
ModelWorkersOption = Annotated[
    int | None, Option("processes for decoding images (default: one per core, at most 8)", COMPUTE)
]
ModelBatchSizeOption = Annotated[int | None, Option("images per batch (default: the fastest size)", COMPUTE)]
SkipBadOption = Annotated[
    float | None, Option("largest share of missing and unreadable images to skip (default: any is an error)", DATA)
]
ProgressOption = Annotated[
    Console | None, Option("prints progress (default: on stderr, after a few seconds)", only_in_python=True)
]
RENAME = "CSV (columns data,model) or JSON file that maps class names"
OR_MAPPING = " in the data to class names in the model, or the mapping itself"


@dataclass(frozen=True)
class StreamOptions(Options):
    """Options of `Model.stream`."""

    images: NewImagesOption
    _: KW_ONLY
    threshold: Annotated[
        float | None, Option("predict a class above this probability (default: the run's thresholds)", DECISIONS)
    ] = None
    raw: Annotated[bool, Option("give the scores before calibration", DECISIONS)] = False
    abstain: Annotated[
        float | None,
        Option("leave decisions open so that at most this share of yes or no is wrong, such as 0.05", DECISIONS),
    ] = None
    workers: ModelWorkersOption = None
    batch_size: ModelBatchSizeOption = None


@dataclass(frozen=True, kw_only=True)
class PredictOptions(StreamOptions):
    """Options of `Model.predict`."""

    console: ProgressOption = None


@dataclass(frozen=True)
class EmbedOptions(Options):
    """Options of `Model.embed`."""

    images: NewImagesOption
    _: KW_ONLY
    workers: ModelWorkersOption = None
    batch_size: ModelBatchSizeOption = None
    console: ProgressOption = None


@dataclass(frozen=True)
class ExplainOptions(Options):
    """Options of `Model.explain`."""

    images: NewImagesOption
    _: KW_ONLY
    labels: Annotated[
        ExplainedLabels, Option("decided (the labels that the model assigns), all, or class names (default: decided)")
    ] = "decided"
    threshold: Annotated[
        float | None, Option("assign a class above this probability (default: the run's thresholds)", DECISIONS)
    ] = None
    workers: ModelWorkersOption = None
    batch_size: ModelBatchSizeOption = None
    console: ProgressOption = None


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Options of `Model.evaluate`."""

    data: Annotated[Path | str | None, Argument("table or folder with data (default: the data of the run)")] = None
    split: Annotated[Literal["train", "val", "test"], Option("split to evaluate on", EVALUATION)] = "test"
    _: KW_ONLY
    rename: Annotated[Path | str | Mapping[str, str] | None, Option(RENAME, EVALUATION, in_python=OR_MAPPING)] = None
    by: Annotated[
        str | None, Option("also evaluate each value of this column, such as site or scanner", EVALUATION)
    ] = None
    aggregate: Annotated[
        Literal["mean", "max"] | None,
        Option("evaluate groups instead of images, by the mean or highest score of their images", EVALUATION),
    ] = None
    raw: Annotated[bool, Option("evaluate the scores before calibration", EVALUATION)] = False
    abstain: Annotated[
        float | None,
        Option("also evaluate yes, no and not sure with this largest error rate, such as 0.05", EVALUATION),
    ] = None
    draws: Annotated[
        int | None,
        Option("bootstrap resamples for intervals; 0 for no intervals (default: up to 1,000)", EVALUATION),
    ] = None
    seed: Annotated[int, Option("random seed for the bootstrap", EVALUATION)] = 0
    images: ImagesOption = None
    read: ReadOption = ReadOptions()
    skip_bad: SkipBadOption = None
    workers: WorkersOption = None
    batch_size: ModelBatchSizeOption = None
    console: ProgressOption = None


@dataclass(frozen=True)
class CalibrateOptions(Options):
    """Options of `Model.calibrate`."""

    data: Annotated[
        Path | str | None,
        Argument("labeled images from another site (default: the same held-out images as before)"),
    ] = None
    _: KW_ONLY
    calibration: Annotated[
        Literal["sigmoid", "isotonic", "none"] | None,
        Option("kind of curve (default: as before); isotonic needs 1,000 positives", DECISIONS),
    ] = None
    thresholds: Annotated[
        str | float | None,
        Option(
            "balanced, f1, precision:P, recall:R, cost:FN,FP or a number (default: as before)",
            DECISIONS,
            in_python="; see `ThresholdRule`",
        ),
    ] = None
    rename: Annotated[Path | str | Mapping[str, str] | None, Option(RENAME, DATA, in_python=OR_MAPPING)] = None
    images: ImagesOption = None
    read: ReadOption = ReadOptions()
    skip_bad: SkipBadOption = None
    workers: WorkersOption = None
    batch_size: ModelBatchSizeOption = None
    console: ProgressOption = None


@dataclass(frozen=True)
class ReportOptions(Options):
    """Options of `probmcl.report.page.write_report`."""

    runs: Annotated[
        Sequence[Path | str], Argument("run folders; the first is described in detail and compared with the others")
    ]
    out: Annotated[Path | str | None, Option("the page to write (default: report.html in the run folder)")] = None
    _: KW_ONLY
    images: Annotated[bool, Option("include photographs, or leave them out if they are private")] = True
    device: Annotated[str, Option("auto, cpu, cuda or mps", COMPUTE)] = "auto"
    console: ProgressOption = None
    notes: Annotated[
        Console | None,
        Option(
            "prints the folders that images are read from, before they are read (default: not printed)",
            only_in_python=True,
        ),
    ] = None
