"""Encoders built from timm models, with pooled features and feature maps."""

import functools
import math
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.encoders.weights import load_weights, pretrained
from probmcl.errors import SettingsError, counted, suggestion
from probmcl.runtime import torchvision_compat  # noqa: F401  # before timm, which imports torchvision

import timm  # isort: skip

MODEL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, AssertionError)
"""Exceptions that a model may raise for an input whose size or shape it does not support."""


class Encoder(nn.Module):
    """Image encoder that returns unnormalized pooled features, or the feature maps before pooling.

    Args:
        name: name of a timm model, with or without a tag: `resnet50`, `tresnet_m.miil_in21k`.
        weights: None for a random initialization, `"pretrained"` for timm's weights for that name and tag, or the path
            to a run folder or to a safetensors file with timm's parameter names.
        image_size: side of the square input; defaults to the pretrained model's input size.

    The attributes `mean`, `std`, `image_size` and `interpolation` define the preprocessing, `features` is the feature
    size D, and `channels` is the number K of feature maps.

    Reference: ProbMCL, section 2.1, "Encoder Network".

    >>> encoder = Encoder("test_resnet", image_size=64)
    >>> encoder(torch.zeros(2, 3, 64, 64)).shape, encoder.maps(torch.zeros(2, 3, 64, 64)).shape
    (torch.Size([2, 96]), torch.Size([2, 96, 2, 2]))
    """

    def __init__(self, name: str, *, weights: str | Path | None = None, image_size: int | None = None) -> None:
        super().__init__()
        self.name = name
        cfg = _configuration(name)
        if torch.get_default_device().type != "meta":  # there, the caller may need only the shapes of the parameters
            refuse_size(name, image_size)
        self.model = _build(name, cfg, weights, image_size)
        self.fixed_statistics = False
        # In some models, there are more pooled features than `num_features`, the number of maps.
        self.features: int = getattr(self.model, "head_hidden_size", self.model.num_features)
        self.channels: int = self.model.num_features
        default_size = cfg["input_size"][-1]  # the shape is (channels, height, width)
        self.image_size: int = image_size or default_size
        self.mean: tuple[float, float, float] = tuple(cfg["mean"])
        self.std: tuple[float, float, float] = tuple(cfg["std"])
        is_bicubic = cfg["interpolation"] == "bicubic"
        self.interpolation: Literal["bilinear", "bicubic"] = "bicubic" if is_bicubic else "bilinear"

    def train(self, mode: bool = True) -> "Encoder":
        """Set the training mode; with `fixed_statistics`, batch normalization stays in evaluation mode."""
        super().train(mode)
        if self.fixed_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N D"]:
        """Return the pooled features."""
        features: Tensor = self.model(images)
        expected_shape = (self.features,)
        if features.shape[1:] != expected_shape:
            shape = tuple(features.shape[1:])
            raise ValueError(
                f"{self.name} returns features of shape {shape} instead of {counted(self.features, 'pooled feature')}; "
                "choose another encoder"
            )
        return features

    def maps(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N K h w"]:
        """Return the last feature maps before pooling, with channels first for every model.

        K = D, except for models such as MobileNetV3 whose head increases the size of the pooled features.
        """
        features: Any = self.model.forward_features(images)
        if not isinstance(features, Tensor):
            raise ValueError(f"{self.name} has feature maps of several sizes; choose another encoder")
        return self.to_maps(features)

    def to_maps(self, activation: Float[Tensor, "N ..."]) -> Float[Tensor, "N K h w"]:
        """Convert a model activation (tokens, or maps with channels last or first) to maps with channels first."""
        if activation.ndim == 4:
            return activation.permute(0, 3, 1, 2) if self._channels_last else activation
        prefix_tokens = self._count_prefix_tokens(activation)
        tokens = activation[:, prefix_tokens:]  # (N, h·w, K)
        n_tokens = tokens.shape[1]
        side = math.isqrt(n_tokens)
        if side**2 != n_tokens or side < 2:
            tokens_do = counted(n_tokens, "token does", "tokens do")
            raise ValueError(f"{self.name}: {tokens_do} not form a square map; choose another encoder")
        n_images = tokens.shape[0]  # len(tokens) would make the batch size of an exported model constant
        return tokens.transpose(1, 2).reshape(n_images, -1, side, side)

    def from_maps(self, maps: Float[Tensor, "N K h w"], activation: Float[Tensor, "N ..."]) -> Float[Tensor, "N ..."]:
        """Return the activation with its maps replaced; this is the inverse of `to_maps`."""
        if activation.ndim == 4:
            return maps.permute(0, 2, 3, 1) if self._channels_last else maps
        prefix_tokens = activation[:, : self._count_prefix_tokens(activation)]
        map_tokens = maps.flatten(2).transpose(1, 2)  # (N, h·w, K)
        return torch.cat([prefix_tokens, map_tokens], dim=1)

    @property
    def _channels_last(self) -> bool:
        """Whether the model has maps of shape (N, h, w, K); only some models declare their format."""
        return getattr(self.model, "output_fmt", "NCHW") == "NHWC"

    def _count_prefix_tokens(self, tokens: Float[Tensor, "N T K"]) -> int:
        """Return the number of prefix tokens; a model that does not define it has at most a class token."""
        n_tokens = tokens.shape[1]
        form_a_square = math.isqrt(n_tokens) ** 2 == n_tokens
        class_tokens = 0 if form_a_square else 1
        return int(getattr(self.model, "num_prefix_tokens", class_tokens))


class PrecomputedFeatures(nn.Module):
    """Placeholder for an encoder whose features were computed in advance; it returns its input."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Return the features unchanged."""
        return features


AnyEncoder = Encoder | PrecomputedFeatures
"""An encoder or its placeholder for precomputed features."""


def describe_encoder(name: str) -> str:
    """Describe the tag, size and license of an encoder's weights without downloading them.

    >>> describe_encoder("test_resnet")
    'test_resnet.r160_in1k, 0.4 M parameters (1 MB), license apache-2.0'
    """
    cfg = _configuration(name)
    tag = name
    if cfg["tag"]:  # the default tag, if the name has none
        architecture = name.split(".")[0]
        tag = f"{architecture}.{cfg['tag']}"
    millions = parameters_in_millions(name)
    megabytes = 4 * millions  # float32
    return f"{tag}, {millions:.1f} M parameters ({megabytes:.0f} MB), license {cfg['license'] or 'not stated'}"


@functools.cache
def parameters_in_millions(name: str) -> float:
    """Return the number of parameters of an encoder in millions, counted on the meta device.

    >>> round(parameters_in_millions("resnet50"), 1)
    23.5
    """
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False, num_classes=0)
    count = sum(parameter.numel() for parameter in model.parameters())
    return float(count / 1e6)


def _configuration(name: str) -> dict[str, Any]:
    """Return timm's configuration of a pretrained model: input size, normalization, license and location of weights."""
    architecture = name.split(".")[0]
    try:
        cfg = timm.get_pretrained_cfg(name)  # None if timm does not have, or no longer has, this model
    except RuntimeError as error:
        models = timm.list_pretrained(architecture)
        tags = ", ".join(model.partition(".")[2] for model in models)
        raise SettingsError(f"{name}: {error} Available tags: {tags or 'none'}") from error
    if cfg is None:
        raise SettingsError(f"timm has no model {name!r}; {suggestion(architecture, timm.list_models())}")
    return vars(cfg)


@functools.lru_cache(maxsize=64)
def refuse_size(name: str, image_size: int | None) -> None:
    """Raise `SettingsError` if a model does not support an image size; it runs on the meta device if possible."""
    if image_size is None:
        return
    size = _size_argument(_configuration(name), image_size)
    problem: Exception | None = None
    for device in ("meta", "cpu"):  # a few models cannot run on the meta device
        try:
            with torch.device(device), torch.random.fork_rng(devices=[]), torch.no_grad():
                model = timm.create_model(name, pretrained=False, num_classes=0, **size).eval()
                model(torch.empty(1, 3, image_size, image_size))
            return
        except MODEL_ERRORS as error:
            problem = error
    raise SettingsError(
        f"{name} does not support an image size of {image_size} pixels ({problem}); choose another `image_size` "
        "or encoder"
    )


def _build(name: str, cfg: dict[str, Any], weights: str | Path | None, image_size: int | None) -> Any:
    """Return timm's model without its classifier, with the given weights; see `Encoder`."""
    size = _size_argument(cfg, image_size)
    if weights == "pretrained":
        return pretrained(name, cfg, size)
    model = timm.create_model(name, pretrained=False, num_classes=0, **size)
    if weights is not None:
        load_weights(model, Path(weights), cfg)
    return model


def _size_argument(cfg: dict[str, Any], image_size: int | None) -> dict[str, Any]:
    """Return the argument of `timm.create_model` for an image size; None means the default size of the model."""
    # Only models with a fixed input size, such as vision transformers, have this argument.
    if image_size is not None and cfg["fixed_input_size"]:
        return {"img_size": image_size}
    return {}
