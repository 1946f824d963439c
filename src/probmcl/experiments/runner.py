"""A comparison: one run for each seed with all methods in it, then the summary of their results."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from probmcl.console import Console
from probmcl.data.options import DataSource
from probmcl.data.records import Records
from probmcl.errors import RunWarning
from probmcl.evaluation.metrics import multilabel_metrics
from probmcl.evaluation.retrieval import retrieval
from probmcl.evaluation.thresholds import best_thresholds
from probmcl.experiments.measure import Measurements, measure
from probmcl.experiments.protocol import (
    ComparisonSpec,
    chosen_trials,
    fair_steps,
    fingerprint,
    heads_of,
    make_jobs,
    planner,
    views_per_round,
)
from probmcl.experiments.results import RESULTS, Comparison, Result, merge_results, read_results, write_results
from probmcl.experiments.statistics import DRAWS, Predictions, read_predictions, summarize
from probmcl.files import read_json, write_json
from probmcl.methods import find_method
from probmcl.methods.base import Classifier
from probmcl.run.backbone import build_encoder
from probmcl.run.budget import Planner
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId, Run
from probmcl.run.state import read_plan
from probmcl.run.train import CandidateFilter, all_candidates, train_run
from probmcl.run.workspace import Workspace
from probmcl.run_folder import METADATA, PREDICTIONS, RETRIEVAL, RunFolder
from probmcl.runtime.distributed import barrier, broadcast, is_main_process
from probmcl.settings import MethodSpec, TrainingJob


class ComparisonRunner:
    """Runs a comparison, or continues an interrupted one: finished runs in `folder` are not repeated.

    Args:
        records: the images, each in its split.
        spec: what is compared.
        folder: has a run folder for each seed.
        console: for messages and progress.
        name: of the data set.
        source: how the records were read, stored with each run.
        warnings: what is known to be wrong with the records.
        started: the start of the comparison by `time.perf_counter` (default: now).
    """

    def __init__(
        self,
        records: Records,
        spec: ComparisonSpec,
        folder: Path,
        console: Console,
        name: str,
        *,
        source: DataSource | None = None,
        warnings: Sequence[RunWarning] = (),
        started: float | None = None,
    ) -> None:
        self.records, self.spec, self.folder, self.console, self.name = records, spec, folder, console, name
        self.source, self.warnings = source, list(warnings)
        self.started = time.perf_counter() if started is None else started

    @cached_property
    def methods(self) -> tuple[MethodSpec, ...]:
        """The methods that can run here."""
        return tuple(method for method in self.spec.methods if method.name in self.measured.expenses)

    def run(self, add: Sequence[Path] = ()) -> Comparison:
        """Run all seeds that are not finished and summarize them, together with the results in the files of `add`."""
        self.left_out = [f"{name} cannot run here: {why}" for name, why in self.measured.cannot.items()]
        others = [(path, read_results(path)) for path in add]  # refused before anything is trained
        results: list[Result] = []
        trials: dict[str, int] = {}
        for seed in range(self.spec.seeds):
            run = self._run(seed, trials)
            if seed == 0:
                trials = chosen_trials(run.candidates, [method.name for method in self.methods], self.spec.trials)
            results += self._results(seed, run, trials)
            self.left_out += [f"seed {seed}: {w.message}" for w in run.warnings if w.kind == "diverged"]
            if is_main_process():
                write_results(self.folder / RESULTS, results)
            merged = results
            for path, lines in others:  # a different protocol is refused after the first seed
                merged = merge_results(merged, lines, path)
        return self._summarize(merged)

    @cached_property
    def measured(self) -> Measurements:
        """Costs of every method, and the reasons why some cannot run here; stored in the folder."""
        path = self.folder / "measured.json"
        stored = broadcast(read_json(path) if is_main_process() and path.exists() else None)
        if stored is not None:
            measured: Measurements = msgspec.convert(stored, Measurements)
            return measured
        self.console.print("measuring what each method costs …")
        jobs = self._jobs(self.spec.methods, self._first_views())
        settings = replace(self.spec.settings, jobs=jobs)
        workspace = Workspace.open(
            self.records, settings, build_encoder(settings, self.console), self.folder, self.console
        )
        first_trials = {job.name: job for job in jobs if job.trial == 1}
        measured = measure(first_trials, workspace, leave_out=self.spec.all_methods)
        for name, problem in measured.cannot.items():
            self.console.print(f"  note: {name} cannot run here: {problem}")
        if is_main_process():
            write_json(path, measured)
        return measured

    def _run(self, seed: int, trials: Mapping[str, int]) -> Run:
        """Run one seed: the first has all trials of each method, the others the chosen one."""
        settings = replace(self.spec.settings, seed=self.spec.settings.seed + seed)
        self.console.print(f"seed {seed + 1} of {self.spec.seeds}")
        test: CandidateFilter = all_candidates
        plan: Planner | None = None
        if seed == 0:
            settings = replace(settings, jobs=self._jobs(self.methods, self._first_views()))
            test, plan = self._chosen_heads, self._planner()
        else:
            jobs = self._jobs(self.methods, self._planned_views())
            settings = replace(settings, jobs=tuple(job for job in jobs if trials.get(job.name) == job.trial))
        folder = RunFolder(self.folder / f"seed-{seed}")
        if not folder.has(METADATA):  # empty, or killed while it was created
            if is_main_process():
                shutil.rmtree(folder.path, ignore_errors=True)
            barrier()
        return train_run(
            self.records,
            settings,
            folder.path,
            self.console,
            source=self.source,
            data_warnings=self.warnings,
            test=test,
            planner=plan,
        )

    def _jobs(self, methods: Sequence[MethodSpec], views: int) -> tuple[TrainingJob, ...]:
        spec, images = self.spec, len(self.records.rows("train"))
        return make_jobs(
            methods, spec.settings, images=images, views=views, trials=spec.trials, batch_size=spec.batch_size
        )

    def _first_views(self) -> int:
        """Return the views of each image in the settings of the first run; with a budget its plan decides."""
        return views_per_round(self.spec.methods) * (self.spec.epochs or 1)

    def _planned_views(self) -> int:
        """Return the views of each image in the plan of the first run, which holds for all runs."""
        first = self.methods[0]
        return read_plan(RunFolder(self.folder / "seed-0")).epochs[first.name] * find_method(first.method).n_views

    def _planner(self) -> Planner | None:
        if self.spec.budget is None:
            return None
        return planner(
            self.spec.budget,
            seeds=self.spec.seeds,
            methods=self.methods,
            make=lambda views: self._jobs(self.methods, views),
            spent_before=time.perf_counter() - self.started,
        )

    def _chosen_heads(self, candidates: Mapping[CandidateId, Candidate]) -> Iterator[CandidateId]:
        """Yield both heads of the chosen trial of each method."""
        names = [method.name for method in self.methods]
        for name, trial in chosen_trials(candidates, names, self.spec.trials).items():
            yield from (identity for identity in heads_of(name, trial) if identity in candidates)

    def _results(self, seed: int, run: Run, trials: Mapping[str, int]) -> Iterator[Result]:
        """Yield the result of every tested classifier of a run: the frozen probe, then the heads of each method."""
        views = self._planned_views()
        jobs = {(job.name, job.trial): job for job in self._jobs(self.methods, views)}
        protocol = self._fingerprint(run, views, next(iter(jobs.values())))
        yield self._result(seed, run, FROZEN_PROBE, protocol, None, None)
        for method in self.methods:
            for identity in heads_of(method.name, trials[method.name]) if method.name in trials else ():
                if identity in run.candidates:
                    job = jobs[method.name, identity.trial]
                    yield self._result(seed, run, identity, protocol, method, job)

    def _fingerprint(self, run: Run, views: int, job: TrainingJob) -> dict[str, str]:
        spec = self.spec
        encoder = replace(spec.settings.encoder, image_size=self.measured.image_size)
        settings = replace(spec.settings, encoder=encoder, tune=self.measured.tune)
        steps = fair_steps(len(self.records.rows("train")), views, (), spec.batch_size)
        budget = {"views": job.training.views, "trials": spec.trials, "steps": [*steps.values()]}
        checkpoint = RunFolder(run.folder).checkpoints / f"{FROZEN_PROBE.key}.safetensors"
        return fingerprint(self.records, settings, checkpoint, budget)

    def _result(
        self,
        seed: int,
        run: Run,
        identity: CandidateId,
        protocol: dict[str, str],
        method: MethodSpec | None,
        job: TrainingJob | None,
    ) -> Result:
        candidate, folder = run.candidates[identity], RunFolder(run.folder)
        files = folder.results(identity.key) / PREDICTIONS
        val, test = (read_predictions(files / f"{split}.npz") for split in ("val", "test"))
        probe = identity if job is None else identity._replace(head="re-probed")
        cost = self.measured.expenses[FROZEN_PROBE.name if method is None else method.name]
        prediction = cost.prediction(identity.head)
        origin = None if method is None else find_method(method.method).origin
        predictor = find_method(candidate.method)
        emits_set = issubclass(predictor, Classifier) and predictor.emits_set
        assert candidate.test is not None
        return Result(
            name=FROZEN_PROBE.name if method is None else method.name,
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
            test=dict(candidate.test),
            macro_F1=_macro_f1(val, test, emits_set=emits_set),
            by_embedding=read_json(folder.results(probe.key) / RETRIEVAL),
            by_probabilities=dict(retrieval(test.scores, test.labels, test.known)),
            trials=self.spec.trials,
            seconds=candidate.seconds,
            fingerprint=protocol,
            predictions=(files / "test.npz").relative_to(self.folder).as_posix(),
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
        )


def _macro_f1(val: Predictions, test: Predictions, *, emits_set: bool) -> float | None:
    """Return macro F1 at thresholds chosen on validation; for a set of labels at 0.5, where the set is decided."""
    threshold = 0.5 if emits_set else best_thresholds(*val)
    score = multilabel_metrics(*test, threshold=threshold, f1="per_class")["CF1"]
    return None if score != score else score
