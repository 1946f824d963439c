from functools import partial

import pytest
import torch
from torch import Tensor

from helpers.networks import SMALL, images, ready, same
from probmcl.encoders import (
    Encoder,
    PrecomputedFeatures,
    Stage,
    at_entrances,
    is_part,
    split_encoder,
    stages,
    two_maps,
    with_maps,
    with_stages,
)
from probmcl.encoders.stages import Visit

# For methods that need maps


def learns(encoder: Encoder) -> set[str]:
    return {key for key, parameter in encoder.model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", SMALL)
def test_channels_is_the_number_of_maps(name: str) -> None:
    side = max(SMALL[name][0], 64)
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        assert encoder.maps(images(side, 1)).shape[1] == encoder.channels


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "mobilenetv3_small_050", "test_mambaout"])
def test_with_maps_whatever_learns_has_a_gradient_and_the_rest_is_frozen(name: str) -> None:
    encoder = with_maps(ready(name, image_size=64), "csra")
    frozen = {key for key, _ in encoder.model.named_parameters()} - learns(encoder)
    encoder.maps(images(64)).square().sum().backward()  # type: ignore[no-untyped-call]
    assert all((p.grad is not None) == p.requires_grad for p in encoder.parameters())
    assert bool(frozen) == (name not in ("test_resnet", "test_vit"))
    assert all(key.startswith(("head.", "conv_head.")) for key in frozen)


def test_with_maps_an_encoder_is_neither_run_nor_changed_and_nothing_is_drawn() -> None:
    encoder = ready("test_resnet", image_size=96).train()  # a size of its own: nothing of it is remembered
    before, drawn = {key: value.clone() for key, value in encoder.state_dict().items()}, torch.get_rng_state()
    with torch.no_grad():  # gradients are followed all the same
        assert with_maps(encoder, "csra") is encoder
    assert torch.equal(torch.get_rng_state(), drawn)
    assert same(encoder, before)
    assert encoder.training
    assert len(learns(encoder)) == len(list(encoder.parameters()))


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_mambaout"])
@pytest.mark.parametrize("side", [64, 160])
def test_with_maps_the_tail_of_an_encoder_is_treated_as_the_whole(name: str, side: int) -> None:
    cut = split_encoder(ready(name, image_size=side))
    assert cut is not None
    whole, tail = with_maps(ready(name, image_size=side), "csra"), with_maps(cut.tail, "csra")
    assert tail.channels == whole.channels
    assert learns(tail) == learns(whole) & set(dict(tail.model.named_parameters()))
    activations = cut.trunk(images(side))
    assert tail.maps(activations).shape[1] == tail.channels
    tail.maps(activations).square().sum().backward()  # type: ignore[no-untyped-call]
    assert all((p.grad is not None) == p.requires_grad for p in tail.parameters())


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("pit_ti_224", r"its tokens \(1\) are not a square map"), ("efficientvim_m1", "maps of several sizes")],
)
def test_a_method_that_needs_maps_refuses_a_model_without(name: str, complaint: str) -> None:
    said = rf"^ml_gcn needs feature maps, and {name} has none at \d+ pixels: choose another encoder or `image_size` "
    said += rf"\({name}.*{complaint}"
    with pytest.raises(ValueError, match=said):
        with_maps(ready(name), "ml_gcn")


def test_a_method_that_needs_maps_refuses_stored_features() -> None:
    with pytest.raises(ValueError, match="csra needs feature maps, and stored features have none: choose `tune=last`"):
        with_maps(PrecomputedFeatures(5), "csra")


# Stages, and what enters them


NETWORKS = (
    "test_resnet",
    "test_efficientnet",
    "test_convnext",
    "test_mambaout",
    "test_vit",
    "swin_tiny_patch4_window7_224",
)


@pytest.mark.parametrize("name", NETWORKS)
def test_stages_say_the_shape_of_what_enters_them(name: str) -> None:
    encoder = ready(name, image_size=64)
    seen: list[tuple[Stage, Tensor]] = []
    visits: dict[Stage, Visit] = {stage: partial(look, seen, stage) for stage in stages(encoder)}
    with at_entrances(encoder, visits), torch.no_grad():
        encoder(images(64, 3))
    assert [stage for stage, _ in seen] == list(stages(encoder))
    assert all(maps.shape == (3, stage.channels, stage.side, stage.side) for stage, maps in seen)
    assert not any(module._forward_pre_hooks for module in encoder.modules())


def look(seen: list[tuple[Stage, Tensor]], stage: Stage, maps: Tensor) -> None:
    seen.append((stage, maps))


@pytest.mark.parametrize("name", NETWORKS)
def test_maps_that_a_visit_returns_take_the_place_of_those_that_came(name: str) -> None:
    encoder = ready(name, image_size=64)
    last = stages(encoder)[-1]
    kept: list[Tensor] = []
    with torch.no_grad():
        plain = encoder(images(64))
        with at_entrances(encoder, {last: torch.clone}):
            torch.testing.assert_close(encoder(images(64)), plain)
        with at_entrances(encoder, {last: reverse_channels}):
            changed = encoder(images(64))
            with at_entrances(encoder, {last: kept.append}):  # sees what the first visit left
                encoder(images(64))
        torch.testing.assert_close(kept[0], reverse_channels(two_maps(encoder, images(64)).entering))
    assert (changed - plain).norm() > 0.01 * plain.norm()


def reverse_channels(maps: Tensor) -> Tensor:
    """No normalization undoes this: a constant added to all channels would vanish in a LayerNorm over channels."""
    return maps.flip(1)


def test_whatever_goes_wrong_the_visitors_leave() -> None:
    encoder = ready("test_resnet", image_size=64)
    with (
        pytest.raises(RuntimeError, match="size"),
        at_entrances(encoder, {stages(encoder)[-1]: lambda maps: maps[:, 1:]}),
    ):
        encoder(images(64))
    assert not any(module._forward_pre_hooks for module in encoder.modules())


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext", "test_mambaout"])
def test_both_maps_of_a_tail_are_those_of_the_whole(name: str) -> None:
    encoder = ready(name, image_size=64)
    cut = split_encoder(encoder)
    assert cut is not None
    with torch.no_grad():
        whole, tail = two_maps(encoder, images(64)), two_maps(cut.tail, cut.trunk(images(64)))
    torch.testing.assert_close(tail.entering, whole.entering)
    torch.testing.assert_close(tail.last, whole.last)
    torch.testing.assert_close(whole.last, encoder.maps(images(64)))
    assert whole.entering.shape[1:3] == stages(encoder)[-1][1:]
    assert stages(cut.tail) == stages(encoder)
    assert [is_part(cut.tail, stage) for stage in stages(encoder)] == [*[False] * (len(stages(encoder)) - 1), True]
    assert all(is_part(encoder, stage) for stage in stages(encoder))


def test_gradients_flow_through_both_maps() -> None:
    encoder = ready("test_resnet", image_size=64)
    two_maps(encoder, images(64)).entering.sum().backward()  # type: ignore[no-untyped-call]
    grown = {key.split(".")[0] for key, p in encoder.model.named_parameters() if p.grad is not None}
    assert grown == {"conv1", "bn1", "layer1", "layer2", "layer3"}


@pytest.mark.slow
def test_the_published_stages_of_resnet_101() -> None:
    last_two = stages(with_stages(Encoder("resnet101", image_size=448), "tdrg", 2))[-2:]
    assert last_two == (Stage("layer3", 512, 56), Stage("layer4", 1024, 28))


def test_finding_stages_runs_and_draws_nothing() -> None:
    encoder, drawn = ready("test_resnet", image_size=72).train(), torch.get_rng_state()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    stages(encoder)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert same(encoder, before)
    assert encoder.training


@pytest.mark.parametrize("name", ["hrnet_w18_small", "test_resnet"])
def test_a_method_that_needs_stages_refuses_a_model_with_fewer(name: str) -> None:
    there = {"hrnet_w18_small": 0, "test_resnet": 5}[name]
    said = rf"^srn needs the maps that enter the last 9 stages, and {name} has {there} at 64 pixels"
    with pytest.raises(ValueError, match=said):
        with_stages(ready(name, image_size=64), "srn", 9)


@pytest.mark.slow
def test_both_maps_can_be_exported() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = with_stages(ready("test_resnet", image_size=64), "srn")

        def forward(self, images: Tensor) -> Tensor:
            entering, last = two_maps(self.encoder, images)
            return torch.cat([entering.mean((2, 3)), last.mean((2, 3))], dim=1)

    module = Both().eval()
    any_number = torch.export.Dim("images", min=2, max=9)
    exported = torch.export.export(module, (images(64),), dynamic_shapes={"images": {0: any_number}})
    torch.testing.assert_close(exported.module()(images(64, 5)), module(images(64, 5)))


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


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", pytest.param("vgg11", marks=pytest.mark.exhaustive)])
def test_the_last_stage_is_one_that_methods_on_maps_learn_too(name: str) -> None:
    cut = split_encoder(Encoder(name, image_size=64))
    assert cut is not None
    whole, tail = (with_maps(e, "csra") for e in (Encoder(name, image_size=64), cut.tail))
    learning = [sum(p.numel() for p in e.parameters() if p.requires_grad) for e in (whole, tail)]
    assert learning[1] >= 0.05 * learning[0] > 0
