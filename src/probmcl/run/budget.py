"""Time estimates for the parts of a run, based on a few timed steps, and the number of epochs that fit a budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.cost.speed import random_batch, seconds_per_row, seconds_per_step
from probmcl.data.records import SPLITS
from probmcl.errors import counted
from probmcl.methods.base import Method
from probmcl.run.batches import ActivationCache
from probmcl.run.state import json_format
from probmcl.run.workspace import Workspace
from probmcl.runtime.distributed import world_size
from probmcl.settings import TrainingJob
from probmcl.store.run_folder import RunFolder
from probmcl.tables import rough_duration
from probmcl.training.features import ROWS_AT_ONCE

MAX_VIEWS = 60
"""Maximum number of views per image that a budget is spent on. More views have never improved a score."""


@dataclass(frozen=True)
class JobCost:
    """The time that a training job takes, in seconds.

    Attributes:
        epoch: time for one epoch, with `n_views` views of each image.
        once: time for fitting the probe and scoring on validation.
        epochs: number of epochs in the settings.
        tested: time for scoring both heads on test.
    """

    key: str
    title: str
    epoch: float
    once: float
    n_views: int
    epochs: int
    tested: float = 0.0


@dataclass(frozen=True)
class Costs:
    """The time that a run takes, in seconds; `shared` does not depend on the jobs.

    `spent` is the time before the measurement, stored so that a plan that is made again is the same.
    """

    shared: float
    jobs: tuple[JobCost, ...]
    spent: float = 0.0


@dataclass(frozen=True)
class EpochPlan:
    """The jobs to train: epochs by job key, messages to print, and the number of views after which each job stops."""

    epochs: Mapping[str, int]
    messages: tuple[str, ...]
    views: int | None = None

    def jobs(self, jobs: Sequence[TrainingJob]) -> Iterator[TrainingJob]:
        """Yield the jobs of the plan, with the planned numbers of epochs and views."""
        for job in jobs:
            if job.key in self.epochs:
                views = self.views or job.training.views
                yield replace(job, training=replace(job.training, epochs=self.epochs[job.key], views=views))


def read_plan(folder: RunFolder) -> EpochPlan:
    """Read the plan of a run."""
    return json_format(EpochPlan).load(folder, "plan")


Planner = Callable[[Costs, float], EpochPlan]
"""Makes a plan from the costs and the number of seconds that the run has taken so far."""


def plan_epochs(costs: Costs, spent: float, budget: float | None) -> EpochPlan:
    """Plan the epochs of each job: the number in its settings or, with a budget, the same number of views for all jobs.

    If the budget is too small for all jobs, the last jobs are left out.

    >>> costs = Costs(30.0, (JobCost("bce", "bce", 10.0, 5.0, 1, 12), JobCost("probmcl", "probmcl", 20.0, 5.0, 2, 6)))
    >>> plan_epochs(costs, spent=60.0, budget=None).messages[0]
    'plan: bce 12 epochs, 2 min; probmcl 6 epochs (2 views), 2 min; total 5 min'
    >>> plan_epochs(costs, spent=60.0, budget=300.0).epochs
    {'bce': 10, 'probmcl': 5}
    """
    jobs = costs.jobs
    if not jobs:
        return EpochPlan({}, ())
    if budget is None:
        return _plan(costs.shared, jobs, {job.key: job.epochs for job in jobs})
    for count in range(len(jobs), 0, -1):
        trained = jobs[:count]
        left = budget - spent - costs.shared - sum(job.once for job in trained)
        most_views = max(job.n_views for job in trained)
        rounds = int(left // sum(job.epoch * most_views / job.n_views for job in trained))
        rounds = min(rounds, max(1, MAX_VIEWS // most_views))
        if rounds >= 1:
            plan = _plan(costs.shared, trained, {job.key: rounds * most_views // job.n_views for job in trained})
            return EpochPlan(plan.epochs, (*plan.messages, *_left_out(jobs[count:], budget)))
    return EpochPlan({}, _left_out(jobs, budget))


def _plan(shared: float, jobs: Sequence[JobCost], epochs: Mapping[str, int]) -> EpochPlan:
    parts = [
        f"{job.title} {counted(epochs[job.key], 'epoch')}{f' ({job.n_views} views)' if job.n_views > 1 else ''}, "
        f"{rough_duration(epochs[job.key] * job.epoch)}"
        for job in jobs
    ]
    total = shared + sum(epochs[job.key] * job.epoch + job.once for job in jobs)
    return EpochPlan(epochs, (f"plan: {'; '.join(parts)}; total {rough_duration(total)}",))


def _left_out(jobs: Sequence[JobCost], budget: float) -> tuple[str, ...]:
    names = ", ".join(job.title for job in jobs)
    message = f"note: the budget of {rough_duration(budget)} is too small to train {names}; increase `budget`"
    return (message,) if jobs else ()


def measure_costs(workspace: Workspace, probe_seconds: float) -> Costs:
    """Estimate the time each job takes from a few timed steps; fitting a probe takes `probe_seconds`."""
    w, s, device = workspace, workspace.settings, workspace.settings.device
    train, val, test = (len(w.records.rows(split)) for split in SPLITS)
    size = w.backbone.encoder.image_size
    rows = torch.rand(max(1, w.images.pixels_at_once // size**2), 3, size, size, device=device)
    per_image = seconds_per_row(w.backbone.encoder.eval(), rows)
    probed = (1 + s.probe.views) * train + val
    if isinstance(w.batches, ActivationCache):
        per_image = max(per_image, w.batches.seconds_per_view())  # includes decoding, if views have been cached
        rows = torch.rand(ROWS_AT_ONCE, *w.batches.shape, device=device)
        # If the frozen probe uses augmented views, they are cached already.
        to_fill = 0 if s.probe.frozen_views else w.batches.n_augmented
        shared, per_row = per_image * (to_fill * train + 2 * test), seconds_per_row(w.backbone.tail.eval(), rows)
    else:
        shared, per_row = per_image * 2 * test, per_image
    once = per_row * (probed + val) / world_size() + probe_seconds
    tested = per_row * 2 * test / world_size()
    return Costs(shared / world_size(), tuple(_job_cost(w, job, once, tested) for job in s.jobs))


def _job_cost(workspace: Workspace, job: TrainingJob, once: float, tested: float) -> JobCost:
    method, views, labels = example_step(workspace, job)
    steps = max(1, len(workspace.records.rows("train")) // (len(labels) * world_size()))
    epoch = seconds_per_step(method, views, labels, job.training) * steps
    return JobCost(job.key, job.title, epoch, once, method.n_views, job.training.epochs, tested)


def example_step(
    workspace: Workspace, job: TrainingJob
) -> tuple[Method, Float[Tensor, "V N *image"], Float[Tensor, "N C"]]:
    """Return a method, along with random views and labels in the shapes of a training batch."""
    w, device = workspace, workspace.settings.device
    method, size = w.backbone.build(job.method, job.settings, w.records.label_space), w.backbone.encoder.image_size
    images = max(1, min(job.training.batch_size, len(w.records.rows("train"))) // world_size())
    shape = w.batches.shape if isinstance(w.batches, ActivationCache) else (3, size, size)
    views, labels = random_batch(method.n_views, images, shape, len(w.records.label_space), device)
    return method.to(device), views, labels
