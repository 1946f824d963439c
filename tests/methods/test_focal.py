import re

import pytest
import torch

from helpers.images import label_space
from probmcl.encoders import PrecomputedFeatures
from probmcl.losses import focal
from probmcl.methods.focal import Config, Focal


@pytest.mark.parametrize("config", [Config(), Config(gamma=1.0, positive_weight=None)])
def test_loss_is_the_focal_loss_of_the_linear_layer(config: Config) -> None:
    torch.manual_seed(0)
    method = Focal(PrecomputedFeatures(6), label_space(3), config)
    views, labels = torch.randn(1, 4, 6), torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 0]])
    known = torch.rand(4, 3) < 0.6
    logits = views[0] @ method.linear.weight.T + method.linear.bias
    expected = focal(logits, labels, known, gamma=config.gamma, positive_weight=config.positive_weight)
    torch.testing.assert_close(method(views, labels, known).loss, expected)


def test_defaults_are_the_published_values() -> None:
    assert (Config().gamma, Config().positive_weight) == (2.0, 0.25)


@pytest.mark.parametrize(("gamma", "weight"), [(-0.5, 0.25), (2.0, 1.25)])
def test_settings_out_of_range_raise(gamma: float, weight: float) -> None:
    wrong = f"gamma={gamma}" if gamma < 0 else f"positive_weight={weight}"
    with pytest.raises(ValueError, match=re.escape(wrong)):
        Config(gamma=gamma, positive_weight=weight)
