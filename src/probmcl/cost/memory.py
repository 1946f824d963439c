"""The peak memory of tensors."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_memory(work: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Return the peak number of bytes in tensors that `work` creates.

    On CUDA this is what the allocator counted beyond the memory in use before, with the workspaces of libraries.
    On other devices every tensor that an operation returns is tracked until it is released: the number is the same in
    every run, but excludes scratch memory inside an operation. Memory that was in use before and is released meanwhile
    is not subtracted.

    >>> peak_memory(lambda: torch.zeros(1000) + torch.ones(1000))  # two inputs and one output of 4,000 bytes each
    12000
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - int(before)
    tracker = _MemoryTracker()
    with tracker:
        work()
    return tracker.peak


class _MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts the bytes of all tensors that operations create, until they are released.

    torch's profiler would see scratch memory, too, but writes to the terminal whenever it starts and stops.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak = 0, 0
        self._sizes: dict[int, int | None] = {}  # None: existed before
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # `torch.tensor` fills its memory without dispatch; this is the first operation that has the new tensor.
        if func is not torch.ops.aten.lift_fresh.default:
            self._track((args, kwargs), initial_size=None)
        result = func(*args, **kwargs)
        self._track(result, initial_size=0)
        return result

    def _track(self, tree: Any, *, initial_size: int | None) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._count(leaf.untyped_storage(), initial_size)

    def _count(self, storage: torch.UntypedStorage, initial_size: int | None) -> None:
        key, size = id(storage), storage.nbytes()  # its one Python object lives as long as the memory
        if key not in self._sizes:
            self._alive[key] = weakref.ref(storage, functools.partial(self._release, key))
            self._sizes[key] = initial_size
        held = self._sizes[key]
        if held is not None:
            self._sizes[key] = size
            self.now += size - held  # an operation may also resize
            self.peak = max(self.peak, self.now)

    def _release(self, key: int, _: object) -> None:
        self.now -= self._sizes.pop(key) or 0
        del self._alive[key]
