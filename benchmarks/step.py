"""Compare a complete contrastive step of ProbMCL with a bare step of the same encoder, and measure its parts.

A bare step is a forward pass, the mean square of the features, a backward pass and the optimizer. Encoders start from
random weights.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any, final

os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}  # before torch, as the command does

import numpy as np
import torch
from torch import Tensor, nn

from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.methods.base import Method, Step
from probmcl.methods.probmcl import ProbMCL
from probmcl.training.optimizer import Training, build_optimizer
from rounds import alternate, median_ratio

OUTSIDE_ENCODER = ("mixture head", "similarity", "losses and statistics", "backward to the features")
PARTS = ("encoder forward", *OUTSIDE_ENCODER, "backward through the encoder", "optimizer", "whole step")


@final
class Bare(Method):
    """An encoder with a trivial loss."""

    n_views = 2

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, views: Tensor, labels: Tensor, known: Tensor | None = None) -> Step:
        """Return the mean square of the features."""
        return Step(self.encoder(views.flatten(0, 1)).square().mean(), {})


class Stopwatch:
    """Milliseconds of each part of each step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.at_features = 0.0
        self.spent: dict[str, list[float]] = defaultdict(list)

    def now(self) -> float:
        """Return the time in milliseconds, after all work on the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return 1000 * time.perf_counter()

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Add the time of a method of `owner` to a part of the step."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self.now()
            result = function(*args, **kwargs)
            self.add(part, self.now() - start)
            return result

        setattr(owner, name, timed)

    def gradient_reached(self, gradient: Tensor) -> None:
        """Record the time at which the backward pass reaches the features; the rest is spent in the encoder."""
        self.at_features = self.now()

    def add(self, part: str, spent: float) -> None:
        """Add time to a part of the current step."""
        self.spent[part][-1] += spent

    def begin(self) -> None:
        """Start a new step."""
        for part in PARTS:
            self.spent[part].append(0.0)


def attach_stopwatch(method: Method, device: torch.device) -> Stopwatch:
    """Return a stopwatch for the separable parts of a method's forward pass."""
    watch = Stopwatch(device)
    watch.wrap(method.encoder, "forward", "encoder forward")

    def follow(module: nn.Module, images: tuple[Tensor, ...], features: Tensor) -> None:
        features.register_hook(watch.gradient_reached)  # type: ignore[no-untyped-call]

    method.encoder.register_forward_hook(follow)
    if isinstance(method, ProbMCL):
        watch.wrap(method.network.hidden, "forward", "mixture head")
        watch.wrap(method.network, "mixture", "mixture head")
        watch.wrap(method, "_similarity", "similarity")
    return watch


def stepper(method: Method, watch: Stopwatch, batch: tuple[Tensor, ...]) -> Callable[[], float]:
    """Return a function that runs one training step and returns its milliseconds."""
    optimizer = build_optimizer(method, Training(precision="float32"))

    def step() -> float:
        watch.begin()
        start = watch.now()
        loss = method(*batch).loss
        forward = watch.now()
        loss.backward()
        backward = watch.now()
        optimizer.step()
        optimizer.zero_grad()
        end = watch.now()
        watch.add("losses and statistics", forward - start - sum(watch.spent[part][-1] for part in PARTS[:3]))
        watch.add("backward to the features", watch.at_features - forward)
        watch.add("backward through the encoder", backward - watch.at_features)
        watch.add("optimizer", end - backward)
        watch.add("whole step", end - start)
        return end - start

    return step


def build_methods(args: argparse.Namespace) -> dict[str, Method]:
    """Return the bare encoder and each preset of ProbMCL, from the same weights, channels last as in training."""
    torch.manual_seed(0)
    encoder = Encoder(args.encoder, image_size=args.image_size)
    names = [f"class {k}" for k in range(args.classes)]
    label_space = LabelSpace.from_labels(names, np.zeros((1, args.classes), dtype=np.float32))
    methods: dict[str, Method] = {"bare encoder": Bare(copy.deepcopy(encoder))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the `paper` preset warns about collapse
        for preset, config in ProbMCL.presets.items():
            methods[preset] = ProbMCL(copy.deepcopy(encoder), label_space, config)
    for method in methods.values():
        method.to(args.device).train()
        method.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return methods


def random_batch(args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    """Return two views of random images, about three labels per image, and the mask of known labels."""
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, args.images, 3, args.image_size, args.image_size, generator=generator)
    labels = (torch.rand(args.images, args.classes, generator=generator) < 3 / args.classes).float()
    return views.to(args.device), labels.to(args.device), torch.ones_like(labels, dtype=torch.bool).to(args.device)


def parts_table(watches: dict[str, Stopwatch], rounds: int) -> str:
    """Return the median times of the parts over the last rounds as a Markdown table."""
    lines = [["ms", *watches], ["---"] * (len(watches) + 1)]
    for part in PARTS:
        medians = [statistics.median(watch.spent[part][-rounds:]) for watch in watches.values()]
        lines.append([part, *(f"{median:.2f}" for median in medians)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Print each step, then the parts and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--encoder", default="tresnet_m", help="any timm model")
    parser.add_argument("--image-size", type=int, default=224, help="pixels")
    parser.add_argument("--images", type=int, default=16, help="images per batch, with two views each")
    parser.add_argument("--classes", type=int, default=80, help="components of a mixture")
    parser.add_argument("--rounds", type=int, default=7, help="measured steps per method")
    parser.add_argument("--device", type=torch.device, default="cpu", help="torch device")
    args = parser.parse_args()
    methods, batch = build_methods(args), random_batch(args)
    watches = {name: attach_stopwatch(method, args.device) for name, method in methods.items()}
    steps = {name: stepper(method, watches[name], batch) for name, method in methods.items()}
    for step in steps.values():  # warm-up: creates the optimizer state and allocates memory
        step()
    times = alternate(steps, args.rounds, "ms")
    print("", parts_table(watches, args.rounds), "", sep="\n")
    for name in list(methods)[1:]:
        ratio, best = median_ratio(times[name], times["bare encoder"]), min(times[name]) / min(times["bare encoder"])
        outside = sum(statistics.median(watches[name].spent[part][-args.rounds :]) for part in OUTSIDE_ENCODER)
        share = outside / statistics.median(times[name])
        print(f"{name} preset / bare encoder: {ratio:.3f} (median), {best:.3f} (best of each)")
        print(f"  outside the encoder, without the optimizer: {outside:.1f} ms, {share:.1%} of the step")


if __name__ == "__main__":
    main()
