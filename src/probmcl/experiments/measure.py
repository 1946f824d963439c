"""Cost of each method with the encoder of a comparison: parameters, multiply-adds, speed and memory."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from probmcl.cost.operations import count_parameters, prediction_operations
from probmcl.cost.speed import seconds_per_row, seconds_per_step, step_memory
from probmcl.methods import find_method
from probmcl.methods.base import Classifier
from probmcl.methods.probe import Probe
from probmcl.run.budget import example_step
from probmcl.run.results import FROZEN_PROBE
from probmcl.run.workspace import Workspace
from probmcl.runtime.distributed import world_size
from probmcl.settings import TrainingJob, Tune
from probmcl.store.files import MEASUREMENTS


@dataclass(frozen=True)
class PredictionCost:
    """Cost of predicting with a classifier."""

    parameters: int
    gmac: float  # multiply-adds for one image, in 10⁹
    speed: float  # images per second


@dataclass(frozen=True)
class MethodCost:
    """Cost of training and predicting with a method; the frozen probe has no training cost."""

    own_head: PredictionCost | None  # with the method's own head, if it has one
    probe: PredictionCost  # with a linear probe on its encoder
    training_speed: float | None  # views per second in a training step
    peak_memory: int | None  # bytes of tensors at the peak of a training step, without the method's state


@dataclass(frozen=True)
class Measurements:
    """Measurements made before training, stored in measured.json."""

    tune: Tune  # the part of the encoder that is trained
    image_size: int
    expenses: dict[str, MethodCost]  # cost of the frozen probe and of each method, by name
    cannot: dict[str, str]  # why a method cannot run on this encoder, by name


MEASUREMENTS_FILE = MEASUREMENTS.holding(Measurements)


def measure(jobs: Mapping[str, TrainingJob], workspace: Workspace, *, leave_out: bool) -> Measurements:
    """Measure the frozen probe and one job of each method; `leave_out` skips methods that cannot run."""
    encoder = workspace.backbone.encoder
    # The copy of the encoder has no name, so that its memory is free again when the methods are measured.
    probe = _prediction_cost(Probe(copy.deepcopy(encoder), workspace.records.label_space), workspace)
    costs = {FROZEN_PROBE.name: MethodCost(own_head=None, probe=probe, training_speed=None, peak_memory=None)}
    cannot: dict[str, str] = {}
    for name, job in jobs.items():
        try:
            with warnings.catch_warnings(action="ignore"):  # training shows them again
                costs[name] = _method_cost(job, workspace, probe)
        except ValueError as error:
            if not leave_out:
                raise
            cannot[name] = str(error)
    return Measurements(workspace.backbone.tune, encoder.image_size, costs, cannot)


def _method_cost(job: TrainingJob, workspace: Workspace, probe: PredictionCost) -> MethodCost:
    """Measure the cost of a method; `probe` is the cost of a linear probe on its encoder, the same for all methods."""
    own_head = None
    method_class = find_method(job.method)
    if method_class.has_own_head(job.settings):
        encoder = copy.deepcopy(workspace.backbone.encoder)
        classifier = method_class(encoder, workspace.records.label_space, job.settings)
        assert isinstance(classifier, Classifier)
        own_head = _prediction_cost(classifier.to(workspace.settings.device), workspace)
    method, views, labels = example_step(workspace, job)
    peak_memory = step_memory(method, views, labels, job.training)
    seconds = seconds_per_step(method, views, labels, job.training)
    n_views, n_images = views.shape[:2]
    training_speed = world_size() * n_views * n_images / seconds
    return MethodCost(own_head, probe, training_speed, peak_memory)


def _prediction_cost(classifier: Classifier, workspace: Workspace) -> PredictionCost:
    """Measure the cost of predicting random images in batches of the size that predictions have."""
    size = workspace.backbone.encoder.image_size
    batch_size = max(1, workspace.images.pixels_at_once // size**2)
    images = torch.rand(batch_size, 3, size, size, device=workspace.settings.device)
    images = images.contiguous(memory_format=torch.channels_last)
    gmac = prediction_operations(classifier, size).gmac
    seconds = seconds_per_row(classifier.eval().logits, images)
    return PredictionCost(count_parameters(classifier), gmac, speed=1 / seconds)
