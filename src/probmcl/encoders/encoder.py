"""Any timm model as an encoder: its pooled features, and its last feature maps."""

import functools
import math
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.encoders.weights import load, pretrained
from probmcl.errors import suggestion
from probmcl.runtime import torchvision_compat  # noqa: F401  # before timm, which imports torchvision

import timm  # isort: skip

MODEL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, AssertionError)
"""Exceptions that a model may raise for an input of a size or shape that it does not support."""


class Encoder(nn.Module):
    """An image encoder with pooled features, not normalized, and the feature maps before pooling.

    Args:
        name: any model of timm, with or without its tag: `resnet50`, `tresnet_m.miil_in21k`.
        weights: None for a random initialization, `"pretrained"` for timm's weights of that name (and tag), or the path
            of a safetensors file in timm's own keys, or of a run folder.
        image_size: side of the square input; by default that of the pretrained model.

    `mean`, `std`, `image_size` and `interpolation` define the preprocessing; `features` is D, and `channels` is K, the
    number of its maps.

    Reference: ProbMCL, section 2.1, "Encoder Network".

    >>> encoder = Encoder("test_resnet", image_size=64)
    >>> encoder(torch.zeros(2, 3, 64, 64)).shape, encoder.maps(torch.zeros(2, 3, 64, 64)).shape
    (torch.Size([2, 96]), torch.Size([2, 96, 2, 2]))
    """

    def __init__(self, name: str, *, weights: str | Path | None = None, image_size: int | None = None) -> None:
        super().__init__()
        self.name = name
        cfg = _configuration(name)
        if image_size is not None:
            _refuse_size(name, image_size, bool(cfg["fixed_input_size"]))
        self.model = _build(name, cfg, weights, image_size)
        self.fixed_statistics = False
        # Some heads widen the maps' `num_features` after pooling.
        self.features: int = getattr(self.model, "head_hidden_size", self.model.num_features)
        self.channels: int = self.model.num_features
        self.image_size: int = image_size or cfg["input_size"][-1]
        self.mean: tuple[float, float, float] = tuple(cfg["mean"])
        self.std: tuple[float, float, float] = tuple(cfg["std"])
        self.interpolation: Literal["bilinear", "bicubic"] = (
            "bicubic" if cfg["interpolation"] == "bicubic" else "bilinear"
        )

    def train(self, mode: bool = True) -> "Encoder":
        """Set training mode; with `fixed_statistics`, batch normalization keeps its running statistics."""
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
                f"{self.name} returns {shape} instead of {self.features} pooled features; choose another model"
            )
        return features

    def maps(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N K h w"]:
        """Return the last feature maps before pooling, channels first whatever the model's own layout.

        K = D, except for models that widen the pooled features, such as MobileNetV3.
        """
        features: Any = self.model.forward_features(images)
        if not isinstance(features, Tensor):
            raise ValueError(f"{self.name} has maps of several sizes; choose another model")
        return self.laid_out(features)

    def laid_out(self, activation: Float[Tensor, "N ..."]) -> Float[Tensor, "N K h w"]:
        """Return maps with channels first, from an activation in the model's own layout: tokens, or channels last."""
        if activation.ndim == 4:
            return activation.permute(0, 3, 1, 2) if self._channels_last else activation
        tokens = activation[:, self._before(activation) :]  # (N, h·w, K)
        side = math.isqrt(tokens.shape[1])
        if side**2 != tokens.shape[1] or side < 2:
            raise ValueError(f"{self.name}: its tokens ({tokens.shape[1]}) are not a square map; choose another model")
        # Not len(tokens), which would fix the number of images in an exported model.
        return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)

    def laid_back(self, maps: Float[Tensor, "N K h w"], activation: Float[Tensor, "N ..."]) -> Float[Tensor, "N ..."]:
        """Return the activation with its maps replaced: the inverse of `laid_out`."""
        if activation.ndim == 4:
            return maps.permute(0, 2, 3, 1) if self._channels_last else maps
        before = activation[:, : self._before(activation)]
        return torch.cat([before, maps.flatten(2).transpose(1, 2)], dim=1)

    @property
    def _channels_last(self) -> bool:
        return getattr(self.model, "output_fmt", "NCHW") == "NHWC"

    def _before(self, tokens: Float[Tensor, "N T K"]) -> int:
        """Return the number of prefix tokens; a model that does not define it has none or one, the class token."""
        one = int(math.isqrt(tokens.shape[1]) ** 2 < tokens.shape[1])
        return int(getattr(self.model, "num_prefix_tokens", one))


class PrecomputedFeatures(nn.Module):
    """The stand-in for an encoder whose features were computed before: the identity."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Return the features themselves."""
        return features


AnyEncoder = Encoder | PrecomputedFeatures
"""An encoder, or the stand-in for one whose features were computed before."""


def describe_encoder(name: str) -> str:
    """Return an encoder's name and tag, its size and the license of its weights, without downloading anything.

    >>> describe_encoder("test_resnet")
    'test_resnet.r160_in1k, 0.4 million parameters (1 MB), license apache-2.0'
    """
    cfg = _configuration(name)
    tag = f"{name.split('.')[0]}.{cfg['tag']}" if cfg["tag"] else name
    parameters = millions(name)
    size = f"{parameters:.1f} million parameters ({4 * parameters:.0f} MB)"
    return f"{tag}, {size}, license {cfg['license'] or 'not stated'}"


def millions(name: str) -> float:
    """Return the number of an encoder's parameters in millions, counted on the meta device.

    >>> round(millions("resnet50"), 1)
    23.5
    """
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False, num_classes=0)
    return float(sum(parameter.numel() for parameter in model.parameters()) / 1e6)


def _configuration(name: str) -> dict[str, Any]:
    architecture = name.split(".")[0]
    try:
        cfg = timm.get_pretrained_cfg(name)  # None for a name that timm has never had or has given up
    except RuntimeError as error:
        tags = ", ".join(found.partition(".")[2] for found in timm.list_pretrained(architecture))
        raise ValueError(f"{name}: {error} There are: {tags or 'none'}") from error
    if cfg is None:
        raise ValueError(f"timm has no model {name!r}; {suggestion(architecture, timm.list_models())}")
    return vars(cfg)


@functools.lru_cache(maxsize=64)
def _refuse_size(name: str, image_size: int, fixed: bool) -> None:
    """Raise an error if a model does not accept images of a size; checked on the meta device if possible."""
    size: dict[str, Any] = {"img_size": image_size} if fixed else {}
    problem: Exception | None = None
    for device in ("meta", "cpu"):  # a few models cannot run on the meta device
        try:
            with torch.device(device), torch.random.fork_rng(devices=[]), torch.no_grad():
                model = timm.create_model(name, pretrained=False, num_classes=0, **size).eval()
                model(torch.empty(1, 3, image_size, image_size))
            return
        except MODEL_ERRORS as error:
            problem = error
    raise ValueError(
        f"{name} cannot take images of {image_size} pixels ({problem}); choose another `image_size`, or another encoder"
    )


def _build(name: str, cfg: dict[str, Any], weights: str | Path | None, image_size: int | None) -> Any:
    # Only a model that fixes its input (a vision transformer, say) takes the size as an argument.
    size: dict[str, Any] = {"img_size": image_size} if image_size and cfg["fixed_input_size"] else {}
    if weights == "pretrained":
        return pretrained(name, cfg, size)
    model = timm.create_model(name, pretrained=False, num_classes=0, **size)
    if weights is not None:
        load(model, Path(weights), cfg)
    return model
