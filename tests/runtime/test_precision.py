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
def test_half_precision_is_raised_to_float32_without_changing_a_value(half: torch.dtype) -> None:
    x = torch.tensor([0.1, -3.0, 1e4], dtype=half)
    assert torch.equal(at_least_float32(x), x.float())
    assert at_least_float32(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_everything_else_is_handed_on_untouched(dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    assert at_least_float32(x) is x


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_finest_precision_is_float64(dtype: torch.dtype) -> None:
    assert to_float64(torch.ones(2, dtype=dtype)).dtype == torch.float64


def test_on_an_apple_gpu_the_finest_precision_is_what_is_there() -> None:
    x = Mock(spec=Tensor, device=torch.device("mps"))  # asking it for float64 would be an error
    assert to_float64(x) is x
    x.double.assert_not_called()


def test_a_decorated_function_computes_outside_autocast() -> None:
    a, b = torch.randn(8, 64), torch.randn(64, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, decorated = a @ b, product(a, b)
    assert plain.dtype == torch.bfloat16  # so that there was something to protect from
    assert torch.equal(decorated, a @ b)


def test_autocast_is_back_after_the_call_and_after_an_error() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product(torch.ones(2, 2), torch.ones(2, 2))
        assert torch.is_autocast_enabled("cpu")
        with pytest.raises(RuntimeError):
            product(torch.ones(2, 2), torch.ones(3, 3))
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_autocast_is_off_inside_for_each_kind_of_device(device: str) -> None:
    inside = full_precision(lambda: torch.is_autocast_enabled(device))
    torch.set_autocast_enabled(device, True)
    try:
        assert torch.is_autocast_enabled(device)
        assert not inside()
        assert torch.is_autocast_enabled(device)
    finally:
        torch.set_autocast_enabled(device, False)


@pytest.mark.parametrize("half", HALVES)
def test_tensors_are_raised_whether_given_by_place_or_by_name(half: torch.dtype) -> None:
    a, b = torch.randn(3, 5).to(half), torch.randn(5, 2).to(half)
    assert torch.equal(product(a, b=b), a.float() @ b.float())


def test_what_is_no_float_tensor_passes_as_it_is() -> None:
    @full_precision
    def seen(count: Tensor, name: str, *, flag: bool | None = None) -> tuple[object, ...]:
        return count, name, flag

    count = torch.arange(3)
    assert seen(count, "x", flag=True) == (count, "x", True)


@pytest.mark.parametrize("half", HALVES)
def test_the_gradient_comes_back_in_the_precision_of_the_input(half: torch.dtype) -> None:
    a = torch.ones(2, 2, dtype=half, requires_grad=True)
    (gradient,) = torch.autograd.grad(product(a, torch.ones(2, 2)).sum(), a)
    assert torch.equal(gradient, torch.full((2, 2), 2.0, dtype=half))


def test_a_decorated_function_keeps_its_name_and_its_words() -> None:
    @full_precision
    def speaking() -> None:
        """Words."""

    assert (speaking.__name__, speaking.__doc__) == ("speaking", "Words.")


@pytest.mark.parametrize("outside", ["medium", "high", "highest"])
def test_matrices_are_multiplied_in_full_whatever_is_allowed_outside(outside: str) -> None:
    @full_precision
    def allowed_inside() -> str:
        return torch.get_float32_matmul_precision()

    @full_precision
    def fails() -> None:
        raise RuntimeError("on the way")

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(outside)
    try:
        assert allowed_inside() == "highest"
        with pytest.raises(RuntimeError, match="on the way"):
            fails()
        assert torch.get_float32_matmul_precision() == outside
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9 has one setting"
)
def test_a_backend_s_own_setting_is_put_aside_and_back() -> None:
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
