import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from probmcl.mixture import MixtureDensityNetwork, aligned_correlation, correlation
from probmcl.mixture.network import Activation, Floor


def small(
    *,
    hidden: tuple[int, ...] = (7, 5),
    activation: Activation = "relu",
    floor: Floor = "variance",
    mean_size: int | None = None,
) -> MixtureDensityNetwork:
    torch.manual_seed(0)
    return MixtureDensityNetwork(
        6, 3, hidden=hidden, activation=activation, floor=floor, mean_size=mean_size, initialization="torch"
    )


def count(network: nn.Module) -> int:
    return sum(x.numel() for x in network.parameters())


@pytest.mark.parametrize(("classes", "millions"), [(80, 4.490), (9, 4.462)])
def test_the_size_of_the_paper_s_network(classes: int, millions: float) -> None:
    with torch.device("meta"):
        network = MixtureDensityNetwork(2048, classes)
    exact = 2048 * 2048 + 2048 + 2048 * 128 + 128 + 3 * (128 * classes + classes)
    assert count(network) == exact
    assert round(count(network) / 1e6, 3) == millions
    assert network.dim == 2048


@pytest.mark.parametrize("hidden", [(), (5,), (7, 5)])
@pytest.mark.parametrize("activation", ["relu", "none"])
@pytest.mark.parametrize("floor", ["variance", "deviation"])
@pytest.mark.parametrize("mean_size", [None, 4])
def test_the_mixture_is_what_the_layers_give_by_hand(
    hidden: tuple[int, ...], activation: Activation, floor: Floor, mean_size: int | None
) -> None:
    network = small(hidden=hidden, activation=activation, floor=floor, mean_size=mean_size).double()
    h = torch.randn(4, 6, dtype=torch.float64)
    p = network(h)

    state = {name: x.numpy() for name, x in network.state_dict().items()}
    x = h.numpy()
    for name in [name.removesuffix(".weight") for name in state if name.startswith("hidden") and "weight" in name]:
        x = x @ state[f"{name}.weight"].T + state[f"{name}.bias"]
        x = np.maximum(x, 0) if activation == "relu" else x
    logit, mean, raw = (
        x @ state[f"{head}_head.weight"].T + state[f"{head}_head.bias"] for head in ("weight", "mean", "variance")
    )
    weight = np.exp(logit) / np.exp(logit).sum(1, keepdims=True)
    floored = np.where(raw > 0, raw, np.exp(raw) - 1) + 2
    if mean_size is not None:  # component k owns the rows k·d to (k+1)·d of the head
        mean = np.stack([mean[:, k * mean_size : (k + 1) * mean_size] for k in range(3)], axis=1)

    np.testing.assert_allclose(p.log_weight.exp().detach().numpy(), weight, rtol=1e-12)
    np.testing.assert_allclose(p.mean.detach().numpy(), mean, rtol=1e-12)
    expected = floored if floor == "variance" else floored**2
    np.testing.assert_allclose(p.variance.detach().numpy(), expected, rtol=1e-12)
    assert p.dim == (mean_size or 6)
    assert network.hidden_features == (6, *hidden)[-1]


def test_the_hidden_layers_are_2048_and_128_units_with_relu() -> None:
    with torch.device("meta"):
        network = MixtureDensityNetwork(512, 9)
    assert [type(layer) for layer in network.hidden] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert [layer.out_features for layer in network.hidden if isinstance(layer, nn.Linear)] == [2048, 128]
    assert network.hidden_features == 128


def test_without_hidden_layers_the_heads_are_linear_in_the_feature() -> None:
    network = small(hidden=())
    assert len(network.hidden) == 0
    assert network.hidden_features == 6
    assert count(network) == 3 * (6 * 3 + 3)


def test_the_paper_s_initial_values() -> None:
    torch.manual_seed(0)
    network = MixtureDensityNetwork(64, 80, mean_size=None)
    mean, variance, weight = network.mean_head, network.variance_head, network.weight_head
    assert 0 <= mean.weight.min() < 0.001
    assert 0.099 < mean.weight.max() <= 0.1
    assert mean.weight.mean().item() == pytest.approx(0.05, abs=0.001)
    assert torch.equal(mean.bias, torch.zeros(80))
    assert torch.equal(variance.weight, torch.ones(80, 128))
    assert torch.equal(variance.bias, torch.zeros(80))
    bound = 1 / math.sqrt(128)  # PyTorch's draw for a linear layer
    assert 0.99 * bound < weight.weight.abs().max() <= bound
    assert weight.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_with_the_paper_s_initial_values_all_components_start_with_one_variance() -> None:
    torch.manual_seed(0)
    p = MixtureDensityNetwork(64, 5)(nn.functional.normalize(torch.randn(3, 64)))
    torch.testing.assert_close(p.variance, p.variance[:, :1].expand(3, 5))
    assert p.variance.min() > 2  # after ReLU the sum of the hidden units is positive


def test_torch_s_initial_values_for_all_three_heads() -> None:
    torch.manual_seed(0)
    network = MixtureDensityNetwork(64, 80, initialization="torch")
    bound = 1 / math.sqrt(128)
    for head in (network.weight_head, network.mean_head, network.variance_head):
        assert -bound <= head.weight.min() < -0.99 * bound
        assert 0.99 * bound < head.weight.max() <= bound
        assert head.bias.abs().max() > 0


@pytest.mark.parametrize("floor", ["variance", "deviation"])
@given(raw=st.floats(-1e38, 1e15))
def test_the_variance_is_never_below_one(floor: Floor, raw: float) -> None:
    network = small(hidden=(), floor=floor)
    nn.init.zeros_(network.variance_head.weight)
    nn.init.constant_(network.variance_head.bias, raw)
    variance = network(torch.zeros(1, 6)).variance
    assert variance.min() >= 1
    assert variance.isfinite().all()


def test_the_floor_is_under_the_variance_or_under_the_deviation() -> None:
    for floor, expected in (("variance", 5.0), ("deviation", 25.0)):
        network = small(hidden=(), floor=floor)  # type: ignore[arg-type]
        nn.init.zeros_(network.variance_head.weight)
        nn.init.constant_(network.variance_head.bias, 3.0)
        assert torch.equal(network(torch.zeros(1, 6)).variance, torch.full((1, 3), expected))


@given(scale=st.floats(1e-3, 1e6))
@settings(max_examples=30)
def test_weights_sum_to_one_whatever_the_feature(scale: float) -> None:
    p = small()(scale * torch.randn(4, 6))
    assert p.log_weight.max() <= 0
    torch.testing.assert_close(p.log_weight.exp().sum(1), torch.ones(4))


@pytest.mark.parametrize("mean_size", [None, 4])
@pytest.mark.parametrize("rows", [1, 3])
def test_shapes(rows: int, mean_size: int | None) -> None:
    p = small(mean_size=mean_size)(torch.randn(rows, 6))
    assert p.log_weight.shape == p.variance.shape == (rows, 3)
    assert p.mean.shape == ((rows, 3) if mean_size is None else (rows, 3, 4))


def test_the_dimension_is_the_feature_s_unless_said_otherwise() -> None:
    assert MixtureDensityNetwork(6, 3, hidden=()).dim == 6
    assert MixtureDensityNetwork(6, 3, hidden=(), dim=128)(torch.zeros(1, 6)).dim == 128
    assert MixtureDensityNetwork(6, 3, hidden=(), mean_size=4).dim == 4
    assert MixtureDensityNetwork(6, 3, hidden=(), mean_size=4, dim=4).dim == 4


def test_mean_vectors_in_another_dimension_are_an_error() -> None:
    with pytest.raises(ValueError, match="mean vectors of size 4 live in 4 dimensions, not dim=6"):
        MixtureDensityNetwork(6, 3, mean_size=4, dim=6)


def test_one_class_has_weight_one() -> None:
    p = MixtureDensityNetwork(6, 1, hidden=(4,))(torch.randn(2, 6))
    assert torch.equal(p.log_weight, torch.zeros(2, 1))


@pytest.mark.parametrize("mean_size", [None, 4])
def test_the_heads_run_in_float32_under_autocast(mean_size: int | None) -> None:
    network = small(mean_size=mean_size)
    h = torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = network.hidden(h)
        inside = network(h)
    assert hidden.dtype == torch.bfloat16
    outside = network.mixture(hidden.float())
    for name in ("log_weight", "mean", "variance"):
        assert torch.equal(getattr(inside, name), getattr(outside, name)), name


@pytest.mark.parametrize("mean_size", [None, 4])
def test_a_gradient_reaches_every_parameter(mean_size: int | None) -> None:
    network = small(mean_size=mean_size)
    p = network(torch.randn(4, 6))
    similarity: Tensor = correlation(p) if mean_size is None else aligned_correlation(p)
    names, parameters = zip(*network.named_parameters(), strict=True)
    for name, gradient in zip(names, torch.autograd.grad(similarity.sum(), parameters), strict=True):
        assert gradient.isfinite().all(), name
        assert gradient.abs().sum() > 0, name
