"""The training loop, which works for every `Method`."""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from probmcl.data.loader import Batch
from probmcl.methods.base import Method
from probmcl.runtime.distributed import all_reduce_mean, world_size
from probmcl.training.checkpoint import Checkpoint, TrainingState
from probmcl.training.optimizer import EMA, Training, build_optimizer, one_cycle

STEPS_BETWEEN_CHECKS = 10
"""Steps between two checks that the loss is finite: each check synchronizes with the device."""


@runtime_checkable
class Batches(Protocol):
    """The batches of a training stage, `len` of them, which can start at any step."""

    steps_per_epoch: int

    def __len__(self) -> int: ...

    def starting(self, step: int) -> Iterator[Batch]:
        """Yield the batches from a step on."""
        ...


class StepEvent(NamedTuple):
    """A finished training step; `images` counts the views of all processes."""

    step: int
    steps: int
    epoch: int
    images: int
    loss: Tensor
    terms: dict[str, Tensor]


Callback = Callable[[StepEvent], None]
"""Called after every step: a log, a progress bar."""


def fit(
    method: Method,
    batches: Batches,
    training: Training,
    *,
    device: torch.device | str = "cpu",
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
) -> None:
    """Train a method in place, and leave it in eval mode with the EMA of its weights.

    With a checkpoint, training resumes from the last saved step. After an interrupt the method has its EMA weights too,
    and the interrupt is raised again. With several processes each gets its shard of every batch, and all end with the
    same weights.
    """
    device = torch.device(device)
    method.to(device).train()
    state = _initial_state(method, training, device, steps=len(batches))
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
            gc.collect()  # a DistributedDataParallel that outlives its group can abort the process at its end


def _initial_state(method: Method, training: Training, device: torch.device, *, steps: int) -> TrainingState:
    optimizer = build_optimizer(method, training)
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
    """bfloat16 on a GPU that supports it, float16 (with a scaled loss) on any other GPU, None on other devices."""
    if training.precision == "float32" or device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def check_weights(method: Method) -> None:
    """Raise FloatingPointError if a weight is NaN or inf, which the last steps, after the last check, may cause."""
    weights = (value for value in method.state_dict().values() if value.is_floating_point())
    if not all(bool(value.isfinite().all()) for value in weights):
        raise FloatingPointError("a weight is NaN or inf after the last step; a lower learning rate usually helps")


def check_finite(loss: float, step: int) -> None:
    """Raise FloatingPointError if the loss is NaN or inf: nothing after that step can be of use."""
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {step}; a lower learning rate usually helps")
