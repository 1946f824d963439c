"""The one training loop: it knows `Method` and no method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from probmcl.data.loader import Batch
from probmcl.methods.base import Method
from probmcl.training.optim import Average, Training, one_cycle, optimiser


@runtime_checkable
class Batches(Protocol):
    """What a method is trained on: so many steps, of which so many make an epoch."""

    steps_per_epoch: int

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...


class Event(NamedTuple):
    """One step that was done; `images` counts the views it saw."""

    step: int
    steps: int
    epoch: int
    images: int
    loss: Tensor
    terms: dict[str, Tensor]


Watcher = Callable[[Event], None]
"""Somebody who looks at every step: a log, a progress bar."""


def fit(
    method: Method,
    batches: Batches,
    training: Training,
    *,
    device: torch.device | str = "cpu",
    watchers: Sequence[Watcher] = (),
) -> None:
    """Train a method, in place, and leave it in eval mode with the running average of its weights.

    An interrupt leaves what was reached in the same way, and passes on.
    """
    device = torch.device(device)
    method.to(device).train()
    moves = optimiser(method, training)
    schedule = one_cycle(moves, len(batches), training.warmup)
    average = Average(method, training.ema)
    half, scaler = _mixed_precision(device, training)
    try:
        for step, batch in enumerate(batches, start=1):
            views, labels, known = (x.to(device, non_blocking=True) for x in batch[:3])
            with torch.autocast(device.type, dtype=half, enabled=half is not None):
                loss, terms = method(views, labels, known)
            scaler.scale(loss).backward()
            scaler.step(moves)
            scaler.update()
            moves.zero_grad()
            schedule.step()
            average.update()
            epoch = (step - 1) // batches.steps_per_epoch
            terms = {name: value.detach() for name, value in terms.items()}
            event = Event(step, len(batches), epoch, views.shape[0] * views.shape[1], loss.detach(), terms)
            for watcher in watchers:
                watcher(event)
    finally:
        average.settle()
        method.eval()


def _mixed_precision(device: torch.device, training: Training) -> tuple[torch.dtype | None, torch.amp.GradScaler]:
    """bfloat16 on a GPU that has it, float16 with a scaled loss on one that has not, and neither on anything else."""
    if training.precision == "float32" or device.type != "cuda":
        return None, torch.amp.GradScaler(device.type, enabled=False)
    half = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return half, torch.amp.GradScaler("cuda", enabled=half is torch.float16)


def check_finite(loss: float, step: int) -> None:
    """Stop where a loss is no number any more: nothing after it can be of use."""
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {step}; a lower learning rate is the usual remedy")
