"""The training loop for any `Method`, and checkpoints that make a resumed run identical to an uninterrupted one."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from probmcl.data.loader import Batch
from probmcl.files import load_tensors, save_tensors
from probmcl.methods.base import Method
from probmcl.runtime.distributed import all_reduce_mean, is_main_process, world_size
from probmcl.training.optimizer import EMA, Training, build_optimizer, one_cycle

STEPS_BETWEEN_CHECKS = 10
"""Interval, in steps, at which the loss is checked for NaN and inf. Each check synchronizes with the device."""

SECONDS_APART = 30.0
"""Seconds between checkpoints: the most training time that a killed process can lose."""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Everything that changes during training."""

    method: Method
    optimizer: Optimizer
    schedule: LRScheduler
    ema: EMA
    scaler: GradScaler


@dataclass(eq=False)
class Checkpoint:
    """Checkpoint of a training stage: a safetensors file with JSON in its header."""

    path: Path
    seconds_apart: float = SECONDS_APART
    started: float = field(default_factory=time.perf_counter)
    saved: float = field(default_factory=time.perf_counter)
    seconds_before: float = 0.0  # training time before the last resume

    def seconds(self) -> float:
        """Return the training time of the stage in seconds, including the time before a resume."""
        return self.seconds_before + time.perf_counter() - self.started

    def restore(self, state: TrainingState) -> int:
        """Load the state and return the number of completed steps, or 0 if the file does not exist."""
        if not self.path.exists():
            return 0
        tensors, header = load_tensors(self.path)
        self.seconds_before = header.get("seconds", 0.0)
        state.method.load_state_dict(_part("method", tensors))
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in _part("optimizer", tensors).items():
            number, _, name = key.partition(".")
            moments.setdefault(int(number), {})[name] = value
        state.optimizer.load_state_dict({"state": moments, "param_groups": header["groups"]})
        state.schedule.last_epoch = header["step"]
        state.scaler.load_state_dict(header["scaler"])
        state.ema.restore(_part("average", tensors), header["step"])
        torch.set_rng_state(tensors["generator.cpu"])
        if "generator.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["generator.cuda"])
        return int(header["step"])

    def after(self, step: int, state: TrainingState) -> None:
        """Save if `seconds_apart` have passed since the last save."""
        if time.perf_counter() - self.saved >= self.seconds_apart:
            self.save(step, state)
            self.saved = time.perf_counter()

    def save(self, step: int, state: TrainingState) -> None:
        """Write the complete state (on rank 0)."""
        optimizer = state.optimizer.state_dict()
        cuda = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
        moments = {f"{i}.{key}": value for i, entry in optimizer["state"].items() for key, value in entry.items()}
        parts = {
            "method": state.method.state_dict(),
            "average": state.ema.state,
            "optimizer": moments,
            "generator": {"cpu": torch.get_rng_state(), **cuda},
        }
        header = {"step": step, "seconds": self.seconds(), "groups": optimizer["param_groups"]}
        header["scaler"] = state.scaler.state_dict()
        if is_main_process():
            tensors = {f"{part}.{key}": value for part, content in parts.items() for key, value in content.items()}
            save_tensors(self.path, tensors, header)


def _part(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(f"{part}."): value for key, value in tensors.items() if key.startswith(f"{part}.")}


@runtime_checkable
class Batches(Protocol):
    """The batches of a training stage, which can be iterated from any step."""

    steps_per_epoch: int

    def __len__(self) -> int: ...

    def starting(self, step: int) -> Iterator[Batch]:
        """Yield the batches, skipping the first `step` batches."""
        ...


class StepEvent(NamedTuple):
    """A completed training step. `images` is the number of views across all processes."""

    step: int
    steps: int
    epoch: int
    images: int
    loss: Tensor
    terms: dict[str, Tensor]


Callback = Callable[[StepEvent], None]
"""Function called after every step, for example a log or a progress bar."""


def fit(
    method: Method,
    batches: Batches,
    training: Training,
    *,
    device: torch.device | str = "cpu",
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    make_optimizer: Callable[[Method, Training], Optimizer] = build_optimizer,
) -> None:
    """Train a method in place. Afterward, it is in eval mode with its EMA weights.

    With a checkpoint, training resumes from the last saved step. If training is interrupted, the method also receives
    its EMA weights before the exception propagates. With several processes, each trains on its shard of every batch,
    and all end with the same weights.
    """
    device = torch.device(device)
    method.to(device).train()
    state = _initial_state(method, training, device, make_optimizer(method, training), steps=len(batches))
    done = checkpoint.restore(state) if checkpoint else 0
    model, half = DistributedDataParallel(method) if world_size() > 1 else method, _half_dtype(device, training)
    try:
        for step, batch in enumerate(batches.starting(done), start=done + 1):
            views, labels, known = (x.to(device, non_blocking=True) for x in batch[:3])
            with torch.autocast(device.type, dtype=half, enabled=half is not None):
                loss, terms = model(views, labels, known)
            _update(state, loss)
            mean_loss = all_reduce_mean(loss.detach())
            if step % STEPS_BETWEEN_CHECKS == 0 or step == len(batches):
                check_finite(float(mean_loss), step)
            if checkpoint:
                checkpoint.after(step, state)
            epoch = (step - 1) // batches.steps_per_epoch
            terms = {name: value.detach() for name, value in terms.items()}
            images = views.shape[0] * views.shape[1] * world_size()
            event = StepEvent(step, len(batches), epoch, images, mean_loss, terms)
            for callback in callbacks:
                callback(event)
    finally:
        state.ema.copy_to()
        method.eval()
        del model
        if world_size() > 1:
            gc.collect()  # a DistributedDataParallel that outlives its process group can crash the exiting process


def _initial_state(
    method: Method, training: Training, device: torch.device, optimizer: Optimizer, *, steps: int
) -> TrainingState:
    schedule = one_cycle(optimizer, steps, training.warmup)
    scaler = torch.amp.GradScaler(device.type, enabled=_half_dtype(device, training) is torch.float16)
    return TrainingState(method, optimizer, schedule, EMA(method, training.ema), scaler)


def _update(state: TrainingState, loss: Tensor) -> None:
    state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad()
    state.schedule.step()
    state.ema.update()


def _half_dtype(device: torch.device, training: Training) -> torch.dtype | None:
    """Return bfloat16 on GPUs that support it, float16 (with loss scaling) on other GPUs, and None elsewhere."""
    if training.precision == "float32" or device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def check_weights(method: Method) -> None:
    """Raise FloatingPointError if a weight is NaN or inf, which can happen in the steps after the last loss check."""
    weights = (value for value in method.state_dict().values() if value.is_floating_point())
    if not all(bool(value.isfinite().all()) for value in weights):
        raise FloatingPointError("a weight is NaN or inf after the last step; try a lower learning rate")


def check_finite(loss: float, step: int) -> None:
    """Raise FloatingPointError if the loss is NaN or inf."""
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {step}; try a lower learning rate")
