"""Evaluation of a model on data: matching of the classes, choice of the split, and the result.

`train`, `evaluate` and `calibrate` share it, so that evaluation.json has the scores of the model that users load.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from probmcl.audit.findings import BadImage
from probmcl.calibration import Calibration
from probmcl.console import Console
from probmcl.data.image_files import equal_files
from probmcl.data.labels import ROWS_AT_ONCE, LabelStates
from probmcl.data.records import SPLITS, Records, Split
from probmcl.errors import DataError, counted, quoted, suggestion
from probmcl.evaluation.groups import EvaluationOptions
from probmcl.evaluation.scores import ScoredRows
from probmcl.readers.spreadsheet import load_spreadsheet, read_encoded_text
from probmcl.settings.model_options import EvaluateOptions
from probmcl.store.evaluation import Evaluation, ModelEvaluation, UnscoredImage
from probmcl.store.run_folder import RunFolder

HEADERS = (("data", "model"), ("from", "to"))
"""Headers that define the column order of a rename file; with other headers, the names in the data come first."""


@dataclass(frozen=True)
class ClassMapping:
    """The classes that a model and a dataset have in common, and those that only one of them has."""

    common: tuple[str, ...]  # names in the model, in the model's order
    in_model: list[int]  # index of each common class in the model
    in_data: list[list[int]]  # indices in the data; several classes in the data may map to one class in the model
    only_in_model: list[str]
    only_in_data: list[str]

    def labels(self, states: LabelStates) -> tuple[Float[ndarray, "N K"], Bool[ndarray, "N K"]]:
        """Return the 0/1 labels of the common classes and the mask of known labels.

        If several classes in the data map to one, it is present if any is, absent if all are, and unknown otherwise.

        >>> states = LabelStates.from_states(np.array([[0, 1], [0, 0], [0, 2]], dtype=np.uint8))
        >>> labels, known = match_classes(["cat"], ["tabby", "cat"], {"tabby": "cat"}).labels(states)
        >>> labels.ravel().tolist(), known.ravel().tolist()
        ([1.0, 0.0, 0.0], [True, True, False])
        """
        columns = states.select_classes(np.concatenate(self.in_data))
        starts = np.cumsum([0, *(len(indices) for indices in self.in_data[:-1])])
        labels = np.empty((len(states), len(self.in_data)), dtype=np.float32)
        known = np.empty(labels.shape, dtype=np.bool_)
        for first in range(0, len(states), ROWS_AT_ONCE):
            rows = np.arange(first, min(first + ROWS_AT_ONCE, len(states)))
            values, mask = columns.labels_and_known(rows)
            present = np.logical_or.reduceat((values > 0) & mask, starts, axis=1)
            absent = np.logical_and.reduceat((values == 0) & mask, starts, axis=1)
            labels[rows], known[rows] = present, present | absent
        return labels, known


def match_classes(model: Sequence[str], data: Sequence[str], renames: Mapping[str, str] | None = None) -> ClassMapping:
    """Match classes by name, in the model's order; `renames` maps names in the data to names in the model.

    >>> match_classes(["cat", "dog"], ["emu", "dog"])
    ClassMapping(common=('dog',), in_model=[1], in_data=[[1]], only_in_model=['cat'], only_in_data=['emu'])
    >>> match_classes(["cat", "dog"], ["puppy", "dog"], {"puppy": "dog"}).in_data
    [[0, 1]]
    """
    sources: dict[str, list[int]] = {}
    for index, name in enumerate(data):
        sources.setdefault((renames or {}).get(name, name), []).append(index)
    common = tuple(name for name in model if name in sources)
    if not common:
        hints = "; ".join(f"{name!r} ({suggestion(name, model)})" for name in data[:3])
        problem = "the data and the model have no class in common"
        raise DataError(f"{problem}; use `rename` to map the classes in the data: {hints}")
    return ClassMapping(
        common,
        [index for index, name in enumerate(model) if name in sources],
        [sources[name] for name in common],
        [name for name in model if name not in sources],
        [data[index] for name, indices in sources.items() if name not in model for index in indices],
    )


def read_renames(
    renames: Path | str | Mapping[str, str] | None, *, model: Sequence[str], data: Sequence[str]
) -> dict[str, str]:
    """Return a mapping from class names in the data to class names in the model, read from a file or a mapping.

    A file is a JSON object, or a CSV with a header and two columns: the name in the data and the name in the model.
    Several names in the data may map to the same name in the model. Unknown names and contradictory entries are errors.

    >>> read_renames({"Infiltrate": "Infiltration"}, model=["Infiltration"], data=["Infiltrate", "Mass"])
    {'Infiltrate': 'Infiltration'}
    """
    if renames is None or isinstance(renames, Mapping):
        entries = [("rename", *pair) for pair in (renames or {}).items()]
    else:
        path = Path(renames)
        entries = _read_object(path) if path.suffix.lower() == ".json" else _read_table(path, model, data)
    result: dict[str, str] = {}
    for location, old, new in entries:
        for side, name, names in (("data", old, data), ("model", new, model)):
            if name not in names:
                raise DataError(f"{location}: the {side} has no class {name!r}; {suggestion(name, names)}")
        if result.setdefault(old, new) != new:
            raise DataError(f"{location}: {old!r} is mapped to {quoted([result[old], new])}; choose one of them")
    return result


def _read_table(path: Path, model: Sequence[str], data: Sequence[str]) -> list[tuple[str, str, str]]:
    table = load_spreadsheet(path, lambda columns: len(columns) == 2, row="class")
    if len(table.columns) != 2:
        columns = f"{counted(len(table.columns), 'column')} ({quoted(table.columns)})"
        raise DataError(f"{path}: expected two columns, the name in the data and the name in the model, got {columns}")
    first, second = table.columns
    if first in data and second in model:
        raise DataError(f"{path}, row 1: expected a header; insert this line above it: {','.join(HEADERS[0])}")
    if (second.lower(), first.lower()) in HEADERS:
        first, second = second, first
    pairs = zip(table.cells(first), table.cells(second), strict=True)
    return [(f"{path}, row {old.line}", old.text, new.text) for old, new in pairs]


def _read_object(path: Path) -> list[tuple[str, str, str]]:
    try:
        # A list of pairs, because a dictionary would silently drop all but the last of several equal names.
        pairs: Any = json.loads(read_encoded_text(path), object_pairs_hook=list)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, row {error.lineno}: {error.msg}; the file must be a JSON object") from error
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) and isinstance(pair[1], str) for pair in pairs):
        example = '{"name in the data": "name in the model"}'
        raise DataError(f"{path}: the file must be a JSON object of names, as in {example}")
    return [(str(path), *pair) for pair in pairs]


def read_run_splits(folder: Path) -> dict[str, Split]:
    """Return the split of every image in a run, keyed by resolved path."""
    return {os.path.realpath(path): split for path, split in RunFolder(folder).read_split().items()}


def select_split(
    records: Records,
    split: Split,
    run_splits: Mapping[str, Split],
    *,
    remedy: str = "choose another one with `split`",
) -> Records:
    """Return the images in a split. If there are none, the error ends with `remedy`.

    Images of the run keep the split that they had there, so training images are never used as test images. New images
    have their split in the data; if the data have only train images, new images count as the requested split.
    """
    has_splits = any(data_split != "train" for data_split in records.split)
    in_run = [run_splits.get(os.path.realpath(path)) for path in records.paths]
    splits = [old or (new if has_splits else split) for old, new in zip(in_run, records.split, strict=True)]
    rows = np.flatnonzero(np.array(splits, dtype=str) == split)
    if len(rows) == 0:
        counts = ", ".join(f"{other} {splits.count(other)}" for other in SPLITS)
        raise DataError(f"the {split} split is empty ({counts}); {remedy}")
    return dataclasses.replace(records.take(rows), split=(split,) * len(rows))


def count_trained_on(paths: Sequence[Path], run_splits: Mapping[str, Split], split: Split) -> int:
    """Return how many images in a split the run was trained on, judging by path or content.

    Warns about copies of training images under new paths, and about new images with the file name of a training image,
    unless the split is train.
    """
    resolved = [os.path.realpath(path) for path in paths]
    trained = [path for path, run_split in run_splits.items() if run_split == "train"]
    new = [path for path in resolved if path not in run_splits]
    copied = copies(new, trained)
    if split != "train":
        _warn(copied, new, len(paths), set(map(os.path.basename, trained)))
    return sum(path in copied or run_splits.get(path) == "train" for path in resolved)


def count_calibrated_on(paths: Sequence[Path], used: Sequence[str]) -> int:
    """Return how many images the calibration was fitted to, judging by path or content, and warn about them."""
    resolved, used_paths = [os.path.realpath(path) for path in paths], {os.path.realpath(path) for path in used}
    copied = copies([path for path in resolved if path not in used_paths], sorted(used_paths))
    count = sum(path in used_paths or path in copied for path in resolved)
    if count:
        was = "was" if count == 1 else "were"
        problem = f"{was} used to fit the probabilities and thresholds, which look better on them than on new images"
        warnings.warn(f"{count:,} of {counted(len(paths), 'image')} {problem}", stacklevel=2)
    return count


def copies(new: Iterable[str], old: Iterable[str]) -> dict[str, str]:
    """Map every new file that has the same content as an old file to the first such old file."""
    if not (new := list(new)):
        return {}
    ours, theirs = equal_files(new, old)
    first = {digest: path for path, digest in reversed(theirs.items())}
    return {path: first[digest] for path, digest in ours.items()}


def _warn(copied: Mapping[str, str], new: Sequence[str], images: int, trained: Collection[str]) -> None:
    if copied:
        count = sum(path in copied for path in new)
        are, them = ("is", "it") if count == 1 else ("are", "them")
        pair = " equals ".join(next(iter(copied.items())))
        problem = f"{are} identical to images that this run was trained on ({pair}), so the scores are too high"
        warnings.warn(f"{count:,} of {counted(images, 'image')} {problem}; remove {them}", stacklevel=2)
    others = [path for path in new if path not in copied]
    same_name = [path for path in others if os.path.basename(path) in trained]  # noqa: PTH119
    if same_name:
        have, they, them = ("has", "it shows", "it") if len(same_name) == 1 else ("have", "they show", "them")
        problem = f"{have} the same file name as an image that this run was trained on ({same_name[0]})"
        remedy = f"if {they} the same image, the scores are too high; remove {them}"
        share = f"{len(same_name):,} of {counted(len(others), 'new image')}"
        warnings.warn(f"{share} {problem}; {remedy}", stacklevel=2)


@dataclass(frozen=True, eq=False)
class EvaluatedImages:
    """Labeled images that are evaluated, and how they fit the run.

    Attributes:
        labels: 0/1 labels of the classes that the model and the data share.
        known: mask of known labels.
        group: group of each image, if the images have groups.
        values: value of each image, or group, in the column by which the evaluation is divided.
        mapping: the classes that the model and the data share.
        renames: class names in the data, and their names in the model.
        trained_on: number of images that the run was trained on.
        skipped: images that could not be read.
    """

    labels: Float[ndarray, "N K"]
    known: Bool[ndarray, "N K"]
    group: tuple[str, ...] | None
    mapping: ClassMapping
    values: tuple[str, ...] | None = None
    renames: Mapping[str, str] | None = None
    trained_on: int = 0
    skipped: Sequence[UnscoredImage] = ()

    @classmethod
    def of_records(cls, records: Records, mapping: ClassMapping, how: EvaluationOptions) -> EvaluatedImages:
        """Return the images of records."""
        labels, known = mapping.labels(records.states)
        return cls(labels, known, records.group, mapping, how.values(records))

    @classmethod
    def of_run(cls, rows: ScoredRows, names: Sequence[str]) -> EvaluatedImages:
        """Return the test images of a run. It was not trained on them, and it could read all of them."""
        return cls(rows.labels, rows.known, rows.group, match_classes(names, names))


@dataclass(frozen=True, eq=False)
class AppliedCalibration:
    """How scores become probabilities and decisions in an evaluation.

    Attributes:
        calibration: None if raw scores are evaluated.
        calibrated_on: number of evaluated images that it was fitted to; None if these are not known.
        limits: the highest probability of each class for a no, and that for a not sure; None without abstention.
    """

    calibration: Calibration | None
    calibrated_on: int | None = 0
    limits: tuple[Float64[ndarray, " C"], Float64[ndarray, " C"]] | None = None


class ScoredEvaluation(NamedTuple):
    """The evaluation of records, with the readable ones and their raw scores."""

    records: Records
    scores: Float[ndarray, "N C"]
    evaluation: ModelEvaluation


ScoreRecords = Callable[[Records, EvaluateOptions, Console], tuple[Records, Float[ndarray, "N C"], Sequence[BadImage]]]
"""Returns the readable records, their raw scores, and the images that could not be read."""


def unscored(bad: Sequence[BadImage]) -> list[UnscoredImage]:
    """Return the images that could not be read in the form of evaluation.json."""
    return [UnscoredImage(path=str(image.path), reason=image.reason) for image in bad]


def with_provenance(evaluation: Evaluation, images: EvaluatedImages, applied: AppliedCalibration) -> ModelEvaluation:
    """Return an evaluation together with how its images fit the run."""
    calibration = applied.calibration
    not_promised = () if calibration is None else calibration.not_promised
    return ModelEvaluation(
        **msgspec.structs.asdict(evaluation),
        classes_only_in_model=images.mapping.only_in_model,
        classes_only_in_data=images.mapping.only_in_data,
        renamed=dict(images.renames or {}),
        trained_on=images.trained_on,
        calibrated_on=applied.calibrated_on,
        thresholds=None if calibration is None else calibration.thresholds,
        not_promised=[name for name in images.mapping.common if name in not_promised],
        skipped=list(images.skipped),
    )
