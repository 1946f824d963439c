"""Parameter and operation counts of a network, computed from shapes in two conventions."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from probmcl.methods.base import Classifier


@dataclass(frozen=True)
class Operations:
    """Operation counts, in two parts.

    `products` are the multiply-adds of matrix products and convolutions, using the formulas of torch's FLOP counter.
    `others` are the operations that ptflops counts in addition, per element: 1 for a bias; 2 for normalization, or 1
    without learned weights; 1 for ReLU and its variants, GELU, SiLU and softmax; 1 per input for pooling, and 1 per
    output for upsampling. As in ptflops, sums and products of two tensors, sigmoid and tanh are not counted.

    >>> Operations(products=2_000_000_000, others=500_000_000).gmac_ptflops
    2.5
    """

    products: int
    others: int

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(self.products + other.products, self.others + other.others)

    @property
    def gmac(self) -> float:
        """Multiply-adds of the products, in units of 1e9."""
        return self.products / 1e9

    @property
    def gmac_ptflops(self) -> float:
        """All operations that ptflops counts, in units of 1e9."""
        return (self.products + self.others) / 1e9


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module. Shared parameters count once, buffers not at all.

    >>> count_parameters(nn.Linear(4, 3))
    15
    """
    return sum(parameter.numel() for parameter in module.parameters())


@torch.no_grad()
def prediction_operations(classifier: Classifier, image_size: int) -> Operations:
    """Count the operations of `logits` for one square image, using fake tensors instead of computing anything.

    ResNet-101 at 448 pixels has 31.20 GMAC, or 31.39 in the ptflops convention.

    >>> from probmcl.cost.rows import label_space
    >>> from probmcl.encoders import Encoder
    >>> from probmcl.methods.bce import BCE
    >>> operations = prediction_operations(BCE(Encoder("resnet18"), label_space(1)), 224)
    >>> round(operations.gmac, 3), round(operations.gmac_ptflops, 3)
    (1.814, 1.822)
    """
    model = copy.deepcopy(classifier).eval()  # a model may cache results, which would be fake tensors
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        image = torch.empty(1, 3, image_size, image_size, device=device)
        return count_operations(lambda: model.logits(image))


def count_operations(work: Callable[[], object]) -> Operations:
    """Count the operations that a function dispatches.

    ptflops counts by module type and misses operations outside known modules. Here, every dispatched operation is
    counted once. Tensors may be on the meta device.

    >>> layer, row = nn.Linear(4, 3, device="meta"), torch.empty(1, 4, device="meta")
    >>> count_operations(lambda: layer(row).relu())
    Operations(products=12, others=6)
    """
    counter, before = _Counter(), mha.get_fastpath_enabled()
    # Without the fast path, transformer layers dispatch the same operations as in training instead of a fused one.
    mha.set_fastpath_enabled(False)
    try:
        # The math kernel of attention consists of operations that torch can count on every device.
        with sdpa_kernel(SDPBackend.MATH), _Contiguous(), counter:
            work()
    finally:
        mha.set_fastpath_enabled(before)
    return Operations(counter.products, counter.others)


class _Contiguous(TorchFunctionMode):
    """Mode that makes the input of linear layers contiguous; otherwise the bias would be an uncounted sum."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is linear and args:
            args = (args[0].contiguous(), *args[1:])
        return func(*args, **(kwargs or {}))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Mode that counts operations using torch's formulas and `RULES`.

    torch's `FlopCounterMode` has the same formulas, but it also tracks modules, which fails for PiT and CaiT.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products, self.others = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, packet = kwargs or {}, func.overloadpacket
        if func.namespace == "aten" and packet not in flop_registry and packet not in RULES:
            with self:  # inference mode does not decompose composite operations
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        if packet in flop_registry:
            self.products += flop_registry[packet](*args, **kwargs, out_val=result) // 2
        if packet in RULES:
            self.others += RULES[packet](args, result[0] if isinstance(result, tuple) else result)
        return result


Rule = Callable[[tuple[Any, ...], Tensor], int]
"""Function that returns a count from the arguments of an operation and its first output tensor."""


def _normalization(args: tuple[Any, ...], out: Tensor, weight: int = 1) -> int:
    return out.numel() * (2 if len(args) > weight and args[weight] is not None else 1)


def _rules(rule: Rule, names: str) -> dict[Any, Rule]:
    """Map the named operations and their in-place variants, if torch has them, to a rule; * means 1d, 2d and 3d."""
    expanded = (name.replace("*", dims) for name in names.split() for dims in ("1d", "2d", "3d"))
    available = (getattr(torch.ops.aten, name + end, None) for name in expanded for end in ("", "_"))
    return {operation: rule for operation in available if operation is not None}


RULES: dict[Any, Rule] = {
    **_rules(lambda args, out: out.numel() if args[2] is not None else 0, "convolution"),  # the bias
    **_rules(_normalization, "native_batch_norm cudnn_batch_norm miopen_batch_norm native_group_norm"),
    **_rules(_normalization, "_native_batch_norm_legit _native_batch_norm_legit_no_training"),
    **_rules(_normalization, "_batch_norm_with_update _batch_norm_no_update"),
    **_rules(lambda args, out: _normalization(args, out, weight=2), "native_layer_norm"),
    **_rules(lambda _, out: out.numel(), "addmm baddbmm relu leaky_relu hardtanh elu _prelu_kernel gelu silu"),
    **_rules(lambda _, out: out.numel(), "_softmax _safe_softmax"),
    # A mean or maximum counts as pooling if the input has positions, which a matrix does not have.
    **_rules(lambda args, _: int(args[0].numel()) if args[0].ndim > 2 else 0, "mean amax"),
    **_rules(lambda args, _: int(args[0].numel()), "avg_pool* _adaptive_avg_pool* adaptive_max_pool*"),
    **_rules(lambda args, _: int(args[0].numel()), "max_pool*_with_indices"),
    **_rules(lambda _, out: out.numel(), "upsample_nearest* upsample_linear1d upsample_bilinear2d"),
    **_rules(lambda _, out: out.numel(), "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa"),
}
"""Rules for `Operations.others`, by operation."""
