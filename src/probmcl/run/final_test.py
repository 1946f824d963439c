"""The final test of a run: its test images are scored with the model that users load, in full precision."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from probmcl.audit.findings import BadImage
from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.inference import Model, load
from probmcl.run.checkpoints import ModelTest
from probmcl.run.state import RunState
from probmcl.runtime.distributed import gather_unequal, rank, world_size
from probmcl.settings.model_options import EvaluateOptions


def evaluate_loaded_model(state: RunState) -> ModelTest:
    """Load the model of the run, and evaluate it on the test split as `Model.evaluate` does.

    In one process, a later evaluation of the run gives the same numbers. Several processes share the images, so their
    batches differ, and the scores may differ in the last digits.
    """
    model = load(state.folder.path, device=state.settings.device)
    options = EvaluateOptions(split="test", workers=state.settings.workers, console=state.console)

    def score(
        records: Records, options: EvaluateOptions, console: Console
    ) -> tuple[Records, Float[ndarray, "N C"], Sequence[BadImage]]:
        return records, _score_together(model, records, options, console), ()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about leaks, which are a warning of the run if they were allowed
        scored = model.evaluate_records(state.records, options, score)
    return ModelTest(torch.from_numpy(scored.scores), scored.evaluation)


def _score_together(
    model: Model, records: Records, options: EvaluateOptions, console: Console
) -> Float[ndarray, "N C"]:
    """Return the raw scores of all images; each process scores its part. An unreadable image is an error."""
    parts = np.array_split(np.arange(len(records)), world_size())
    own = parts[rank()]
    scores = np.empty((0, len(model.names)), dtype=np.float32)
    if len(own):
        _, scores, _ = model.score(records.take(own), options, console)
    return gather_unequal(torch.from_numpy(scores)).numpy()
