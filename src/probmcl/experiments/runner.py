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
from probmcl.evaluation.metrics import DEFAULT_THRESHOLD, decisions_at
from probmcl.evaluation.scores import ScoredRows, read_scores, scores_file
from probmcl.experiments import protocol
from probmcl.experiments.measure import MEASUREMENTS_FILE, Measurements, measure
from probmcl.experiments.protocol import ComparisonSpec
from probmcl.experiments.results import (
    ComparedClassifier,
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
    # How the runs are resumed; the comparison decides what they test.
    control: RunControl = field(default_factory=RunControl)
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
        left_out = [f"{name} cannot run here: {reason}" for name, reason in self.measured.cannot.items()]
        added = [(path, read_results(path)) for path in add]  # raises errors before training
        results: list[Result] = []
        chosen_trials: dict[str, int] = {}  # by the name of the method
        for seed in range(self.spec.seeds):
            run = self._run(seed, chosen_trials)
            if seed == 0:  # only the first run has all trials
                chosen_trials = {head.method: head.trial for head in self._chosen_heads(run.candidates)}
            results += self._results(seed, run)
            left_out += [f"seed {seed}: {warning.message}" for warning in run.warnings if warning.kind == "diverged"]
            if is_main_process():
                write_results(self.folder / RESULTS, results)
            # Merging after each seed, not at the end, reports added results with another protocol after the first seed.
            merged = results
            for path, others in added:
                merged = merge_results(merged, others, path)
        return self._summarize(merged, left_out)

    @cached_property
    def measured(self) -> Measurements:
        """The cost of every method, and the reasons why some methods cannot run here; stored in the folder."""
        folder = RunFolder(self.folder)
        is_stored = broadcast(is_main_process() and folder.has(MEASUREMENTS_FILE))
        if is_stored:
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
        """Raise an error if a method has neither a cost nor a reason why it cannot run; then the file was changed."""
        method_names = [method.name for method in self.spec.methods]
        for name in (FROZEN_PROBE.name, *method_names):
            if name not in measured.expenses and name not in measured.cannot:
                raise RunError(f"{self.folder / MEASUREMENTS_FILE}: has no cost of {name}; {DAMAGED}")

    def _run(self, seed: int, chosen_trials: Mapping[str, int]) -> Run:
        """Run one seed. The first seed runs all trials of each method; the others run only the chosen trial."""
        self.console.print(f"seed {seed + 1} of {self.spec.seeds}")
        is_first = seed == 0
        views = self._first_views() if is_first else self._planned_views()
        jobs = self._jobs(self.methods.values(), views)
        if not is_first:
            jobs = tuple(job for job in jobs if chosen_trials.get(job.name) == job.trial)
        settings = replace(self.spec.settings, seed=self.spec.settings.seed + seed, jobs=jobs)
        folder = RunFolder(self.folder / SEED.named(str(seed)))
        if not folder.has(METADATA):  # missing, or incomplete because it was interrupted while being created
            if is_main_process():
                folder.delete_inputs()
            barrier()
        # The first run has all trials, whose best heads are tested; later runs have only these heads.
        if is_first:
            control = replace(self.control, test=self._chosen_heads, planner=self._planner())
        else:
            control = replace(self.control, test=all_candidates)
        # A resumed comparison no longer knows the folds and the duplicates, so the runs do not store them.
        data = replace(self.data, fold_of=None, duplicates=None)
        return train_run(data, settings, folder.path, self.console, control)

    def _jobs(self, methods: Iterable[MethodSpec], views: int) -> tuple[TrainingJob, ...]:
        """Return the jobs of all trials of some methods, given the number of views of each image."""
        return protocol.make_jobs(
            list(methods),
            self.spec.settings,
            images=self._train_images,
            views=views,
            trials=self.spec.trials,
            batch_size=self.spec.batch_size,
        )

    @property
    def _train_images(self) -> int:
        return len(self.records.rows("train"))

    def _first_views(self) -> int:
        """Return the number of views per image in the first run; with a budget, the plan overrides it."""
        epochs = self.spec.epochs or 1
        return protocol.views_per_round(self.spec.methods) * epochs

    def _planned_views(self) -> int:
        """Return the number of views per image in the plan of the first run, which applies to all runs."""
        name, spec = next(iter(self.methods.items()))  # any method: all of them see the same number of views
        folder = RunFolder(self.folder / SEED.named("0"))
        epochs = read_plan(folder).epochs.get(job_key(name, trial=1))
        if epochs is None:
            raise RunError(f"{folder.path}: its plan has no epochs of {name}; {DAMAGED}")
        return epochs * find_method(spec.method).n_views

    def _planner(self) -> Planner | None:
        """Return the planner of the first run; None without a budget."""
        if self.spec.budget is None:
            return None
        methods = list(self.methods.values())
        make_jobs = partial(self._jobs, methods)
        spent = time.perf_counter() - self.started
        return protocol.planner(
            self.spec.budget, seeds=self.spec.seeds, methods=methods, make=make_jobs, spent_before=spent
        )

    def _chosen_heads(self, candidates: Mapping[CandidateId, Candidate]) -> list[CandidateId]:
        """Return the heads of the best trial of each method, which are the ones that are tested."""
        return protocol.chosen_heads(candidates, list(self.methods))

    def _results(self, seed: int, run: Run) -> Iterator[Result]:
        """Yield the result of every tested classifier in a run: the frozen probe, then the heads of each method."""
        views = self._planned_views()
        jobs = self._jobs(self.methods.values(), views)
        job_of_trial = {(job.name, job.trial): job for job in jobs}
        fingerprint = self._fingerprint(run, views, total_views=jobs[0].training.views)  # the same in all jobs
        yield self._result(seed, run, FROZEN_PROBE, fingerprint, None)
        for identity in self._chosen_heads(run.candidates):
            job = job_of_trial[identity.method, identity.trial]
            yield self._result(seed, run, identity, fingerprint, job)

    def _fingerprint(self, run: Run, views: int, *, total_views: int | None) -> ProtocolFingerprint:
        """Return the fingerprint of the protocol of a run.

        Args:
            run: a run of this comparison, which has the checkpoint of the frozen probe.
            views: number of views of each image.
            total_views: number of views of all images together, which every method sees.
        """
        encoder = replace(self.spec.settings.encoder, image_size=self.measured.image_size)
        settings = replace(self.spec.settings, encoder=encoder, tune=self.measured.tune)
        steps = protocol.fair_steps(self._train_images, views, (), self.spec.batch_size)
        budget = {"views": total_views, "trials": self.spec.trials, "steps": list(steps.values())}
        frozen_probe = RunFolder(run.folder).checkpoints / f"{FROZEN_PROBE.key}.safetensors"
        return protocol.protocol_fingerprint(self.records, settings, frozen_probe, budget)

    def _result(
        self, seed: int, run: Run, identity: CandidateId, fingerprint: ProtocolFingerprint, job: TrainingJob | None
    ) -> Result:
        """Return the result of a tested classifier of a run; `job` has trained it, and is None for the frozen probe."""
        candidate = run.candidates[identity]
        folder = RunFolder(run.folder)
        label_space = self.records.label_space
        files = folder.results(identity.key)
        test_file = scores_file(files, "test")
        val = read_scores(scores_file(files, "val"), classes=len(label_space)).rows
        test = read_scores(test_file, classes=len(label_space)).rows
        if job is None:
            classifier = self._frozen_probe(candidate)
            probe = identity
        else:
            classifier = self._trained_classifier(candidate, job)
            probe = identity._replace(head="re-probed")  # on the same encoder; only probes have retrieval metrics

        evaluation = folder.read(candidate_evaluation(identity.key))
        # A predicted set has no probabilities to calibrate; its scores are above or below 0.5.
        macro_f1 = _macro_f1(val, test, label_space, calibrate=not classifier.emits_set)
        by_embedding = folder.read(RETRIEVAL.inside(candidate_folder(probe.key)))
        return Result(
            **vars(classifier),
            seed=seed,
            validation=candidate.validation_map,
            test=evaluation,
            macro_F1=macro_f1,
            by_embedding=by_embedding,
            by_probabilities=_retrieval_by_probabilities(test),
            trials=self.spec.trials,
            seconds=candidate.seconds,
            fingerprint=fingerprint,
            predictions=test_file.relative_to(self.folder).as_posix(),
            folder=self.folder,
        )

    def _frozen_probe(self, candidate: Candidate) -> ComparedClassifier:
        """Describe the frozen probe, which no method has trained."""
        cost = self.measured.expenses[FROZEN_PROBE.name]
        return ComparedClassifier(
            name=FROZEN_PROBE.name,
            head=candidate.id.head,
            method=None,
            learning_rate=None,
            weight_decay=None,
            images_seen=0,
            parameters=cost.probe.parameters,
            gmac=cost.probe.gmac,
            training_speed=cost.training_speed,
            prediction_speed=cost.probe.speed,
            peak_memory=cost.peak_memory,
            fidelity="standard",
            reference="",
            note=candidate.note,
            emits_set=_emits_set(candidate),
        )

    def _trained_classifier(self, candidate: Candidate, job: TrainingJob) -> ComparedClassifier:
        """Describe a classifier that a method has trained: its own head, or a probe on its encoder."""
        spec = self.methods[job.name]
        cost = self.measured.expenses[job.name]
        prediction = cost.probe
        if candidate.id.head == "own head" and cost.own_head is not None:
            prediction = cost.own_head
        fidelity = "own"
        reference = ""
        origin = find_method(spec.method).origin
        if origin is not None:
            fidelity = origin.of(spec.preset)
            reference = origin.reference
        return ComparedClassifier(
            name=job.name,
            head=candidate.id.head,
            method=spec.method,
            learning_rate=job.training.learning_rate,
            weight_decay=job.training.weight_decay,
            images_seen=job.training.views or 0,
            parameters=prediction.parameters,
            gmac=prediction.gmac,
            training_speed=cost.training_speed,
            prediction_speed=prediction.speed,
            peak_memory=cost.peak_memory,
            fidelity=fidelity,
            reference=reference,
            note=candidate.note,
            emits_set=_emits_set(candidate),
        )

    def _summarize(self, results: Sequence[Result], left_out: Sequence[str]) -> Comparison:
        """Return the summary of all results; `left_out` are messages about methods that diverged or could not run."""
        test_rows = self.records.rows("test")
        groups = None  # the group of each test image
        n_groups = None
        if self.records.group is not None:
            groups = [self.records.group[row] for row in test_rows]
            n_groups = len(set(groups))
        with self.console.progress(f"{DRAWS:,} resamples of the test images", len(results)) as bar:
            rows = summarize(results, groups, bar.advance)
        images_seen = max(result.images_seen for result in results)
        return Comparison(
            rows=rows,
            seeds=self.spec.seeds,
            trials=self.spec.trials,
            images_seen=images_seen,
            test_images=len(test_rows),
            groups=n_groups,
            classes=len(self.records.label_space),
            encoder=self.spec.settings.encoder.name,
            data=self.name,
            left_out=tuple(left_out),
            draws=DRAWS,
            chance=_chance(results),
        )


def _emits_set(candidate: Candidate) -> bool:
    """Return whether a candidate predicts a set of labels instead of probabilities."""
    predictor = find_method(candidate.method)
    return issubclass(predictor, Classifier) and predictor.emits_set


def _retrieval_by_probabilities(test: ScoredRows) -> Retrieval:
    """Return how well the predicted probabilities of the test images find images with equal labels."""
    scores = torch.from_numpy(test.scores)
    labels = torch.from_numpy(test.labels)
    known = torch.from_numpy(test.known)
    return retrieval_at_10(scores, labels, known)


def _chance(results: Sequence[Result]) -> float | None:
    """Return the chance level of the test images, which all results share; None if no class could be scored."""
    for result in results:
        if result.test.chance is not None:
            return result.test.chance
    return None


def _macro_f1(val: ScoredRows, test: ScoredRows, label_space: LabelSpace, *, calibrate: bool) -> float | None:
    """Return the macro F1 on test, by default with the calibration and thresholds that `train` would fit."""
    scores = test.scores
    thresholds = np.full(len(label_space), DEFAULT_THRESHOLD)
    if calibrate:
        parents = parents_of(label_space.names, label_space.hierarchy)
        calibration = fit_calibration(val, label_space.names, parents=parents)
        scores = calibration.probabilities(test.scores, parents)
        thresholds = calibration.threshold
    decisions = decisions_at(scores, test.labels, test.known, thresholds)
    return nan_to_none(decisions.macro_f1)
