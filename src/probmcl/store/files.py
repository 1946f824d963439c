"""The files of a run and of a comparison, one row for each. Nothing else in the package knows their names.

A new file is a row here and, if it is JSON or CSV, the class of its content. Classes with behavior of later packages
are bound to their rows there (`File.holding`); readers and writers use the bound row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Generic, Literal, TypeVar

from probmcl.runtime.conversion import TypeForm
from probmcl.runtime.folders import LOCK as LOCK_NAME
from probmcl.store.evaluation import ModelEvaluation, Retrieval, SplitMetrics
from probmcl.store.run_metadata import (
    ClassLabels,
    FoldRow,
    ImageRow,
    RunMetadata,
    SplitRow,
    StoredCandidate,
    StoredTest,
)

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

CACHE_FILE = re.compile(r"\.?(train|val|test)(\.\d+-of-\d+)?\.(npy|json)(\.part)?")
"""Names of the files in an activation cache: the outputs for a split, and the progress of a process."""


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


# Written when a run starts.

METADATA = JsonFile(
    "run.json",
    "result",
    "command, seed, versions, commit, reading options, status, seconds, warnings, number of duplicates, candidates "
    "with their validation mAP and their gain over the frozen probe, the kept candidate, test mAP",
    "at the start and after every change",
    kind=RunMetadata[object],
)
CONFIG = File(
    "config.json",
    "input",
    "all settings, and the origin of each: `default`, `recipe`, `auto` (from the device, the machine, the data or an "
    "earlier run) or `user`",
    "before training",
)
LABELS = JsonFile(
    "labels.json", "input", "class names, counts, hierarchy, label policy", "before training", kind=ClassLabels
)
SPLIT = TableFile(
    "split.csv",
    "input",
    "the split of every image, which the option `split_file` reads",
    "before training",
    "both",
    kind=SplitRow,
)
FOLDS = TableFile(
    "folds.csv",
    "input",
    "the fold of every image, if there are folds; `split_file` reads it, too",
    "before training",
    "both",
    kind=FoldRow,
)
IMAGES = TableFile(
    "images.csv",
    "input",
    "size, modification time and digest of every image file, to notice changes when the run is resumed",
    "before training",
    "both",
    kind=ImageRow,
)
PREPROCESSING = File(
    "preprocessing.json", "decisive", "size, mean, standard deviation, intensity range", "before training"
)
VIEWS = File("views.png", "optional", "16 images with their views and labels", "before training")

# Written during training.

METRICS = File("metrics.jsonl", "optional", "loss, terms and collapse statistics, every few steps", "during training")
METRICS_TABLE = File("metrics.csv", "optional", "the same as a table", "after each phase")
MODEL = File(
    "model.safetensors",
    "decisive",
    "the model that predicts: encoder and head of the best candidate so far",
    "after each candidate",
)
CONTRASTIVE = Folder(
    "contrastive",
    "optional",
    "encoder and mixture network after stage 1, for a method without its own head",
    "after its training",
)
SCORES = File(
    "predictions/*.npz",
    "result",
    "paths, raw scores, labels, known masks and groups of the kept candidate on a split (`val` or `test`)",
    "with the model; test at the end",
)

# Written at the end, or by a later command.

OUT_OF_FOLD = File(
    "predictions/out_of_fold.npz",
    "result",
    "the same for the training and validation images, if the frozen probe is kept",
    "at the end",
)
OTHER_IMAGES = File(
    "predictions/calibration.npz",
    "result",
    "the same for images from another site",
    "by a calibration with other data",
)
CALIBRATION = File(
    "calibration.json",
    "decisive",
    "the calibration and threshold of each class, with the rule, the number of examples and the log loss",
    "at the end, or by a later calibration",
)
EVALUATION = JsonFile(
    "evaluation.json",
    "decisive",
    "metrics of the calibrated model on the test split, as `Model.evaluate` returns them",
    "at the end, or by a later calibration",
    kind=ModelEvaluation,
)
RETRIEVAL = JsonFile(
    "retrieval.json", "result", "retrieval metrics of the features of a probe", "at the end", kind=Retrieval
)
FROZEN = Folder("frozen", "result", "predictions and evaluation of the frozen probe", "at the end")
CANDIDATES = Folder("candidates", "optional", "in a comparison, the same for every row of the tables", "at the end")
NEIGHBORS = File(
    "neighbors.safetensors",
    "result",
    "features of the training images in half precision, their labels and relative paths; not with `neighbors=False`",
    "at the end",
)
REPORT = File("report.html", "optional", "the report; not with `report=False`", "after the run", "both")
REPORT_DATA = File("report.json", "optional", "the content of the report", "after the run", "both")
MANIFEST = File(
    "manifest.json",
    "unlisted",
    "name, size and SHA-256 of the files above; `replacing` has the new contents of files that a command is replacing",
    "before training for the files that do not change, at the end for all, and by every command that adds files",
)

# Checkpoints.

CHECKPOINTS = Folder(
    "checkpoints",
    "checkpoint",
    "results of completed phases, with checksums; during the run, also cached activations",
    "during the run",
)
PHASE = File("checkpoints/*.json", "checkpoint", "the result of a phase, such as the plan", "after the phase")
CANDIDATE = TensorFile(
    "checkpoints/*.safetensors",
    "checkpoint",
    "a candidate: its parameters, settings and validation scores",
    "after its training",
    kind=StoredCandidate,
)
TRAINED = File(
    "checkpoints/*.trained.safetensors", "checkpoint", "a trained method", "after its training, until the end"
)
TRAINING = File(
    "checkpoints/*.training.safetensors",
    "checkpoint",
    "a method in training; the file before has the prefix `previous.`",
    "every 30 seconds of its training",
)
TESTED = TensorFile(
    "checkpoints/*.test.safetensors",
    "checkpoint",
    "the scores of a candidate on the test split",
    "after its test, until the end",
    kind=StoredTest,
)
MODEL_TESTED = TensorFile(
    "checkpoints/model.test.safetensors",
    "checkpoint",
    "the scores of the model that users load on the test split",
    "after its test, until the end",
    kind=ModelEvaluation,
)
PROGRESS = File(
    "checkpoints/*/*.json",
    "unlisted",
    "the checksums of the cached activations that a process has computed for a split",
    "every 5 seconds of the computation, until the end",
)
LOCK = File(
    LOCK_NAME,
    "unlisted",
    "host, process and start time of the command that is changing the folder",
    "while it does",
    "both",
)

# Files that only a comparison has.

VERDICT = File(
    "verdict.txt",
    "unlisted",
    "which method is worth its cost, in a few sentences; the answer may be the linear probe",
    "at the end",
    "comparison",
)
COMPARISON_TEXT = File("comparison.md", "unlisted", "the tables, for reading", "at the end", "comparison")
COMPARISON_LATEX = File("comparison.tex", "unlisted", "the tables, for a paper", "at the end", "comparison")
COMPARISON_TABLE = File("comparison.csv", "unlisted", "the tables with all numbers", "at the end", "comparison")
REFERENCES = File("methods.bib", "unlisted", "references for the methods", "at the end", "comparison")
PLOT = File("plot.svg", "unlisted", "mAP with its interval against training time", "at the end", "comparison")
RESULTS = File(
    "results.jsonl",
    "unlisted",
    "one line per classifier and seed; the tables are made from it, and the option `add` imports it into another "
    "comparison",
    "after each seed",
    "comparison",
)
SEED = Folder(
    "seed-*",
    "unlisted",
    "a run folder per seed, with the predictions for every row in `candidates/` and those of the frozen probe in "
    "`frozen/`",
    "for each seed",
    "comparison",
)
COMPARISON = File("spec.json", "unlisted", "the options, to resume the comparison", "before training", "comparison")
MEASUREMENTS = File(
    "measured.json", "unlisted", "the measured costs, to resume the comparison", "before training", "comparison"
)


def candidate_folder(key: str) -> Folder:
    """Return the folder with the predictions and metrics of a tested candidate, given its key."""
    if key == FROZEN.name:
        return FROZEN
    return replace(CANDIDATES, name=f"{CANDIDATES}/{key}")


def candidate_evaluation(key: str) -> JsonFile[SplitMetrics]:
    """Return the row of the test metrics of a candidate, which has no calibration, given its key."""
    return EVALUATION.inside(candidate_folder(key)).holding(SplitMetrics)


FILES: tuple[File, ...] = tuple(row for row in tuple(globals().values()) if isinstance(row, File))
"""All rows above, in this order."""
