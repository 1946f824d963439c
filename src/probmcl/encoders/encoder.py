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
        self.image_size: int = image_size or cfg["input_size"][-1]
        self.mean: tuple[float, float, float] = tuple(cfg["mean"])
        self.std: tuple[float, float, float] = tuple(cfg["std"])
        self.interpolation: Literal["bilinear", "bicubic"] = (
            "bicubic" if cfg["interpolation"] == "bicubic" else "bilinear"
        )

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
        if features.shape[1:] != (self.features,):
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
        tokens = activation[:, self._count_prefix_tokens(activation) :]  # (N, h·w, K)
        side = math.isqrt(tokens.shape[1])
        if side**2 != tokens.shape[1] or side < 2:
            tokens_do = counted(tokens.shape[1], "token does", "tokens do")
            raise ValueError(f"{self.name}: {tokens_do} not form a square map; choose another encoder")
        # len(tokens) would make the batch size of an exported model constant.
        return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)

    def from_maps(self, maps: Float[Tensor, "N K h w"], activation: Float[Tensor, "N ..."]) -> Float[Tensor, "N ..."]:
        """Return the activation with its maps replaced; this is the inverse of `to_maps`."""
        if activation.ndim == 4:
            return maps.permute(0, 2, 3, 1) if self._channels_last else maps
        prefix = activation[:, : self._count_prefix_tokens(activation)]
        return torch.cat([prefix, maps.flatten(2).transpose(1, 2)], dim=1)

    @property
    def _channels_last(self) -> bool:
        return getattr(self.model, "output_fmt", "NCHW") == "NHWC"

    def _count_prefix_tokens(self, tokens: Float[Tensor, "N T K"]) -> int:
        """Return the number of prefix tokens; a model that does not define it has at most a class token."""
        class_tokens = int(math.isqrt(tokens.shape[1]) ** 2 < tokens.shape[1])
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
    tag = f"{name.split('.')[0]}.{cfg['tag']}" if cfg["tag"] else name
    parameters = parameters_in_millions(name)
    size = f"{parameters:.1f} M parameters ({4 * parameters:.0f} MB)"
    return f"{tag}, {size}, license {cfg['license'] or 'not stated'}"


@functools.cache
def parameters_in_millions(name: str) -> float:
    """Return the number of parameters of an encoder in millions, counted on the meta device.

    >>> round(parameters_in_millions("resnet50"), 1)
    23.5
    """
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False, num_classes=0)
    return float(sum(parameter.numel() for parameter in model.parameters()) / 1e6)


def _configuration(name: str) -> dict[str, Any]:
    architecture = name.split(".")[0]
    try:
        cfg = timm.get_pretrained_cfg(name)  # None if timm does not have, or no longer has, this model
    except RuntimeError as error:
        tags = ", ".join(model.partition(".")[2] for model in timm.list_pretrained(architecture))
        raise SettingsError(f"{name}: {error} Available tags: {tags or 'none'}") from error
    if cfg is None:
        raise SettingsError(f"timm has no model {name!r}; {suggestion(architecture, timm.list_models())}")
    return vars(cfg)


@functools.lru_cache(maxsize=64)
def refuse_size(name: str, image_size: int | None) -> None:
    """Raise `SettingsError` if a model does not support an image size; it runs on the meta device if possible."""
    if image_size is None:
        return
    size: dict[str, Any] = {"img_size": image_size} if _configuration(name)["fixed_input_size"] else {}
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
    # Only models with a fixed input size, such as vision transformers, have this argument.
    size: dict[str, Any] = {"img_size": image_size} if image_size and cfg["fixed_input_size"] else {}
    if weights == "pretrained":
        return pretrained(name, cfg, size)
    model = timm.create_model(name, pretrained=False, num_classes=0, **size)
    if weights is not None:
        load_weights(model, Path(weights), cfg)
    return model
