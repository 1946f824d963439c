"""Everything that a training stage needs to go on after a kill as if nothing had happened."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
"""Of training that a kill costs at most."""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What moves in training: the method, and all that decides its next step."""

    method: Method
    optimizer: Optimizer
    schedule: LRScheduler
    average: EMA
    scaler: GradScaler


@dataclass(eq=False)
class Checkpoint:
    """A file that holds the state of a training stage after some step: safetensors, and JSON within it."""

    path: Path
    seconds_apart: float = SECONDS_APART
    begun: float = field(default_factory=time.perf_counter)
    saved: float = field(default_factory=time.perf_counter)
    before: float = 0.0  # seconds of earlier attempts

    def seconds(self) -> float:
        """How long the stage has taken, in all its attempts."""
        return self.before + time.perf_counter() - self.begun

    def restore(self, progress: TrainingState) -> int:
        """Take everything back to where it was; the number of steps that are done, 0 without a file."""
        if not self.path.exists():
            return 0
        tensors, facts = load_tensors(self.path)
        self.before = facts.get("seconds", 0.0)
        progress.method.load_state_dict(_under("method", tensors))
        progress.optimizer.load_state_dict(_optimizer_state(_under("optimizer", tensors), facts["groups"]))
        progress.schedule.last_epoch = facts["step"]
        progress.scaler.load_state_dict(facts["scaler"])
        progress.average.restore(_under("average", tensors), facts["step"])
        _set_generators(tensors)
        return int(facts["step"])

    def after(self, step: int, progress: TrainingState) -> None:
        """Save, if it is time again."""
        if time.perf_counter() - self.saved >= self.seconds_apart:
            self.save(step, progress)
            self.saved = time.perf_counter()

    def save(self, step: int, progress: TrainingState) -> None:
        """Write all of it, from the first process."""
        state = progress.optimizer.state_dict()
        moments = {f"{i}.{key}": value for i, entry in state["state"].items() for key, value in entry.items()}
        parts = {
            "method": progress.method.state_dict(),
            "average": progress.average.state,
            "optimizer": moments,
            "generator": _generators(),
        }
        facts = {"step": step, "seconds": self.seconds(), "groups": state["param_groups"]}
        facts["scaler"] = progress.scaler.state_dict()
        if is_main_process():
            tensors = {f"{part}.{key}": value for part, content in parts.items() for key, value in content.items()}
            save_tensors(self.path, tensors, facts)


def _under(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(f"{part}."): value for key, value in tensors.items() if key.startswith(f"{part}.")}


def _optimizer_state(moments: dict[str, Tensor], groups: list[dict[str, Any]]) -> dict[str, Any]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    return {"state": state, "param_groups": groups}


def _generators() -> dict[str, Tensor]:
    cuda = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def _set_generators(tensors: dict[str, Tensor]) -> None:
    torch.set_rng_state(tensors["generator.cpu"])
    if "generator.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["generator.cuda"])
