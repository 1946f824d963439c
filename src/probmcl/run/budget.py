"""How long each part of a run will take, from a few measured steps, and how many epochs fit into a budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.cost.speed import random_batch, seconds_per_row, seconds_per_step
from probmcl.data.records import SPLITS
from probmcl.methods.base import Method
from probmcl.run.batches import ActivationCache
from probmcl.run.workspace import Workspace
from probmcl.runtime.distributed import world_size
from probmcl.settings import TrainingJob
from probmcl.tables import rough_duration
from probmcl.training.features import ROWS_AT_ONCE

MAX_VIEWS = 60
"""Number of times a method sees each image at most, however large the budget: more has never helped."""


@dataclass(frozen=True)
class JobCost:
    """What a training job costs, in seconds.

    Attributes:
        epoch: one epoch, with `n_views` views of each image.
        once: probing and scoring on validation.
        epochs: epochs that the settings ask for.
        tested: scoring both heads on test.
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
    """What a run costs, in seconds: `shared` is needed whatever is trained."""

    shared: float
    jobs: tuple[JobCost, ...]


@dataclass(frozen=True)
class Plan:
    """What is trained: epochs by key of the job, the number of views after which each stops, and messages about it."""

    epochs: Mapping[str, int]
    messages: tuple[str, ...]
    views: int | None = None

    def jobs(self, jobs: Sequence[TrainingJob]) -> Iterator[TrainingJob]:
        """Yield the jobs that are trained, as long as planned."""
        for job in jobs:
            if job.key in self.epochs:
                views = self.views or job.training.views
                yield replace(job, training=replace(job.training, epochs=self.epochs[job.key], views=views))


Planner = Callable[[Costs, float], Plan]
"""Makes a plan from the costs and the seconds that have passed."""


def plan_epochs(costs: Costs, spent: float, budget: float | None) -> Plan:
    """Plan every training as long as its settings say or, with a budget, all with as many views as fit into it.

    >>> costs = Costs(30.0, (JobCost("bce", "bce", 10.0, 5.0, 1, 12), JobCost("probmcl", "probmcl", 20.0, 5.0, 2, 6)))
    >>> plan_epochs(costs, spent=60.0, budget=None).messages[0]
    'plan: bce, 12 epochs of 1 view (2 min); probmcl, 6 epochs of 2 views (2 min); about 5 min with probes and test'
    >>> plan_epochs(costs, spent=60.0, budget=300.0).epochs
    {'bce': 10, 'probmcl': 5}
    """
    jobs = costs.jobs
    if not jobs:
        return Plan({}, ())
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
            return Plan(plan.epochs, (*plan.messages, *_left_out(jobs[count:], budget)))
    return Plan({}, _left_out(jobs, budget))


def _plan(shared: float, jobs: Sequence[JobCost], epochs: Mapping[str, int]) -> Plan:
    parts = [
        f"{job.title}, {epochs[job.key]} epochs of {job.n_views} view{'s' if job.n_views > 1 else ''} "
        f"({rough_duration(epochs[job.key] * job.epoch)})"
        for job in jobs
    ]
    total = shared + sum(epochs[job.key] * job.epoch + job.once for job in jobs)
    return Plan(epochs, (f"plan: {'; '.join(parts)}; about {rough_duration(total)} with probes and test",))


def _left_out(jobs: Sequence[JobCost], budget: float) -> tuple[str, ...]:
    names = ", ".join(job.title for job in jobs)
    message = f"  note: a budget of {rough_duration(budget)} leaves no time for {names}; give more to try it"
    return (message,) if jobs else ()


def measure_costs(workspace: Workspace, probe_seconds: float) -> Costs:
    """Time a few steps of everything that is to be trained; fitting a probe took `probe_seconds`."""
    w, s, device = workspace, workspace.settings, workspace.settings.device
    train, val, test = (len(w.records.rows(split)) for split in SPLITS)
    size = w.backbone.encoder.image_size
    rows = torch.rand(max(1, w.images.pixels_at_once // size**2), 3, size, size, device=device)
    per_image = seconds_per_row(w.backbone.encoder.eval(), rows)
    probed = (1 + s.probe.views) * train + val
    if isinstance(w.batches, ActivationCache):
        per_image = max(per_image, w.batches.seconds_per_view())  # decoding included, if that was measured
        rows = torch.rand(ROWS_AT_ONCE, *w.batches.shape, device=device)
        # The frozen probe has filled the augmented views already if it uses some.
        to_fill = 0 if s.probe.frozen_views else w.batches.n_augmented
        shared, per_row = per_image * (to_fill * train + test), seconds_per_row(w.backbone.tail.eval(), rows)
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
    """Return a method and a random batch of the size that it trains on."""
    w, device = workspace, workspace.settings.device
    method, size = w.backbone.build(job.method, job.settings, w.records.label_space), w.backbone.encoder.image_size
    images = max(1, min(job.training.batch_size, len(w.records.rows("train"))) // world_size())
    shape = w.batches.shape if isinstance(w.batches, ActivationCache) else (3, size, size)
    views, labels = random_batch(method.n_views, images, shape, len(w.records.label_space), device)
    return method.to(device), views, labels
