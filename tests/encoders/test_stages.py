from functools import partial

import pytest
import torch
from torch import Tensor

from helpers.networks import SMALL, images, ready, same
from probmcl.encoders import (
    Encoder,
    PrecomputedFeatures,
    Stage,
    has_stage,
    hook_stage_inputs,
    split_encoder,
    stages,
    two_maps,
    with_maps,
    with_stages,
)
from probmcl.encoders.stages import StageHook


def trainable(encoder: Encoder) -> set[str]:
    return {key for key, parameter in encoder.model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", SMALL)
def test_channels_is_the_number_of_maps(name: str) -> None:
    side = max(SMALL[name][0], 64)
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        assert encoder.maps(images(side, 1)).shape[1] == encoder.channels


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "mobilenetv3_small_050", "test_mambaout"])
def test_with_maps_freezes_parameters_without_gradient(name: str) -> None:
    encoder = with_maps(ready(name, image_size=64), "csra")
    frozen = {key for key, _ in encoder.model.named_parameters()} - trainable(encoder)
    encoder.maps(images(64)).square().sum().backward()  # type: ignore[no-untyped-call]
    assert all((p.grad is not None) == p.requires_grad for p in encoder.parameters())
    assert bool(frozen) == (name not in ("test_resnet", "test_vit"))
    assert all(key.startswith(("head.", "conv_head.")) for key in frozen)


def test_with_maps_does_not_change_encoder_or_random_state() -> None:
    encoder = ready("test_resnet", image_size=96).train()  # a size that no other test has cached
    before, random_state = {key: value.clone() for key, value in encoder.state_dict().items()}, torch.get_rng_state()
    with torch.no_grad():  # must not affect the search for unused parameters
        assert with_maps(encoder, "csra") is encoder
    assert torch.equal(torch.get_rng_state(), random_state)
    assert same(encoder, before)
    assert encoder.training
    assert len(trainable(encoder)) == len(list(encoder.parameters()))


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_mambaout"])
@pytest.mark.parametrize("side", [64, 160])
def test_with_maps_treats_a_tail_like_the_full_encoder(name: str, side: int) -> None:
    split = split_encoder(ready(name, image_size=side))
    assert split is not None
    full, tail = with_maps(ready(name, image_size=side), "csra"), with_maps(split.tail, "csra")
    assert tail.channels == full.channels
    assert trainable(tail) == trainable(full) & set(dict(tail.model.named_parameters()))
    activations = split.trunk(images(side))
    assert tail.maps(activations).shape[1] == tail.channels
    tail.maps(activations).square().sum().backward()  # type: ignore[no-untyped-call]
    assert all((p.grad is not None) == p.requires_grad for p in tail.parameters())


@pytest.mark.parametrize(
    ("name", "message"),
    [("pit_ti_224", "square map"), ("efficientvim_m1", "several sizes")],
)
def test_with_maps_of_model_without_maps_is_an_error(name: str, message: str) -> None:
    expected = rf"^ml_gcn needs feature maps.* {name} .*"
    expected += rf"\({name}.*{message}"
    with pytest.raises(ValueError, match=expected):
        with_maps(ready(name), "ml_gcn")


def test_with_maps_of_stored_features_is_an_error() -> None:
    with pytest.raises(ValueError, match=r'csra needs feature maps.*`tune="last"`'):
        with_maps(PrecomputedFeatures(5), "csra")


NETWORKS = (
    "test_resnet",
    "test_efficientnet",
    "test_convnext",
    "test_mambaout",
    "test_vit",
    "swin_tiny_patch4_window7_224",
)


@pytest.mark.parametrize("name", NETWORKS)
def test_stages_have_the_shape_of_their_input(name: str) -> None:
    encoder = ready(name, image_size=64)
    records: list[tuple[Stage, Tensor]] = []
    hooks: dict[Stage, StageHook] = {stage: partial(record_maps, records, stage) for stage in stages(encoder)}
    with hook_stage_inputs(encoder, hooks), torch.no_grad():
        encoder(images(64, 3))
    assert [stage for stage, _ in records] == list(stages(encoder))
    assert all(maps.shape == (3, stage.channels, stage.side, stage.side) for stage, maps in records)
    assert not any(module._forward_pre_hooks for module in encoder.modules())


def record_maps(records: list[tuple[Stage, Tensor]], stage: Stage, maps: Tensor) -> None:
    records.append((stage, maps))


@pytest.mark.parametrize("name", NETWORKS)
def test_returned_maps_replace_the_stage_input(name: str) -> None:
    encoder = ready(name, image_size=64)
    last = stages(encoder)[-1]
    replaced: list[Tensor] = []
    with torch.no_grad():
        plain = encoder(images(64))
        with hook_stage_inputs(encoder, {last: torch.clone}):
            torch.testing.assert_close(encoder(images(64)), plain)
        with hook_stage_inputs(encoder, {last: reverse_channels}):
            changed = encoder(images(64))
            with hook_stage_inputs(encoder, {last: replaced.append}):  # gets the output of the first hook
                encoder(images(64))
        torch.testing.assert_close(replaced[0], reverse_channels(two_maps(encoder, images(64)).entering))
    assert (changed - plain).norm() > 0.01 * plain.norm()


def reverse_channels(maps: Tensor) -> Tensor:
    """Reverse the channels, which a LayerNorm cannot undo, unlike an added constant."""
    return maps.flip(1)


def test_hooks_are_removed_after_an_error() -> None:
    encoder = ready("test_resnet", image_size=64)
    with (
        pytest.raises(RuntimeError, match="size"),
        hook_stage_inputs(encoder, {stages(encoder)[-1]: lambda maps: maps[:, 1:]}),
    ):
        encoder(images(64))
    assert not any(module._forward_pre_hooks for module in encoder.modules())


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext", "test_mambaout"])
def test_two_maps_of_a_tail_match_the_full_encoder(name: str) -> None:
    encoder = ready(name, image_size=64)
    split = split_encoder(encoder)
    assert split is not None
    with torch.no_grad():
        full, tail = two_maps(encoder, images(64)), two_maps(split.tail, split.trunk(images(64)))
    torch.testing.assert_close(tail.entering, full.entering)
    torch.testing.assert_close(tail.last, full.last)
    torch.testing.assert_close(full.last, encoder.maps(images(64)))
    assert full.entering.shape[1:3] == stages(encoder)[-1][1:]
    assert stages(split.tail) == stages(encoder)
    assert [has_stage(split.tail, stage) for stage in stages(encoder)] == [*[False] * (len(stages(encoder)) - 1), True]
    assert all(has_stage(encoder, stage) for stage in stages(encoder))


def test_gradients_of_the_input_maps() -> None:
    encoder = ready("test_resnet", image_size=64)
    two_maps(encoder, images(64)).entering.sum().backward()  # type: ignore[no-untyped-call]
    with_gradient = {key.split(".")[0] for key, p in encoder.model.named_parameters() if p.grad is not None}
    assert with_gradient == {"conv1", "bn1", "layer1", "layer2", "layer3"}


@pytest.mark.slow
def test_last_stages_of_resnet_101() -> None:
    last_two = stages(with_stages(Encoder("resnet101", image_size=448), "tdrg", 2))[-2:]
    assert last_two == (Stage("layer3", 512, 56), Stage("layer4", 1024, 28))


def test_stages_does_not_change_encoder_or_random_state() -> None:
    encoder, random_state = ready("test_resnet", image_size=72).train(), torch.get_rng_state()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    stages(encoder)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert same(encoder, before)
    assert encoder.training


@pytest.mark.parametrize("name", ["hrnet_w18_small", "test_resnet"])
def test_with_stages_of_model_with_fewer_stages_is_an_error(name: str) -> None:
    available = {"hrnet_w18_small": 0, "test_resnet": 5}[name]
    expected = rf"^srn needs .* last 9 stages.* {name} has {available} at 64 pixels"
    with pytest.raises(ValueError, match=expected):
        with_stages(ready(name, image_size=64), "srn", 9)


@pytest.mark.slow
def test_two_maps_can_be_exported() -> None:
    class TwoMapsModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = with_stages(ready("test_resnet", image_size=64), "srn")

        def forward(self, images: Tensor) -> Tensor:
            entering, last = two_maps(self.encoder, images)
            return torch.cat([entering.mean((2, 3)), last.mean((2, 3))], dim=1)

    module = TwoMapsModule().eval()
    batch = torch.export.Dim("images", min=2, max=9)
    exported = torch.export.export(module, (images(64),), dynamic_shapes={"images": {0: batch}})
    torch.testing.assert_close(exported.module()(images(64, 5)), module(images(64, 5)))


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext", "test_mambaout", "test_byobnet"])
def test_split_encoder_matches_the_full_encoder(name: str) -> None:
    encoder = Encoder(name, image_size=64).eval()
    split = split_encoder(encoder)
    assert split is not None
    images = torch.randn(2, 3, 64, 64)
    activations = split.trunk(images)
    assert torch.allclose(split.tail(activations), encoder(images), rtol=1e-4, atol=1e-5)
    assert torch.allclose(split.tail.maps(activations), encoder.maps(images), rtol=1e-4, atol=1e-5)
    assert not activations.requires_grad
    full = encoder.state_dict()
    assert all(torch.equal(value, full[key]) for key, value in split.tail.state_dict().items())
    share = sum(p.numel() for p in split.tail.parameters()) / sum(p.numel() for p in encoder.parameters())
    assert 0.05 <= share < 1


@pytest.mark.parametrize("name", ["test_vit", "test_vit2"])
def test_encoder_that_is_not_a_chain_is_not_split(name: str) -> None:
    assert split_encoder(Encoder(name, image_size=64)) is None


def test_splitting_does_not_change_the_encoder() -> None:
    encoder = Encoder("test_resnet", image_size=64).train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    split = split_encoder(encoder)
    assert split is not None
    with torch.no_grad():
        for parameter in split.tail.parameters():
            parameter.zero_()
    assert encoder.training
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


def test_tail_uses_fixed_statistics_in_training() -> None:
    split = split_encoder(Encoder("test_resnet", image_size=64))
    assert split is not None
    tail = split.tail.train()
    before = {key: value.clone() for key, value in tail.state_dict().items() if "running" in key}
    tail(torch.randn(4, 192, 4, 4))
    assert tail.training
    assert all(torch.equal(tail.state_dict()[key], value) for key, value in before.items())


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", pytest.param("vgg11", marks=pytest.mark.exhaustive)])
def test_last_stage_has_trainable_parameters_with_maps(name: str) -> None:
    split = split_encoder(Encoder(name, image_size=64))
    assert split is not None
    full, tail = (with_maps(e, "csra") for e in (Encoder(name, image_size=64), split.tail))
    trainable_sizes = [sum(p.numel() for p in e.parameters() if p.requires_grad) for e in (full, tail)]
    assert trainable_sizes[1] >= 0.05 * trainable_sizes[0] > 0
