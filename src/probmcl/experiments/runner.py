"""The comparison itself: a run for each seed with everybody in it, then the rows that come of them."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from probmcl.console import Console
from probmcl.data.options import DataSource
from probmcl.data.records import Records
from probmcl.errors import RunWarning
from probmcl.experiments.expense import Expense, expense, of_the_frozen_probe
from probmcl.experiments.fingerprint import fingerprint
from probmcl.experiments.protocol import (
    MethodSpec,
    chosen_trials,
    fair_steps,
    heads_of,
    make_jobs,
    planner,
    round_of,
)
from probmcl.experiments.results import Circumstances, Result, merged, read_results, results_of, write_results
from probmcl.experiments.rows import Comparison
from probmcl.experiments.statistics import DRAWS, rows_of
from probmcl.files import read_json, write_json
from probmcl.methods import find_method
from probmcl.run.backbone import build_encoder
from probmcl.run.budget import Planner
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId, Run
from probmcl.run.state import read_plan
from probmcl.run.train import CandidateFilter, all_candidates, train_run
from probmcl.run.workspace import Workspace
from probmcl.run_folder import METADATA, RunFolder
from probmcl.runtime.distributed import barrier, broadcast, is_main_process
from probmcl.settings import Settings, TrainingJob, Tune


@dataclass(frozen=True)
class ComparisonSpec:
    """What is compared.

    Attributes:
        settings: of every run, but for its seed and its contenders.
        methods: who takes part.
        all_methods: all methods were requested: one that cannot run here is left out; otherwise it is an error.
        seeds: runs of each entrant.
        trials: learning rates and weight decays tried for each of them in the first run.
        epochs: rounds over the images, of two views each; None where a budget decides.
        budget: seconds for everything; None where the epochs decide.
        batch_size: images in a step; None takes each method's usual one.
    """

    settings: Settings
    methods: tuple[MethodSpec, ...]
    all_methods: bool = False
    seeds: int = 3
    trials: int = 1
    epochs: int | None = None
    budget: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Measured:
    """What is found out once, before anything is trained.

    Attributes:
        tune: how much of the encoder learns.
        image_size: side of its images.
        expenses: what the frozen probe and each entrant cost, by name.
        cannot: why those that are not there cannot run on this encoder, by name.
    """

    tune: Tune
    image_size: int
    expenses: dict[str, Expense]
    cannot: dict[str, str]


class ComparisonRunner:
    """A comparison in the making; `folder` has a run folder for each seed.

    `source` says how the records were read, `alarms` what is known to be wrong with them, `began` when it all began, by
    `time.perf_counter`.
    """

    def __init__(
        self,
        records: Records,
        asked: ComparisonSpec,
        folder: Path,
        console: Console,
        name: str,
        *,
        source: DataSource | None = None,
        warnings: Sequence[RunWarning] = (),
        started: float | None = None,
    ) -> None:
        self.records, self.asked, self.folder, self.console, self.name = records, asked, folder, console, name
        self.source, self.warnings = source, list(warnings)
        self.started = time.perf_counter() if started is None else started
        self.measured = self._measure()
        self.left_out = [f"{name} cannot run here: {why}" for name, why in self.measured.cannot.items()]
        self.entrants = tuple(e for e in asked.methods if e.name in self.measured.expenses)

    def run(self, add: Sequence[Path] = ()) -> Comparison:
        """All runs that are not there yet, then tables, plot and verdict."""
        others = [(path, read_results(path)) for path in add]  # before anything is trained
        found: list[Result] = []
        trial: dict[str, int] = {}
        for seed in range(self.asked.seeds):
            run = self._run(seed, trial)
            if seed == 0:
                trial = chosen_trials(run.candidates, [e.name for e in self.entrants], self.asked.trials)
            found += self._results(seed, run, trial)
            self.left_out += [f"seed {seed}: {w.message}" for w in run.warnings if w.kind == "diverged"]
            if is_main_process():
                write_results(self.folder / "results.jsonl", found)
            together = _with(found, others)  # after the first seed already, so that what does not fit is refused then
        return self._comparison(together)

    # What is found out once.

    def _measure(self) -> Measured:
        """What everybody costs; who cannot run on this encoder is found out here, before hours have passed."""
        path = self.folder / "measured.json"
        there = broadcast(read_json(path) if is_main_process() and path.exists() else None)
        if there is not None:
            found: Measured = msgspec.convert(there, Measured)
            return found
        self.console.print("measuring what each method costs …")
        made = self._contenders(self.asked.methods, self._asked_views())
        settings = replace(self.asked.settings, jobs=made)
        encoder = build_encoder(settings, self.console)
        workspace = Workspace.open(self.records, settings, encoder, self.folder, self.console)
        expenses, cannot = {FROZEN_PROBE.name: of_the_frozen_probe(workspace)}, {}
        for entrant, job in zip(self.asked.methods, made[:: self.asked.trials], strict=True):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # they are said when it is trained
                    expenses[entrant.name] = expense(job, workspace, expenses[FROZEN_PROBE.name].probe)
            except ValueError as error:
                if not self.asked.all_methods:
                    raise
                cannot[entrant.name] = str(error)
                self.console.print(f"  note: {entrant.name} cannot run here: {error}")
        measured = Measured(workspace.backbone.tune, encoder.image_size, expenses, cannot)
        if is_main_process():
            write_json(path, measured)
        return measured

    # The runs.

    def _run(self, seed: int, trial: Mapping[str, int]) -> Run:
        """The run of a seed: the first has all trials of everybody, the others the one of each that counts."""
        settings = replace(self.asked.settings, seed=self.asked.settings.seed + seed)
        self.console.print(f"seed {seed + 1} of {self.asked.seeds}")
        test: CandidateFilter = all_candidates
        plan: Planner | None = None
        if seed == 0:
            settings = replace(settings, jobs=self._contenders(self.entrants, self._asked_views()))
            test, plan = self._best_trials, self._planner()
        else:
            planned = self._contenders(self.entrants, self._planned_views())
            settings = replace(settings, jobs=tuple(job for job in planned if trial.get(job.name) == job.trial))
        folder = RunFolder(self.folder / f"seed-{seed}")
        if not folder.has(METADATA):  # at most the beginning of one that was killed
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

    def _contenders(self, taking_part: Sequence[MethodSpec], views: int) -> tuple[TrainingJob, ...]:
        a, images = self.asked, len(self.records.rows("train"))
        return make_jobs(taking_part, a.settings, images=images, views=views, trials=a.trials, batch_size=a.batch_size)

    def _asked_views(self) -> int:
        """Views of each image as the first run's settings have them; with a budget its plan decides."""
        return round_of(self.asked.methods) * (self.asked.epochs or 1)

    def _planned_views(self) -> int:
        """Views of each image that the first run was planned with, and every other run is."""
        plan = read_plan(RunFolder(self.folder / "seed-0"))
        one = self.entrants[0]
        return plan.epochs[one.name] * find_method(one.method).n_views

    def _planner(self) -> Planner | None:
        a = self.asked
        if a.budget is None:
            return None
        return planner(
            a.budget,
            seeds=a.seeds,
            taking_part=self.entrants,
            remake=lambda views: self._contenders(self.entrants, views),
            before=time.perf_counter() - self.started,
        )

    def _best_trials(self, candidates: Mapping[CandidateId, Candidate]) -> Iterator[CandidateId]:
        """Both heads of the trial that counts, of everybody."""
        names = [e.name for e in self.entrants]
        for name, number in chosen_trials(candidates, names, self.asked.trials).items():
            yield from (identity for identity in heads_of(name, number) if identity in candidates)

    # What comes of them.

    def _results(self, seed: int, run: Run, trial: Mapping[str, int]) -> Iterator[Result]:
        a, m, of_each = self.asked, self.measured, self._planned_views()
        planned = {(job.name, job.trial): job for job in self._contenders(self.entrants, of_each)}
        views = next(c.training.views for c in planned.values())
        assert views is not None
        encoder = replace(a.settings.encoder, image_size=m.image_size)
        settings = replace(a.settings, encoder=encoder, tune=m.tune)
        steps = fair_steps(len(self.records.rows("train")), of_each, (), a.batch_size)
        budget = {"views": views, "trials": a.trials, "steps": [*steps.values()]}
        frozen = RunFolder(run.folder).checkpoints / f"{FROZEN_PROBE.key}.safetensors"
        print_of = fingerprint(self.records, settings, frozen, budget)
        chosen = {e.name: (e, planned[e.name, trial[e.name]]) for e in self.entrants if e.name in trial}
        return results_of(run, chosen, Circumstances(self.folder, seed, a.trials, views, print_of, m.expenses))

    def _comparison(self, results: Sequence[Result]) -> Comparison:
        rows = self.records.rows("test")
        groups = None if self.records.group is None else [self.records.group[row] for row in rows]
        with self.console.progress(f"{DRAWS:,} resamples of the test images", len(results)) as bar:
            made = rows_of(results, groups, lambda steps: bar.advance(steps=steps))
        return Comparison(
            rows=made,
            seeds=self.asked.seeds,
            trials=self.asked.trials,
            images_seen=max(result.images_seen for result in results),
            test_images=len(rows),
            groups=None if groups is None else len(set(groups)),
            classes=len(self.records.label_space),
            encoder=self.asked.settings.encoder.name,
            data=self.name,
            left_out=tuple(self.left_out),
            draws=DRAWS,
        )


def _with(results: list[Result], others: Sequence[tuple[Path, list[Result]]]) -> list[Result]:
    for path, lines in others:
        results = merged(results, lines, path)
    return results
