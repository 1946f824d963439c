"""The protocol for a fair comparison: its methods, the number of images that each method sees, and a fingerprint."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from probmcl.cost import rows as cost
from probmcl.data.records import Records
from probmcl.errors import OptionError, RunWarning, SettingsError, check_range, counted
from probmcl.methods import METHODS, find_method
from probmcl.readers.options import DataSource
from probmcl.run.budget import MAX_VIEWS, Costs, EpochPlan, JobCost, Planner
from probmcl.run.results import Candidate, CandidateId
from probmcl.runtime.distributed import world_size
from probmcl.runtime.files import json_line
from probmcl.runtime.tensor_files import content_digest, load_tensors
from probmcl.settings import MethodSpec, Settings, TrainingJob, default_training, job_key
from probmcl.store.files import COMPARISON
from probmcl.store.run_metadata import ProtocolFingerprint
from probmcl.tables import rough_duration
from probmcl.training.optimizer import Training

# Factors on the default learning rate and weight decay in each trial; the first trial uses the defaults.
TRIALS = tuple((rate, decay) for decay in (1.0, 10.0, 0.0) for rate in (1.0, 1 / 3, 3.0))
SAFETY = 1.15  # factor on measured times, because a machine may be busier later than during the measurement
MIN_VIEWS_USED = 0.9  # if the default steps use a smaller fraction of the views, all methods use the smallest batch

MakeJobs = Callable[[int], Sequence[TrainingJob]]
StepSize = tuple[int, int]  # images in a step, and views of each image
# For a classifier, one with two views, and a contrastive method; always considered so that results can be added later.
DEFAULT_STEPS: tuple[StepSize, ...] = ((64, 1), (64, 2), (128, 2))


@dataclass(frozen=True)
class ComparisonSpec:
    """The methods of a comparison and its conditions."""

    settings: Settings  # settings of every run, except its seed and jobs
    methods: tuple[MethodSpec, ...]
    all_methods: bool = False  # if `all` was given: methods that cannot run here are left out without an error
    seeds: int = 3  # number of runs of each method
    trials: int = 1  # number of learning rates and weight decays tried for each method in the first run
    epochs: int | None = None  # passes over the images, with two views of each; None if there is a budget
    budget: float | None = None  # seconds for the whole comparison; None if `epochs` is given
    batch_size: int | None = None  # images in a step; None for each method's default

    def __post_init__(self) -> None:
        check_range(at_least=1, seeds=self.seeds, epochs=self.epochs, batch_size=self.batch_size)
        check_range(at_least=1, at_most=len(TRIALS), trials=self.trials)
        check_range(above=0, budget=self.budget)


@dataclass(frozen=True)
class StoredComparison:
    """The content of spec.json; `add` lists the results that were added to the comparison."""

    source: DataSource
    name: str
    spec: ComparisonSpec
    warnings: tuple[RunWarning, ...]
    add: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.spec.settings.jobs:
            raise ValueError("spec.settings.jobs must be empty")
        if not self.spec.methods:
            raise ValueError("spec.methods is empty")


COMPARISON_FILE = COMPARISON.holding(StoredComparison)


def parse_methods(texts: Sequence[str]) -> tuple[MethodSpec, ...]:
    """Parse a list of `all`, NAME, NAME:PRESET, MODULE:CLASS or FILE.py:FUNCTION; duplicates are dropped.

    >>> [spec.name for spec in parse_methods(["bce", "probmcl:paper"])]
    ['bce', 'probmcl:paper']
    """
    all_methods = [name for name in METHODS if name != "probe"]
    names: list[str] = []
    for text in texts:
        names += all_methods if text == "all" else [text]
    if not names:
        raise SettingsError('no methods to compare; use `methods=["bce", "asl", "probmcl"]` or `methods="all"`')
    if any(name.partition(":")[0] == "probe" for name in names):
        raise SettingsError("'probe' cannot be listed as a method: the frozen probe is part of every comparison")
    specs = cost.parse_cost_methods(names)
    for spec in specs:
        is_external = spec.method not in METHODS  # its `name` is the part after the colon
        if is_external and spec.name in METHODS:
            raise SettingsError(f"{spec.method} has the same name as the built-in method {spec.name}; rename it")
    return specs


def make_jobs(
    methods: Sequence[MethodSpec], settings: Settings, *, images: int, views: int, trials: int, batch_size: int | None
) -> tuple[TrainingJob, ...]:
    """Return a job for each method and trial; all see the same number of views, at most `views` of each image.

    The trials of a method differ in their factors on its default learning rate and weight decay. `batch_size` is the
    number of images in a step; None keeps the default of each method. It may be reduced to the number of `images`, or
    so that all methods can see the same number of views.
    """
    if not 1 <= trials <= len(TRIALS):
        raise OptionError("trials", trials, f"must be between 1 and {len(TRIALS)}")
    defaults = {spec.name: Training(**default_training(spec.method, settings.tune)) for spec in methods}
    default_steps: dict[str, StepSize] = {}  # by the name of the method, (batch size, views of an image)
    for spec in methods:
        default_steps[spec.name] = (defaults[spec.name].batch_size, find_method(spec.method).n_views)
    used_steps = fair_steps(images, views, list(default_steps.values()), batch_size)
    total_views = equal_views(images, views, list(used_steps.values()))
    jobs = []
    for spec in methods:
        used_batch_size, n_views = used_steps[default_steps[spec.name]]
        epochs = views // n_views  # an epoch has `n_views` views of each image
        base = replace(defaults[spec.name], epochs=epochs, views=total_views, batch_size=used_batch_size)
        for trial, (rate_factor, decay_factor) in enumerate(TRIALS[:trials], start=1):
            training = replace(
                base,
                learning_rate=base.learning_rate * rate_factor,
                weight_decay=base.weight_decay * decay_factor,
            )
            jobs.append(TrainingJob(spec.method, spec.settings, training, spec.name, trial))
    return tuple(jobs)


def views_per_round(methods: Sequence[MethodSpec]) -> int:
    """Return the number of views per image in a round: the least common multiple of two and each method's views."""
    n_views = [find_method(spec.method).n_views for spec in methods]
    return math.lcm(2, *n_views)


def equal_views(images: int, views: int, steps: Sequence[StepSize]) -> int:
    """Return the largest number of views that every method can see in whole steps, with at most `views` of each image.

    A step of a method has as many images as its batch, and `n_views` views of each image. `steps` lists the pairs
    (batch, n_views). An epoch leaves out the last incomplete batch.

    >>> equal_views(1690, 12, [(64, 1), (128, 2)])  # 312 steps of 64 views, or 78 of 256
    19968
    """
    possible_views = []  # the most views for each step size
    for batch, n_views in steps:
        epochs = views // n_views
        steps_per_epoch = images // batch
        possible_views.append(epochs * steps_per_epoch * batch * n_views)
    step_views = [batch * n_views for batch, n_views in steps]
    unit = math.lcm(*step_views)
    whole_units = min(possible_views) // unit
    return whole_units * unit


def fair_steps(
    images: int, views: int, steps: Sequence[StepSize], batch_size: int | None = None, *, processes: int | None = None
) -> dict[StepSize, StepSize]:
    """Map the default step sizes and those in `steps` to the step sizes that are used.

    A step size is a pair: the number of images in a step, and the number of views of each image. Batch sizes are
    rounded down to multiples of the number of processes and do not exceed the number of images. `batch_size` overrides
    the default ones. All methods must see the same number of views, at most `views` of each image. If different batch
    sizes would leave too many of these views unused, all methods use the smallest one.

    >>> fair_steps(100, 12, [])[128, 2]
    (64, 2)
    """
    processes = processes or world_size()
    if images < processes:
        raise SettingsError(f"there are more processes ({processes}) than images ({images}); start fewer processes")
    used: dict[StepSize, StepSize] = {}
    for default_batch, n_views in (*DEFAULT_STEPS, *steps):
        batch = min(batch_size or default_batch, images)
        per_process = max(1, batch // processes)
        used[default_batch, n_views] = (per_process * processes, n_views)
    total_views = equal_views(images, views, list(used.values()))
    if total_views >= MIN_VIEWS_USED * images * views:
        return used
    smallest = min(batch for batch, _ in used.values())
    return {(default_batch, n_views): (smallest, n_views) for default_batch, n_views in used}


def planner(
    budget: float, *, seeds: int, methods: Sequence[MethodSpec], make: MakeJobs, spent_before: float = 0.0
) -> Planner:
    """Return a planner that converts the budget of a comparison into a number of views of each image.

    The planner is called in the first run, which includes all trials and has measured their costs; later runs include
    one trial of each method. `make` returns the jobs for a given number of views. `spent_before` is the time spent
    before the first run, in seconds.
    """
    return _ComparisonPlanner(budget, seeds, tuple(methods), make, seconds_before_first_run=spent_before)


@dataclass(frozen=True)
class _ComparisonPlanner:
    """The planner of `planner`, which is called with the costs of the first run."""

    budget: float  # seconds for the whole comparison
    seeds: int  # number of runs
    methods: tuple[MethodSpec, ...]
    make_jobs: MakeJobs
    seconds_before_first_run: float

    def __call__(self, costs: Costs, spent: float) -> EpochPlan:
        """Plan as many rounds of training as the budget of the comparison allows.

        In a round, every job sees the same number of views of each image.

        Args:
            costs: the time that each job and the shared parts of a run take.
            spent: the time that the first run has taken so far, in seconds.
        """
        trained_jobs = self._jobs_of_all_runs(costs)
        fixed_seconds = self._fixed_seconds(costs, spent, trained_jobs)
        seconds_per_view = sum(job.epoch / job.n_views for job in trained_jobs)  # an epoch has `n_views` of each image
        views_of_a_round = views_per_round(self.methods)
        seconds_per_round = seconds_per_view * views_of_a_round
        affordable_rounds = int((self.budget / SAFETY - fixed_seconds) // seconds_per_round)
        if affordable_rounds < 1:
            raise self._too_small_budget(fixed_seconds + seconds_per_round)
        most_rounds = MAX_VIEWS // views_of_a_round
        views = views_of_a_round * min(affordable_rounds, most_rounds)

        jobs = self.make_jobs(views)
        total_views = jobs[0].training.views  # the same in all jobs
        seconds = fixed_seconds + seconds_per_view * views
        message = (
            f"plan: every method sees {total_views:,} images ({counted(views, 'view')} of each image); "
            f"{counted(len(costs.jobs), 'training job')} and {counted(self.seeds, 'seed')} take about "
            f"{rough_duration(seconds)}"
        )
        return EpochPlan({job.key: job.training.epochs for job in jobs}, (message,), total_views)

    def _first_trials(self, costs: Costs) -> list[JobCost]:
        """Return the cost of the first trial of each method.

        A later run trains one trial of each method. It is chosen in the first run, so it is not known yet, but it takes
        as long as the first trial.
        """
        keys = {job_key(spec.name, trial=1) for spec in self.methods}
        return [job for job in costs.jobs if job.key in keys]

    def _jobs_of_all_runs(self, costs: Costs) -> list[JobCost]:
        """Return the cost of every job: all trials in the first run, and one trial of each method in each later run."""
        later_runs = self.seeds - 1
        return [*costs.jobs, *self._first_trials(costs) * later_runs]

    def _fixed_seconds(self, costs: Costs, spent: float, trained_jobs: Sequence[JobCost]) -> float:
        """Return the time that all runs take in addition to the training steps."""
        seconds_for_test = sum(job.tested for job in self._first_trials(costs))  # only one trial of a method is tested
        seconds_per_run = spent + costs.shared + seconds_for_test
        fixed_seconds = self.seconds_before_first_run + self.seeds * seconds_per_run
        return fixed_seconds + sum(job.once for job in trained_jobs)  # the probes, and the scores on validation

    def _too_small_budget(self, needed_seconds: float) -> SettingsError:
        """Return the error about a budget that is too small for one round, which needs this many seconds."""
        least = counted(views_per_round(self.methods), "view of each image takes", "views of each image take")
        needed_minutes = math.ceil(SAFETY * needed_seconds / 60)
        n_methods = len({spec.name for spec in self.methods})
        return SettingsError(
            f"a budget of {rough_duration(self.budget)} is too small for "
            f"{counted(n_methods, 'method')} and {counted(self.seeds, 'seed')}: "
            f"{least} about {rough_duration(60.0 * needed_minutes)}; "
            f"increase it, or use fewer methods or seeds"
        )


def chosen_heads(candidates: Mapping[CandidateId, Candidate], names: Sequence[str]) -> list[CandidateId]:
    """Return the heads of each method's best trial, which is the trial with the best head on validation."""
    chosen = []
    for name in names:
        identities = [identity for identity in candidates if identity.method == name]
        if not identities:  # every trial has diverged
            continue
        # On a tie, the first trial is chosen, which has the default settings.
        best = max(identities, key=lambda identity: (candidates[identity].validation_map, -identity.trial))
        heads = [identity for identity in identities if identity.trial == best.trial]
        chosen += sorted(heads)  # own head first
    return chosen


def protocol_fingerprint(records: Records, settings: Settings, frozen: Path, budget: object) -> ProtocolFingerprint:
    """Return the fingerprint of a protocol.

    Images are identified by their path relative to their common folder and their size in bytes. The encoder's weights
    are read from the checkpoint of the `frozen` probe; random weights, which depend on the seed, are all equivalent.
    `budget` contains the views, batch sizes and trials of each method.
    """
    paths = [path.resolve() for path in records.paths]
    # The common path of a single image would be the image itself.
    common_folder = Path(os.path.commonpath(paths)) if len(paths) > 1 else paths[0].parent
    files = [(path.relative_to(common_folder).as_posix(), path.stat().st_size) for path in paths]
    encoder = settings.encoder
    weights = "random" if encoder.weights is None else _hash_weights(frozen)
    parts = {
        "data": _hash(files, records.label_space.names, records.states.digest()),
        "split": _hash(records.split),
        "encoder": _hash(encoder.name, encoder.image_size, encoder.statistics, settings.tune, weights),
        "augmentation": _hash(settings.augment, settings.stored_views),
        "budget": _hash(budget, settings.probe),
    }
    return ProtocolFingerprint(**parts, all=_hash(parts))


def _hash(*parts: object) -> str:
    """Return 12 hexadecimal digits that depend on all parts; parts that are not bytes are written as JSON."""
    contents = []
    for part in parts:
        content = part if isinstance(part, bytes) else json_line(part).encode()
        contents.append(content + b"\0")  # the byte marks the end of a part
    return content_digest(contents).hex()[:12]


def _hash_weights(checkpoint: Path) -> str:
    """Return the digest of the encoder's tensors in a checkpoint, in the order of their names."""
    tensors, _ = load_tensors(checkpoint)
    names = sorted(name for name in tensors if name.startswith("state.encoder."))
    contents = (name.encode() + tensors[name].contiguous().cpu().numpy().tobytes() for name in names)
    return content_digest(contents).hex()
