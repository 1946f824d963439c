"""What makes a comparison fair: who takes part, and one number of images that all of them see."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from probmcl.errors import SettingsError
from probmcl.methods import METHODS, find_method
from probmcl.run.budget import MAX_VIEWS, Costs, Plan, Planner
from probmcl.run.results import Candidate, CandidateId, Head
from probmcl.runtime.distributed import world_size
from probmcl.settings import MethodSpec as MethodSpec
from probmcl.settings import Settings, TrainingJob, default_training
from probmcl.tables import rough_duration
from probmcl.training.optimizer import Training

TRIALS = tuple((rate, decay) for decay in (1.0, 10.0, 0.0) for rate in (1.0, 1 / 3, 3.0))
"""Factors of the usual learning rate and weight decay: what each trial multiplies them by, the usual ones first."""

SAFETY = 1.15
"""Times what was measured: a machine is rarely as quiet later as in the first minutes."""

WORTH = 0.9
"""Share of the views there could be that equal steps must reach; below it, all methods take the smallest batch."""


def parse_methods(methods: Sequence[str]) -> tuple[MethodSpec, ...]:
    """Who is meant by `all`, NAME, NAME:PRESET or the place of a method or loss of one's own; nobody twice.

    >>> [entrant.name for entrant in parse_methods(["bce", "probmcl:paper"])]
    ['bce', 'probmcl:paper']
    """
    found: dict[str, MethodSpec] = {}
    for said in methods:
        everyone = [name for name in METHODS if name != "probe"] if said == "all" else [said]
        for entrant in map(_entrant, everyone):
            other = found.setdefault(entrant.name, entrant)
            if other != entrant:
                raise SettingsError(f"{other.method} and {entrant.method} are both called {entrant.name}; rename one")
    if not found:
        raise SettingsError("say who is compared: --methods bce,asl,probmcl, or --methods all")
    return tuple(found.values())


def _entrant(said: str) -> MethodSpec:
    if said.partition(":")[0] == "probe":
        raise SettingsError("the frozen probe is part of every comparison; leave 'probe' out")
    entrant = MethodSpec.parse(said)
    if entrant.method not in METHODS and entrant.name in METHODS:
        raise SettingsError(f"{entrant.method} is called as the method {entrant.name} here; rename it")
    return entrant


def make_jobs(
    taking_part: Sequence[MethodSpec],
    settings: Settings,
    *,
    images: int,
    views: int,
    trials: int,
    batch_size: int | None,
) -> tuple[TrainingJob, ...]:
    """Every entrant, with `trials` learning rates and weight decays each, on the same number of views.

    `images` are those to train on, `views` how often each of them is seen at most.
    """
    if not 1 <= trials <= len(TRIALS):
        raise SettingsError(
            f"trials={trials}: give 1 to {len(TRIALS)} learning rates and weight decays for each method"
        )
    usual = {e.name: Training(**default_training(e.method, settings.tune)) for e in taking_part}
    n_views = {e.name: find_method(e.method).n_views for e in taking_part}
    steps = fair_steps(images, views, [(t.batch_size, n_views[name]) for name, t in usual.items()], batch_size)
    seen = equal_views(images, views, list(steps.values()))
    made = []
    for entrant in taking_part:
        name, training = entrant.name, usual[entrant.name]
        batch, _ = steps[training.batch_size, n_views[name]]
        fixed = replace(training, epochs=views // n_views[name], views=seen, batch_size=batch)
        for trial, (rate, decay) in enumerate(TRIALS[:trials], start=1):
            tried = replace(
                fixed, learning_rate=training.learning_rate * rate, weight_decay=training.weight_decay * decay
            )
            made.append(TrainingJob(entrant.method, entrant.settings, tried, name, trial))
    return tuple(made)


def round_of(taking_part: Sequence[MethodSpec]) -> int:
    """Views of each image in a round: two, or what every method can take in whole steps."""
    return math.lcm(2, *(find_method(e.method).n_views for e in taking_part))


StepSize = tuple[int, int]
"""Images in a step, and views of each."""

USUAL_STEPS: tuple[StepSize, ...] = ((64, 1), (64, 2), (128, 2))
"""Of a classifier, one with two views, a contrast: reckoned with whoever takes part, so that rows can be added."""


def equal_views(images: int, views: int, steps: Sequence[StepSize]) -> int:
    """The most views in all, at most `views` of each image, that whole steps of every size make up exactly.

    >>> equal_views(1690, 12, [(64, 1), (128, 2)])  # 312 steps of 64 views, or 78 of 256
    19968
    """
    least = min(views // n_views * (images // batch) * batch * n_views for batch, n_views in steps)
    unit = math.lcm(*(batch * n_views for batch, n_views in steps))
    return least // unit * unit


def fair_steps(
    images: int, views: int, usual: Sequence[StepSize], batch_size: int | None = None, *, processes: int | None = None
) -> dict[StepSize, StepSize]:
    """What becomes of each usual size of a step, and of those in `usual`.

    A batch is a multiple of the number of processes, and no larger than there are images. Where equal steps would waste
    many images, the smallest batch is everybody's; `batch_size` is everybody's in any case.

    >>> fair_steps(100, 12, [])[128, 2]
    (64, 2)
    """
    processes = processes or world_size()
    if images < processes:
        raise SettingsError(f"{processes} processes for {images} images; start fewer processes")

    def whole(batch: int) -> int:
        return max(1, min(batch_size or batch, images) // processes) * processes

    kinds = dict.fromkeys([*USUAL_STEPS, *usual])
    made = {(batch, n_views): (whole(batch), n_views) for batch, n_views in kinds}
    if equal_views(images, views, list(made.values())) >= WORTH * images * views:
        return made
    smallest = min(batch for batch, _ in made.values())
    return {kind: (smallest, kind[1]) for kind in kinds}


def planner(
    budget: float,
    *,
    seeds: int,
    taking_part: Sequence[MethodSpec],
    remake: Callable[[int], Sequence[TrainingJob]],
    before: float = 0.0,
) -> Planner:
    """Turn a budget for everything into views of each image, once the first run has measured what everything costs.

    `remake` gives the contenders for a number of views. The first run has all trials; those after it have one for each
    method. `before` are the seconds that had passed when the first run began.
    """
    views_in_round, names = round_of(taking_part), {spec.name for spec in taking_part}

    def plan(costs: Costs, spent: float) -> Plan:
        later = [job for job in costs.jobs if job.key in names]  # the first trials
        once, tested = sum(job.once for job in costs.jobs), sum(job.tested for job in later)
        fixed = before + seeds * (spent + costs.shared + tested) + once + (seeds - 1) * sum(job.once for job in later)
        views = sum(job.epoch / job.n_views for job in costs.jobs)
        views += (seeds - 1) * sum(job.epoch / job.n_views for job in later)
        rounds = int((budget / SAFETY - fixed) // (views * views_in_round))
        if rounds < 1:
            needed = rough_duration(60.0 * math.ceil(SAFETY * (fixed + views * views_in_round) / 60))
            raise SettingsError(
                f"a budget of {rough_duration(budget)} is too small for {len(names)} methods and {seeds} seeds: "
                f"{views_in_round} views of each image take about {needed}; give that, or fewer methods or seeds"
            )
        shown = views_in_round * min(rounds, MAX_VIEWS // views_in_round)
        made = remake(shown)
        seen = made[0].training.views
        messages = (
            f"plan: every method sees {seen:,} images, {shown} views of each; {len(costs.jobs)} trainings and "
            f"{seeds} seeds take about {rough_duration(fixed + views * shown)}",
        )
        return Plan({job.key: job.training.epochs for job in made}, messages, seen)

    return plan


def chosen_trials(candidates: Mapping[CandidateId, Candidate], names: Sequence[str], trials: int) -> dict[str, int]:
    """Return the trial of each method whose better head is best on validation; a method without candidates has none."""
    best: dict[str, int] = {}
    for name in names:
        scores = {trial: _best_head(candidates, name, trial) for trial in range(1, trials + 1)}
        scored = {trial: score for trial, score in scores.items() if score is not None}
        if scored:
            best[name] = max(scored, key=lambda trial: scored[trial])
    return best


def _best_head(candidates: Mapping[CandidateId, Candidate], name: str, trial: int) -> float | None:
    heads = [candidates[identity] for identity in heads_of(name, trial) if identity in candidates]
    return max((head.validation_map for head in heads), default=None)


def heads_of(name: str, trial: int) -> list[CandidateId]:
    """Return the candidates that a method may have in a trial."""
    heads: tuple[Head, ...] = ("own head", "re-probed")
    return [CandidateId(name, head, trial) for head in heads]
