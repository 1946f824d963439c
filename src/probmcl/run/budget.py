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
from probmcl.run.activation_cache import ActivationCache
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
        n_views: views of each image in one epoch.
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
    """The time that a run takes, in seconds.

    Attributes:
        shared: time for the parts of the run that do not belong to a job.
        jobs: the times of the training jobs.
        spent: time before the measurement, stored so that a plan that is made again is the same.
    """

    shared: float
    jobs: tuple[JobCost, ...]
    spent: float = 0.0


@dataclass(frozen=True)
class EpochPlan:
    """The jobs to train.

    Attributes:
        epochs: number of epochs by the key of the job; a job that is not trained has none.
        messages: lines to print.
        views: number of views after which each job stops; None if the settings of the job decide.
    """

    epochs: Mapping[str, int]
    messages: tuple[str, ...]
    views: int | None = None

    def jobs(self, jobs: Sequence[TrainingJob]) -> Iterator[TrainingJob]:
        """Yield the jobs of the plan, with the planned numbers of epochs and views."""
        for job in jobs:
            if job.key not in self.epochs:
                continue
            views = self.views or job.training.views
            training = replace(job.training, epochs=self.epochs[job.key], views=views)
            yield replace(job, training=training)


def read_plan(folder: RunFolder) -> EpochPlan:
    """Read the plan of a run."""
    return json_format(EpochPlan).load(folder, "plan")


Planner = Callable[[Costs, float], EpochPlan]
"""Makes a plan from the costs and the number of seconds that the run has taken so far."""


def plan_epochs(costs: Costs, spent: float, budget: float | None) -> EpochPlan:
    """Plan the epochs of each job: the number in its settings or, with a budget, the same number of views for all jobs.

    A budget is spent in rounds. In one round, every job is trained on the same number of views of each image. If the
    budget is too small for one round of all jobs, the last jobs are left out. `spent` is the time that the run has
    already taken; like the budget, it is in seconds.

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
        left_out = jobs[count:]
        most_views = max(job.n_views for job in trained)
        rounds = _affordable_rounds(trained, budget - spent - costs.shared, most_views)
        if rounds >= 1:
            epochs = {job.key: rounds * most_views // job.n_views for job in trained}
            plan = _plan(costs.shared, trained, epochs)
            return replace(plan, messages=(*plan.messages, *_left_out(left_out, budget)))
    return EpochPlan({}, _left_out(jobs, budget))


def _affordable_rounds(jobs: Sequence[JobCost], seconds: float, most_views: int) -> int:
    """Return how many rounds of training fit into a number of seconds; less than 1 if none does.

    In one round, every job is trained on `most_views` views of each image, for example one epoch of a method with two
    views and two epochs of a method with one view.
    """
    seconds_for_training = seconds - sum(job.once for job in jobs)
    seconds_per_round = sum(job.epoch * most_views / job.n_views for job in jobs)
    rounds = int(seconds_for_training // seconds_per_round)
    return min(rounds, max(1, MAX_VIEWS // most_views))


def _plan(shared: float, jobs: Sequence[JobCost], epochs: Mapping[str, int]) -> EpochPlan:
    """Return the plan with these numbers of epochs, and the message with the estimated durations."""
    parts = []
    for job in jobs:
        n_epochs = epochs[job.key]
        training_seconds = n_epochs * job.epoch
        views = f" ({job.n_views} views)" if job.n_views > 1 else ""
        parts.append(f"{job.title} {counted(n_epochs, 'epoch')}{views}, {rough_duration(training_seconds)}")
    total = shared + sum(epochs[job.key] * job.epoch + job.once for job in jobs)
    message = f"plan: {'; '.join(parts)}; total {rough_duration(total)}"
    return EpochPlan(epochs, (message,))


def _left_out(jobs: Sequence[JobCost], budget: float) -> tuple[str, ...]:
    """Return the message about the jobs that the budget is too small for; no message if there are none."""
    if not jobs:
        return ()
    names = ", ".join(job.title for job in jobs)
    return (f"note: the budget of {rough_duration(budget)} is too small to train {names}; increase `budget`",)


def measure_costs(workspace: Workspace, probe_seconds: float) -> Costs:
    """Estimate the time that a run takes: the parts that all jobs share, and the parts of each job.

    The times for an image and for a training step are measured. `probe_seconds` is the time for fitting a probe.
    """
    train, val, test = (len(workspace.records.rows(split)) for split in SPLITS)
    probe = workspace.settings.probe
    tested_views = 2 * test  # of a run: the frozen probe and the kept model; of a job: its two candidates
    seconds_per_image = _seconds_per_image(workspace)
    if isinstance(workspace.batches, ActivationCache):
        # The complete encoder computes the cached views and tests the models; the jobs read cached views.
        seconds_per_image = max(seconds_per_image, workspace.batches.seconds_per_view())  # this includes decoding
        # If the frozen probe uses augmented views, they are cached already.
        n_augmented = 0 if probe.frozen_views else workspace.batches.n_augmented
        shared = seconds_per_image * (n_augmented * train + tested_views)
        seconds_per_view = _seconds_per_cached_view(workspace, workspace.batches)
    else:
        shared = seconds_per_image * tested_views
        seconds_per_view = seconds_per_image
    # A job fits a probe to views of the training images, and scores both candidates on the validation images.
    probed_views = (1 + probe.views) * train + val
    once = seconds_per_view * (probed_views + val) / world_size() + probe_seconds
    tested = seconds_per_view * tested_views / world_size()
    jobs = tuple(_job_cost(workspace, job, once, tested) for job in workspace.settings.jobs)
    return Costs(shared / world_size(), jobs)


def _seconds_per_image(workspace: Workspace) -> float:
    """Return the time that the complete encoder takes for one image."""
    encoder = workspace.backbone.encoder
    size = encoder.image_size
    images = max(1, workspace.images.pixels_at_once // size**2)
    batch = torch.rand(images, 3, size, size, device=workspace.settings.device)
    return seconds_per_row(encoder.eval(), batch)


def _seconds_per_cached_view(workspace: Workspace, cache: ActivationCache) -> float:
    """Return the time that the tail of the encoder takes for one cached output of the trunk."""
    batch = torch.rand(ROWS_AT_ONCE, *cache.shape, device=workspace.settings.device)
    return seconds_per_row(workspace.backbone.tail.eval(), batch)


def _job_cost(workspace: Workspace, job: TrainingJob, once: float, tested: float) -> JobCost:
    """Return the cost of a job: an epoch is measured, and the other two times are given."""
    method, views, labels = example_step(workspace, job)
    images_per_step = len(labels) * world_size()
    steps = max(1, len(workspace.records.rows("train")) // images_per_step)
    return JobCost(
        job.key,
        job.title,
        epoch=seconds_per_step(method, views, labels, job.training) * steps,
        once=once,
        n_views=method.n_views,
        epochs=job.training.epochs,
        tested=tested,
    )


def example_step(
    workspace: Workspace, job: TrainingJob
) -> tuple[Method, Float[Tensor, "V N *image"], Float[Tensor, "N C"]]:
    """Return a method, along with random views and labels in the shapes of a training batch."""
    settings = workspace.settings
    records = workspace.records
    method = workspace.backbone.build(job.method, job.settings, records.label_space)
    batch_size = min(job.training.batch_size, len(records.rows("train")))
    images = max(1, batch_size // world_size())
    size = workspace.backbone.encoder.image_size
    shape: tuple[int, ...] = (3, size, size)
    if isinstance(workspace.batches, ActivationCache):
        shape = workspace.batches.shape
    views, labels = random_batch(method.n_views, images, shape, len(records.label_space), settings.device)
    return method.to(settings.device), views, labels
