"""Time of a training step and of a prediction on this device, and the memory of a step, with random images."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.cost.memory import peak_memory
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.errors import OptionError
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.probe import Probe
from probmcl.runtime.distributed import broadcast
from probmcl.settings import MethodSpec, default_training
from probmcl.training.optimizer import Training, build_optimizer

ROUNDS, LONG_SECONDS = 2, 3.0
"""Timed rounds after the first; none if the first takes this long."""


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a measurement: the device, and the number of images per step."""

    device: str = "cpu"
    batch_size: int = 8

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise OptionError("batch_size", self.batch_size, "must be at least 2")


@dataclass(frozen=True)
class Speed:
    """The result of a measurement.

    Attributes:
        device: the device.
        batch_size: images per step and per prediction.
        step_seconds: time of a training step of the whole encoder, per image.
        views_per_second: views per second of such a step.
        prediction_seconds: time of a prediction, per image.
        peak_memory: bytes of tensors that a step holds at once, without the method itself.
    """

    device: str
    batch_size: int
    step_seconds: float
    views_per_second: float
    prediction_seconds: float
    peak_memory: int


def measure_speed(spec: MethodSpec, encoder: Encoder, label_space: LabelSpace, options: MeasureOptions) -> Speed:
    """Train and predict with a method on a copy of an encoder.

    The whole encoder is trained, except by a method that freezes it.
    """
    method, settings, batch_size = find_method(spec.method), spec.settings, options.batch_size
    # The layout of a run, which is a fifth to a half faster on a CPU.
    encoder = encoder.to(options.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    trained = method(copy.deepcopy(encoder), label_space, settings)
    classifier = trained if method.has_own_head(settings) else Probe(copy.deepcopy(encoder), label_space)
    assert isinstance(classifier, Classifier)
    shape = (3, encoder.image_size, encoder.image_size)
    views, labels = random_batch(method.n_views, batch_size, shape, len(label_space), options.device)
    prediction = seconds_per_image(classifier, views[0].contiguous(memory_format=torch.channels_last))
    training = Training(**default_training(spec.method, "all"))
    memory = step_memory(trained, views, labels, training)
    step = seconds_per_step(trained, views, labels, training)
    views_per_second = method.n_views * batch_size / step
    return Speed(options.device, batch_size, step / batch_size, views_per_second, prediction, memory)


def random_batch(
    n_views: int, images: int, shape: tuple[int, ...], classes: int, device: str = "cpu"
) -> tuple[Float[Tensor, "V N ..."], Float[Tensor, "N C"]]:
    """Return random views, and labels of which every image has one.

    >>> views, labels = random_batch(2, 3, (4,), 2)
    >>> views.shape, labels.tolist()
    (torch.Size([2, 3, 4]), [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    """
    labels = torch.eye(classes, device=device)[torch.arange(images, device=device) % classes]
    return torch.rand(n_views, images, *shape, device=device), labels


def seconds_per_image(classifier: Classifier, images: Float[Tensor, "N 3 H W"]) -> float:
    """Return the time of a prediction, on the device of the images."""
    return _forward_seconds(classifier.to(images.device).eval().logits, images)


def seconds_per_row(network: nn.Module, rows: Tensor) -> float:
    """Return the time of a forward pass without gradient, per row."""
    return _forward_seconds(network.eval(), rows)


def _forward_seconds(forward: Callable[[Tensor], object], rows: Tensor) -> float:
    @torch.inference_mode()
    def work() -> None:
        forward(rows)

    return _seconds(work, rows.device) / len(rows)


def seconds_per_step(method: Method, views: Tensor, labels: Tensor, training: Training) -> float:
    """Return the time of a training step; it changes the method, so pass a copy."""
    return _seconds(_training_step(method, views, labels, training), views.device)


def step_memory(method: Method, views: Tensor, labels: Tensor, training: Training) -> int:
    """Return the bytes of tensors that a training step holds, without the method; it changes it, so pass a copy."""
    return peak_memory(_training_step(method, views, labels, training), views.device)


def _training_step(method: Method, views: Tensor, labels: Tensor, training: Training) -> Callable[[], None]:
    optimizer = build_optimizer(method.to(views.device).train(), training)

    def step() -> None:
        method(views, labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """The time of the fastest round after a warm-up; that of the warm-up itself if it takes long."""
    seconds: list[float] = []
    # All processes run the same number of rounds: the work may wait for the others.
    while len(seconds) < (1 + ROUNDS) and (not seconds or broadcast(seconds[0]) < LONG_SECONDS):
        start = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:] or seconds)
