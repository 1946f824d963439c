"""Stage 3: from an image to its feature h(x), by any timm model."""

from __future__ import annotations

import copy
import functools
import http.client
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from huggingface_hub import constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from probmcl import vision  # noqa: F401  # before timm, which imports torchvision
from probmcl.nearest import suggestion

import timm  # isort: skip

OF_A_RUN = "model.safetensors"
"""The file of a run folder that has its encoder."""

LEARNING_SHARE = 0.05
"""Of an encoder's parameters, at least so many are in what `halves` calls its last stage: a norm is none."""

PATIENCE = 4.0
"""Seconds to wait for the model hub before saying that it cannot be reached."""


ODD = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, AssertionError)
"""What models raise that are given something they were not made for."""


class WeightsError(ValueError):
    """The weights that were asked for cannot be had, or do not fit the encoder."""


class Encoder(nn.Module):
    """An image encoder: pooled features as they come, and the maps that were pooled.

    Args:
        name: any model of timm, with or without its tag: `resnet50`, `tresnet_m.miil_in21k`.
        weights: None starts from random numbers, `"pretrained"` takes timm's weights for that name (and tag), a path
            takes a safetensors file in timm's own keys, or the folder of a run.
        image_size: side of the square input; by default the one the model was made for.

    `mean`, `std`, `image_size` and `interpolation` say how its images are to be prepared; `features` is D, and
    `channels` is K, the number of its maps.

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
        # What comes out of the pooling; some heads widen the maps' `num_features` on the way.
        self.features: int = getattr(self.model, "head_hidden_size", self.model.num_features)
        self.channels: int = self.model.num_features
        self.image_size: int = image_size or cfg["input_size"][-1]
        self.mean: tuple[float, float, float] = tuple(cfg["mean"])
        self.std: tuple[float, float, float] = tuple(cfg["std"])
        self.interpolation: Literal["bilinear", "bicubic"] = (
            "bicubic" if cfg["interpolation"] == "bicubic" else "bilinear"
        )

    def train(self, mode: bool = True) -> Encoder:
        """Training mode; with `fixed_statistics`, batch normalisation keeps to the statistics it has."""
        super().train(mode)
        if self.fixed_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N D"]:
        """Pooled features."""
        features: Tensor = self.model(images)
        if features.shape[1:] != (self.features,):
            given = tuple(features.shape[1:])
            raise ValueError(
                f"{self.name} gives {given} instead of {self.features} pooled features; choose another model"
            )
        return features

    def maps(self, images: Float[Tensor, "N *image"]) -> Float[Tensor, "N K h w"]:
        """The last feature maps before pooling, channels first whatever the model's own layout.

        K = D, except for models that widen what they pooled, such as MobileNetV3.
        """
        features: Any = self.model.forward_features(images)
        if not isinstance(features, Tensor):
            raise ValueError(f"{self.name} keeps maps of several sizes; choose another model")
        if features.ndim == 4:
            return features.permute(0, 3, 1, 2) if getattr(self.model, "output_fmt", "NCHW") == "NHWC" else features
        # Not every model says how many tokens stand before those of the map: then none or one, the class token.
        before = getattr(self.model, "num_prefix_tokens", int(math.isqrt(features.shape[1]) ** 2 < features.shape[1]))
        tokens = features[:, before:]  # (N, h·w, K)
        side = math.isqrt(tokens.shape[1])
        if side**2 != tokens.shape[1] or side < 2:
            raise ValueError(f"{self.name}: its tokens ({tokens.shape[1]}) are no square map; choose another model")
        # Not len(tokens), which would fix the number of images in an exported model.
        return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)


class Trunk(nn.Module):
    """What an encoder does before its last stage: from images to the activations that enter it, without gradient."""

    def __init__(self, encoder: Encoder, last_stage: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.last_stage = last_stage

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N ..."]:
        """The input of the last stage, where the pass through the encoder ends."""
        stage = self.encoder.model.get_submodule(self.last_stage)
        handle = stage.register_forward_pre_hook(_leave_with_input)
        try:
            self.encoder(images)
        except _Reached as reached:
            return reached.activation
        finally:
            handle.remove()
        raise RuntimeError(f"{self.encoder.name} never came to {self.last_stage}")


class Halves(NamedTuple):
    """An encoder in two: `tail(trunk(images))` is its feature.

    The tail is an encoder too, whose images are the trunk's activations. It has copies of the weights, under the names
    they have in the whole encoder, and keeps to its statistics in training.
    """

    trunk: Trunk
    tail: Encoder


def halves(encoder: Encoder) -> Halves | None:
    """Cut an encoder in front of its last stage, or None where its stages do not simply pass one tensor on.

    The tail is a copy in which everything that runs before the last stage passes its input through. That is right for
    a chain of modules and wrong for anything else, so both are run once and compared.

    >>> encoder = Encoder("test_resnet", image_size=64).eval()
    >>> trunk, tail = halves(encoder)
    >>> images = torch.rand(2, 3, 64, 64)
    >>> trunk(images).shape, torch.allclose(tail(trunk(images)), encoder(images), atol=1e-6)
    (torch.Size([2, 192, 4, 4]), True)
    """
    stages = [stage["module"] for stage in getattr(encoder.model, "feature_info", [])]
    cuts = (_cut(encoder, stage) for stage in reversed(stages))
    enough = LEARNING_SHARE * _size_for_maps(encoder)
    return next((cut for cut in cuts if cut is None or _size_for_maps(cut.tail) >= enough), None)


def _cut(encoder: Encoder, last_stage: str) -> Halves | None:
    trunk, tail = Trunk(encoder, last_stage), copy.deepcopy(encoder).eval()
    tail.fixed_statistics = True
    was_training = encoder.training
    encoder.eval()
    try:
        _pass_through(tail.model, _run_before(encoder, last_stage))
        return Halves(trunk, tail) if _equal(encoder, trunk, tail) else None
    except ODD:
        return None  # what a model does with activations that it takes for images is its own affair
    finally:
        encoder.train(was_training)


def _size_for_maps(encoder: Encoder) -> int:
    """Parameters that feature maps depend on, which all methods train; all of them where there are no maps."""
    try:
        unused = _beyond_maps(encoder.name, encoder.image_size)
    except ODD:
        unused = frozenset()
    return sum(p.numel() for name, p in encoder.model.named_parameters() if name not in unused)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class _Reached(Exception):  # noqa: N818  # it is no error: the way to leave a model in the middle
    def __init__(self, activation: Tensor) -> None:
        self.activation = activation


def _leave_with_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    (activation,) = inputs
    raise _Reached(activation)


def _run_before(encoder: Encoder, last_stage: str) -> list[str]:
    """Names of the modules whose work is done when the last stage begins, without those inside others of them."""
    finished: set[str] = set()
    handles = [
        module.register_forward_hook(lambda *_, name=name: finished.add(name))
        for name, module in encoder.model.named_modules()
        if name
    ]
    try:
        Trunk(encoder, last_stage)(_an_image(encoder))
    finally:
        for handle in handles:
            handle.remove()
    return [name for name in finished if not any(name.startswith(f"{other}.") for other in finished)]


def _pass_through(model: nn.Module, names: Iterable[str]) -> None:
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, nn.Identity())


@torch.inference_mode()
def _equal(encoder: Encoder, trunk: Trunk, tail: Encoder) -> bool:
    image = _an_image(encoder)
    whole, parts = encoder(image), tail(trunk(image))
    return bool(torch.allclose(whole, parts, rtol=1e-3, atol=1e-4 * float(whole.abs().max())))


def _an_image(encoder: Encoder) -> Float[Tensor, "1 3 S S"]:
    generator = torch.Generator().manual_seed(0)
    device = next(encoder.parameters()).device
    return torch.rand(1, 3, encoder.image_size, encoder.image_size, generator=generator).to(device)


class Extracted(nn.Module):
    """Stands in for an encoder whose features were computed before: what goes in comes out."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """The features themselves."""
        return features


def with_maps(encoder: Encoder | Extracted, method: str) -> Encoder:
    """The encoder, for a method that needs its maps and would rather know at once that there are none.

    What the model computes from its maps only afterwards is frozen: no gradient will reach it. Nothing is run, since
    the images of a tail are activations; an empty model of the same name tells what there is.

    >>> with_maps(Encoder("test_resnet", image_size=64), "csra").channels
    96
    >>> with_maps(Extracted(96), "csra")
    Traceback (most recent call last):
    ValueError: csra needs feature maps, and stored features have none: choose --tune last or --tune all
    """
    if isinstance(encoder, Extracted):
        raise ValueError(
            f"{method} needs feature maps, and stored features have none: choose --tune last or --tune all"
        )
    try:
        unused = _beyond_maps(encoder.name, encoder.image_size)
    except ODD as error:
        raise ValueError(
            f"{method} needs feature maps, and {encoder.name} has none at {encoder.image_size} pixels: choose another "
            f"encoder or --image-size ({error})"
        ) from error
    for name, parameter in encoder.model.named_parameters():
        if name in unused:
            parameter.requires_grad_(False)
    return encoder


@functools.lru_cache(maxsize=16)
def _beyond_maps(name: str, image_size: int) -> frozenset[str]:
    """Parameters that have no part in a model's maps, found without any numbers."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.enable_grad():
        empty = Encoder(name, image_size=image_size).eval()
        empty.maps(torch.empty(1, 3, image_size, image_size)).sum().backward()  # type: ignore[no-untyped-call]
    return frozenset(key for key, parameter in empty.model.named_parameters() if parameter.grad is None)


def about(name: str) -> str:
    """An encoder in a few words, before anything is fetched: its name, its size and the licence of its weights.

    >>> about("test_resnet")
    'test_resnet.r160_in1k, 0.4 million parameters (1 MB), licence apache-2.0'
    """
    cfg = _configuration(name)
    tag = f"{name.split('.')[0]}.{cfg['tag']}" if cfg["tag"] else name
    parameters = millions(name)
    size = f"{parameters:.1f} million parameters ({4 * parameters:.0f} MB)"
    return f"{tag}, {size}, licence {cfg['license'] or 'not stated'}"


def millions(name: str) -> float:
    """Parameters of an encoder in millions, counted without making any.

    >>> round(millions("resnet50"), 1)
    23.5
    """
    with torch.device("meta"):
        return _size(timm.create_model(name, pretrained=False, num_classes=0)) / 1e6


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
    """An error for images of a size that a model cannot take, found without any numbers where that is possible."""
    size: dict[str, Any] = {"img_size": image_size} if fixed else {}
    problem: Exception | None = None
    for device in ("meta", "cpu"):  # a few models cannot do without numbers
        try:
            with torch.device(device), torch.random.fork_rng(devices=[]), torch.no_grad():
                model = timm.create_model(name, pretrained=False, num_classes=0, **size).eval()
                model(torch.empty(1, 3, image_size, image_size))
            return
        except ODD as error:
            problem = error
    raise ValueError(
        f"{name} cannot take images of {image_size} pixels ({problem}); choose another --image-size, or another encoder"
    )


def _build(name: str, cfg: dict[str, Any], weights: str | Path | None, image_size: int | None) -> Any:
    # Only a model that fixes its input (a vision transformer, say) takes the size as an argument.
    size: dict[str, Any] = {"img_size": image_size} if image_size and cfg["fixed_input_size"] else {}
    if weights == "pretrained":
        return _pretrained(name, _fetch(name, cfg), size)
    model = timm.create_model(name, pretrained=False, num_classes=0, **size)
    if weights is not None:
        _load(model, Path(weights), cfg)
    return model


def _pretrained(name: str, path: Path, size: dict[str, Any]) -> Any:
    # The hub's file has torch's layout even where `custom_load` says that the original has another one.
    overlay = {"file": str(path), "custom_load": False}
    try:
        return timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay, **size)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read ({error}); delete it to have it downloaded again") from error


def _load(model: nn.Module, path: Path, cfg: dict[str, Any]) -> None:
    path = path / OF_A_RUN if path.is_dir() else path
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read ({error}); give a whole safetensors file, or a run") from error
    within = "encoder.model."  # in the file of a run, beside what sits on the encoder
    if path.name == OF_A_RUN and any(key.startswith(within) for key in state):
        state = {key.removeprefix(within): value for key, value in state.items() if key.startswith(within)}
    head = cfg["classifier"] or ()  # its keys belong to a layer that an encoder does not have
    heads = tuple(f"{name}." for name in ((head,) if isinstance(head, str) else head))
    state = {key: value for key, value in state.items() if not key.startswith(heads)}
    wanted = {key: value.shape for key, value in model.state_dict().items()}
    differing = sorted(
        key for key in wanted.keys() | state.keys() if key not in state or wanted.get(key) != state[key].shape
    )
    if differing:
        raise WeightsError(
            f"{path}: these weights do not fit {cfg['architecture']}: {len(differing)} of {len(wanted)} tensors are "
            f"missing, unexpected or of another shape ({', '.join(differing[:3])} …); give a file made from this model "
            "at this image size"
        )
    model.load_state_dict(state, strict=True)


def _fetch(name: str, cfg: dict[str, Any]) -> Path:
    """The file of timm's weights: from the local cache, else downloaded."""
    repository, file = cfg["hf_hub_id"], cfg["hf_hub_filename"] or "model.safetensors"
    if not repository:
        raise WeightsError(f"timm has no downloadable weights for {name}; choose a tag, or give a safetensors file")
    cached = try_to_load_from_cache(repository, file)
    if isinstance(cached, str):
        return Path(cached)
    remedy = "give a safetensors file (--weights FILE), or start from random numbers (--weights none)"
    if constants.HF_HUB_OFFLINE:
        raise WeightsError(f"{name}: the weights are not in the local cache and HF_HUB_OFFLINE is set; {remedy}")
    if not _reachable(hf_hub_url(repository, file)):
        raise WeightsError(f"{name}: the weights are not in the local cache and the hub cannot be reached; {remedy}")
    try:
        return Path(hf_hub_download(repository, file))
    except OSError as error:
        raise WeightsError(f"{name}: the hub does not give the weights ({error}); {remedy}") from error


def _reachable(address: str) -> bool:
    """Whether somebody answers, within `PATIENCE` seconds; a name server that hangs counts as no."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE):
                answers.append(True)
        except urllib.error.HTTPError as error:
            error.close()
            # A refusal is an answer; "later" is none, since the download would try again for half a minute.
            answers.append(error.code < 500 and error.code != 429)
        except (OSError, http.client.HTTPException, ValueError):
            answers.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answers == [True]
