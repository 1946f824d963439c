import pytest
import torch
from torch.nn import MultiLabelSoftMarginLoss

from helpers.images import label_space
from probmcl.encoders import Encoder
from probmcl.heads.pooling import ResidualAttention
from probmcl.losses import binary_cross_entropy
from probmcl.methods.csra import CSRA, PAPER, Config


def test_logits_apply_residual_attention_to_the_maps() -> None:
    torch.manual_seed(0)
    config = Config(heads=4, attention_weight=0.7, normalize=False)
    method = CSRA(Encoder("test_resnet", image_size=64), label_space(), config).eval()
    images = torch.rand(2, 3, 64, 64)
    head = ResidualAttention(96, 3, heads=4, attention_weight=0.7, normalize=False)
    head.load_state_dict(method.attention.state_dict())
    torch.testing.assert_close(method.logits(images), head(method.encoder.maps(images)))


def test_without_attention_it_is_a_linear_layer_on_pooled_features() -> None:
    config = Config(attention_weight=0.0, normalize=False)
    method = CSRA(Encoder("test_resnet", image_size=64), label_space(), config).eval()
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(method.logits(images), method.encoder(images) @ method.attention.weight[0].T)


def test_loss_matches_torch_soft_margin_loss() -> None:
    torch.manual_seed(0)
    method = CSRA(Encoder("test_resnet", image_size=64), label_space(), PAPER).eval()
    images, labels = torch.rand(4, 3, 64, 64), (torch.rand(4, 3) < 0.5).float()
    logits = method.logits(images)
    expected = MultiLabelSoftMarginLoss()(logits, labels)
    torch.testing.assert_close(method(images[None], labels).loss, expected)
    torch.testing.assert_close(binary_cross_entropy(logits, labels, reduction="mean"), expected)


def test_encoder_runs_once_per_step() -> None:
    method = CSRA(Encoder("test_resnet", image_size=64), label_space())
    runs = []
    method.encoder.model.layer4.register_forward_hook(lambda *_: runs.append(1))
    method(torch.rand(1, 2, 3, 64, 64), torch.zeros(2, 3))
    assert runs == [1]


@pytest.mark.parametrize(("heads", "classes", "parameters"), [(1, 9, 42_518_592), (6, 80, 42_500_160 + 6 * 80 * 2048)])
def test_number_of_parameters_is_as_published(heads: int, classes: int, parameters: int) -> None:
    with torch.device("meta"):
        encoder = Encoder("resnet101", image_size=448)
        config = Config(heads=6) if heads == 6 else Config()
        method = CSRA(encoder, label_space(classes), config)
    trunk = sum(p.numel() for p in encoder.parameters())
    assert sum(p.numel() for p in method.parameters()) == trunk + heads * classes * 2048 == parameters


def test_presets_have_the_published_settings() -> None:
    assert (Config().heads, Config().attention_weight, Config().normalize) == (1, 0.1, True)
    assert (PAPER.heads, PAPER.attention_weight, PAPER.normalize) == (6, 0.4, True)


def test_negative_weight_raises() -> None:
    with pytest.raises(ValueError, match=r"attention_weight=-0\.1 must be at least 0"):
        Config(attention_weight=-0.1)
