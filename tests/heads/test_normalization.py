import pytest
import torch
from torch import nn

from probmcl.heads.normalization import BatchNorm


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5, 2), (1, 3, 2, 1)])
def test_more_than_one_position_is_normalized_as_torch_does(shape: tuple[int, ...]) -> None:
    ours, theirs = BatchNorm(3), nn.BatchNorm1d(3) if len(shape) == 2 else nn.BatchNorm2d(3)
    x = torch.randn(shape)
    assert torch.equal(ours(x), theirs(x))
    assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in ours.state_dict().items())
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_a_single_position_is_held_against_the_running_statistics_which_stay(shape: tuple[int, ...]) -> None:
    norm = BatchNorm(3)
    norm(torch.randn(8, 3))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    x = torch.randn(shape)
    assert torch.equal(norm(x), norm.eval()(x))
    assert all(torch.equal(norm.state_dict()[key], value) for key, value in before.items())
