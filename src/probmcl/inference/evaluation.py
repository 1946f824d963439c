"""Evaluation of a model on data: matching of the classes, choice of the split, and the result.

`train`, `evaluate` and `calibrate` share it, so that evaluation.json has the scores of the model that users load.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from probmcl.evaluation.intervals import EvaluationOptions
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

        `in_data` lists, for each common class, the indices of the classes in the data that map to it. If there are
        several, the class is present if any of them is, absent if all of them are, and unknown otherwise.

        >>> states = LabelStates.from_states(np.array([[0, 1], [0, 0], [0, 2]], dtype=np.uint8))
        >>> labels, known = match_classes(["cat"], ["tabby", "cat"], {"tabby": "cat"}).labels(states)
        >>> labels.ravel().tolist(), known.ravel().tolist()
        ([1.0, 0.0, 0.0], [True, True, False])
        """
        columns = states.select_classes(np.concatenate(self.in_data))
        # The columns that map to one class are adjacent, and `starts` has the first of them. `reduceat` combines the
        # columns from each start up to the next.
        widths = [len(indices) for indices in self.in_data]
        starts = np.cumsum([0, *widths[:-1]])
        labels = np.empty((len(states), len(self.in_data)), dtype=np.float32)
        known = np.empty(labels.shape, dtype=np.bool_)
        for first in range(0, len(states), ROWS_AT_ONCE):
            rows = np.arange(first, min(first + ROWS_AT_ONCE, len(states)))
            values, is_known = columns.labels_and_known(rows)
            present = np.logical_or.reduceat((values > 0) & is_known, starts, axis=1)
            absent = np.logical_and.reduceat((values == 0) & is_known, starts, axis=1)
            labels[rows] = present
            known[rows] = present | absent
        return labels, known


def match_classes(model: Sequence[str], data: Sequence[str], renames: Mapping[str, str] | None = None) -> ClassMapping:
    """Match classes by name, in the model's order; `renames` maps names in the data to names in the model.

    >>> match_classes(["cat", "dog"], ["emu", "dog"])
    ClassMapping(common=('dog',), in_model=[1], in_data=[[1]], only_in_model=['cat'], only_in_data=['emu'])
    >>> match_classes(["cat", "dog"], ["puppy", "dog"], {"puppy": "dog"}).in_data
    [[0, 1]]
    """
    new_names = renames or {}
    sources: dict[str, list[int]] = {}  # by the name after renaming, the indices of the classes in the data
    for index, name in enumerate(data):
        new_name = new_names.get(name, name)
        sources.setdefault(new_name, []).append(index)
    common = tuple(name for name in model if name in sources)
    if not common:
        hints = "; ".join(f"{name!r} ({suggestion(name, model)})" for name in data[:3])
        problem = "the data and the model have no class in common"
        raise DataError(f"{problem}; use `rename` to map the classes in the data: {hints}")
    in_model = [index for index, name in enumerate(model) if name in sources]
    in_data = [sources[name] for name in common]
    only_in_model = [name for name in model if name not in sources]
    only_in_data: list[str] = []
    for new_name, indices in sources.items():
        if new_name not in model:
            only_in_data += [data[index] for index in indices]
    return ClassMapping(common, in_model, in_data, only_in_model, only_in_data)


def read_renames(
    renames: Path | str | Mapping[str, str] | None, *, model: Sequence[str], data: Sequence[str]
) -> dict[str, str]:
    """Return a mapping from class names in the data to class names in the model, read from a file or a mapping.

    A file is a JSON object, or a CSV with a header and two columns: the name in the data and the name in the model.
    Several names in the data may map to the same name in the model. Unknown names and contradictory entries are errors.

    >>> read_renames({"Infiltrate": "Infiltration"}, model=["Infiltration"], data=["Infiltrate", "Mass"])
    {'Infiltrate': 'Infiltration'}
    """
    if renames is None:
        return {}
    if isinstance(renames, Mapping):
        entries = [_Rename("rename", old, new) for old, new in renames.items()]
    elif Path(renames).suffix.lower() == ".json":
        entries = _read_object(Path(renames))
    else:
        entries = _read_table(Path(renames), model, data)
    result: dict[str, str] = {}
    for location, old, new in entries:
        if old not in data:
            raise DataError(f"{location}: the data has no class {old!r}; {suggestion(old, data)}")
        if new not in model:
            raise DataError(f"{location}: the model has no class {new!r}; {suggestion(new, model)}")
        first_new = result.setdefault(old, new)
        if first_new != new:
            raise DataError(f"{location}: {old!r} is mapped to {quoted([first_new, new])}; choose one of them")
    return result


class _Rename(NamedTuple):
    """An entry of a rename file: its place for messages, the class in the data, and the class in the model."""

    location: str
    old: str
    new: str


def _read_table(path: Path, model: Sequence[str], data: Sequence[str]) -> list[_Rename]:
    """Read the entries of a table with two columns; its header may have either order, see `HEADERS`."""
    table = load_spreadsheet(path, lambda columns: len(columns) == 2, row="class")
    if len(table.columns) != 2:
        columns = f"{counted(len(table.columns), 'column')} ({quoted(table.columns)})"
        raise DataError(f"{path}: expected two columns, the name in the data and the name in the model, got {columns}")
    first, second = table.columns
    if first in data and second in model:
        raise DataError(f"{path}, row 1: expected a header; insert this line above it: {','.join(HEADERS[0])}")
    is_reversed = (second.lower(), first.lower()) in HEADERS
    data_column, model_column = (second, first) if is_reversed else (first, second)
    pairs = zip(table.cells(data_column), table.cells(model_column), strict=True)
    return [_Rename(f"{path}, row {old.line}", old.text, new.text) for old, new in pairs]


def _read_object(path: Path) -> list[_Rename]:
    """Read the entries of a JSON object from names in the data to names in the model."""
    try:
        # A list of pairs, because a dictionary would silently drop all but the last of several equal names.
        pairs: Any = json.loads(read_encoded_text(path), object_pairs_hook=list)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, row {error.lineno}: {error.msg}; the file must be a JSON object") from error
    # The entries of a JSON object are tuples here; the elements of a JSON array are not.
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) and isinstance(pair[1], str) for pair in pairs):
        example = '{"name in the data": "name in the model"}'
        raise DataError(f"{path}: the file must be a JSON object of names, as in {example}")
    return [_Rename(str(path), old, new) for old, new in pairs]


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
    has_splits = any(split_in_data != "train" for split_in_data in records.split)
    splits: list[str] = []
    for path, split_in_data in zip(records.paths, records.split, strict=True):
        new_split = split_in_data if has_splits else split  # of an image that is not in the run
        splits.append(run_splits.get(os.path.realpath(path), new_split))
    rows = np.flatnonzero(np.array(splits, dtype=str) == split)
    if len(rows) == 0:
        counts = ", ".join(f"{name} {splits.count(name)}" for name in SPLITS)
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
        _warn_about_copies(copied, new, len(paths))
        uncopied = [path for path in new if path not in copied]
        _warn_about_equal_names(uncopied, trained)
    return sum(path in copied or run_splits.get(path) == "train" for path in resolved)


def count_calibrated_on(paths: Sequence[Path], used: Sequence[str]) -> int:
    """Return how many images the calibration was fitted to, judging by path or content, and warn about them."""
    resolved = [os.path.realpath(path) for path in paths]
    used_paths = {os.path.realpath(path) for path in used}
    new = [path for path in resolved if path not in used_paths]
    copied = copies(new, sorted(used_paths))
    count = sum(path in used_paths or path in copied for path in resolved)
    if count:
        was = "was" if count == 1 else "were"
        problem = f"{was} used to fit the probabilities and thresholds, which look better on them than on new images"
        warnings.warn(f"{count:,} of {counted(len(paths), 'image')} {problem}", stacklevel=2)
    return count


def copies(new: Iterable[str], old: Iterable[str]) -> dict[str, str]:
    """Map every new file that has the same content as an old file to the first such old file."""
    new_paths = list(new)
    if not new_paths:
        return {}
    new_digests, old_digests = equal_files(new_paths, old)
    first_old: dict[bytes, str] = {}
    for path, digest in old_digests.items():
        first_old.setdefault(digest, path)
    return {path: first_old[digest] for path, digest in new_digests.items()}


def _warn_about_copies(copied: Mapping[str, str], new: Sequence[str], images: int) -> None:
    """Warn about new images that are copies of training images; `copied` maps the path of a copy to its original.

    `images` is the number of evaluated images, including those of the run.
    """
    if not copied:
        return
    count = sum(path in copied for path in new)
    are, them = ("is", "it") if count == 1 else ("are", "them")
    copy, original = next(iter(copied.items()))
    problem = f"{are} identical to images that this run was trained on ({copy} equals {original})"
    warnings.warn(
        f"{count:,} of {counted(images, 'image')} {problem}, so the scores are too high; remove {them}", stacklevel=2
    )


def _warn_about_equal_names(new: Sequence[str], trained: Iterable[str]) -> None:
    """Warn about new images that are no copies, but have the file name of a training image and may show the same."""
    trained_names = set(map(os.path.basename, trained))
    same_name = [path for path in new if os.path.basename(path) in trained_names]  # noqa: PTH119
    if not same_name:
        return
    have, they, them = ("has", "it shows", "it") if len(same_name) == 1 else ("have", "they show", "them")
    share = f"{len(same_name):,} of {counted(len(new), 'new image')}"
    problem = f"{have} the same file name as an image that this run was trained on ({same_name[0]})"
    remedy = f"if {they} the same image, the scores are too high; remove {them}"
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
        values = how.values(records)
        return cls(labels, known, records.group, mapping, values)

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
    thresholds = None
    not_promised: list[str] = []
    calibration = applied.calibration
    if calibration is not None:
        thresholds = calibration.thresholds
        not_promised = calibration.not_promised
    return ModelEvaluation(
        **msgspec.structs.asdict(evaluation),
        classes_only_in_model=images.mapping.only_in_model,
        classes_only_in_data=images.mapping.only_in_data,
        renamed=dict(images.renames or {}),
        trained_on=images.trained_on,
        calibrated_on=applied.calibrated_on,
        thresholds=thresholds,
        not_promised=[name for name in images.mapping.common if name in not_promised],
        skipped=list(images.skipped),
    )
