"""The comparison itself: a run for each seed with everybody in it, then the rows that come of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probmcl.comparison import plot, tables, verdict
from probmcl.comparison.expense import Expense, expense, of_the_frozen_probe
from probmcl.comparison.fingerprint import fingerprint
from probmcl.comparison.protocol import Entrant, candidate_names, chosen_trials, contenders, planner, trial_name, widest
from probmcl.comparison.results import Circumstances, Result, merged, read_results, results_of, write_results
from probmcl.comparison.rows import Comparison
from probmcl.comparison.summary import DRAWS, rows_of
from probmcl.data.records import Records
from probmcl.distributed import barrier, first
from probmcl.files import read_json, write_text
from probmcl.material import Material, build_encoder
from probmcl.methods import find_method
from probmcl.pipeline import FROZEN, Tested, everybody
from probmcl.results import Candidate, Run
from probmcl.runner import run_or_resume
from probmcl.settings import Contender, Settings
from probmcl.training.progress import Display


@dataclass(frozen=True)
class Asked:
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
    entrants: tuple[Entrant, ...]
    everyone: bool = False
    seeds: int = 3
    trials: int = 1
    epochs: int | None = None
    budget: float | None = None
    batch_size: int | None = None


class Work:
    """A comparison in the making; `folder` has a run folder for each seed."""

    def __init__(self, records: Records, asked: Asked, folder: Path, display: Display, name: str) -> None:
        self.records, self.asked, self.folder, self.display, self.name = records, asked, folder, display, name
        self.left_out: list[str] = []
        self.entrants = asked.entrants
        self.expenses: dict[str, Expense] = {}

    def run(self, *, source: Mapping[str, Any] | None = None, add: Sequence[Path] = ()) -> Comparison:
        """All runs that are not there yet, then tables, plot and verdict."""
        others = [(path, read_results(path)) for path in add]  # before anything is trained
        self._measure()
        found: list[Result] = []
        trial: dict[str, int] = {}
        for seed in range(self.asked.seeds):
            run, made, trial = self._seed(seed, trial, source)
            found += self._results(seed, run, made, trial)
            self.left_out += [f"seed {seed}: {alarm}" for alarm in run.alarms if " is left out: " in alarm]
            if first():
                write_results(self.folder / "results.jsonl", found)
        for path, lines in others:
            found = merged(found, lines, path)
        comparison = self._comparison(found)
        if first():
            write_outputs(comparison, self.folder)
        barrier()
        return comparison

    # The runs.

    def _measure(self) -> None:
        """What everybody costs; who cannot run on this encoder is found out here, before hours have passed."""
        self.display.say("measuring what each method costs …")
        settings = replace(self.asked.settings, contenders=self._contenders(self._first_views()))
        material = Material(
            self.records, settings, build_encoder(settings, self.display), self.folder / "unused", self.display
        )
        frozen = of_the_frozen_probe(material)
        self.expenses = {FROZEN: frozen}
        for entrant, contender in zip(self.entrants, settings.contenders[:: self.asked.trials], strict=True):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # they are said when it is trained
                    self.expenses[entrant.name] = expense(contender, material, frozen.probe)
            except ValueError as error:
                if not self.asked.everyone:
                    raise
                self.left_out.append(f"{entrant.name} cannot run here: {error}")
                self.display.say(f"  note: {self.left_out[-1]}")
        self.entrants = tuple(e for e in self.entrants if e.name in self.expenses)

    def _seed(
        self, seed: int, trial: Mapping[str, int], source: Mapping[str, Any] | None
    ) -> tuple[Run, tuple[Contender, ...], dict[str, int]]:
        """The run of a seed, its contenders as they were trained, and the trial of each entrant that counts."""
        names = [e.name for e in self.entrants]
        if seed == 0:
            made, tested, plan = self._contenders(self._first_views()), self._best_trials, self._planner()
        else:
            planned = self._contenders(self._planned_views())
            wanted = {trial_name(name, number) for name, number in trial.items()}
            made, tested, plan = tuple(c for c in planned if c.name in wanted), everybody, None
        settings = replace(self.asked.settings, contenders=made, seed=self.asked.settings.seed + seed)
        self.display.say(f"seed {seed + 1} of {self.asked.seeds}")
        run = run_or_resume(
            self.records, settings, self.folder / f"seed-{seed}", self.display, source=source, tested=tested, plan=plan
        )
        if seed == 0:
            return run, self._contenders(self._planned_views()), chosen_trials(run.candidates, names, self.asked.trials)
        return run, made, dict(trial)

    def _contenders(self, views: int) -> tuple[Contender, ...]:
        a = self.asked
        images = len(self.records.rows("train"))
        return contenders(
            self.entrants, a.settings, images=images, views=views, trials=a.trials, batch_size=a.batch_size
        )

    def _first_views(self) -> int:
        """Views of each image as the first run's settings have them; with a budget its plan decides."""
        return widest(self.entrants) * (self.asked.epochs or 1)

    def _planned_views(self) -> int:
        """Views of each image that the first run was planned with, and every other run is."""
        epochs: dict[str, int] = read_json(self.folder / "seed-0" / "checkpoints" / "plan.json")["epochs"]
        n_views = {e.name: find_method(e.method).n_views for e in self.entrants}
        return next(epochs[name] * n_views[name] for name in n_views)

    def _planner(self) -> Any:
        a = self.asked
        if a.budget is None:
            return None
        return planner(a.budget, seeds=a.seeds, taking_part=self.entrants, remake=self._contenders)

    @property
    def _best_trials(self) -> Tested:
        names, trials = [e.name for e in self.entrants], self.asked.trials

        def tested(candidates: Mapping[str, Candidate]) -> Iterator[str]:
            for name, number in chosen_trials(candidates, names, trials).items():
                heads = candidate_names(trial_name(name, number)).values()
                yield from (head for head in heads if head in candidates)

        return tested

    # What comes of them.

    def _results(self, seed: int, run: Run, made: Sequence[Contender], trial: Mapping[str, int]) -> Iterator[Result]:
        by_name, views = {c.name: c for c in made}, made[0].training.views
        assert views is not None
        frozen = run.folder / "checkpoints" / f"{FROZEN}.safetensors"
        print_of = fingerprint(self.records, self.asked.settings, frozen, views=views, trials=self.asked.trials)
        shared = Circumstances(self.folder, seed, self.asked.trials, views, print_of, self.expenses)
        chosen = {e.name: (e, by_name[trial_name(e.name, trial[e.name])]) for e in self.entrants if e.name in trial}
        return results_of(run, chosen, shared)

    def _comparison(self, results: Sequence[Result]) -> Comparison:
        rows = self.records.rows("test")
        groups = None if self.records.group is None else [self.records.group[row] for row in rows]
        with self.display.stage(f"{DRAWS:,} resamples of the test images", len(results)) as bar:
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


def write_outputs(comparison: Comparison, folder: Path) -> None:
    """Everything that a comparison shows, as files."""
    outputs = {
        "comparison.csv": tables.to_csv,
        "comparison.md": tables.to_markdown,
        "comparison.tex": tables.to_latex,
        "methods.bib": tables.to_bibtex,
        "plot.svg": plot.to_svg,
        "verdict.txt": verdict.verdict,
    }
    for name, make in outputs.items():
        write_text(folder / name, make(comparison))
