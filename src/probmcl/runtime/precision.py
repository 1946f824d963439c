"""Numerical precision: formulas are computed in float32 or float64, even if the network uses half precision."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half-precision floats to float32; leave float32, float64, integers and booleans unchanged.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    if not x.is_floating_point():
        return x
    return x.to(torch.promote_types(x.dtype, torch.float32))


def to_float64(x: Tensor) -> Tensor:
    """Convert to float64 if the device supports it; Apple's GPUs do not.

    >>> to_float64(torch.ones(1)).dtype
    torch.float64
    """
    return x if x.device.type == "mps" else x.double()


@contextlib.contextmanager
def _float32_matmul() -> Iterator[None]:
    """Multiply float32 matrices in full float32, regardless of torch.set_float32_matmul_precision.

    The setting is global, so it also affects other threads.
    """
    # Since torch 2.9, each backend has its own setting in addition to the common one. Reading the common one raises an
    # error if the two disagree.
    settings: list[Any] = []
    for backend in (torch.backends.cuda, torch.backends.mkldnn):
        matmul = getattr(backend, "matmul", None)
        if hasattr(matmul, "fp32_precision"):
            settings.append(matmul)
    earlier = [setting.fp32_precision for setting in settings]
    try:
        common = torch.get_float32_matmul_precision()
    except RuntimeError:
        common = "highest"
    if common == "highest" and set(earlier) <= {"none", "ieee"}:
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(common)
        for setting, precision in zip(settings, earlier, strict=True):
            setting.fp32_precision = "none"  # inherit the common setting
            if setting.fp32_precision != precision:
                setting.fp32_precision = precision


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it runs without autocast and TF32, on tensors of at least float32.

    Half precision is enough for a network, but not for a sum over 10,000 labels or an exponent scaled by 2,048.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        positional = [_tensor_at_least_float32(value) for value in args]
        named = {name: _tensor_at_least_float32(value) for name, value in kwargs.items()}
        with contextlib.ExitStack() as stack:
            for device in ("cpu", "cuda", "mps"):
                stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(_float32_matmul())
            return function(*positional, **named)

    return wrapped


def _tensor_at_least_float32(value: Any) -> Any:
    """Apply `at_least_float32` to a tensor; leave an argument of another type unchanged."""
    return at_least_float32(value) if isinstance(value, Tensor) else value
