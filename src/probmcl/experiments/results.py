"""What every classifier of every run reached: one line each in results.jsonl, from which all tables are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probmcl.evaluation.metrics import multilabel_metrics
from probmcl.evaluation.retrieval import retrieval
from probmcl.evaluation.thresholds import best_thresholds
from probmcl.experiments.expense import Expense
from probmcl.experiments.fingerprint import difference
from probmcl.experiments.protocol import MethodSpec, heads_of
from probmcl.experiments.rows import Head
from probmcl.files import json_line, read_json, write_text
from probmcl.methods import find_method
from probmcl.methods.base import Classifier
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId, Run
from probmcl.run_folder import PREDICTIONS, RETRIEVAL, RunFolder
from probmcl.settings import TrainingJob

Retrieval = Mapping[str, float | None]


@dataclass(frozen=True)
class Result:
    """One classifier of one run; scores are fractions, of the test split unless it says otherwise.

    Attributes:
        name: of the entrant, or the frozen probe's.
        head: what predicts.
        method: a key of METHODS or a place elsewhere; None for the frozen probe.
        seed: of its run.
        validation: mAP on the validation split.
        test: what evaluation.json holds.
        macro_F1: mean F1 of the classes, each at its best threshold on validation, or at 0.5 where it emits a set.
        by_embedding: retrieval by the encoder's features.
        by_probabilities: retrieval by predicted probabilities.
        learning_rate: None where nothing was trained.
        weight_decay: None where nothing was trained.
        trials: among how many that rate and decay were chosen.
        images_seen: in training, each view counted.
        seconds: of training, and of the probe where there is one.
        parameters: of the classifier.
        gmac: multiply-adds of one image, in 10⁹.
        training_speed: views a second.
        prediction_speed: images a second.
        peak_memory: bytes of a training step.
        fidelity: see `probmcl.methods.base.Origin`; `own` for a method from outside.
        reference: a key of references.bib, or empty.
        fingerprint: of each part of the protocol, and of `all`.
        predictions: the file of its test scores, from the folder of results.jsonl.
        note: what has to be said beside its mAP, see `probmcl.methods.base.Classifier`; empty for most.
        emits_set: whether its decisions know no threshold, see there.
    """

    name: str
    head: Head
    method: str | None
    seed: int
    validation: float
    test: dict[str, Any]
    macro_F1: float | None  # noqa: N815  # as everybody writes it
    by_embedding: dict[str, float | None]
    by_probabilities: dict[str, float | None]
    learning_rate: float | None
    weight_decay: float | None
    trials: int
    images_seen: int
    seconds: float
    parameters: int
    gmac: float | None
    training_speed: float | None
    prediction_speed: float | None
    peak_memory: int | None
    fidelity: str
    reference: str
    fingerprint: dict[str, str]
    predictions: str
    note: str = ""
    emits_set: bool = False
    folder: Path = field(default_factory=Path)

    @property
    def title(self) -> tuple[str, str]:
        """What the results of several seeds have in common."""
        return self.name, self.head

    def scores(self) -> Predicted | None:
        """Its test scores, where their file is still there."""
        path = self.folder / self.predictions
        return read_predictions(path) if path.is_file() else None


class Predicted(NamedTuple):
    """What was predicted and what is true of the images of a split."""

    scores: Float[Tensor, "N C"]
    labels: Float[Tensor, "N C"]
    known: Bool[Tensor, "N C"]


def read_predictions(path: Path) -> Predicted:
    """The file that a run writes for a split."""
    with np.load(path) as file:
        scores, labels, known = (torch.from_numpy(file[key]) for key in ("scores", "labels", "known"))
    return Predicted(scores, labels.float(), known)


class Circumstances(NamedTuple):
    """What the results of one run share."""

    folder: Path  # of the comparison
    seed: int
    trials: int
    images_seen: int
    fingerprint: Mapping[str, str]
    expenses: Mapping[str, Expense]


def results_of(
    run: Run, chosen: Mapping[str, tuple[MethodSpec, TrainingJob]], shared: Circumstances
) -> Iterator[Result]:
    """Every tested classifier of a run: the frozen probe, and both heads of each entrant by name."""
    yield _result(run, run.candidates[FROZEN_PROBE], "frozen", shared)
    for name, (entrant, job) in chosen.items():
        for identity in heads_of(job.name, job.trial):
            if identity in run.candidates:
                yield _result(run, run.candidates[identity], identity.head, shared, name, entrant, job)


def _result(
    run: Run,
    candidate: Candidate,
    head: Any,
    shared: Circumstances,
    name: str = FROZEN_PROBE.name,
    entrant: MethodSpec | None = None,
    job: TrainingJob | None = None,
) -> Result:
    folder = RunFolder(run.folder)
    place = folder.results(candidate.id.key)
    val, test = (read_predictions(place / PREDICTIONS / f"{split}.npz") for split in ("val", "test"))
    probed = FROZEN_PROBE if job is None else CandidateId(job.name, "re-probed", job.trial)
    expense = shared.expenses[name]
    predicting = expense.own_head if head == "own head" and expense.own_head else expense.probe
    origin = None if entrant is None else find_method(entrant.method).origin
    kind = find_method(candidate.method)
    emits_set = issubclass(kind, Classifier) and kind.emits_set
    assert candidate.test is not None
    return Result(
        name=name,
        head=head,
        method=None if entrant is None else entrant.method,
        seed=shared.seed,
        validation=candidate.validation_map,
        test=dict(candidate.test),
        macro_F1=_macro_f1(val, test, emits_set),
        by_embedding=read_json(folder.results(probed.key) / RETRIEVAL),
        by_probabilities=dict(retrieval(test.scores, test.labels, test.known)),
        learning_rate=None if job is None else job.training.learning_rate,
        weight_decay=None if job is None else job.training.weight_decay,
        trials=shared.trials,
        images_seen=0 if job is None else shared.images_seen,
        seconds=candidate.seconds,
        parameters=predicting.parameters,
        gmac=predicting.gmac,
        training_speed=expense.training_speed,
        prediction_speed=predicting.speed,
        peak_memory=expense.peak_memory,
        fidelity="standard" if entrant is None else origin.of(entrant.preset) if origin else "own",
        reference=origin.reference if origin else "",
        fingerprint=dict(shared.fingerprint),
        predictions=(place / PREDICTIONS / "test.npz").relative_to(shared.folder).as_posix(),
        note=candidate.note,
        emits_set=emits_set,
        folder=shared.folder,
    )


def _macro_f1(val: Predicted, test: Predicted, emits_set: bool) -> float | None:
    at = 0.5 if emits_set else best_thresholds(*val)  # within the scores of a set, it would decide for another one
    found = multilabel_metrics(*test, threshold=at, f1="per_class")["CF1"]
    return None if found != found else found


# The file.


def write_results(path: Path, results: Sequence[Result]) -> None:
    """One line each; where they lie is not part of it."""
    lines = ({k: v for k, v in vars(result).items() if k != "folder"} for result in results)
    write_text(path, "".join(f"{json_line(line)}\n" for line in lines))


def read_results(path: Path) -> list[Result]:
    """The lines of such a file, or of the one in a comparison's folder."""
    path = path / "results.jsonl" if path.is_dir() else path
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--add {path}: cannot be read ({error}); give the results.jsonl of a comparison") from error
    for number, line in enumerate(lines, start=1):
        try:
            content = msgspec.json.decode(line)
            found.append(msgspec.convert({**content, "folder": path.parent}, Result, dec_hook=lambda kind, x: kind(x)))
        except (msgspec.MsgspecError, TypeError) as error:
            raise ValueError(f"{path}: line {number}: {error}; give the results.jsonl of a comparison") from error
    return found


def merged(results: Sequence[Result], others: Sequence[Result], said: Path) -> list[Result]:
    """Our results and those of another comparison of the same protocol; a row that both have is ours."""
    mine = {result.title for result in results}
    for other in others:
        parts = difference(results[0].fingerprint, other.fingerprint)
        if parts:
            raise ValueError(
                f"--add {said}: its {' and '.join(parts)} differ from this comparison's, so its rows cannot stand in "
                f"one table with these ({other.fingerprint.get('all')} and {results[0].fingerprint['all']})"
            )
    return [*results, *(other for other in others if other.title not in mine)]
