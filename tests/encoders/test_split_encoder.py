import pytest
import torch

from probmcl.encoders import Encoder, split_encoder, with_maps


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext", "test_mambaout", "test_byobnet"])
def test_a_chain_of_stages_is_cut_before_the_last_and_its_halves_are_the_whole(name: str) -> None:
    encoder = Encoder(name, image_size=64).eval()
    cut = split_encoder(encoder)
    assert cut is not None
    images = torch.randn(2, 3, 64, 64)
    activations = cut.trunk(images)
    assert torch.allclose(cut.tail(activations), encoder(images), rtol=1e-4, atol=1e-5)
    assert torch.allclose(cut.tail.maps(activations), encoder.maps(images), rtol=1e-4, atol=1e-5)
    assert not activations.requires_grad
    whole = encoder.state_dict()
    assert all(torch.equal(value, whole[key]) for key, value in cut.tail.state_dict().items())
    share = sum(p.numel() for p in cut.tail.parameters()) / sum(p.numel() for p in encoder.parameters())
    assert 0.05 <= share < 1


@pytest.mark.parametrize("name", ["test_vit", "test_vit2"])
def test_what_is_no_chain_is_not_cut(name: str) -> None:
    assert split_encoder(Encoder(name, image_size=64)) is None


def test_cutting_leaves_the_encoder_as_it_was() -> None:
    encoder = Encoder("test_resnet", image_size=64).train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    cut = split_encoder(encoder)
    assert cut is not None
    with torch.no_grad():
        for parameter in cut.tail.parameters():
            parameter.zero_()
    assert encoder.training
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


def test_a_tail_keeps_its_statistics_in_training() -> None:
    cut = split_encoder(Encoder("test_resnet", image_size=64))
    assert cut is not None
    tail = cut.tail.train()
    before = {key: value.clone() for key, value in tail.state_dict().items() if "running" in key}
    tail(torch.randn(4, 192, 4, 4))
    assert tail.training
    assert all(torch.equal(tail.state_dict()[key], value) for key, value in before.items())


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vgg11"])
def test_the_last_stage_is_one_that_methods_on_maps_learn_too(name: str) -> None:
    cut = split_encoder(Encoder(name, image_size=64))
    assert cut is not None
    whole, tail = (with_maps(e, "csra") for e in (Encoder(name, image_size=64), cut.tail))
    learning = [sum(p.numel() for p in e.parameters() if p.requires_grad) for e in (whole, tail)]
    assert learning[1] >= 0.05 * learning[0] > 0
