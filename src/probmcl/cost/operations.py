"""Operations of a network, followed by their shapes: the products it takes, and what else a wider convention counts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Operations:
    """What some work takes, in two parts.

    `products` are multiply-adds of matrix products and convolutions, by the formulas of torch's own counter. `others`
    are what ptflops counts beside them: a bias 1 for each number that it is added to; normalization 2 for each number,
    1 without learned weights; ReLU and its kin, GELU, SiLU and softmax 1 for each number; pooling 1 for each number
    that goes in, upsampling 1 for each that comes out. Sums and products of two tensors, sigmoids and tangents count
    nothing, there as here.

    >>> Operations(products=2_000_000_000, others=500_000_000).gmac_ptflops
    2.5
    """

    products: int
    others: int

    def __add__(self, more: Operations) -> Operations:
        return Operations(self.products + more.products, self.others + more.others)

    @property
    def gmac(self) -> float:
        """In 1e9, the products alone."""
        return self.products / 1e9

    @property
    def gmac_ptflops(self) -> float:
        """In 1e9, with all that the convention of ptflops has."""
        return (self.products + self.others) / 1e9


def operations(work: Callable[[], object]) -> Operations:
    """What a piece of work takes, whichever modules or functions call for it.

    ptflops goes by the types of modules, and misses what is no module of a type that it knows. Here the operations
    themselves are followed, so that each counts, and counts once. Tensors on the meta device are enough.

    >>> layer, row = torch.nn.Linear(4, 3, device="meta"), torch.empty(1, 4, device="meta")
    >>> operations(lambda: layer(row).relu())
    Operations(products=12, others=6)
    """
    counter = _Counter()
    # Of the ways to compute attention, torch has the products of this one everywhere.
    with sdpa_kernel(SDPBackend.MATH), _layer_by_layer(), _Contiguous(), counter:
        work()
    return Operations(counter.products, counter.others)


@contextlib.contextmanager
def _layer_by_layer() -> Iterator[None]:
    """While it lasts, torch's own transformer layers predict as they train, and not by one operation for all of it."""
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


class _Contiguous(TorchFunctionMode):
    """Gives linear layers contiguous rows: to others torch adds the bias as if it were any sum of two tensors."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is linear and args:
            args = (args[0].contiguous(), *args[1:])
        return func(*args, **(kwargs or {}))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts by torch's formulas and by `RULES`.

    torch's own counter has the same formulas, but also notes in which module it is, and stumbles there in some models.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products, self.others = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given, packet = kwargs or {}, func.overloadpacket
        if func.namespace == "aten" and packet not in flop_registry and packet not in RULES:
            with self:  # in inference mode, what consists of other operations comes whole
                parts = func.decompose(*args, **given)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **given)
        if packet in flop_registry:
            self.products += flop_registry[packet](*args, **given, out_val=result) // 2
        if packet in RULES:
            self.others += RULES[packet](args, result[0] if isinstance(result, tuple) else result)
        return result


Rule = Callable[[tuple[Any, ...], Tensor], int]
"""From what an operation was given, and the first tensor that it returned."""


def _each_out(_: tuple[Any, ...], out: Tensor) -> int:
    return out.numel()


def _each_in(args: tuple[Any, ...], _: Tensor) -> int:
    return int(args[0].numel())


def _bias(args: tuple[Any, ...], out: Tensor) -> int:
    """Of a convolution, whose third argument it is."""
    return out.numel() if args[2] is not None else 0


def _over_positions(args: tuple[Any, ...], _: Tensor) -> int:
    """A mean or maximum is pooling where there are positions, and just a number of a matrix where not."""
    return int(args[0].numel()) if args[0].ndim > 2 else 0


def _normalization(weight: int) -> Rule:
    def rule(args: tuple[Any, ...], out: Tensor) -> int:
        return out.numel() * (2 if len(args) > weight and args[weight] is not None else 1)

    return rule


def _rules(rule: Rule, *names: str) -> dict[Any, Rule]:
    """The rule for each operation of these names, in place or not, that this torch has."""
    both = itertools.chain.from_iterable((name, f"{name}_") for name in names)
    found = (getattr(torch.ops.aten, name, None) for name in both)
    return {operation: rule for operation in found if operation is not None}


DIMENSIONS = ("1d", "2d", "3d")

RULES: dict[Any, Rule] = {
    **_rules(_bias, "convolution"),
    **_rules(_each_out, "addmm", "baddbmm"),
    **_rules(_normalization(1), "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_group_norm"),
    **_rules(_normalization(1), "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    **_rules(_normalization(1), "_batch_norm_with_update", "_batch_norm_no_update"),
    **_rules(_normalization(2), "native_layer_norm"),
    **_rules(_each_out, "relu", "leaky_relu", "hardtanh", "elu", "_prelu_kernel", "gelu", "silu"),
    **_rules(_each_out, "_softmax", "_safe_softmax"),
    **_rules(_over_positions, "mean", "amax"),
    **_rules(_each_in, *(f"avg_pool{d}" for d in DIMENSIONS), *(f"_adaptive_avg_pool{d}" for d in DIMENSIONS)),
    **_rules(_each_in, *(f"max_pool{d}_with_indices" for d in DIMENSIONS)),
    **_rules(_each_in, *(f"adaptive_max_pool{d}" for d in DIMENSIONS)),
    **_rules(_each_out, *(f"upsample_nearest{d}" for d in DIMENSIONS), "upsample_linear1d", "upsample_trilinear3d"),
    **_rules(_each_out, "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa"),
}
"""What counts beside products, by operation."""
