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

Rule = Callable[[tuple[Any, ...], Tensor], int]
"""Function that returns a count from the arguments of an operation and its first output tensor."""


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
        products = self.products + other.products
        others = self.others + other.others
        return Operations(products, others)

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
    first_parameter = next(model.parameters(), None)
    device = torch.device("cpu") if first_parameter is None else first_parameter.device
    with FakeTensorMode(allow_non_fake_inputs=True):
        image = torch.empty(1, 3, image_size, image_size, device=device)
        return count_operations(lambda: model.logits(image))


def count_operations(work: Callable[[], object]) -> Operations:
    """Count the operations that a function dispatches.

    `products` are the multiply-adds of matrix products and convolutions. `others` are the operations that ptflops
    counts in addition, such as biases, normalization and activations. ptflops counts by module type and misses
    operations outside known modules. Here, every dispatched operation is counted once. Tensors may be on the meta
    device.

    >>> layer, row = nn.Linear(4, 3, device="meta"), torch.empty(1, 4, device="meta")
    >>> count_operations(lambda: layer(row).relu())
    Operations(products=12, others=6)
    """
    counter = _Counter()
    had_fast_path = mha.get_fastpath_enabled()
    # Without the fast path, transformer layers dispatch the same operations as in training instead of a fused one.
    mha.set_fastpath_enabled(False)
    try:
        # The math kernel of attention consists of operations that torch can count on every device. A linear layer with
        # a contiguous input dispatches one operation with the bias in it; otherwise, the bias would not be counted.
        with sdpa_kernel(SDPBackend.MATH), _ContiguousLinearInputs(), counter:
            work()
    finally:
        mha.set_fastpath_enabled(had_fast_path)
    return Operations(counter.products, counter.others)


class _ContiguousLinearInputs(TorchFunctionMode):
    """Mode that makes the input of linear layers contiguous; otherwise the bias would be an uncounted sum."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch; see the class."""
        if func is linear and args:
            rows, *others = args
            args = (rows.contiguous(), *others)
        return func(*args, **(kwargs or {}))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Mode that counts operations using torch's formulas and `RULES`.

    torch's `FlopCounterMode` has the same formulas, but it also tracks modules, which fails for PiT and CaiT.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0
        self.others = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation of torch and add its count to `products` or `others`.

        `flop_registry` has torch's formulas for matrix products and convolutions, and `RULES` has those for `others`.
        An operation in neither is replaced by its parts, if it has any; they are counted instead.
        """
        kwargs = kwargs or {}
        operation = func.overloadpacket  # the operation without its overload: `add` instead of `add.Tensor`
        is_counted = operation in flop_registry or operation in RULES
        if func.namespace == "aten" and not is_counted:
            with self:  # inference mode does not decompose composite operations
                result_of_parts = func.decompose(*args, **kwargs)
            if result_of_parts is not NotImplemented:
                return result_of_parts
        result = func(*args, **kwargs)
        if operation in flop_registry:
            flops = flop_registry[operation](*args, **kwargs, out_val=result)
            self.products += flops // 2  # a multiply-add is two operations
        if operation in RULES:
            first_output = result[0] if isinstance(result, tuple) else result
            self.others += RULES[operation](args, first_output)
        return result


def _count_normalization(args: tuple[Any, ...], out: Tensor, weight: int = 1) -> int:
    """Count 2 per output of a normalization with learned weights, and 1 without. `args[weight]` has the weights."""
    has_weights = len(args) > weight and args[weight] is not None
    return out.numel() * (2 if has_weights else 1)


def _count_layer_normalization(args: tuple[Any, ...], out: Tensor) -> int:
    """Count a layer normalization. Its arguments are the input, the normalized shape and the weights."""
    return _count_normalization(args, out, weight=2)


def _count_bias(args: tuple[Any, ...], out: Tensor) -> int:
    """Count 1 per output of a convolution with a bias. Its arguments are the input, the weights and the bias."""
    return out.numel() if args[2] is not None else 0


def _count_outputs(args: tuple[Any, ...], out: Tensor) -> int:
    """Count 1 per output."""
    return out.numel()


def _count_inputs(args: tuple[Any, ...], out: Tensor) -> int:
    """Count 1 per input."""
    return int(args[0].numel())


def _count_inputs_with_positions(args: tuple[Any, ...], out: Tensor) -> int:
    """Count 1 per input of a mean or maximum, but 0 for a matrix: without positions, it is not pooling."""
    return int(args[0].numel()) if args[0].ndim > 2 else 0


def _rules(rule: Rule, names: str) -> dict[Any, Rule]:
    """Map the named operations and their in-place variants, if torch has them, to a rule; * means 1d, 2d and 3d."""
    rules = {}
    for pattern in names.split():
        for dims in ("1d", "2d", "3d"):
            name = pattern.replace("*", dims)
            for suffix in ("", "_"):  # the name of an in-place operation ends with an underscore
                operation = getattr(torch.ops.aten, name + suffix, None)
                if operation is not None:
                    rules[operation] = rule
    return rules


RULES: dict[Any, Rule] = {
    **_rules(_count_bias, "convolution"),
    **_rules(_count_normalization, "native_batch_norm cudnn_batch_norm miopen_batch_norm native_group_norm"),
    **_rules(_count_normalization, "_native_batch_norm_legit _native_batch_norm_legit_no_training"),
    **_rules(_count_normalization, "_batch_norm_with_update _batch_norm_no_update"),
    **_rules(_count_layer_normalization, "native_layer_norm"),
    **_rules(_count_outputs, "addmm baddbmm relu leaky_relu hardtanh elu _prelu_kernel gelu silu"),
    **_rules(_count_outputs, "_softmax _safe_softmax"),
    **_rules(_count_inputs_with_positions, "mean amax"),
    **_rules(_count_inputs, "avg_pool* _adaptive_avg_pool* adaptive_max_pool*"),
    **_rules(_count_inputs, "max_pool*_with_indices"),
    **_rules(_count_outputs, "upsample_nearest* upsample_linear1d upsample_bilinear2d"),
    **_rules(_count_outputs, "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa"),
}
"""Rules for `Operations.others`, by operation."""
