"""Execution of a comparison: for each seed one run with all methods, then a summary of the results."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from probmcl.audit.prepare import PreparedData
from probmcl.calibration import fit_calibration
from probmcl.console import Console
from probmcl.data.labels import parents_of
from probmcl.data.records import LabelSpace, Records
from probmcl.errors import RunError
from probmcl.evaluation.embedding import retrieval_at_10
from probmcl.evaluation.metrics import decisions_at
from probmcl.evaluation.scores import ScoredRows, read_scores, scores_file
from probmcl.experiments import protocol
from probmcl.experiments.measure import MEASUREMENTS_FILE, Measurements, measure
from probmcl.experiments.protocol import ComparisonSpec
from probmcl.experiments.results import (
    Comparison,
    Result,
    merge_results,
    read_results,
    write_results,
)
from probmcl.experiments.statistics import DRAWS, summarize
from probmcl.methods import find_method
from probmcl.methods.base import Classifier
from probmcl.run.budget import Planner, read_plan
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId, Run
from probmcl.run.train import RunControl, all_candidates, train_run
from probmcl.run.workspace import Workspace, build_encoder
from probmcl.runtime.distributed import barrier, broadcast, is_main_process
from probmcl.runtime.files import DAMAGED, nan_to_none
from probmcl.settings import MethodSpec, TrainingJob, job_key
from probmcl.store.evaluation import Retrieval
from probmcl.store.files import METADATA, RESULTS, RETRIEVAL, SEED, candidate_evaluation, candidate_folder
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import ProtocolFingerprint


@dataclass(eq=False)
class ComparisonRunner:
    """Runs a comparison or resumes it; finished runs in `folder` are not repeated."""

    data: PreparedData  # the images of all splits
    spec: ComparisonSpec
    folder: Path  # contains a run folder for each seed
    console: Console
    name: str  # name of the dataset
    _: KW_ONLY
    control: RunControl = field(
        default_factory=RunControl
    )  # how the runs are resumed; the comparison decides what they test
    started: float = field(default_factory=time.perf_counter)

    @property
    def records(self) -> Records:
        """The images of all splits with their labels."""
        return self.data.records

    @cached_property
    def methods(self) -> dict[str, MethodSpec]:
        """The methods that can run here, by name."""
        return {method.name: method for method in self.spec.methods if method.name in self.measured.expenses}

    def run(self, add: Sequence[Path] = ()) -> Comparison:
        """Run all unfinished seeds, and summarize the results together with those in the files `add`."""
        self.left_out = [f"{name} cannot run here: {reason}" for name, reason in self.measured.cannot.items()]
        others = [(path, read_results(path)) for path in add]  # raises errors before training
        results: list[Result] = []
        trials: dict[str, int] = {}
        for seed in range(self.spec.seeds):
            run = self._run(seed, trials)
            trials = trials or {head.method: head.trial for head in self._chosen_heads(run.candidates)}
            results += self._results(seed, run)
            self.left_out += [f"seed {seed}: {w.message}" for w in run.warnings if w.kind == "diverged"]
            if is_main_process():
                write_results(self.folder / RESULTS, results)
            merged = results
            for path, added in others:  # raises an error after the first seed if the protocol differs
                merged = merge_results(merged, added, path)
        return self._summarize(merged)

    @cached_property
    def measured(self) -> Measurements:
        """The cost of every method, and the reasons why some methods cannot run here; stored in the folder."""
        folder = RunFolder(self.folder)
        if broadcast(is_main_process() and folder.has(MEASUREMENTS_FILE)):
            stored = folder.read(MEASUREMENTS_FILE)
            self._refuse_missing_costs(stored)
            return stored
        self.console.print("measuring the cost of each method …")
        jobs = self._jobs(self.spec.methods, self._first_views())
        settings = replace(self.spec.settings, jobs=jobs)
        encoder = build_encoder(settings, self.console)
        workspace = Workspace.open(self.records, settings, encoder, self.folder, self.console)
        first_trials = {job.name: job for job in jobs if job.trial == 1}
        measured = measure(first_trials, workspace, leave_out=self.spec.all_methods)
        for name, problem in measured.cannot.items():
            self.console.print(f"  note: {name} cannot run here: {problem}")
        if is_main_process():
            folder.write(MEASUREMENTS_FILE, measured)
        return measured

    def _refuse_missing_costs(self, measured: Measurements) -> None:
        for name in (FROZEN_PROBE.name, *(method.name for method in self.spec.methods)):
            if name not in measured.expenses and name not in measured.cannot:
                raise RunError(f"{self.folder / MEASUREMENTS_FILE}: has no cost of {name}; {DAMAGED}")

    def _run(self, seed: int, trials: Mapping[str, int]) -> Run:
        """Run one seed. The first seed runs all trials of each method; the others run only the chosen trial."""
        self.console.print(f"seed {seed + 1} of {self.spec.seeds}")
        first = seed == 0
        jobs = self._jobs(self.methods.values(), self._first_views() if first else self._planned_views())
        jobs = tuple(job for job in jobs if first or trials.get(job.name) == job.trial)
        settings = replace(self.spec.settings, seed=self.spec.settings.seed + seed, jobs=jobs)
        folder = RunFolder(self.folder / SEED.named(str(seed)))
        if not folder.has(METADATA):  # missing, or incomplete because it was interrupted while being created
            if is_main_process():
                folder.delete_inputs()
            barrier()
        # The first run has all trials, whose best heads are tested; later runs have only these heads.
        control = replace(self.control, test=all_candidates)
        if first:
            control = replace(self.control, test=self._chosen_heads, planner=self._planner())
        # The runs store neither, because a resumed comparison no longer knows them.
        data = replace(self.data, fold_of=None, duplicates=None)
        return train_run(data, settings, folder.path, self.console, control)

    def _jobs(self, methods: Iterable[MethodSpec], views: int) -> tuple[TrainingJob, ...]:
        spec, images = self.spec, len(self.records.rows("train"))
        return protocol.make_jobs(
            list(methods), spec.settings, images=images, views=views, trials=spec.trials, batch_size=spec.batch_size
        )

    def _first_views(self) -> int:
        """Return the number of views per image in the first run; with a budget, the plan overrides it."""
        return protocol.views_per_round(self.spec.methods) * (self.spec.epochs or 1)

    def _planned_views(self) -> int:
        """Return the number of views per image in the plan of the first run, which applies to all runs."""
        name, first = next(iter(self.methods.items()))
        folder = RunFolder(self.folder / SEED.named("0"))
        epochs = read_plan(folder).epochs.get(job_key(name, trial=1))
        if epochs is None:
            raise RunError(f"{folder.path}: its plan has no epochs of {name}; {DAMAGED}")
        return epochs * find_method(first.method).n_views

    def _planner(self) -> Planner | None:
        spec, methods = self.spec, list(self.methods.values())
        if spec.budget is None:
            return None
        make, spent = partial(self._jobs, methods), time.perf_counter() - self.started
        return protocol.planner(spec.budget, seeds=spec.seeds, methods=methods, make=make, spent_before=spent)

    def _chosen_heads(self, candidates: Mapping[CandidateId, Candidate]) -> list[CandidateId]:
        return protocol.chosen_heads(candidates, list(self.methods))

    def _results(self, seed: int, run: Run) -> Iterator[Result]:
        """Yield the result of every tested classifier in a run: the frozen probe, then the heads of each method."""
        views = self._planned_views()
        jobs = {(job.name, job.trial): job for job in self._jobs(self.methods.values(), views)}
        fingerprint = self._fingerprint(run, views, next(iter(jobs.values())))
        yield self._result(seed, run, FROZEN_PROBE, fingerprint, None)
        for identity in self._chosen_heads(run.candidates):
            yield self._result(seed, run, identity, fingerprint, jobs[identity.method, identity.trial])

    def _fingerprint(self, run: Run, views: int, job: TrainingJob) -> ProtocolFingerprint:
        spec = self.spec
        encoder = replace(spec.settings.encoder, image_size=self.measured.image_size)
        settings = replace(spec.settings, encoder=encoder, tune=self.measured.tune)
        steps = protocol.fair_steps(len(self.records.rows("train")), views, (), spec.batch_size)
        budget = {"views": job.training.views, "trials": spec.trials, "steps": [*steps.values()]}
        checkpoint = RunFolder(run.folder).checkpoints / f"{FROZEN_PROBE.key}.safetensors"
        return protocol.protocol_fingerprint(self.records, settings, checkpoint, budget)

    def _result(
        self, seed: int, run: Run, identity: CandidateId, fingerprint: ProtocolFingerprint, job: TrainingJob | None
    ) -> Result:
        candidate, folder = run.candidates[identity], RunFolder(run.folder)
        files = folder.results(identity.key)
        classes = len(self.records.label_space)
        val, test = (read_scores(scores_file(files, split), classes=classes).rows for split in ("val", "test"))
        probe = identity if job is None else identity._replace(head="re-probed")
        name, method = (FROZEN_PROBE.name, None) if job is None else (job.name, self.methods[job.name])
        origin = method and find_method(method.method).origin
        cost, predictor = self.measured.expenses[name], find_method(candidate.method)
        prediction = cost.own_head if identity.head == "own head" and cost.own_head else cost.probe
        emits_set = issubclass(predictor, Classifier) and predictor.emits_set
        return Result(
            name=name,
            head=identity.head,
            method=None if method is None else method.method,
            learning_rate=None if job is None else job.training.learning_rate,
            weight_decay=None if job is None else job.training.weight_decay,
            images_seen=0 if job is None else job.training.views or 0,
            parameters=prediction.parameters,
            gmac=prediction.gmac,
            training_speed=cost.training_speed,
            prediction_speed=prediction.speed,
            peak_memory=cost.peak_memory,
            fidelity="standard" if method is None else origin.of(method.preset) if origin else "own",
            reference=origin.reference if origin else "",
            note=candidate.note,
            emits_set=emits_set,
            seed=seed,
            validation=candidate.validation_map,
            test=folder.read(candidate_evaluation(identity.key)),
            # A predicted set has no probabilities to calibrate; its scores are above or below 0.5.
            macro_F1=_macro_f1(val, test, self.records.label_space, calibrate=not emits_set),
            by_embedding=folder.read(RETRIEVAL.inside(candidate_folder(probe.key))),
            by_probabilities=_retrieval_by_probabilities(test),
            trials=self.spec.trials,
            seconds=candidate.seconds,
            fingerprint=fingerprint,
            predictions=scores_file(files, "test").relative_to(self.folder).as_posix(),
            folder=self.folder,
        )

    def _summarize(self, results: Sequence[Result]) -> Comparison:
        rows = self.records.rows("test")
        groups = None if self.records.group is None else [self.records.group[row] for row in rows]
        with self.console.progress(f"{DRAWS:,} resamples of the test images", len(results)) as bar:
            summary = summarize(results, groups, bar.advance)
        return Comparison(
            rows=summary,
            seeds=self.spec.seeds,
            trials=self.spec.trials,
            images_seen=max(result.images_seen for result in results),
            test_images=len(rows),
            groups=None if groups is None else len(set(groups)),
            classes=len(self.records.label_space),
            encoder=self.spec.settings.encoder.name,
            data=self.name,
            left_out=tuple(self.left_out),
            draws=DRAWS,
            chance=_chance(results),
        )


def _retrieval_by_probabilities(test: ScoredRows) -> Retrieval:
    """Return how well the predicted probabilities of the test images find images with equal labels."""
    scores, labels, known = map(torch.from_numpy, (test.scores, test.labels, test.known))
    return retrieval_at_10(scores, labels, known)


def _chance(results: Sequence[Result]) -> float | None:
    """Return the chance level of the test images, which all results share; None if no class could be scored."""
    return next((result.test.chance for result in results if result.test.chance is not None), None)


def _macro_f1(val: ScoredRows, test: ScoredRows, labels: LabelSpace, *, calibrate: bool) -> float | None:
    """Return the macro F1 on test, by default with the calibration and thresholds that `train` would fit."""
    scores, thresholds = test.scores, np.full(len(labels), 0.5)
    if calibrate:
        parents = parents_of(labels.names, labels.hierarchy)
        calibration = fit_calibration(val, labels.names, parents=parents)
        scores, thresholds = calibration.probabilities(test.scores, parents), calibration.threshold
    return nan_to_none(decisions_at(scores, test.labels, test.known, thresholds).macro_f1)
