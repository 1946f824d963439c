"""The options of every command, each declared once: its name, type, default, help text and group.

The keywords of `train`, `compare` and `check` and of the methods of `Model`, their documentation, the options of the
command line and the settings of a run derive from these classes. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from probmcl.console import Console
from probmcl.readers.options import DataChecks, ReadOptions
from probmcl.settings.declaration import Argument, Group, Option, Options

DATA, METHOD, TRAINING, DECISIONS, COMPUTE, EVALUATION = Group

Tune = Literal["all", "last", "none"]

# Options that several commands have.

DATASET = "table of labels, or folder in a supported layout"

DataOption = Annotated[Path | str | None, Argument(DATASET, DATA, with_resume="accepted")]
ImagesOption = Annotated[
    Path | str | None,
    Option("folder that image paths are relative to (default: the table's folder)", DATA, with_resume="accepted"),
]
ReadOption = Annotated[ReadOptions, Option("options for reading the data", DATA)]
ChecksOption = Annotated[DataChecks, Option("options for checking and splitting the data", DATA)]
EncoderOption = Annotated[
    str | None, Option("name of a timm model; the command `probmcl encoders` lists them", METHOD, sets="encoder.name")
]
WeightsOption = Annotated[
    Path | str | None,
    Option(
        "pretrained (default), none, a safetensors file, or a run folder",
        METHOD,
        sets="encoder.weights",
        with_resume="accepted",
    ),
]
ImageSizeOption = Annotated[
    int | None,
    Option("width and height of the input in pixels (default: set by the encoder)", METHOD, sets="encoder.image_size"),
]
TuneOption = Annotated[
    Tune | None,
    Option(
        "part of the encoder to train: all, the last stage, or none (default: last on a CPU, all on a GPU)",
        METHOD,
        sets="tune",
    ),
]
ProbeEpochsOption = Annotated[
    int | None, Option("number of epochs for each linear probe", TRAINING, sets="probe.epochs")
]
DeviceOption = Annotated[str | None, Option("auto, cpu, cuda or mps", COMPUTE, sets="device", with_resume="accepted")]
WorkersOption = Annotated[
    int | None,
    Option("processes for decoding images (default: one per core)", COMPUTE, sets="workers", with_resume="accepted"),
]
CacheOption = Annotated[
    Path | str | None,
    Option(
        "folder in which decoded images are kept for the next run, or auto",
        COMPUTE,
        sets="cache",
        with_resume="accepted",
    ),
]
ConsoleOption = Annotated[
    Console | None,
    Option("where messages and progress are printed (default: stdout)", with_resume="independent", only_in_python=True),
]


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """Options of `train` and `compare` that are settings of a run; `Settings` inherits them with their defaults."""

    augment: Annotated[
        Literal["light", "paper", "none"],
        Option("augmentation for training images: light (default), paper or none", TRAINING),
    ] = "light"


@dataclass(frozen=True, kw_only=True)
class StoredSettings(SharedSettings):
    """Options of `train` that are settings of a run; `Settings` inherits them with their defaults."""

    seed: Annotated[int, Option("random seed (default: 0)", TRAINING)] = 0
    calibration: Annotated[
        Literal["sigmoid", "isotonic", "none"],
        Option("sigmoid (default), isotonic for classes with at least 1,000 positives, or none", DECISIONS),
    ] = "sigmoid"
    thresholds: Annotated[
        str,
        Option("balanced (default), f1, precision:P, recall:R, cost:FN,FP or a number between 0 and 1", DECISIONS),
    ] = "balanced"
    neighbors: Annotated[
        bool, Option("keep the features of the training images, to show the images nearest to a new one", COMPUTE)
    ] = True


@dataclass(frozen=True)
class TrainInputs(Options):
    """Options of `train` that settings are made of: the data, and values that the other settings depend on."""

    data: DataOption = None
    _: KW_ONLY
    images: ImagesOption = None
    read: ReadOption = ReadOptions()
    checks: ChecksOption = DataChecks()
    method: Annotated[
        str | None,
        Option(
            "auto (default: bce and probmcl) or the name of a method; the command `probmcl methods` lists them",
            METHOD,
            sets="method",
        ),
    ] = None
    loss: Annotated[
        str | None,
        Option(
            "function to train with instead of a method: FILE.py:FUNCTION",
            METHOD,
            sets="method",
            with_resume="accepted",
        ),
    ] = None
    preset: Annotated[
        str | None, Option("named settings for the method, such as default or paper", METHOD, sets="preset")
    ] = None
    settings: Annotated[
        Mapping[str, Any] | None,
        Option("method settings as KEY=VALUE pairs", METHOD, sets="settings", with_resume="accepted"),
    ] = None
    recipe: Annotated[
        str | None, Option("TOML file or name of a built-in recipe; other options override it", METHOD)
    ] = None
    encoder: EncoderOption = None
    weights: WeightsOption = None
    image_size: ImageSizeOption = None
    tune: TuneOption = None
    epochs: Annotated[
        int | None,
        Option("number of epochs; with auto, each epoch has two views per image", TRAINING, sets="training.epochs"),
    ] = None
    budget: Annotated[
        str | None,
        Option("time budget for the run, such as 30m, instead of a number of epochs", TRAINING, sets="budget"),
    ] = None
    probe_epochs: ProbeEpochsOption = None
    batch_size: Annotated[
        int | None, Option("images per step across all processes", TRAINING, sets="training.batch_size")
    ] = None
    lr: Annotated[float | None, Option("peak learning rate", TRAINING, sets="training.learning_rate")] = None


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StoredSettings, TrainInputs):
    """Options of `train`: those of its two bases, and how this call runs, which is not stored."""

    report: Annotated[
        bool,
        Option("write a page about the model, with photographs, at the end", COMPUTE, with_resume="independent"),
    ] = True
    device: DeviceOption = None
    workers: WorkersOption = None
    cache: CacheOption = None
    out: Annotated[Path | str | None, Option("new or empty folder for the run (default: runs/DATE-NAME)", COMPUTE)] = (
        None
    )
    resume: Annotated[
        Path | str | None,
        Option(
            "interrupted run to continue; only `device`, `workers`, `cache` and the files that the run was started "
            "with (`data`, `images`, `loss`, `weights` and those in `settings`) can be combined with it",
            COMPUTE,
            with_resume="independent",
        ),
    ] = None
    accept_data_change: Annotated[
        bool,
        Option(
            "with `resume`, continue even if image files have changed since the run started",
            COMPUTE,
            with_resume="independent",
        ),
    ] = False
    console: ConsoleOption = None


@dataclass(frozen=True)
class ComparisonInputs(Options):
    """Options of `compare` that its conditions are made of: the data, the methods, and how long they are trained."""

    data: DataOption = None
    _: KW_ONLY
    images: ImagesOption = None
    read: ReadOption = ReadOptions()
    checks: ChecksOption = DataChecks()
    methods: Annotated[
        Sequence[str] | str | None,
        Option(
            "all (default), or a list such as bce,probmcl:paper,my_losses.py:my_loss", METHOD, with_resume="accepted"
        ),
    ] = None
    encoder: EncoderOption = None
    weights: WeightsOption = None
    image_size: ImageSizeOption = None
    tune: TuneOption = None
    epochs: Annotated[int | None, Option("number of epochs, with two views per image (default: 6)", TRAINING)] = None
    budget: Annotated[
        str | None, Option("time budget for the comparison, such as 2h, instead of a number of epochs", TRAINING)
    ] = None
    seeds: Annotated[int | None, Option("number of runs per method (default: 3)", TRAINING)] = None
    trials: Annotated[
        int | None,
        Option("number of learning rate and weight decay pairs to try per method (default: 1, untuned)", TRAINING),
    ] = None
    probe_epochs: ProbeEpochsOption = None
    batch_size: Annotated[int | None, Option("images per step across all processes", TRAINING)] = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(SharedSettings, ComparisonInputs):
    """Options of `compare`: those of its two bases, and how this call runs, which is not stored."""

    device: DeviceOption = None
    workers: WorkersOption = None
    cache: CacheOption = None
    out: Annotated[
        Path | str | None,
        Option("new or empty folder for the comparison (default: runs/DATE-NAME-comparison)", COMPUTE),
    ] = None
    add: Annotated[
        Sequence[Path] | Path | None,
        Option(
            "other comparisons with the same protocol to include, as folders or results.jsonl files",
            COMPUTE,
            with_resume="accepted",
        ),
    ] = None
    report: Annotated[
        bool,
        Option("write a page with the tables, the plot and the verdict at the end", COMPUTE, with_resume="independent"),
    ] = True
    resume: Annotated[
        Path | str | None,
        Option(
            "interrupted comparison; only `device`, `workers`, `cache` and the files that it was started with "
            "(`data`, `images`, `weights`, `add` and those in `methods`) can be combined with it",
            COMPUTE,
            with_resume="independent",
        ),
    ] = None
    accept_data_change: Annotated[
        bool,
        Option(
            "with `resume`, continue even if image files have changed since the comparison started",
            COMPUTE,
            with_resume="independent",
        ),
    ] = False
    console: ConsoleOption = None


@dataclass(frozen=True)
class CheckOptions(Options):
    """Options of `check`."""

    data: Annotated[Path | str, Argument(DATASET, DATA)]
    _: KW_ONLY
    images: ImagesOption = None
    read: ReadOption = ReadOptions()
    checks: ChecksOption = DataChecks()
    seed: Annotated[int, Option("random seed for the split, as in train", DATA)] = 0
    workers: WorkersOption = None
    console: ConsoleOption = None
