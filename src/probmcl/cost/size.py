"""What a model costs: parameters, multiply-adds and memory."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probmcl.cost.operations import Operations, operations
from probmcl.methods.base import Classifier


def parameters(module: nn.Module) -> int:
    """How many numbers a module has to learn or has learned; one that is shared counts once, a buffer not at all.

    >>> parameters(nn.Linear(4, 3))
    15
    """
    return sum(parameter.numel() for parameter in module.parameters())


def gmac(classifier: Classifier, image_size: int) -> float:
    """Multiply-adds, in 1e9, that `logits` needs for one square image.

    Matrix products and convolutions count, as in torch's own counter, and nothing else does: 31.20 for ResNet-101 at
    448 pixels, where the convention of ptflops (see `Operations`) gives 31.39. Only shapes are followed, nothing is
    computed.

    >>> import numpy as np
    >>> from probmcl.data.records import LabelSpace
    >>> from probmcl.encoders import Encoder
    >>> from probmcl.methods.bce import BCE
    >>> cats = LabelSpace.from_labels(("cat",), np.ones((1, 1), dtype=np.float32))
    >>> round(gmac(BCE(Encoder("resnet18"), cats), 224), 3)
    1.814
    """
    return of_a_prediction(classifier, image_size).gmac


@torch.no_grad()
def of_a_prediction(classifier: Classifier, image_size: int) -> Operations:
    """The operations that `logits` needs for one square image; nothing is computed.

    >>> import numpy as np
    >>> from probmcl.data.records import LabelSpace
    >>> from probmcl.encoders import Encoder
    >>> from probmcl.methods.bce import BCE
    >>> cats = LabelSpace.from_labels(("cat",), np.ones((1, 1), dtype=np.float32))
    >>> round(of_a_prediction(BCE(Encoder("resnet18"), cats), 224).gmac_ptflops, 3)
    1.822
    """
    model = copy.deepcopy(classifier).eval()  # a model may keep what it computes, and here that is no real tensor
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        image = torch.empty(1, 3, image_size, image_size, device=device)
        return operations(lambda: model.logits(image))


def peak_memory(work: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The most bytes that tensors made by `work` held at once.

    On a GPU of CUDA they are what its allocator counted beyond what was there before, workspaces of its libraries
    included. Elsewhere every tensor that an operation returns is followed until it is released: the number is the same
    at every run, but the scratch memory inside an operation is not in it. What was there before and is released
    meanwhile is not subtracted there; give work that needs no such room.

    >>> peak_memory(lambda: torch.zeros(1000) + torch.ones(1000))  # two in, one out, of 4,000 bytes each
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
    followed = _Followed()
    with followed:
        work()
    return followed.peak


class _Followed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts the bytes of all tensors that operations make, until they are released.

    The profiler of torch would see scratch memory, too, but writes to the terminal whenever it starts and stops.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak = 0, 0
        self._sizes: dict[int, int | None] = {}  # None: was there before
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        # `torch.tensor` fills its memory unseen; the first operation to show the new tensor is this one.
        if func is not torch.ops.aten.lift_fresh.default:
            self._follow((args, given), made=False)
        result = func(*args, **given)
        self._follow(result, made=True)
        return result

    def _follow(self, tree: Any, *, made: bool) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._count(leaf.untyped_storage(), made)

    def _count(self, storage: torch.UntypedStorage, made: bool) -> None:
        key, size = id(storage), storage.nbytes()  # its one Python object lives as long as the memory
        if key not in self._sizes:
            self._alive[key] = weakref.ref(storage, functools.partial(self._release, key))
            self._sizes[key] = 0 if made else None
        held = self._sizes[key]
        if held is not None:
            self._sizes[key] = size
            self.now += size - held  # an operation may also resize
            self.peak = max(self.peak, self.now)

    def _release(self, key: int, _: object) -> None:
        self.now -= self._sizes.pop(key) or 0
        del self._alive[key]
