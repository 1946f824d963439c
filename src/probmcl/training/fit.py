"""The training loop for any `Method`, and checkpoints that make a resumed run identical to an uninterrupted one."""

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from probmcl.data.loader import Batch
from probmcl.errors import RunError, counted
from probmcl.methods.base import Method
from probmcl.runtime.distributed import all_reduce_mean, broadcast, gather_unequal, is_main_process, world_size
from probmcl.runtime.folders import replace_file
from probmcl.runtime.tensor_files import load_tensors, save_tensors
from probmcl.training.optimizer import EMA, Training, build_optimizer, one_cycle

SECONDS_APART = 30.0
"""Seconds between checkpoints: the most training time that a killed process can lose."""

MAX_SKIPPED = 5
"""Number of batches with a loss or gradient of NaN or inf after which training stops."""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Everything that changes during training; `skipped` lists the steps whose batch was skipped."""

    method: Method
    optimizer: Optimizer
    schedule: LRScheduler
    ema: EMA
    scaler: GradScaler
    skipped: list[int] = field(default_factory=list)


class Loaded(NamedTuple):
    """A checkpoint that was read: its file, its tensors and its header."""

    path: Path
    tensors: dict[str, Tensor]
    header: dict[str, Any]


@runtime_checkable
class Monitor(Protocol):
    """A callback whose state is part of a checkpoint, so that it continues as if there had been no interrupt."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state as tensors and JSON."""
        ...

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Continue from the state in a checkpoint."""
        ...


@dataclass(eq=False)
class Checkpoint:
    """Checkpoint of a training stage: a safetensors file with JSON in its header.

    The previous checkpoint is kept, and is used if the last one is damaged.
    """

    path: Path
    monitor: Monitor | None = None
    root: Path | None = None  # the run folder, below which symlinks are not followed
    seconds_apart: float = SECONDS_APART
    started: float = field(default_factory=time.perf_counter)
    saved: float = field(default_factory=time.perf_counter)
    seconds_before: float = 0.0  # training time before the last resume
    steps: int | None = None  # of the complete training

    def seconds(self) -> float:
        """Return the training time of the stage in seconds, including the time before a resume."""
        return self.seconds_before + time.perf_counter() - self.started

    @property
    def previous(self) -> Path:
        """The file of the previous checkpoint."""
        return self.path.with_name(f"previous.{self.path.name}")

    def restore(self, state: TrainingState, steps: int) -> int:
        """Load the state and return the number of completed steps, or 0 if there is no checkpoint.

        A checkpoint of a training with another number of steps is not used, since the learning rate depends on it.
        """
        self.steps = steps
        loaded = self._load()
        if loaded is None:
            return 0
        tensors, header = loaded.tensors, loaded.header
        if header["steps"] != steps:
            problem = f"{self.path}: the training had {header['steps']} steps, and now has {steps}"
            warnings.warn(f"{problem}; training starts over", stacklevel=3)  # names the line that called `fit`
            return 0
        self.seconds_before = header["seconds"]
        state.method.load_state_dict(_part("method", tensors))
        moments = _moments_by_parameter(_part("optimizer", tensors))
        state.optimizer.load_state_dict({"state": moments, "param_groups": header["groups"]})
        state.schedule.last_epoch = header["step"]
        state.scaler.load_state_dict(header["scaler"])
        state.ema.restore(_part("average", tensors), header["step"])
        state.skipped[:] = header["skipped"]
        if self.monitor:
            self.monitor.restore(_part("monitor", tensors), header["monitor"])
        torch.set_rng_state(tensors["generator.cpu"])
        if "generator.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["generator.cuda"])
        return int(header["step"])

    def _load(self) -> Loaded | None:
        """Return the content of the last checkpoint or, if it is damaged, of the previous one.

        Rank 0 chooses the file, so that all processes continue from the same step.
        """
        chosen = self._choose() if is_main_process() else None
        chosen_name = None if chosen is None else chosen.path.name
        name = broadcast(chosen_name)
        if chosen is not None or name is None:
            return chosen
        path = self.path.with_name(name)
        return Loaded(path, *load_tensors(path, root=self.root))

    def _choose(self) -> Loaded | None:
        """Return the last checkpoint that can be read. Damaged ones are deleted, with one warning for all of them."""
        chosen = None
        consequence = "training starts over"
        problems: list[str] = []
        for path in (self.path, self.previous):
            try:
                chosen = Loaded(path, *load_tensors(path, root=self.root))
            except FileNotFoundError:
                continue
            except RunError as error:
                if isinstance(error.__cause__, MemoryError):  # the file may be in order
                    raise
                problems.append(str(error))
                path.unlink(missing_ok=True)  # otherwise the next save would keep it as the previous checkpoint
                continue
            consequence = f"training continues from the previous checkpoint, step {chosen.header['step']}"
            break
        if problems:
            message = f"damaged checkpoint: {'; '.join(problems)}; {consequence}"
            warnings.warn(message, stacklevel=5)  # names the line that called `fit`
        return chosen

    def delete(self) -> None:
        """Delete the checkpoints (on rank 0)."""
        if not is_main_process():
            return
        for path in (self.path, self.previous):
            path.unlink(missing_ok=True)

    def after(self, step: int, state: TrainingState) -> None:
        """Save if `seconds_apart` have passed since the last save."""
        if time.perf_counter() - self.saved >= self.seconds_apart:
            self.save(step, state)
            self.saved = time.perf_counter()

    def save(self, step: int, state: TrainingState) -> None:
        """Write the complete state (on rank 0)."""
        optimizer = state.optimizer.state_dict()
        generators = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            generators["cuda"] = torch.cuda.get_rng_state()
        parts = {
            "method": state.method.state_dict(),
            "average": state.ema.state,
            "optimizer": _named_moments(optimizer["state"]),
            "generator": generators,
        }
        header = {
            "step": step,
            "steps": self.steps,
            "seconds": self.seconds(),
            "groups": optimizer["param_groups"],
            "scaler": state.scaler.state_dict(),
            "skipped": state.skipped,
        }
        if self.monitor:
            parts["monitor"], header["monitor"] = self.monitor.state()
        if not is_main_process():
            return
        if self.path.exists():
            replace_file(self.path, self.previous)
        tensors = {f"{part}.{key}": value for part, content in parts.items() for key, value in content.items()}
        save_tensors(self.path, tensors, header, root=self.root)


def _part(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of one part of a checkpoint, under the names that they have within this part."""
    prefix = f"{part}."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _named_moments(moments: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the moments of an optimizer under names such as `0.exp_avg`: the number of the parameter and the key."""
    named = {}
    for number, moments_of_parameter in moments.items():
        for key, value in moments_of_parameter.items():
            named[f"{number}.{key}"] = value
    return named


def _moments_by_parameter(named: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Return the moments of an optimizer by parameter and key; this is the inverse of `_named_moments`."""
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in named.items():
        number, _, key = name.partition(".")
        moments.setdefault(int(number), {})[key] = value
    return moments


@runtime_checkable
class Batches(Protocol):
    """The batches of a training stage, which can be iterated from any step."""

    steps_per_epoch: int

    def __len__(self) -> int: ...

    def starting(self, step: int) -> Iterator[Batch]:
        """Yield the batches, skipping the first `step` batches."""
        ...


class StepEvent(NamedTuple):
    """A completed training step.

    Attributes:
        step: number of the step, starting at 1.
        steps: number of steps of the complete training.
        epoch: number of the epoch, starting at 0.
        images: number of views across all processes.
        loss: mean loss over all processes.
        terms: terms of the loss on this process, by name.
        skipped: None if the batch was applied. If its loss or gradient is NaN or inf, the rows of its images in the
            records, also across all processes.
    """

    step: int
    steps: int
    epoch: int
    images: int
    loss: Tensor
    terms: dict[str, Tensor]
    skipped: Int[Tensor, "N"] | None = None


Callback = Callable[[StepEvent], None]
"""Function called after every step, for example a log or a progress bar."""


class DivergedError(FloatingPointError):
    """Training that stopped because too many losses or gradients are NaN or inf.

    `steps` is the number of batches that were applied; the method has the weights after the last of them.
    """

    def __init__(self, message: str, steps: int) -> None:
        super().__init__(message)
        self.steps = steps


def fit(
    method: Method,
    batches: Batches,
    training: Training,
    *,
    device: torch.device | str = "cpu",
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    make_optimizer: Callable[[Method, Training], Optimizer] = build_optimizer,
) -> list[int]:
    """Train a method in place and return the steps that were skipped. It ends in eval mode with its EMA weights.

    With a checkpoint, training resumes from the last saved step. If training is interrupted, the method also receives
    its EMA weights before the exception propagates. With several processes, each trains on its shard of every batch,
    and all end with the same weights.

    A batch whose loss or gradient is NaN or inf is skipped. After `MAX_SKIPPED` of them, or if all are skipped,
    `DivergedError` is raised. On a GPU, this check waits for the device in every step.

    Args:
        method: the method, which is moved to the device.
        batches: the batches of this process.
        training: settings of the stage.
        device: device to compute on.
        callbacks: functions that are called after every step, in this order.
        checkpoint: where the state is saved, or None to save nothing.
        make_optimizer: function that returns the optimizer.
    """
    device = torch.device(device)
    method.to(device).train()
    steps = len(batches)
    optimizer = make_optimizer(method, training)
    half_dtype = _half_dtype(device, training)
    state = TrainingState(
        method=method,
        optimizer=optimizer,
        schedule=one_cycle(optimizer, steps, training.warmup),
        ema=EMA(method, training.ema),
        scaler=GradScaler(device.type, enabled=half_dtype is torch.float16),
    )
    completed = checkpoint.restore(state, steps) if checkpoint else 0
    model = DistributedDataParallel(method) if world_size() > 1 else method
    try:
        _refuse_diverged(state, completed, steps)
        for step, batch in enumerate(batches.starting(completed), start=completed + 1):
            views = batch.views.to(device, non_blocking=True)
            labels = batch.labels.to(device, non_blocking=True)
            known = batch.known.to(device, non_blocking=True)
            buffers_before = [buffer.clone() for buffer in method.buffers()]
            with torch.autocast(device.type, dtype=half_dtype, enabled=half_dtype is not None):
                loss, terms = model(views, labels, known)
            mean_loss = all_reduce_mean(loss.detach())
            was_applied = _apply_step(state, loss, mean_loss, buffers_before)
            skipped_rows = None
            if not was_applied:
                state.skipped.append(step)
                skipped_rows = gather_unequal(batch.rows)
            n_views, n_images = views.shape[:2]
            event = StepEvent(
                step=step,
                steps=steps,
                epoch=(step - 1) // batches.steps_per_epoch,
                images=n_views * n_images * world_size(),
                loss=mean_loss,
                terms={name: value.detach() for name, value in terms.items()},
                skipped=skipped_rows,
            )
            for callback in callbacks:
                callback(event)
            if checkpoint:
                checkpoint.after(step, state)
            _refuse_diverged(state, step, steps)
        return state.skipped
    finally:
        state.ema.copy_to()
        method.eval()
        del model
        if world_size() > 1:
            gc.collect()  # a DistributedDataParallel that outlives its process group can crash the exiting process


def _apply_step(state: TrainingState, loss: Tensor, mean_loss: Tensor, buffers_before: list[Tensor]) -> bool:
    """Apply a step and return True, unless the loss or the gradient is NaN or inf.

    All processes decide alike, since the mean loss and the gradients, which DDP averages, are the same in all of them.
    `buffers_before` has the values before the forward pass, which a skipped batch must not change.
    """
    state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    is_finite = mean_loss.isfinite()
    if not state.scaler.is_enabled():  # the scaler itself skips steps with infinite gradients, which are normal there
        gradients = [parameter.grad for parameter in state.method.parameters() if parameter.grad is not None]
        is_finite = is_finite & get_total_norm(gradients).isfinite()
    is_applied = bool(is_finite)  # on a GPU, this waits for the device
    if is_applied:
        state.scaler.step(state.optimizer)
        state.scaler.update()
        state.schedule.step()
    else:
        for buffer, value_before in zip(state.method.buffers(), buffers_before, strict=True):
            buffer.copy_(value_before)
        with warnings.catch_warnings():  # torch expects that the optimizer was called before the schedule
            warnings.simplefilter("ignore")
            state.schedule.step()
    state.optimizer.zero_grad()
    state.ema.update()
    return is_applied


def _refuse_diverged(state: TrainingState, step: int, steps: int) -> None:
    """Raise `DivergedError` after a step if too many batches were skipped, or all batches of the training.

    The error names the steps that have changed the weights.
    """
    n_skipped = len(state.skipped)
    all_skipped = steps > 0 and n_skipped == steps
    if n_skipped < MAX_SKIPPED and not all_skipped:
        return
    which = counted(n_skipped, "batch", "batches")
    problem = f"the loss or the gradient of {which} is NaN or inf, the last at step {state.skipped[-1]}"
    n_applied = step - n_skipped
    raise DivergedError(f"{problem}; try a lower learning rate", n_applied)


def _half_dtype(device: torch.device, training: Training) -> torch.dtype | None:
    """Return bfloat16 on GPUs that support it, float16 (with loss scaling) on other GPUs, and None elsewhere."""
    if training.precision == "float32" or device.type != "cuda":
        return None
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float16


def check_weights(method: Method) -> None:
    """Raise FloatingPointError if a weight is NaN or inf, which a finite gradient and a very high rate can cause."""
    for value in method.state_dict().values():
        if value.is_floating_point() and not value.isfinite().all():
            raise FloatingPointError("a weight is NaN or inf after the last step; try a lower learning rate")
