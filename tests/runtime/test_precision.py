from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from probmcl.runtime.precision import at_least_float32, full_precision, to_float64

HALVES = [torch.float16, torch.bfloat16]


@full_precision
def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@pytest.mark.parametrize("half", HALVES)
def test_half_precision_is_converted_to_float32(half: torch.dtype) -> None:
    x = torch.tensor([0.1, -3.0, 1e4], dtype=half)
    assert torch.equal(at_least_float32(x), x.float())
    assert at_least_float32(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_other_types_are_unchanged(dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    assert at_least_float32(x) is x


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_to_float64(dtype: torch.dtype) -> None:
    assert to_float64(torch.ones(2, dtype=dtype)).dtype == torch.float64


def test_to_float64_does_nothing_on_an_apple_gpu() -> None:
    x = Mock(spec=Tensor, device=torch.device("mps"))  # a real one does not support float64
    assert to_float64(x) is x
    x.double.assert_not_called()


def test_decorated_function_runs_without_autocast() -> None:
    a, b = torch.randn(8, 64), torch.randn(64, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, decorated = a @ b, product(a, b)
    assert plain.dtype == torch.bfloat16  # autocast was active
    assert torch.equal(decorated, a @ b)


def test_autocast_is_restored_after_the_call_and_after_an_error() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product(torch.ones(2, 2), torch.ones(2, 2))
        assert torch.is_autocast_enabled("cpu")
        with pytest.raises(RuntimeError):
            product(torch.ones(2, 2), torch.ones(3, 3))
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_autocast_is_disabled_for_each_type_of_device(device: str) -> None:
    inside = full_precision(lambda: torch.is_autocast_enabled(device))
    torch.set_autocast_enabled(device, True)
    try:
        assert torch.is_autocast_enabled(device)
        assert not inside()
        assert torch.is_autocast_enabled(device)
    finally:
        torch.set_autocast_enabled(device, False)


@pytest.mark.parametrize("half", HALVES)
def test_positional_and_keyword_tensors_are_converted(half: torch.dtype) -> None:
    a, b = torch.randn(3, 5).to(half), torch.randn(5, 2).to(half)
    assert torch.equal(product(a, b=b), a.float() @ b.float())


def test_other_arguments_are_unchanged() -> None:
    @full_precision
    def identity(count: Tensor, name: str, *, flag: bool | None = None) -> tuple[object, ...]:
        return count, name, flag

    count = torch.arange(3)
    assert identity(count, "x", flag=True) == (count, "x", True)


@pytest.mark.parametrize("half", HALVES)
def test_gradient_has_the_precision_of_the_input(half: torch.dtype) -> None:
    a = torch.ones(2, 2, dtype=half, requires_grad=True)
    (gradient,) = torch.autograd.grad(product(a, torch.ones(2, 2)).sum(), a)
    assert torch.equal(gradient, torch.full((2, 2), 2.0, dtype=half))


def test_decorated_function_keeps_its_name_and_docstring() -> None:
    @full_precision
    def documented() -> None:
        """Docstring."""

    assert (documented.__name__, documented.__doc__) == ("documented", "Docstring.")


@pytest.mark.parametrize("outside", ["medium", "high", "highest"])
def test_matrices_are_multiplied_in_full_precision(outside: str) -> None:
    @full_precision
    def allowed_inside() -> str:
        return torch.get_float32_matmul_precision()

    @full_precision
    def fails() -> None:
        raise RuntimeError("failed")

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(outside)
    try:
        assert allowed_inside() == "highest"
        with pytest.raises(RuntimeError, match="failed"):
            fails()
        assert torch.get_float32_matmul_precision() == outside
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9 has one setting"
)
def test_setting_of_a_backend_is_overridden_and_restored() -> None:
    matmul: Any = torch.backends.cuda.matmul

    @full_precision
    def allowed_inside() -> object:
        return matmul.fp32_precision

    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        assert allowed_inside() == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
