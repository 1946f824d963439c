"""What each entrant costs: parameters, multiply-adds, speed and memory, measured one after the other on one machine."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from probmcl.cost.operations import count_parameters, prediction_operations
from probmcl.cost.speed import seconds_per_image, seconds_per_step, step_memory
from probmcl.methods import find_method
from probmcl.methods.base import Classifier
from probmcl.methods.probe import Probe
from probmcl.run.budget import example_step
from probmcl.run.workspace import Workspace
from probmcl.runtime.distributed import world_size
from probmcl.settings import TrainingJob


@dataclass(frozen=True)
class Prediction:
    """Of what predicts: its parameters, its multiply-adds in 10⁹, and images a second."""

    parameters: int
    gmac: float
    speed: float


@dataclass(frozen=True)
class Expense:
    """What a method costs: by its own head where it has one, by a probe on it, and a training step's speed and memory.

    Attributes:
        own_head: of its own head; None where it has none.
        probe: of an encoder with one linear layer.
        training_speed: views a second of a step, from what a run stores where only a part of the encoder learns.
        peak_memory: bytes of tensors that a step holds at once, beyond the method itself.
    """

    own_head: Prediction | None
    probe: Prediction
    training_speed: float | None
    peak_memory: int | None


def of_the_frozen_probe(workspace: Workspace) -> Expense:
    """What an encoder with one linear layer costs."""
    probe = Probe(copy.deepcopy(workspace.backbone.encoder), workspace.records.label_space)
    return Expense(None, _prediction(probe, workspace), None, None)


def expense(job: TrainingJob, workspace: Workspace, probe: Prediction) -> Expense:
    """What a contender costs on the encoder of a run, beside the probe on it."""
    kind = find_method(job.method)
    own_head = None
    if kind.has_own_head(job.settings):
        whole = kind(copy.deepcopy(workspace.backbone.encoder), workspace.records.label_space, job.settings)
        assert isinstance(whole, Classifier)
        own_head = _prediction(whole.to(workspace.settings.device), workspace)
    method, views, labels = example_step(workspace, job)
    memory = step_memory(method, views, labels, job.training)
    seconds = seconds_per_step(method, views, labels, job.training)
    return Expense(own_head, probe, world_size() * views.shape[0] * views.shape[1] / seconds, memory)


def _prediction(classifier: Classifier, workspace: Workspace) -> Prediction:
    encoder, device = workspace.backbone.encoder, workspace.settings.device
    size = encoder.image_size
    at_once = max(1, workspace.images.pixels_at_once // size**2)
    images = torch.rand(at_once, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    gmac = prediction_operations(classifier, size).gmac
    return Prediction(count_parameters(classifier), gmac, 1 / seconds_per_image(classifier, images))
