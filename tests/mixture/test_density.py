import math
from collections.abc import Iterable, Iterator

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal
from torch.nn.functional import elu, normalize
from torch.utils._python_dispatch import TorchDispatchMode

from probmcl.mixture import IsotropicMixture, MixtureDensityNetwork, aligned_correlation, correlation
from probmcl.mixture.density import Activation, Floor

MEAN_TYPES = ["scalar", "vector"]


def parameters(mean_type: str, rows: int, components: int, dim: int, seed: int = 0) -> list[Tensor]:
    """Return random logits, means, unconstrained variances and z, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    size = (dim,) if mean_type == "vector" else ()
    return [normal(rows, components), normal(rows, components, *size), normal(rows, components), normal(rows, dim)]


def build(parameters: Iterable[Tensor], dim: int) -> IsotropicMixture:
    logit, mean, raw = parameters
    return IsotropicMixture(logit.log_softmax(1), mean, elu(raw) + 2, dim)


def rows(p: IsotropicMixture, chosen: list[int]) -> IsotropicMixture:
    return IsotropicMixture(p.log_weight[chosen], p.mean[chosen], p.variance[chosen], p.dim)


def torch_log_prob(p: IsotropicMixture, z: Tensor) -> Tensor:
    """Return the log-density by torch.distributions, with means and standard deviations of all coordinates."""
    mean = p.mean if p.has_vector_means else p.mean[:, :, None].expand(-1, -1, p.dim)
    deviation = p.variance.sqrt()[:, :, None].expand_as(mean)
    components = Independent(Normal(mean, deviation), 1)
    density: Tensor = MixtureSameFamily(Categorical(logits=p.log_weight), components).log_prob(z)  # type: ignore[no-untyped-call]
    return density + p.log_weight.logsumexp(1)  # undoes the normalization of the weights by Categorical


@pytest.mark.parametrize("mean_type", MEAN_TYPES)
@pytest.mark.parametrize("dim", [1, 2, 16, 300])
def test_log_prob_matches_torch_distributions(mean_type: str, dim: int) -> None:
    *raw, z = parameters(mean_type, 5, 3, dim)
    p = build(raw, dim)
    measured = p.log_prob(z)
    assert measured.shape == (5,)
    torch.testing.assert_close(measured, torch_log_prob(p, z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mean_type", MEAN_TYPES)
def test_row_of_z_is_evaluated_by_the_same_row_of_mixtures(mean_type: str) -> None:
    *raw, z = parameters(mean_type, 4, 3, 2)
    p = build(raw, 2)
    for i in range(4):
        torch.testing.assert_close(rows(p, [i]).log_prob(z[[i]])[0], p.log_prob(z)[i])


@pytest.mark.parametrize(("mean_type", "dim"), [("scalar", 1), ("scalar", 2), ("vector", 1), ("vector", 2)])
def test_density_integrates_to_one(mean_type: str, dim: int) -> None:
    *raw, _ = parameters(mean_type, 1, 3, dim, seed=3)
    p = build(raw, dim)
    axis = torch.linspace(-25, 25, 501, dtype=torch.float64)
    grid = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    total = rows(p, [0] * len(grid)).log_prob(grid).exp().sum() * (axis[1] - axis[0]) ** dim
    assert total.item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("mean_type", MEAN_TYPES)
def test_one_component_is_a_normal_distribution(mean_type: str) -> None:
    _, mean, _, z = parameters(mean_type, 1, 1, 3)
    p = IsotropicMixture(torch.zeros(1, 1).double(), mean, torch.full((1, 1), 1.7).double(), dim=3)
    point = mean[0, 0] if mean_type == "vector" else mean[0, 0].expand(3)
    expected = MultivariateNormal(point, 1.7 * torch.eye(3).double()).log_prob(z[0])  # type: ignore[no-untyped-call]
    assert p.log_prob(z).item() == pytest.approx(expected.item(), rel=1e-7)


@pytest.mark.parametrize("mean_type", MEAN_TYPES)
def test_component_of_weight_zero_is_ignored_and_has_no_gradient(mean_type: str) -> None:
    _, mean, raw, z = parameters(mean_type, 2, 3, 4)
    log_weight = torch.tensor([[-math.inf, 0.0, -math.inf]]).double().repeat(2, 1).requires_grad_()
    mean.requires_grad_()
    p = IsotropicMixture(log_weight, mean, elu(raw) + 2, dim=4)
    alone = IsotropicMixture(torch.zeros(2, 1).double(), mean[:, 1:2], p.variance[:, 1:2], dim=4)
    torch.testing.assert_close(p.log_prob(z), alone.log_prob(z))
    weight_gradient, mean_gradient = torch.autograd.grad(p.log_prob(z).sum(), (log_weight, mean))
    assert torch.equal(weight_gradient, torch.tensor([[0.0, 1, 0]]).double().repeat(2, 1))
    assert mean_gradient[:, [0, 2]].abs().sum() == 0
    assert mean_gradient.isfinite().all()


@pytest.mark.parametrize("mean_type", MEAN_TYPES)
def test_equal_components_act_as_one(mean_type: str) -> None:
    logit, mean, raw, z = parameters(mean_type, 3, 4, 5)
    mean, raw = mean[:, :1].expand_as(mean), raw[:, :1].expand_as(raw)
    one = build((x[:, :1] for x in (logit, mean, raw)), 5)
    torch.testing.assert_close(build((logit, mean, raw), 5).log_prob(z), one.log_prob(z))


@given(mean_type=st.sampled_from(MEAN_TYPES), seed=st.integers(0, 999), data=st.data())
@settings(max_examples=50)
def test_invariance_to_order_shift_and_weight_scale(mean_type: str, seed: int, data: st.DataObject) -> None:
    logit, mean, raw, z = parameters(mean_type, 2, 4, 3, seed)
    p = build((logit, mean, raw), 3)
    expected = p.log_prob(z)
    order = data.draw(st.permutations(range(4)))
    shuffled = IsotropicMixture(p.log_weight[:, order], mean[:, order], p.variance[:, order], dim=3)
    torch.testing.assert_close(shuffled.log_prob(z), expected)
    shift = data.draw(st.floats(-100, 100))
    moved = IsotropicMixture(p.log_weight, mean + shift, p.variance, dim=3)
    torch.testing.assert_close(moved.log_prob(z + shift), expected)
    heavier = IsotropicMixture(p.log_weight + shift, mean, p.variance, dim=3)
    torch.testing.assert_close(heavier.log_prob(z), expected + shift)


@pytest.mark.parametrize("mean_type", MEAN_TYPES)
def test_gradients_of_log_prob(mean_type: str) -> None:
    inputs = [x.requires_grad_() for x in parameters(mean_type, 2, 3, 4)]
    assert torch.autograd.gradcheck(lambda a, m, v, z: build((a, m, v), 4).log_prob(z), inputs)


@pytest.mark.parametrize("dim", [1, 16, 128, 2048, 4096])
@pytest.mark.parametrize("regime", ["init", "wide", "floor", "thousand"])
def test_float32_matches_float64_to_six_digits(regime: str, dim: int) -> None:
    logit, mean, raw, z = parameters("scalar", 12, 10, dim)
    mean = {"wide": 5 * mean.tanh()}.get(regime, mean / 2)
    uniform = raw.sigmoid()
    variance = {
        "init": elu(raw) + 2,
        "wide": 1 + 5.8 * uniform,
        "floor": torch.ones_like(raw),
        "thousand": 1000**uniform,
    }[regime]
    rounded = [x.float() for x in (logit.log_softmax(1), mean, variance, normalize(z))]
    results = []
    for dtype in (torch.float32, torch.float64):
        inputs = [x.to(dtype).requires_grad_() for x in rounded]
        log_weight, means, variances, point = inputs
        p = IsotropicMixture(log_weight, means, variances, dim)
        value = p.log_prob(point) if dtype == torch.float32 else torch_log_prob(p, point)
        results.append([value.detach(), *torch.autograd.grad(value.sum(), inputs)])
    assert results[0][0].dtype == torch.float32
    for measured, truth in zip(*results, strict=True):
        assert (measured.double() - truth).abs().max() <= 4e-6 * truth.abs().max()


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the size of the largest tensor that any operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, out.numel() if isinstance(out, Tensor) else 0)
        return out


def test_scalar_means_need_no_three_dimensional_tensor() -> None:
    rows, components, dim = 3, 40, 500
    *raw, z = parameters("scalar", rows, components, dim)
    p = build([x.requires_grad_() for x in raw], dim)
    with Largest() as tracker:  # type: ignore[no-untyped-call]
        torch.autograd.backward(p.log_prob(z.requires_grad_()).sum())
    assert tracker.numbers == rows * dim


@pytest.mark.parametrize("mean_type", MEAN_TYPES)
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted_to_float32(mean_type: str, half: torch.dtype) -> None:
    log_weight, mean, raw, z = (x.to(half) for x in parameters(mean_type, 3, 4, 500))
    variance = (elu(raw) + 2).to(half)
    p = IsotropicMixture(log_weight, mean, variance, dim=500)
    assert {p.log_weight.dtype, p.mean.dtype, p.variance.dtype} == {torch.float32}
    converted = IsotropicMixture(log_weight.float(), mean.float(), variance.float(), dim=500)
    assert torch.equal(p.log_prob(z), converted.log_prob(z.float()))


@pytest.mark.parametrize("mean_type", MEAN_TYPES)
def test_autocast_does_not_change_the_result(mean_type: str) -> None:
    *raw, z = (x.float() for x in parameters(mean_type, 3, 4, 500))
    p = build(raw, 500)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_result = p.log_prob(z), p.effective_components()
    assert torch.equal(autocast_result[0], p.log_prob(z))
    assert torch.equal(autocast_result[1], p.effective_components())


@given(seed=st.integers(0, 999), components=st.integers(1, 6))
@settings(max_examples=50)
def test_effective_components_is_the_inverse_simpson_index(seed: int, components: int) -> None:
    logit, mean, raw, _ = parameters("scalar", 3, components, 1, seed)
    measured = build((3 * logit, mean, raw), 1).effective_components()
    weights = (3 * logit).softmax(1).tolist()
    expected = torch.tensor([1 / sum(w * w for w in row) for row in weights]).double()
    torch.testing.assert_close(measured, expected, rtol=1e-6, atol=0)
    assert measured.min() >= 1 - 1e-12
    assert measured.max() <= components + 1e-9


def test_effective_components_of_a_single_weight_is_one() -> None:
    log_weight = torch.tensor([[0.0, -math.inf, -math.inf]])
    assert IsotropicMixture(log_weight, torch.zeros(1, 3), torch.ones(1, 3), dim=9).effective_components() == 1


def test_z_of_wrong_size_is_an_error() -> None:
    *raw, _ = parameters("scalar", 2, 3, 8)
    with pytest.raises(ValueError, match="z has 7 dimensions"):
        build(raw, 8).log_prob(torch.zeros(2, 7))


def test_mean_vectors_of_wrong_size_are_an_error() -> None:
    with pytest.raises(ValueError, match="got size 4 and dim=5"):
        IsotropicMixture(torch.zeros(2, 3), torch.zeros(2, 3, 4), torch.ones(2, 3), dim=5)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch off the shape checks, which are active in tests only."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("mean", "variance"), [((2, 4), (2, 3)), ((2, 3), (1, 3)), ((3, 2, 5), (2, 3))])
def test_parameters_of_different_shapes_are_an_error(mean: tuple[int, ...], variance: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="matching numbers"):
        IsotropicMixture(torch.zeros(2, 3), torch.zeros(mean), torch.ones(variance), dim=5)


def test_mixture_is_immutable() -> None:
    p = build(parameters("scalar", 1, 2, 1)[:3], 1)
    with pytest.raises(AttributeError):
        p.dim = 2  # type: ignore[misc]


def small_network(
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


def count_parameters(network: nn.Module) -> int:
    return sum(x.numel() for x in network.parameters())


@pytest.mark.parametrize(("classes", "millions"), [(80, 4.490), (9, 4.462)])
def test_parameter_count_of_the_paper(classes: int, millions: float) -> None:
    with torch.device("meta"):
        network = MixtureDensityNetwork(2048, classes)
    exact = 2048 * 2048 + 2048 + 2048 * 128 + 128 + 3 * (128 * classes + classes)
    assert count_parameters(network) == exact
    assert round(count_parameters(network) / 1e6, 3) == millions
    assert network.dim == 2048


@pytest.mark.parametrize("hidden", [(), (5,), (7, 5)])
@pytest.mark.parametrize("activation", ["relu", "none"])
@pytest.mark.parametrize("floor", ["variance", "deviation"])
@pytest.mark.parametrize("mean_size", [None, 4])
def test_network_matches_numpy(
    hidden: tuple[int, ...], activation: Activation, floor: Floor, mean_size: int | None
) -> None:
    network = small_network(hidden=hidden, activation=activation, floor=floor, mean_size=mean_size).double()
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
    if mean_size is not None:  # component k has rows k·d to (k+1)·d of the head
        mean = np.stack([mean[:, k * mean_size : (k + 1) * mean_size] for k in range(3)], axis=1)

    np.testing.assert_allclose(p.log_weight.exp().detach().numpy(), weight, rtol=1e-12)
    np.testing.assert_allclose(p.mean.detach().numpy(), mean, rtol=1e-12)
    expected = floored if floor == "variance" else floored**2
    np.testing.assert_allclose(p.variance.detach().numpy(), expected, rtol=1e-12)
    assert p.dim == (mean_size or 6)
    assert network.hidden_features == (6, *hidden)[-1]


def test_default_hidden_layers() -> None:
    with torch.device("meta"):
        network = MixtureDensityNetwork(512, 9)
    assert [type(layer) for layer in network.hidden] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert [layer.out_features for layer in network.hidden if isinstance(layer, nn.Linear)] == [2048, 128]
    assert network.hidden_features == 128


def test_heads_are_linear_without_hidden_layers() -> None:
    network = small_network(hidden=())
    assert len(network.hidden) == 0
    assert network.hidden_features == 6
    assert count_parameters(network) == 3 * (6 * 3 + 3)


def test_initialization_of_the_paper() -> None:
    torch.manual_seed(0)
    network = MixtureDensityNetwork(64, 80, mean_size=None)
    mean, variance, weight = network.mean_head, network.variance_head, network.weight_head
    assert 0 <= mean.weight.min() < 0.001
    assert 0.099 < mean.weight.max() <= 0.1
    assert mean.weight.mean().item() == pytest.approx(0.05, abs=0.001)
    assert torch.equal(mean.bias, torch.zeros(80))
    assert torch.equal(variance.weight, torch.ones(80, 128))
    assert torch.equal(variance.bias, torch.zeros(80))
    bound = 1 / math.sqrt(128)  # PyTorch's default for a linear layer
    assert 0.99 * bound < weight.weight.abs().max() <= bound
    assert weight.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_initial_variances_of_the_paper_are_equal() -> None:
    torch.manual_seed(0)
    p = MixtureDensityNetwork(64, 5)(nn.functional.normalize(torch.randn(3, 64)))
    torch.testing.assert_close(p.variance, p.variance[:, :1].expand(3, 5))
    assert p.variance.min() > 2  # after ReLU the sum of the hidden units is positive


def test_torch_initialization() -> None:
    torch.manual_seed(0)
    network = MixtureDensityNetwork(64, 80, initialization="torch")
    bound = 1 / math.sqrt(128)
    for head in (network.weight_head, network.mean_head, network.variance_head):
        assert -bound <= head.weight.min() < -0.99 * bound
        assert 0.99 * bound < head.weight.max() <= bound
        assert head.bias.abs().max() > 0


@pytest.mark.parametrize("floor", ["variance", "deviation"])
@given(raw=st.floats(-1e38, 1e15))
def test_variance_is_at_least_one(floor: Floor, raw: float) -> None:
    network = small_network(hidden=(), floor=floor)
    nn.init.zeros_(network.variance_head.weight)
    nn.init.constant_(network.variance_head.bias, raw)
    variance = network(torch.zeros(1, 6)).variance
    assert variance.min() >= 1
    assert variance.isfinite().all()


def test_floor_of_variance_or_deviation() -> None:
    for floor, expected in (("variance", 5.0), ("deviation", 25.0)):
        network = small_network(hidden=(), floor=floor)  # type: ignore[arg-type]
        nn.init.zeros_(network.variance_head.weight)
        nn.init.constant_(network.variance_head.bias, 3.0)
        assert torch.equal(network(torch.zeros(1, 6)).variance, torch.full((1, 3), expected))


@given(scale=st.floats(1e-3, 1e6))
@settings(max_examples=30)
def test_weights_sum_to_one(scale: float) -> None:
    p = small_network()(scale * torch.randn(4, 6))
    assert p.log_weight.max() <= 0
    torch.testing.assert_close(p.log_weight.exp().sum(1), torch.ones(4))


@pytest.mark.parametrize("mean_size", [None, 4])
@pytest.mark.parametrize("rows", [1, 3])
def test_shapes(rows: int, mean_size: int | None) -> None:
    p = small_network(mean_size=mean_size)(torch.randn(rows, 6))
    assert p.log_weight.shape == p.variance.shape == (rows, 3)
    assert p.mean.shape == ((rows, 3) if mean_size is None else (rows, 3, 4))


def test_default_dimension_is_the_feature_size() -> None:
    assert MixtureDensityNetwork(6, 3, hidden=()).dim == 6
    assert MixtureDensityNetwork(6, 3, hidden=(), dim=128)(torch.zeros(1, 6)).dim == 128
    assert MixtureDensityNetwork(6, 3, hidden=(), mean_size=4).dim == 4
    assert MixtureDensityNetwork(6, 3, hidden=(), mean_size=4, dim=4).dim == 4


def test_mean_size_must_equal_dim() -> None:
    with pytest.raises(ValueError, match="dim=6 and mean_size=4"):
        MixtureDensityNetwork(6, 3, mean_size=4, dim=6)


def test_one_class_has_weight_one() -> None:
    p = MixtureDensityNetwork(6, 1, hidden=(4,))(torch.randn(2, 6))
    assert torch.equal(p.log_weight, torch.zeros(2, 1))


@pytest.mark.parametrize("mean_size", [None, 4])
def test_heads_run_in_float32_under_autocast(mean_size: int | None) -> None:
    network = small_network(mean_size=mean_size)
    h = torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = network.hidden(h)
        autocast_result = network(h)
    assert hidden.dtype == torch.bfloat16
    expected = network.mixture(hidden.float())
    for name in ("log_weight", "mean", "variance"):
        assert torch.equal(getattr(autocast_result, name), getattr(expected, name)), name


@pytest.mark.parametrize("mean_size", [None, 4])
def test_every_parameter_gets_a_gradient(mean_size: int | None) -> None:
    network = small_network(mean_size=mean_size)
    p = network(torch.randn(4, 6))
    similarity: Tensor = correlation(p) if mean_size is None else aligned_correlation(p)
    names, parameters = zip(*network.named_parameters(), strict=True)
    for name, gradient in zip(names, torch.autograd.grad(similarity.sum(), parameters), strict=True):
        assert gradient.isfinite().all(), name
        assert gradient.abs().sum() > 0, name
