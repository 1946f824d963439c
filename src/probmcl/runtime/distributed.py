"""Collective operations for several processes under torchrun; with a single process they do nothing.

Each process has different images. Losses do not use torch.distributed: methods gather the rows that they compare, and
scale sums so that the mean of the gradients, which DistributedDataParallel takes over processes, is the gradient of the
loss on all images. All processes must call the collective functions in the same order.
"""

import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

# DistributedDataParallel imports this module, which stores the current process group as a default argument. Import it
# before there is a group; otherwise the group outlives `destroy_process_group`, and its threads can abort Python.
import torch.distributed.nn.functional
from jaxtyping import Float, Float32, Shaped
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

T = TypeVar("T")

TIMEOUT = timedelta(hours=2)
"""How long a process waits for another that evaluates or saves. If one dies, torchrun stops all immediately."""

MAX_DIMS = 8
"""Length of the vectors in which shapes are gathered, larger than the number of dimensions of any tensor here."""


@contextmanager
def process_group(device: str | None = None) -> Iterator[None]:
    """Initialize the process group of torchrun, with one GPU per process if there are GPUs, and destroy it at the end.

    Does nothing in a single process, or if the group is initialized already. GPUs are not used if `device` has
    another type.

    >>> with process_group():
    ...     rank(), world_size(), is_main_process()
    (0, 1, True)
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets this variable
    if processes < 2 or dist.is_initialized():
        yield
        return
    may_use_gpus = device is None or device == "auto" or device.startswith("cuda")
    on_gpus = may_use_gpus and torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(_local_gpu())
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield
    finally:
        gc.collect()  # instances of DistributedDataParallel also reference the group
        dist.destroy_process_group()


def _local_gpu() -> int:
    """Return the number of the GPU for this process: its rank among the processes of this machine."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        raise ValueError(
            f"no GPU for process {local_rank} (GPUs found: {gpus}); run torchrun with nproc-per-node={gpus}"
        )
    return local_rank


def rank() -> int:
    """Return the rank of this process, starting at 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main_process() -> bool:
    """True on rank 0, the only process that writes files and prints."""
    return rank() == 0


def local_rows(count: int) -> slice:
    """Return the slice of this process's rows among the gathered rows, given that each process has `count` rows.

    >>> local_rows(4)
    slice(0, 4, None)
    """
    return slice(rank() * count, (rank() + 1) * count)


def gather(rows: Shaped[Tensor, "M *rest"]) -> Shaped[Tensor, "P *rest"]:
    """Return the rows of all processes in rank order, with gradient; all must have the same number of rows.

    It is the gradient of the sum of all processes' losses, so its average over processes is the gradient of their mean.

    >>> gather(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if world_size() == 1:
        return rows
    shapes = _shapes(rows)
    if len(set(shapes)) > 1:
        raise ValueError(f"all processes must have the same number of images, got tensors of shapes {shapes}")
    gathered: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """All-gather of rows with gradient: in the backward pass, a process gets the sum of the gradients of its rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return torch.cat(_all_gather(rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)  # autograd may reuse the incoming gradient
        dist.all_reduce(total)
        rows_per_process = len(total) // world_size()
        return total[local_rows(rows_per_process)]


@torch.no_grad()
def gather_unequal(rows: Shaped[Tensor, "M *rest"]) -> Shaped[Tensor, "P *others"]:
    """Return the rows of all processes in rank order, without gradient; the number per process may differ or be 0.

    >>> gather_unequal(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if world_size() == 1:
        return rows.detach()
    shapes = _shapes(rows)
    counts = [shape[0] for shape in shapes]
    # A process without rows does not know the shape of a row.
    row_shape = next((shape[1:] for shape in shapes if shape[0] > 0), rows.shape[1:])
    padded = rows.new_zeros(max(counts), *row_shape)  # an all-gather needs equal shapes
    padded[: len(rows)] = rows.reshape(len(rows), *row_shape)
    parts = [part[:count] for part, count in zip(_all_gather(padded), counts, strict=True)]
    return torch.cat(parts)


@torch.no_grad()
def all_reduce_mean(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the mean of a tensor over all processes, without gradient.

    >>> all_reduce_mean(torch.tensor(3.0))
    tensor(3.)
    """
    if world_size() == 1:
        return x.detach()
    total = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / world_size()


def broadcast(value: T) -> T:
    """Return the value of rank 0 on all processes. It must be serializable as JSON.

    >>> broadcast({"epochs": 3})
    {'epochs': 3}
    """
    if world_size() == 1:
        return value
    text = json.dumps(value).encode() if is_main_process() else b""
    text_of_all = gather_unequal(torch.tensor(list(text), dtype=torch.uint8))  # only rank 0 has any text
    received: T = json.loads(bytes(text_of_all.tolist()))
    return received


def barrier() -> None:
    """Wait until all processes have called this function."""
    if world_size() > 1:
        dist.all_reduce(torch.zeros(1))


def shard(items: Sequence[T]) -> Sequence[T]:
    """Return the shard of this process: every item whose index modulo the world size equals the rank.

    >>> shard(["a", "b", "c"])
    ['a', 'b', 'c']
    """
    return items[rank() :: world_size()]


def unshard(parts: Sequence[Float32[Tensor, "_ *rest"]]) -> Float32[Tensor, "P *others"]:
    """Gather the results of all shards, one CPU tensor per item, and return their rows in the order of the items.

    >>> unshard([torch.tensor([1.0, 2.0]), torch.tensor([3.0])])
    tensor([1., 2., 3.])
    """
    rows = torch.cat(list(parts)) if parts else torch.empty(0)
    if world_size() == 1:
        return rows
    rows_per_part = torch.tensor([len(part) for part in parts], dtype=torch.long)
    part_of_row = torch.arange(len(parts)).repeat_interleave(rows_per_part)
    item_of_row = rank() + world_size() * part_of_row  # the inverse of `shard`
    all_rows = gather_unequal(rows)
    order = gather_unequal(item_of_row).argsort(stable=True)  # stable: the rows of an item keep their order
    return all_rows[order]


def _shapes(x: Tensor) -> list[tuple[int, ...]]:
    """Return the shape of this tensor on each process, in rank order."""
    # Each process sends a vector: the number of dimensions, the dimensions, and zeros up to a fixed length.
    vector = torch.zeros(MAX_DIMS, dtype=torch.long, device=x.device)
    vector[: 1 + x.ndim] = torch.tensor([x.ndim, *x.shape])
    vectors: list[list[int]] = torch.stack(_all_gather(vector)).tolist()
    shapes = []
    for n_dims, *dims in vectors:
        shapes.append(tuple(dims[:n_dims]))
    return shapes


def _all_gather(x: Tensor) -> list[Tensor]:
    """Return this tensor from each process, in rank order. All must have the same shape."""
    sent = x.to(torch.uint8) if x.dtype == torch.bool else x.contiguous()  # gloo does not support booleans
    received = [torch.empty_like(sent) for _ in range(world_size())]
    dist.all_gather(received, sent)
    return [part.to(x.dtype) for part in received]
