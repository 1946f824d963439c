"""Two processes that a test starts, and what they do: here and not in the tests, so that processes can import it."""

import contextlib
import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from helpers.images import label_space
from probmcl.data.loader import Batch
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.evaluation.evaluate import predict
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Method
from probmcl.methods.bce import BCE
from probmcl.methods.joint import Config as Joint
from probmcl.methods.mulsupcon import Config as MulSupCon
from probmcl.methods.probmcl import PAPER, Config
from probmcl.runtime import distributed
from probmcl.training import FeatureBatches, StepEvent, Training, fit

WORLD = 2
HANGS = 1200
"""Seconds after which processes are taken to wait for each other in vain; a busy machine stays far below."""

Results = dict[str, Any]
Data = tuple[Tensor, Tensor, Tensor | None]
"""Views, labels, which of them are known."""
Cases = dict[str, tuple[str, Any]]
"""Name of the case to name and settings of a method."""


def run(work: Callable[..., Results], folder: Path, *given: Any) -> list[Results]:
    """What `work(*given)` returns in each of two processes; an error in one is raised here, and nothing hangs."""
    folder.mkdir(parents=True, exist_ok=True)
    running = spawn(_one, args=(folder, work, given), nprocs=WORLD, join=False)  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + HANGS
    try:
        while not running.join(timeout=1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{work.__name__} hangs")
    finally:
        for process in running.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def _one(rank: int, folder: Path, work: Callable[..., Results], given: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["WORLD_SIZE"] = str(WORLD)
    join, meeting = dist.init_process_group, (folder / "meeting").absolute().as_uri()
    dist.init_process_group = partial(join, init_method=meeting, rank=rank, world_size=WORLD)
    with distributed.process_group("cpu"):
        results = work(*given)
    torch.save(results | {"threads left": gloo_threads()}, folder / f"{rank}.pt")


def gloo_threads() -> list[str]:
    """Those threads of this process that exchange tensors with others."""
    names = (thread.read_text().strip() for thread in Path("/proc/self/task").glob("*/comm"))
    return [name for name in names if "gloo" in name]


def everything(folder: Path) -> Results:
    """All that tests of two processes look at, so that these are started once."""
    return exchanges(folder) | steps(CASES)


# One step of a method.

CASES: Cases = {
    f"{name}-{preset}": (name, config) for name in METHODS for preset, config in find_method(name).presets.items()
} | {
    "probmcl-balanced": ("probmcl", dataclasses.replace(PAPER, contrastive_weight="balanced", overlap="cosine")),
    "probmcl-mean": ("probmcl", dataclasses.replace(PAPER, contrastive_weight="balanced", reduction="mean")),
    "probmcl-sum": ("probmcl", Config(reduction="sum", component_weight="density", overlap="cosine_literal")),
    "probmcl-anchors": ("probmcl", Config(anchors="labels")),
    "probmcl-anchors-sum": ("probmcl", Config(anchors="labels", reduction="sum", component_weight="density")),
    "mulsupcon-images": ("mulsupcon", MulSupCon(average="images")),
    "joint-asl-supcon": ("joint", Joint(classification="asl", contrast="supcon")),
    "joint-asl-probmcl": ("joint", Joint(classification="asl", contrast="probmcl")),
    "joint-bce-probmcl": ("joint", Joint(classification="bce", contrast="probmcl")),
}


def method(name: str, config: Any) -> Method:
    """The same in every process: float64, and BatchNorm in eval mode, which treats each image alone."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = find_method(name)(Encoder("test_resnet", image_size=32), label_space(4), config)
    return built.double().eval()


KNOWN = ("few in the second process", "none in the second process", "none", "all")
"""Labels that are known: all but one in the first process, unless it is none or all."""


def batch(n_views: int, which: str, *, images: int = 6) -> Data:
    """The images of both processes."""
    generator = torch.Generator().manual_seed(1)
    views = torch.randn(n_views, images, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels = (torch.rand(images, 4, generator=generator) < 0.5).double()
    if which == "all":
        return views, labels, None
    known = torch.ones(images, 4, dtype=torch.bool)
    known[0, 1] = False
    known[images // 2 :] = torch.rand(images // 2, 4, generator=generator) < 0.4
    if which == "none in the second process":
        known[images // 2 :] = False
    if which == "none":
        known[:] = False
    return views, labels.where(known, torch.nan), known


def step(method: torch.nn.Module, data: Data) -> Results:
    """Loss, terms and gradients; over several processes the mean of the first two."""
    loss, terms = method(*data)
    method.zero_grad()
    loss.backward()
    learned = {key.removeprefix("module."): p for key, p in method.named_parameters() if p.requires_grad}
    gradients = {key: None if p.grad is None else sample(p.grad) for key, p in learned.items()}
    means = {key: distributed.all_reduce_mean(value) for key, value in {"loss": loss, **terms}.items()}
    return {"means": means, "gradients": gradients, "own_loss": loss.detach()}


def sample(gradient: Tensor, most: int = 10_000) -> Tensor:
    """So many entries: those of all methods would take gigabytes, and a wrong average is wrong everywhere."""
    entries = torch.randperm(gradient.numel(), generator=torch.Generator().manual_seed(0))[:most]
    return gradient.flatten()[entries]


def own_images(views: Tensor, labels: Tensor, known: Tensor | None) -> Data:
    here = distributed.local_rows(len(labels) // distributed.world_size())
    return views[:, here], labels[here], None if known is None else known[here]


def steps(cases: Cases) -> Results:
    """A step of every case, as the trainer does it: on this process's images, with gradients averaged."""
    found = {}
    for case, (name, config) in cases.items():
        built = method(name, config)
        wrapped = DistributedDataParallel(built)
        for which in KNOWN:
            found[f"{case}, known: {which}"] = step(wrapped, own_images(*batch(built.n_views, which)))
    return found


# What the module itself does.


def exchanges(folder: Path) -> Results:
    """All that goes from process to process, once."""
    rank = distributed.rank()
    some = torch.arange(6.0).reshape(3, 2) + 10 * rank
    with distributed.process_group():  # the process has joined already
        pass
    train_and_interrupt()
    mine = folder / f"here {rank}"
    mine.touch()
    distributed.barrier()
    everybody_here = all((folder / f"here {other}").exists() for other in range(WORLD))
    return {
        "rank, world, first": (rank, distributed.world_size(), distributed.is_main_process()),
        "gather": distributed.gather(some),
        "gather booleans": distributed.gather(some > 11),
        "gather transposed": distributed.gather(some.T),
        "unequal": distributed.gather_unequal(some[: rank + 1]),
        "nothing from the first": distributed.gather_unequal(some if rank else torch.empty(0)),
        "nothing from anybody": distributed.gather_unequal(torch.empty(0, 5)),
        "mean": distributed.all_reduce_mean(some),
        "broadcast": distributed.broadcast({"rank": rank, "more": ["ä", None, 0.5]}),
        "share": distributed.shard(list(range(5))),
        "everybody here": everybody_here,
        "refused": refusal(torch.zeros(2 + rank)),
        "refused axes": refusal(torch.zeros(2, *[1] * rank)),
        "gradient": gathered_gradient(some),
        "predicted": predicted(7),
        "predicted by one": predicted(2),
        "threads at work": gloo_threads(),
    }


def refusal(rows: Tensor) -> str:
    try:
        distributed.gather(rows)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def gathered_gradient(rows: Tensor) -> Tensor:
    rows = rows.double().requires_grad_()
    (gradient,) = torch.autograd.grad(own_loss(distributed.gather(rows), distributed.rank()), rows)
    return gradient


def own_loss(everybodys: Tensor, rank: int) -> Tensor:
    """A loss that depends on every row and on who computes it."""
    return ((everybodys * (1 + rank)).sin() * everybodys.cumsum(0)).sum() ** 2


class Shares:
    """Images that are their own features, in batches of three, of which each process has its share."""

    def __init__(self, images: int) -> None:
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(images, 5, generator=generator)
        rows = torch.from_numpy(np.random.default_rng(0).permutation(images))  # in no order
        self.batches = [
            Batch(features[r][None], torch.zeros(len(r), 4), torch.ones(len(r), 4, dtype=torch.bool), r)
            for r in torch.split(rows, 3)
        ]

    def __iter__(self) -> Iterator[Batch]:
        return iter(distributed.shard(self.batches))


def train_and_interrupt() -> None:
    """Train to the end, and again until an interrupt."""
    labels = torch.ones(4, 4)
    few = FeatureBatches(torch.randn(1, 4, 5), labels, labels.bool(), batch_size=4, epochs=1, seed=0)

    def interrupt(event: StepEvent) -> None:
        raise KeyboardInterrupt

    fit(BCE(PrecomputedFeatures(5), label_space(4)), few, Training())
    with contextlib.suppress(KeyboardInterrupt):
        fit(BCE(PrecomputedFeatures(5), label_space(4)), few, Training(), callbacks=(interrupt,))


def predicted(images: int) -> Tensor:
    torch.manual_seed(0)
    return predict(BCE(PrecomputedFeatures(5), label_space(4)), Shares(images))
