"""Adam with a one-cycle schedule and weight decay only on matrices, and an exponential moving average of weights."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from probmcl.errors import check_range
from probmcl.methods.base import Method


@dataclass(frozen=True)
class Training:
    """Settings of a training stage.

    Attributes:
        epochs: number of passes over all images.
        views: upper limit on the total number of views over all epochs; None means no limit.
        batch_size: images per step. Contrastive methods compare the views of these images.
        learning_rate: maximum of the one-cycle schedule.
        head_factor: learning rate of the head relative to the encoder's.
        weight_decay: weight decay of matrices and convolution kernels; biases and normalization parameters have none.
        decay: `l2` adds the decay to the gradient, as Adam does in the paper; `decoupled` decays weights as in AdamW.
        warmup: fraction of the steps during which the learning rate rises.
        ema: decay of the exponential moving average of the weights, which replaces them after training; 0 disables it.
        precision: `auto` uses half precision on a GPU; `float32` never does.
    """

    epochs: int = 10
    views: int | None = None
    batch_size: int = 64
    learning_rate: float = 3e-4
    head_factor: float = 1.0
    weight_decay: float = 1e-4
    decay: Literal["l2", "decoupled"] = "l2"
    warmup: float = 0.2
    ema: float = 0.9997
    precision: Literal["auto", "float32"] = "auto"

    def __post_init__(self) -> None:
        check_range(at_least=1, epochs=self.epochs, views=self.views, batch_size=self.batch_size)
        check_range(above=0, learning_rate=self.learning_rate, head_factor=self.head_factor)
        check_range(at_least=0, weight_decay=self.weight_decay)
        check_range(at_least=0, at_most=1, warmup=self.warmup)
        check_range(at_least=0, below=1, ema=self.ema)


def build_optimizer(method: Method, training: Training) -> Optimizer:
    """Return a method's optimizer, with separate groups for encoder and head, and for matrices and other parameters."""
    encoder_ids = {id(parameter) for parameter in method.encoder.parameters()}
    trainable = [parameter for parameter in method.parameters() if parameter.requires_grad]
    encoder = [parameter for parameter in trainable if id(parameter) in encoder_ids]
    head = [parameter for parameter in trainable if id(parameter) not in encoder_ids]
    groups = []
    for parameters, factor in ((encoder, 1.0), (head, training.head_factor)):
        learning_rate = training.learning_rate * factor
        matrices = [parameter for parameter in parameters if parameter.ndim > 1]
        others = [parameter for parameter in parameters if parameter.ndim <= 1]
        if matrices:
            groups.append({"params": matrices, "lr": learning_rate, "weight_decay": training.weight_decay})
        if others:
            groups.append({"params": others, "lr": learning_rate, "weight_decay": 0.0})
    if not groups:
        raise ValueError(f"{type(method).__name__} has no trainable parameters: all are frozen")
    return AdamW(groups) if training.decay == "decoupled" else Adam(groups)


def one_cycle(optimizer: Optimizer, steps: int, warmup: float) -> OneCycleLR:
    """Return a one-cycle schedule from 1/25 of the learning rate up to its full value and then down to almost 0.

    `warmup` is the fraction of the steps during which the learning rate rises.
    """
    # torch divides by the length of each phase, so neither may be shorter than two steps.
    total_steps = max(steps, 10)
    rising_steps = min(max(warmup * total_steps, 2), total_steps - 2)
    max_lr = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=max_lr, total_steps=total_steps, pct_start=rising_steps / total_steps)


class EMA:
    """Exponential moving average of the state of a module, with a decay that grows in the first steps.

    a ← d·a + (1−d)·w with d = min(decay, (1+t)/(10+t)), so the initial weights fade even in short runs. With a
    constant decay of 0.9997, they would make up 91 % of the average after 312 steps.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = module
        self.decay = decay
        self.steps = 0
        self.state: dict[str, Tensor] = {}  # empty if the decay is 0, which disables the average
        if decay:
            self.state = {key: value.detach().clone() for key, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Update the average a with the current weights w: a ← d·a + (1−d)·w, and copy integer buffers.

        In step t, d = min(decay, (1+t)/(10+t)), so the initial weights fade even in short runs.
        """
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        current = self.module.state_dict()
        for key, value in self.state.items():
            if value.is_floating_point():
                value.lerp_(current[key], 1 - decay)
            else:
                value.copy_(current[key])

    def restore(self, state: dict[str, Tensor], steps: int) -> None:
        """Continue from the average in a checkpoint."""
        self.steps = steps
        for key, value in self.state.items():
            value.copy_(state[key])

    def copy_to(self) -> None:
        """Replace the weights of the module with their average."""
        if self.state:
            self.module.load_state_dict(self.state)
