"""How long a step and a prediction take on this device, and the memory of a step, on random numbers."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.cost.size import peak_memory
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.probe import Probe
from probmcl.runtime.distributed import broadcast
from probmcl.settings import default_training
from probmcl.training.optimizer import Training, build_optimizer

ROUNDS, LONG = 2, 3.0
"""Rounds that are timed, and the seconds above which one is enough."""


@dataclass(frozen=True)
class Measuring:
    """How it is measured: on which device, and how many images at once."""

    device: str = "cpu"
    batch_size: int = 8

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise ValueError(f"--batch-size {self.batch_size}: a step has 2 images or more")


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        device: where.
        batch_size: images in a step, and in a prediction.
        step_seconds: of a training step of the whole encoder, for each image.
        views_per_second: of such a step.
        prediction_seconds: for each image.
        peak_memory: bytes of tensors that a step holds at once, beyond the method itself.
    """

    device: str
    batch_size: int
    step_seconds: float
    views_per_second: float
    prediction_seconds: float
    peak_memory: int


class _Logits(nn.Module):
    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier.logits(images)


def seconds_per_image(classifier: Classifier, images: Float[Tensor, "N 3 H W"]) -> float:
    """Of predicting, where the images are."""
    return seconds_per_row(_Logits(classifier.to(images.device).eval()), images)


def step_memory(method: Method, views: Tensor, labels: Tensor, training: Training) -> int:
    """Bytes of tensors that a training step holds at once, beyond the method; it is changed by it, so give a copy."""
    method.to(views.device).train()
    moves = build_optimizer(method, training)

    def step() -> None:
        method(views, labels).loss.backward()
        moves.step()
        moves.zero_grad()

    return peak_memory(step, views.device)


def an_example(
    n_views: int, images: int, shape: tuple[int, ...], classes: int, device: str = "cpu"
) -> tuple[Float[Tensor, "V N ..."], Float[Tensor, "N C"]]:
    """Views of random numbers, and labels of which every image has one.

    >>> views, labels = an_example(2, 3, (4,), 2)
    >>> views.shape, labels.tolist()
    (torch.Size([2, 3, 4]), [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    """
    labels = torch.eye(classes, device=device)[torch.arange(images, device=device) % classes]
    return torch.rand(n_views, images, *shape, device=device), labels


def measured(method: str, settings: Any, encoder: Encoder, space: LabelSpace, measuring: Measuring) -> Speed:
    """Train and predict with a method on a copy of an encoder, with as many images at once, and look at the clock.

    All of the encoder learns, but under a method that freezes it.
    """
    kind, size, device, batch_size = find_method(method), encoder.image_size, measuring.device, measuring.batch_size
    # As in a run: a fifth to a half faster on a CPU.
    encoder = encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    trained = kind(copy.deepcopy(encoder), space, settings)
    predicting = trained if kind.has_own_head(settings) else Probe(copy.deepcopy(encoder), space)
    assert isinstance(predicting, Classifier)
    views, labels = an_example(kind.n_views, batch_size, (3, size, size), len(space), device)
    images = views[0].contiguous(memory_format=torch.channels_last)
    prediction = seconds_per_image(predicting, images)
    training = Training(**default_training(method, "all"))
    memory = step_memory(trained, views, labels, training)
    seconds = seconds_per_step(trained, views, labels, training)
    return Speed(device, batch_size, seconds / batch_size, kind.n_views * batch_size / seconds, prediction, memory)


def seconds_per_row(network: nn.Module, rows: Tensor) -> float:
    """Of one pass without gradient."""
    network.eval()

    @torch.inference_mode()
    def once() -> None:
        network(rows)

    return _seconds(once, rows.device) / len(rows)


def seconds_per_step(method: Method, views: Tensor, labels: Tensor, training: Training) -> float:
    """Of training on a batch; the method is changed by it, so give a copy."""
    method.to(views.device).train()
    moves = build_optimizer(method, training)

    def once() -> None:
        method(views, labels).loss.backward()
        moves.step()
        moves.zero_grad()

    return _seconds(once, views.device)


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Of the faster of two rounds, after one to warm up; of that one alone where it takes long."""
    found: list[float] = []
    # All processes take as many rounds: what is timed may wait for the others.
    while len(found) < (1 + ROUNDS) and (not found or broadcast(found[0]) < LONG):
        started = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        found.append(time.perf_counter() - started)
    return min(found[1:] or found)
