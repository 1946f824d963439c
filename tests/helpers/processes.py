"""Two processes for tests of torch.distributed; their work is defined here so that child processes can import it."""

import contextlib
import dataclasses
import gc
import json
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

import probmcl
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
from probmcl.training.features import StoredFeatures

WORLD = 2
TIMEOUT = 1200
"""Seconds after which the processes are considered deadlocked; a busy machine needs far less."""

Results = dict[str, Any]
"""The results of a process: tensors, numbers and texts by name."""

Data = tuple[Tensor, Tensor, Tensor | None]
"""Views, labels, and the mask of known labels."""
Cases = dict[str, tuple[str, Any]]
"""The name and settings of a method for each case."""


def run(work: Callable[..., Results], folder: Path, *args: Any) -> list[Results]:
    """Run `work(*args)` in two processes and return both results; an error or a deadlock in one is raised here."""
    folder.mkdir(parents=True, exist_ok=True)
    running = spawn(_run_rank, args=(folder, work, args), nprocs=WORLD, join=False)  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + TIMEOUT
    try:
        while not running.join(timeout=1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{work.__name__} hangs")
    finally:
        for process in running.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def _run_rank(rank: int, folder: Path, work: Callable[..., Results], args: tuple[Any, ...]) -> None:
    """Run `work(*args)` as one of the processes, and save its results as RANK.pt."""
    torch.set_num_threads(1)
    os.environ["WORLD_SIZE"] = str(WORLD)
    # The processes meet in a file instead of at a network port, so that no port has to be free.
    store = (folder / "store").absolute().as_uri()
    dist.init_process_group = partial(dist.init_process_group, init_method=store, rank=rank, world_size=WORLD)
    with distributed.process_group("cpu"):
        results = work(*args)
    torch.save(results | {"threads left": gloo_threads()}, folder / f"{rank}.pt")


def gloo_threads() -> list[str]:
    """Return the names of this process's communication threads."""
    names = [thread.read_text().strip() for thread in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def everything(folder: Path) -> Results:
    """Compute the results that all tests of two processes need, so that the processes are started only once."""
    return collective_operations(folder) | steps(CASES) | train_model(folder)


# One step of a method.

SIZES = ("width", "feed_forward", "hidden", "embedding", "attention")
"""Settings of methods that are sizes of layers."""


def small(config: Any) -> Any:
    """Return the settings of a method with small layers; how processes share their work does not depend on sizes."""
    present = [key for key in SIZES if isinstance(getattr(config, key, None), int)]
    if not present:
        return config
    return dataclasses.replace(config, **dict.fromkeys(present, 32))


PRESETS: Cases = {
    f"{name}-{preset}": (name, small(config))
    for name in METHODS
    for preset, config in find_method(name).presets.items()
}
OTHER_SETTINGS: Cases = {
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
CASES: Cases = PRESETS | OTHER_SETTINGS


def method(name: str, config: Any) -> Method:
    """Build a method in float64, the same in every process; in eval mode, BatchNorm treats images independently."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = find_method(name)(Encoder("test_resnet", image_size=32), label_space(4), config)
    return built.double().eval()


KNOWN = ("few in the second process", "none in the second process", "none", "all")
"""Which labels are known. Except with `none` and `all`, the first process knows all but one of its labels."""


def batch(n_views: int, which: str, *, images: int = 6) -> Data:
    """Make the images of both processes, whose labels are known as `which` of `KNOWN` says; unknown labels are NaN."""
    generator = torch.Generator().manual_seed(1)
    views = torch.randn(n_views, images, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels = (torch.rand(images, 4, generator=generator) < 0.5).double()
    if which == "all":
        return views, labels, None
    first_of_second_process = images // 2
    known = torch.ones(images, 4, dtype=torch.bool)
    known[0, 1] = False
    known[first_of_second_process:] = torch.rand(images // 2, 4, generator=generator) < 0.4
    if which == "none in the second process":
        known[first_of_second_process:] = False
    if which == "none":
        known[:] = False
    return views, labels.where(known, torch.nan), known


def step(method: torch.nn.Module, data: Data) -> Results:
    """Return the gradients and the loss of one step, and the means of loss and terms over the processes."""
    loss, terms = method(*data)
    method.zero_grad()
    loss.backward()
    gradients = {}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            gradient = None if parameter.grad is None else sample(parameter.grad)
            gradients[name.removeprefix("module.")] = gradient  # DistributedDataParallel adds the prefix
    means = {name: distributed.all_reduce_mean(value) for name, value in {"loss": loss, **terms}.items()}
    return {"means": means, "gradients": gradients, "own_loss": loss.detach()}


def sample(gradient: Tensor, size: int = 10_000) -> Tensor:
    """Return random entries of a large gradient: all would take gigabytes, and a wrong average affects every entry."""
    if gradient.numel() <= size:
        return gradient.flatten().clone()
    entries = torch.randint(gradient.numel(), (size,), generator=torch.Generator().manual_seed(0))
    return gradient.flatten()[entries]


def own_images(views: Tensor, labels: Tensor, known: Tensor | None) -> Data:
    """Return this process's share of the images of all processes."""
    rows = distributed.local_rows(len(labels) // distributed.world_size())
    own_known = None if known is None else known[rows]
    return views[:, rows], labels[rows], own_known


def steps(cases: Cases) -> Results:
    """Run one step of every case as the trainer does, on this process's images with averaged gradients."""
    results = {}
    for case, (name, config) in cases.items():
        built = method(name, config)
        wrapped = DistributedDataParallel(built)
        for which in KNOWN:
            images = own_images(*batch(built.n_views, which))
            results[f"{case}, known: {which}"] = step(wrapped, images)
    return results


# A complete training.

# The encoder has no batch statistics, which would differ between processes.
TRAINING: dict[str, Any] = {
    "encoder": "test_convnext",
    "weights": "none",
    "image_size": 32,
    "probe_epochs": 3,
    "workers": 0,
    "epochs": 2,
    "batch_size": 8,
}


def train_model(folder: Path) -> Results:
    """Train on the table that `folder_of_photographs` has written to the folder."""
    table = folder / "photos" / "labels.csv"
    gc.freeze()  # every training collects garbage; the imported modules need not be searched each time
    run = probmcl.train(table, **TRAINING, tune="all", report=False, out=folder / "run")
    return {"table": str(table), "run": str(run.folder)}


def assert_same_model(one: Path, two: Path) -> None:
    """Check that two runs have the same predictions, up to rounding, and the same candidates."""
    for split in ("val", "test"):
        np.testing.assert_allclose(_stored_scores(one, split), _stored_scores(two, split), atol=2e-3)
    assert _candidate_names(one) == _candidate_names(two)


def _stored_scores(run: Path, split: str) -> np.ndarray:
    """Return the scores of a split that a run has stored."""
    with np.load(run / "predictions" / f"{split}.npz") as file:
        scores: np.ndarray = file["scores"]
    return scores


def _candidate_names(run: Path) -> list[str]:
    """Return the names of the candidates of a run, in its order."""
    metadata = json.loads((run / "run.json").read_text())
    return [candidate["name"] for candidate in metadata["candidates"]]


# Collective operations.


def collective_operations(folder: Path) -> Results:
    """Return what each collective operation returns in this process, for inputs that depend on the rank."""
    rank = distributed.rank()
    rows = torch.arange(6.0).reshape(3, 2) + 10 * rank
    with distributed.process_group():  # the group exists already
        pass
    train_and_interrupt()
    (folder / f"reached {rank}").touch()
    distributed.barrier()
    all_at_barrier = all((folder / f"reached {other}").exists() for other in range(WORLD))
    return {
        "rank, world, first": (rank, distributed.world_size(), distributed.is_main_process()),
        "gather": distributed.gather(rows),
        "gather booleans": distributed.gather(rows > 11),
        "gather transposed": distributed.gather(rows.T),
        "unequal": distributed.gather_unequal(rows[: rank + 1]),
        "empty on rank 0": distributed.gather_unequal(rows if rank else torch.empty(0)),
        "empty on all ranks": distributed.gather_unequal(torch.empty(0, 5)),
        "mean": distributed.all_reduce_mean(rows),
        "broadcast": distributed.broadcast({"rank": rank, "more": ["ä", None, 0.5]}),
        "shard": distributed.shard(list(range(5))),
        "all at the barrier": all_at_barrier,
        "different lengths": gather_error(torch.zeros(2 + rank)),
        "different dimensions": gather_error(torch.zeros(2, *[1] * rank)),
        "gradient": gathered_gradient(rows),
        "predicted": predicted(7),
        "predicted by rank 0 only": predicted(2),
        "threads running": gloo_threads(),
    }


def gather_error(rows: Tensor) -> str:
    """Return the message of the error that `gather` raises for these rows."""
    try:
        distributed.gather(rows)
    except ValueError as error:
        return str(error)
    return "no error"


def gathered_gradient(rows: Tensor) -> Tensor:
    """Return the gradient of this process's loss with respect to its rows."""
    own_rows = rows.double().requires_grad_()
    loss = own_loss(distributed.gather(own_rows), distributed.rank())
    (gradient,) = torch.autograd.grad(loss, own_rows)
    return gradient


def own_loss(all_rows: Tensor, rank: int) -> Tensor:
    """Return a loss that depends on all rows and on the rank."""
    return ((all_rows * (1 + rank)).sin() * all_rows.cumsum(0)).sum() ** 2


class ShardedBatches:
    """Random features in batches of three, sharded over the processes."""

    def __init__(self, images: int) -> None:
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(images, 5, generator=generator)
        shuffled = torch.from_numpy(np.random.default_rng(0).permutation(images))
        self.batches = []
        for rows in torch.split(shuffled, 3):
            views = features[rows][None]
            labels = torch.zeros(len(rows), 4)
            self.batches.append(Batch(views, labels, torch.ones_like(labels, dtype=torch.bool), rows))

    def __iter__(self) -> Iterator[Batch]:
        return iter(distributed.shard(self.batches))


def train_and_interrupt() -> None:
    """Finish one training and interrupt another; neither may keep the process group alive."""
    labels = torch.ones(4, 4)
    stored = StoredFeatures(torch.randn(1, 4, 5), labels, labels.bool())
    batches = FeatureBatches(stored, batch_size=4, epochs=1, seed=0)

    def interrupt(event: StepEvent) -> None:
        raise KeyboardInterrupt

    fit(BCE(PrecomputedFeatures(5), label_space(4)), batches, Training())
    with contextlib.suppress(KeyboardInterrupt):
        fit(BCE(PrecomputedFeatures(5), label_space(4)), batches, Training(), callbacks=(interrupt,))


def predicted(images: int) -> Tensor:
    """Predict random features with a model that is the same in both processes."""
    torch.manual_seed(0)
    return predict(BCE(PrecomputedFeatures(5), label_space(4)), ShardedBatches(images))
