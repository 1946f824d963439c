import pytest
import torch

from helpers.networks import SMALL, images, ready
from probmcl.encoders import Encoder, PrecomputedFeatures, parameters_in_millions

import timm  # isort: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "features", "millions"),
    [("tresnet_m", 2048, 29.340), ("tresnet_l", 2432, 53.556), ("tresnet_v2_l", 2048, 44.126)],
)
def test_encoders_of_the_paper_have_published_sizes(name: str, features: int, millions: float) -> None:
    encoder = ready(name, image_size=64)
    assert encoder.features == features
    assert round(sum(parameter.numel() for parameter in encoder.parameters()) / 1e6, 3) == millions
    with torch.no_grad():
        pooled, maps = encoder(images(64)), encoder.maps(images(64))
    assert pooled.shape == (2, features)
    assert maps.shape == (2, features, 2, 2)
    torch.testing.assert_close(maps.mean((2, 3)), pooled)
    assert pooled.std(0).max() > 0  # the two images have different features


@pytest.mark.parametrize("name", SMALL)
def test_features_is_the_output_size(name: str) -> None:
    side, features = SMALL[name]
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        pooled = encoder(images(side, 3))
    assert pooled.shape == (3, encoder.features) == (3, features)
    assert pooled.isfinite().all()


def test_classifier_is_removed_and_gradients_reach_the_first_layer() -> None:
    encoder = ready("test_resnet")
    with_classifier = sum(parameter.numel() for parameter in timm.create_model("test_resnet").parameters())
    assert with_classifier - sum(parameter.numel() for parameter in encoder.parameters()) == (96 + 1) * 1000
    encoder(images(64)).square().sum().backward()
    first = next(encoder.parameters())
    assert first.grad is not None
    assert first.grad.abs().min() > 0


@pytest.mark.parametrize(
    ("name", "mean", "std", "side", "interpolation"),
    [
        ("tresnet_m", 0.0, 1.0, 224, "bilinear"),
        ("tresnet_m.miil_in1k_448", 0.0, 1.0, 448, "bilinear"),
        ("test_resnet", 0.5, 0.5, 160, "bilinear"),
        ("vit_tiny_patch16_384", 0.5, 0.5, 384, "bicubic"),
    ],
)
def test_preprocessing_attributes(name: str, mean: float, std: float, side: int, interpolation: str) -> None:
    with torch.device("meta"):
        encoder = Encoder(name)
    assert (encoder.name, encoder.mean, encoder.std) == (name, (mean,) * 3, (std,) * 3)
    assert (encoder.image_size, encoder.interpolation) == (side, interpolation)


def test_mean_and_std_per_channel() -> None:
    encoder = ready("resnet10t")
    assert encoder.mean == (0.485, 0.456, 0.406)
    assert encoder.std == (0.229, 0.224, 0.225)


@pytest.mark.parametrize(("name", "side"), [("test_vit", 32), ("test_vit", 192), ("test_resnet", 96)])
def test_other_image_sizes(name: str, side: int) -> None:
    encoder = ready(name, image_size=side)
    assert encoder.image_size == side
    assert encoder(images(side)).shape == (2, encoder.features)


@pytest.mark.parametrize(
    ("wrong", "suggestion"),
    [("resnet5O", "resnet50"), ("tresnet-m", "tresnet_m"), ("tresnet_v2l.miil_in21k", "tresnet_v2_l")],
)
def test_unknown_model_suggests_similar_names(wrong: str, suggestion: str) -> None:
    with pytest.raises(ValueError, match=rf"no model '{wrong}'; did you mean .*\b{suggestion}\b"):
        Encoder(wrong)


@pytest.mark.parametrize("name", ["", "!!!", "vit_tiny_patch16_224_in21k"])
def test_unknown_or_removed_model_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"timm has no model '{name}'"):
        Encoder(name)


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("tresnet_m.miil_in22k", "miil_in1k, miil_in1k_448, miil_in21k, miil_in21k_ft_in1k"),
        ("convnext_atto_rms.a1_in1k", "none"),
    ],
)
def test_unknown_tag_lists_available_tags(name: str, tags: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: .*{tags}$"):
        Encoder(name)


def test_model_without_pooling_is_an_error() -> None:
    encoder = ready("test_resnet")
    encoder.model.reset_classifier(0, "")
    with pytest.raises(ValueError, match=r"shape \(96, 2, 2\)"):
        encoder(images(64))


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("test_resnet", 64),
        ("test_resnet", 160),
        ("tf_efficientnet_lite0", 64),
        ("regnetx_002", 64),
        ("swin_tiny_patch4_window7_224", 64),
        ("mixer_s32_224", 96),
    ],
)
def test_mean_of_maps_equals_average_pooled_features(name: str, side: int) -> None:
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        maps, pooled = encoder.maps(images(side)), encoder(images(side))
    assert maps.shape[:2] == pooled.shape
    torch.testing.assert_close(maps.mean((2, 3)), pooled)


@pytest.mark.parametrize(
    ("name", "side", "prefix"),
    [
        ("test_vit", 48, 1),
        ("deit_tiny_distilled_patch16_224", 48, 2),
        ("cait_xxs24_224", 48, 1),  # does not declare its prefix token
        ("mixer_s32_224", 96, 0),  # does not declare the number of prefix tokens
    ],
)
def test_tokens_become_maps_without_prefix_tokens(name: str, side: int, prefix: int) -> None:
    encoder = ready(name, image_size=side)
    with torch.no_grad():
        maps, tokens = encoder.maps(images(side)), encoder.model.forward_features(images(side))
    assert maps.shape == (2, encoder.features, 3, 3)
    for row in range(3):
        for column in range(3):
            assert torch.equal(maps[:, :, row, column], tokens[:, prefix + 3 * row + column])


@pytest.mark.parametrize(("name", "channels"), [("swin_tiny_patch4_window7_224", 768), ("test_mambaout", 64)])
def test_channels_last_model_returns_channels_first_maps(name: str, channels: int) -> None:
    encoder = ready(name, image_size=96)
    with torch.no_grad():
        maps, activation = encoder.maps(images(96)), encoder.model.forward_features(images(96))
    assert maps.shape == (2, channels, 3, 3)
    for row in range(3):
        for column in range(3):
            assert torch.equal(maps[:, :, row, column], activation[:, row, column])


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_mambaout"])
def test_maps_keep_image_positions(name: str) -> None:
    encoder = ready(name, image_size=160)
    plain, marked = images(160, 1), images(160, 1)
    marked[:, :, :32, 128:] = 0  # the upper right corner
    with torch.no_grad():
        change = (encoder.maps(marked) - encoder.maps(plain)).abs().sum(1)[0]
    assert change[:, : change.shape[1] // 2].sum() < change[:, change.shape[1] // 2 :].sum()
    assert change[change.shape[0] // 2 :].sum() < change[: change.shape[0] // 2].sum()


def test_maps_of_rectangular_images() -> None:
    assert ready("test_resnet").maps(torch.rand(1, 3, 64, 96)).shape == (1, 96, 2, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [("pit_ti_224", "square map"), ("efficientvim_m1", "several sizes")],
)
def test_model_without_maps_is_an_error(name: str, message: str) -> None:
    encoder = ready(name)
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        encoder.maps(images(encoder.image_size, 1))


@pytest.mark.parametrize(
    ("name", "size"), [("test_vit", 40), ("xcit_nano_12_p16_224", 40), ("maxvit_pico_rw_256", 100)]
)
def test_unsupported_image_size_is_an_error(name: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"{name} .*{size} pixels"):
        Encoder(name, image_size=size)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "tf_efficientnet_lite0"])
def test_parameters_in_millions_matches_a_built_encoder(name: str) -> None:
    assert parameters_in_millions(name) == sum(parameter.numel() for parameter in Encoder(name).parameters()) / 1e6


def test_precomputed_features_are_returned_unchanged() -> None:
    features = torch.rand(3, 5)
    assert PrecomputedFeatures(5)(features) is features
    assert PrecomputedFeatures(5).features == 5
    assert not list(PrecomputedFeatures(5).parameters())
