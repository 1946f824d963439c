"""The one training loop: it knows `Method` and no method."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from probmcl.data.loader import Batch
from probmcl.methods.base import Method
from probmcl.runtime.distributed import all_reduce_mean, world_size
from probmcl.training.checkpoint import Checkpoint, TrainingState
from probmcl.training.optimizer import EMA, Training, build_optimizer, one_cycle


@runtime_checkable
class Batches(Protocol):
    """What a method is trained on: so many steps, of which so many make an epoch, from any of them on."""

    steps_per_epoch: int

    def __len__(self) -> int: ...

    def starting(self, step: int) -> Iterator[Batch]:
        """The batches from a step on."""
        ...


class StepEvent(NamedTuple):
    """One step that was done; `images` counts the views it saw."""

    step: int
    steps: int
    epoch: int
    images: int
    loss: Tensor
    terms: dict[str, Tensor]


CHECKED_EVERY = 10
"""Steps between two looks at whether the loss is a number: each makes the device wait."""

Callback = Callable[[StepEvent], None]
"""Somebody who looks at every step: a log, a progress bar."""


def fit(
    method: Method,
    batches: Batches,
    training: Training,
    *,
    device: torch.device | str = "cpu",
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
) -> None:
    """Train a method, in place, and leave it in eval mode with the running average of its weights.

    With a checkpoint, training goes on from where that was saved. An interrupt leaves the method likewise, and passes
    on. Under several processes each is given its share of every batch, and all end with the same weights.
    """
    device = torch.device(device)
    method.to(device).train()
    progress = _begin(method, training, device, steps=len(batches))
    done = checkpoint.restore(progress) if checkpoint else 0
    step_of, half = _on_all_processes(method), _half(device, training)
    try:
        for step, batch in enumerate(batches.starting(done), start=done + 1):
            views, labels, known = (x.to(device, non_blocking=True) for x in batch[:3])
            with torch.autocast(device.type, dtype=half, enabled=half is not None):
                loss, terms = step_of(views, labels, known)
            _move(progress, loss)
            seen = all_reduce_mean(loss.detach())
            if step % CHECKED_EVERY == 0 or step == len(batches):
                check_finite(float(seen), step)
            if checkpoint:
                checkpoint.after(step, progress)
            epoch = (step - 1) // batches.steps_per_epoch
            terms = {name: value.detach() for name, value in terms.items()}
            images = views.shape[0] * views.shape[1] * world_size()
            event = StepEvent(step, len(batches), epoch, images, seen, terms)
            for callback in callbacks:
                callback(event)
    finally:
        progress.average.copy_to()
        method.eval()
        del step_of
        if world_size() > 1:
            gc.collect()  # a DistributedDataParallel that outlives its group can abort the process at its end


def _begin(method: Method, training: Training, device: torch.device, *, steps: int) -> TrainingState:
    moves = build_optimizer(method, training)
    schedule = one_cycle(moves, steps, training.warmup)
    scaler = torch.amp.GradScaler(device.type, enabled=_half(device, training) is torch.float16)
    return TrainingState(method, moves, schedule, EMA(method, training.ema), scaler)


def _move(progress: TrainingState, loss: Tensor) -> None:
    """One step down the gradient of a loss."""
    progress.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    progress.scaler.step(progress.optimizer)
    progress.scaler.update()
    progress.optimizer.zero_grad()
    progress.schedule.step()
    progress.average.update()


def _on_all_processes(method: Method) -> nn.Module:
    """The method, its gradients averaged over all processes where there are several."""
    return DistributedDataParallel(method) if world_size() > 1 else method


def _half(device: torch.device, training: Training) -> torch.dtype | None:
    """bfloat16 on a GPU that has it, float16 (with a scaled loss) on one that has not, and neither on anything else."""
    if training.precision == "float32" or device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def check_weights(method: Method) -> None:
    """Refuse a method whose last steps, at which nobody looked, have ruined it."""
    numbers = (value for value in method.state_dict().values() if value.is_floating_point())
    if not all(bool(value.isfinite().all()) for value in numbers):
        raise FloatingPointError("a weight is no number after the last step; a lower learning rate is the usual remedy")


def check_finite(loss: float, step: int) -> None:
    """Stop where a loss is no number any more: nothing after it can be of use."""
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {step}; a lower learning rate is the usual remedy")
