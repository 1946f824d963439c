"""Checkpoints: the complete state of a training stage, from which it resumes as if it had not been interrupted."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from probmcl.files import load_tensors, save_tensors
from probmcl.methods.base import Method
from probmcl.runtime.distributed import is_main_process
from probmcl.training.optimizer import EMA

SECONDS_APART = 30.0
"""Seconds between two checkpoints: the training time that a kill costs at most."""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Everything that changes in training: the method and all that decides its next step."""

    method: Method
    optimizer: Optimizer
    schedule: LRScheduler
    ema: EMA
    scaler: GradScaler


@dataclass(eq=False)
class Checkpoint:
    """A safetensors file with the state of a training stage after some step, and JSON in its header."""

    path: Path
    seconds_apart: float = SECONDS_APART
    started: float = field(default_factory=time.perf_counter)
    saved: float = field(default_factory=time.perf_counter)
    seconds_before: float = 0.0  # of earlier attempts

    def seconds(self) -> float:
        """Return how long the stage has taken, over all attempts."""
        return self.seconds_before + time.perf_counter() - self.started

    def restore(self, state: TrainingState) -> int:
        """Load the state and return the number of finished steps, 0 without a file."""
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
        """Write the complete state, on rank 0."""
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
