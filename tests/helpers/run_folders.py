"""Run folders written without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from msgspec.structs import replace
from numpy import ndarray

from helpers.images import NAMES, label_space
from probmcl.data.images import PREPROCESSING_FILE, Preprocessing
from probmcl.data.records import Records
from probmcl.encoders import Encoder
from probmcl.evaluation.scores import ScoredRows, scores_file, write_scores
from probmcl.methods.base import Classifier
from probmcl.methods.bce import BCE
from probmcl.readers.options import METADATA_FILE, DataSource
from probmcl.runtime.tensor_files import save_tensors
from probmcl.settings import CONFIG_FILE, EncoderSettings, Settings
from probmcl.store import files
from probmcl.store.run_folder import RunFolder, write_manifest
from probmcl.store.run_metadata import (
    CandidateEntry,
    ClassLabels,
    KeptModel,
    RunMetadata,
    Split,
    SplitRow,
    StoredPolicy,
)

FROZEN = CandidateEntry(method="", head="frozen", trial=1, name="frozen probe", validation_mAP=0.5)
RUN: RunMetadata[DataSource] = RunMetadata(
    command=("probmcl", "train", "photos"),
    seed=0,
    versions={},
    commit=None,
    started="2026-11-18T07:06:17+00:00",
    data=None,
    records="",
    duplicates=None,
    status="finished",
    seconds=0.0,
    warnings=(),
    candidates=(FROZEN,),
    kept=FROZEN.name,
    model=KeptModel("bce", {}),
)
"""The content of run.json."""

POLICY = StoredPolicy(unknown="", blank=None, minus_one=None, chance_of_uncertain={}, labels={})
"""The policy of a run whose labels were read without options."""

PLAIN = Preprocessing(32, (0.4, 0.5, 0.6), (0.2, 0.3, 0.2), "bilinear")


def classifier(classes: int = 3) -> Classifier:
    """Make a classifier with random weights, large enough for probabilities above and below 0.5."""
    torch.manual_seed(0)
    model = BCE(Encoder("test_resnet", image_size=32), label_space(classes))
    torch.nn.init.normal_(model.linear.weight, std=3.0)
    return model.eval()


def write_held_out(folder: Path, records: Records, scores: Float[ndarray, "N C"], name: str = "val") -> None:
    """Write the scores of all records as the held-out scores of a run."""
    rows = ScoredRows.of(records, np.arange(len(records)), scores)
    write_scores(scores_file(folder, name), list(records.paths), rows)


def made_run(
    folder: Path,
    *,
    names: Sequence[str] = NAMES,
    split: Sequence[tuple[Path | str, str]] = (),
    data: DataSource | None = None,
) -> Classifier:
    """Write the files of a run and return its classifier.

    The manifest lists no files, so that tests can edit them.

    Args:
        folder: the run folder.
        names: names of the classes.
        split: path and split of each image; by default, a single image for training.
        data: where the data of the run are.
    """
    model = classifier(len(names))
    run = RunFolder(folder)
    run.write(CONFIG_FILE, Settings(method="bce", jobs=(), encoder=EncoderSettings("test_resnet")))
    run.write(PREPROCESSING_FILE, PLAIN)
    run.write(files.LABELS, ClassLabels(names=tuple(names), counts=(1,) * len(names), hierarchy=None, policy=POLICY))
    run.write(METADATA_FILE, replace(RUN, data=data))
    write_manifest(folder, [])
    rows = split or [("elsewhere.jpg", "train")]
    run.write_rows(files.SPLIT, [SplitRow(str(path), cast(Split, part)) for path, part in rows])
    save_tensors(folder / files.MODEL, model.state_dict())
    return model
