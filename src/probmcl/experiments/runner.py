"""The comparison itself: a run for each seed with everybody in it, then the rows that come of them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.experiments.expense import Expense, expense, of_the_frozen_probe
from probmcl.experiments.fingerprint import fingerprint
from probmcl.experiments.protocol import (
    MethodSpec,
    candidate_names,
    chosen_trials,
    fair_steps,
    make_jobs,
    planner,
    round_of,
    trial_name,
)
from probmcl.experiments.results import Circumstances, Result, merged, read_results, results_of, write_results
from probmcl.experiments.rows import Comparison
from probmcl.experiments.statistics import DRAWS, rows_of
from probmcl.files import read_json, write_json, write_text
from probmcl.methods import find_method
from probmcl.report import comparison_plot as plot
from probmcl.report import comparison_tables as tables
from probmcl.report import verdict
from probmcl.run.backbone import Material, build_encoder
from probmcl.run.budget import Planner
from probmcl.run.phases import FROZEN, Tested, test_all
from probmcl.run.results import Candidate, Run
from probmcl.run.runner import run_or_resume
from probmcl.runtime.distributed import barrier, broadcast, is_main_process
from probmcl.settings import Settings, TrainingJob, Tune


@dataclass(frozen=True)
class ComparisonSpec:
    """What is compared.

    Attributes:
        settings: of every run, but for its seed and its contenders.
        entrants: who takes part.
        everyone: whether all there are were asked for: then one that cannot run here is left out, else it is an error.
        seeds: runs of each entrant.
        trials: learning rates and weight decays tried for each of them in the first run.
        epochs: rounds over the images, of two views each; None where a budget decides.
        budget: seconds for everything; None where the epochs decide.
        batch_size: images in a step; None takes each method's usual one.
    """

    settings: Settings
    entrants: tuple[MethodSpec, ...]
    everyone: bool = False
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
        source: Mapping[str, Any] | None = None,
        alarms: Sequence[str] = (),
        began: float | None = None,
    ) -> None:
        self.records, self.asked, self.folder, self.console, self.name = records, asked, folder, console, name
        self.source, self.alarms = source, list(alarms)
        self.began = time.perf_counter() if began is None else began
        self.measured = self._measure()
        self.left_out = [f"{name} cannot run here: {why}" for name, why in self.measured.cannot.items()]
        self.entrants = tuple(e for e in asked.entrants if e.name in self.measured.expenses)

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
            self.left_out += [f"seed {seed}: {alarm}" for alarm in run.alarms if " is left out: " in alarm]
            if is_main_process():
                write_results(self.folder / "results.jsonl", found)
            together = _with(found, others)  # after the first seed already, so that what does not fit is refused then
        comparison = self._comparison(together)
        if is_main_process():
            write_outputs(comparison, self.folder, self.alarms)
        barrier()
        return comparison

    # What is found out once.

    def _measure(self) -> Measured:
        """What everybody costs; who cannot run on this encoder is found out here, before hours have passed."""
        path = self.folder / "measured.json"
        there = broadcast(read_json(path) if is_main_process() and path.exists() else None)
        if there is not None:
            found: Measured = msgspec.convert(there, Measured)
            return found
        self.console.print("measuring what each method costs …")
        made = self._contenders(self.asked.entrants, self._asked_views())
        settings = replace(self.asked.settings, jobs=made)
        encoder = build_encoder(settings, self.console)
        material = Material(self.records, settings, encoder, self.folder / "nothing", self.console)
        expenses, cannot = {FROZEN: of_the_frozen_probe(material)}, {}
        for entrant, job in zip(self.asked.entrants, made[:: self.asked.trials], strict=True):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # they are said when it is trained
                    expenses[entrant.name] = expense(job, material, expenses[FROZEN].probe)
            except ValueError as error:
                if not self.asked.everyone:
                    raise
                cannot[entrant.name] = str(error)
                self.console.print(f"  note: {entrant.name} cannot run here: {error}")
        measured = Measured(material.tune, encoder.image_size, expenses, cannot)
        if is_main_process():
            write_json(path, measured)
        return measured

    # The runs.

    def _run(self, seed: int, trial: Mapping[str, int]) -> Run:
        """The run of a seed: the first has all trials of everybody, the others the one of each that counts."""
        settings = replace(self.asked.settings, seed=self.asked.settings.seed + seed)
        self.console.print(f"seed {seed + 1} of {self.asked.seeds}")
        tested: Tested = test_all
        plan: Planner | None = None
        if seed == 0:
            settings = replace(settings, jobs=self._contenders(self.entrants, self._asked_views()))
            tested, plan = self._best_trials, self._planner()
        else:
            planned = self._contenders(self.entrants, self._planned_views())
            wanted = {trial_name(name, number) for name, number in trial.items()}
            settings = replace(settings, jobs=tuple(c for c in planned if c.name in wanted))
        return run_or_resume(
            self.records,
            settings,
            self.folder / f"seed-{seed}",
            self.console,
            source=self.source,
            alarms=self.alarms,
            tested=tested,
            plan=plan,
        )

    def _contenders(self, taking_part: Sequence[MethodSpec], views: int) -> tuple[TrainingJob, ...]:
        a, images = self.asked, len(self.records.rows("train"))
        return make_jobs(taking_part, a.settings, images=images, views=views, trials=a.trials, batch_size=a.batch_size)

    def _asked_views(self) -> int:
        """Views of each image as the first run's settings have them; with a budget its plan decides."""
        return round_of(self.asked.entrants) * (self.asked.epochs or 1)

    def _planned_views(self) -> int:
        """Views of each image that the first run was planned with, and every other run is."""
        epochs: dict[str, int] = read_json(self.folder / "seed-0" / "checkpoints" / "plan.json")["epochs"]
        one = self.entrants[0]
        return epochs[one.name] * find_method(one.method).n_views

    def _planner(self) -> Planner | None:
        a = self.asked
        if a.budget is None:
            return None
        return planner(
            a.budget,
            seeds=a.seeds,
            taking_part=self.entrants,
            remake=lambda views: self._contenders(self.entrants, views),
            before=time.perf_counter() - self.began,
        )

    def _best_trials(self, candidates: Mapping[str, Candidate]) -> Iterator[str]:
        """Both heads of the trial that counts, of everybody."""
        names = [e.name for e in self.entrants]
        for name, number in chosen_trials(candidates, names, self.asked.trials).items():
            heads = candidate_names(trial_name(name, number)).values()
            yield from (head for head in heads if head in candidates)

    # What comes of them.

    def _results(self, seed: int, run: Run, trial: Mapping[str, int]) -> Iterator[Result]:
        a, m, of_each = self.asked, self.measured, self._planned_views()
        planned = {c.name: c for c in self._contenders(self.entrants, of_each)}
        views = next(c.training.views for c in planned.values())
        assert views is not None
        encoder = replace(a.settings.encoder, image_size=m.image_size)
        settings = replace(a.settings, encoder=encoder, tune=m.tune)
        steps = fair_steps(len(self.records.rows("train")), of_each, (), a.batch_size)
        budget = {"views": views, "trials": a.trials, "steps": [*steps.values()]}
        frozen = run.folder / "checkpoints" / f"{FROZEN}.safetensors"
        print_of = fingerprint(self.records, settings, frozen, budget)
        chosen = {e.name: (e, planned[trial_name(e.name, trial[e.name])]) for e in self.entrants if e.name in trial}
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


def write_outputs(comparison: Comparison, folder: Path, alarms: Sequence[str]) -> None:
    """Everything that a comparison shows, as files."""
    outputs: dict[str, Callable[[Comparison], str]] = {
        "comparison.csv": tables.to_csv,
        "comparison.md": tables.to_markdown,
        "comparison.tex": tables.to_latex,
        "methods.bib": tables.to_bibtex,
        "plot.svg": plot.to_svg,
        "verdict.txt": lambda found: (
            "\n".join([verdict.verdict(found), *(f"ALARM: {alarm}" for alarm in alarms)]) + "\n"
        ),
    }
    for name, make in outputs.items():
        write_text(folder / name, make(comparison))
