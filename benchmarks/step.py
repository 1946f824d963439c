"""The whole contrastive step of ProbMCL beside a bare step of the same encoder on the same images, and where time goes.

A bare step is forward, the mean square of the features, backward and optimizer. Encoders start from random weights.
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

os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}  # before torch, as the command does for itself

import numpy as np
import torch
from torch import Tensor, nn

from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.methods.base import Method, Step
from probmcl.methods.probmcl import ProbMCL
from probmcl.training.optimizer import Training, build_optimizer
from rounds import alternate, median_ratio

BESIDE = ("mixture head", "similarity", "losses and signs", "backward to the features")
PARTS = ("encoder forward", *BESIDE, "backward through the encoder", "optimizer", "whole step")


@final
class Bare(Method):
    """An encoder and the simplest loss there is."""

    n_views = 2

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, views: Tensor, labels: Tensor, known: Tensor | None = None) -> Step:
        """The mean square of the features."""
        return Step(self.encoder(views.flatten(0, 1)).square().mean(), {})


class Stopwatch:
    """Milliseconds of each part of each step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.at_features = 0.0
        self.spent: dict[str, list[float]] = defaultdict(list)

    def now(self) -> float:
        """In milliseconds; when the device has done all it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return 1000 * time.perf_counter()

    def around(self, owner: Any, name: str, part: str) -> None:
        """Count what a function of an object takes toward a part of the step."""
        function = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            start = self.now()
            result = function(*args, **kwargs)
            self.add(part, self.now() - start)
            return result

        setattr(owner, name, watched)

    def gradient_reached(self, gradient: Tensor) -> None:
        """Backward has come to the features: the rest of it is the encoder's."""
        self.at_features = self.now()

    def add(self, part: str, spent: float) -> None:
        """To the step that is under way."""
        self.spent[part][-1] += spent

    def begin(self) -> None:
        """A new step."""
        for part in PARTS:
            self.spent[part].append(0.0)


def watched(method: Method, device: torch.device) -> Stopwatch:
    """A stopwatch around the parts of a method's forward that can be told apart."""
    watch = Stopwatch(device)
    watch.around(method.encoder, "forward", "encoder forward")

    def follow(module: nn.Module, images: tuple[Tensor, ...], features: Tensor) -> None:
        features.register_hook(watch.gradient_reached)  # type: ignore[no-untyped-call]

    method.encoder.register_forward_hook(follow)
    if isinstance(method, ProbMCL):
        watch.around(method.network.hidden, "forward", "mixture head")
        watch.around(method.network, "mixture", "mixture head")
        watch.around(method, "_similarity", "similarity")
    return watch


def stepper(method: Method, watch: Stopwatch, batch: tuple[Tensor, ...]) -> Callable[[], float]:
    """One training step, in milliseconds."""
    moves = build_optimizer(method, Training(precision="float32"))

    def step() -> float:
        watch.begin()
        start = watch.now()
        loss = method(*batch).loss
        forward = watch.now()
        loss.backward()
        backward = watch.now()
        moves.step()
        moves.zero_grad()
        end = watch.now()
        watch.add("losses and signs", forward - start - sum(watch.spent[part][-1] for part in PARTS[:3]))
        watch.add("backward to the features", watch.at_features - forward)
        watch.add("backward through the encoder", backward - watch.at_features)
        watch.add("optimizer", end - backward)
        watch.add("whole step", end - start)
        return end - start

    return step


def methods(args: argparse.Namespace) -> dict[str, Method]:
    """The bare encoder and ProbMCL by each preset, from the same weights; kernels channels last, as in training."""
    torch.manual_seed(0)
    encoder = Encoder(args.encoder, image_size=args.image_size)
    names = [f"class {k}" for k in range(args.classes)]
    label_space = LabelSpace.from_labels(names, np.zeros((1, args.classes), dtype=np.float32))
    found: dict[str, Method] = {"bare encoder": Bare(copy.deepcopy(encoder))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the paper's own settings collapse is not what is measured here
        for preset, config in ProbMCL.presets.items():
            found[preset] = ProbMCL(copy.deepcopy(encoder), label_space, config)
    for method in found.values():
        method.to(args.device).train()
        method.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return found


def made(args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    """Two views of random images, about three labels each, all of them known."""
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, args.images, 3, args.image_size, args.image_size, generator=generator)
    labels = (torch.rand(args.images, args.classes, generator=generator) < 3 / args.classes).float()
    return views.to(args.device), labels.to(args.device), torch.ones_like(labels, dtype=torch.bool).to(args.device)


def split(watches: dict[str, Stopwatch], rounds: int) -> str:
    """Medians of the parts over the last rounds, in Markdown."""
    lines = [["ms", *watches], ["---"] * (len(watches) + 1)]
    for part in PARTS:
        medians = [statistics.median(watch.spent[part][-rounds:]) for watch in watches.values()]
        lines.append([part, *(f"{median:.2f}" for median in medians)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Print each step as it is done, then the parts and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--encoder", default="tresnet_m", help="any model of timm")
    parser.add_argument("--image-size", type=int, default=224, help="pixels")
    parser.add_argument("--images", type=int, default=16, help="in a batch, of two views each")
    parser.add_argument("--classes", type=int, default=80, help="components of a mixture")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each that count")
    parser.add_argument("--device", type=torch.device, default="cpu", help="of torch")
    args = parser.parse_args()
    rivals, batch = methods(args), made(args)
    watches = {name: watched(method, args.device) for name, method in rivals.items()}
    steps = {name: stepper(method, watches[name], batch) for name, method in rivals.items()}
    for step in steps.values():  # optimizers make their state, memory is found
        step()
    found = alternate(steps, args.rounds, "ms")
    print("", split(watches, args.rounds), "", sep="\n")
    for name in list(rivals)[1:]:
        ratio, best = median_ratio(found[name], found["bare encoder"]), min(found[name]) / min(found["bare encoder"])
        beside = sum(statistics.median(watches[name].spent[part][-args.rounds :]) for part in BESIDE)
        share = beside / statistics.median(found[name])
        print(f"{name} preset / bare encoder: {ratio:.3f} (median), {best:.3f} (best of each)")
        print(f"  beside the encoder, without the optimizer's part: {beside:.1f} ms, {share:.1%} of the step")


if __name__ == "__main__":
    main()
