"""The stages of an encoder, the maps that enter them, and the encoder split before its last stage."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.encoders.encoder import MODEL_ERRORS, Encoder, PrecomputedFeatures

LEARNING_SHARE = 0.05
"""Smallest share of an encoder's parameters in and after its last stage: a final norm is not a stage."""

Visit = Callable[[Float[Tensor, "N E h w"]], Float[Tensor, "N E h w"] | None]
"""A function of the maps that enter a stage: it reads them, or returns others of the same shape that replace them."""


class Stage(NamedTuple):
    """A stage of an encoder.

    Attributes:
        module: its name in the model.
        channels: of the maps that enter it; 0 if its input is not a square map.
        side: of the maps that enter it, in positions.
    """

    module: str
    channels: int
    side: int


class TwoMaps(NamedTuple):
    """The maps that enter the last stage of an encoder, and those that leave it."""

    entering: Float[Tensor, "N E h1 w1"]
    last: Float[Tensor, "N K h2 w2"]


def stages(encoder: Encoder) -> tuple[Stage, ...]:
    """Return the stages of an encoder, the last being the one that `split_encoder` splits off, also for a tail.

    >>> [(stage.module, stage.channels, stage.side) for stage in stages(Encoder("resnet101", image_size=448))][-2:]
    [('layer3', 512, 56), ('layer4', 1024, 28)]
    """
    return _stages(encoder.name, encoder.image_size)


def is_part(encoder: Encoder, stage: Stage) -> bool:
    """True if an encoder has this stage; a tail has only the last one."""
    module = dict(encoder.model.named_modules()).get(stage.module)
    return module is not None and not isinstance(module, nn.Identity)


def two_maps(encoder: Encoder, images: Float[Tensor, "N *image"]) -> TwoMaps:
    """Return the maps before and after the last stage, in one forward pass.

    In most networks the first have twice the side; in an EfficientNet, whose last stage keeps the size, the same.

    >>> entering, last = two_maps(Encoder("test_resnet", image_size=64), torch.zeros(1, 3, 64, 64))
    >>> entering.shape, last.shape
    (torch.Size([1, 192, 4, 4]), torch.Size([1, 96, 2, 2]))
    """
    seen: list[Tensor] = []
    with at_entrances(encoder, {stages(encoder)[-1]: seen.append}):
        last = encoder.maps(images)
    (entering,) = seen
    return TwoMaps(entering, last)


@contextlib.contextmanager
def at_entrances(encoder: Encoder, visits: Mapping[Stage, Visit]) -> Iterator[None]:
    """Call a function on the maps that enter each of these stages, in every forward pass inside the context.

    >>> encoder = Encoder("test_resnet", image_size=64).eval()
    >>> image, last = torch.rand(1, 3, 64, 64), stages(encoder)[-1]
    >>> with at_entrances(encoder, {last: torch.zeros_like}):
    ...     torch.equal(encoder(image), encoder(0 * image))
    True
    """

    def visit(visitor: Visit, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        activation, *others = inputs
        maps = visitor(encoder.laid_out(activation))
        return None if maps is None else (encoder.laid_back(maps, activation), *others)

    handles = [
        encoder.model.get_submodule(stage.module).register_forward_pre_hook(functools.partial(visit, visitor))
        for stage, visitor in visits.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def with_maps(encoder: Encoder | PrecomputedFeatures, method: str) -> Encoder:
    """Return the encoder for a method that needs its maps, or raise an error if it has none.

    Parameters after the maps are frozen, since no gradient reaches them. They are found with a model of the same name
    on the meta device, not with the encoder itself, since the images of a tail are activations.

    >>> with_maps(Encoder("test_resnet", image_size=64), "csra").channels
    96
    >>> with_maps(PrecomputedFeatures(96), "csra")
    Traceback (most recent call last):
    ValueError: csra needs feature maps, and stored features have none: choose `tune=last` or `tune=all`
    """
    if isinstance(encoder, PrecomputedFeatures):
        raise ValueError(
            f"{method} needs feature maps, and stored features have none: choose `tune=last` or `tune=all`"
        )
    try:
        unused = _beyond_maps(encoder.name, encoder.image_size)
    except MODEL_ERRORS as error:
        raise ValueError(
            f"{method} needs feature maps, and {encoder.name} has none at {encoder.image_size} pixels: choose another "
            f"encoder or `image_size` ({error})"
        ) from error
    for name, parameter in encoder.model.named_parameters():
        if name in unused:
            parameter.requires_grad_(False)
    return encoder


@functools.cache
def _beyond_maps(name: str, image_size: int) -> frozenset[str]:
    """Return the parameters on which a model's maps do not depend, found on the meta device."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.enable_grad():
        empty = Encoder(name, image_size=image_size).eval()
        empty.maps(torch.empty(1, 3, image_size, image_size)).sum().backward()  # type: ignore[no-untyped-call]
    return frozenset(key for key, parameter in empty.model.named_parameters() if parameter.grad is None)


def with_stages(encoder: Encoder | PrecomputedFeatures, method: str, count: int = 1) -> Encoder:
    """Return the encoder for a method that needs its maps and those that enter its last `count` stages.

    >>> len(stages(with_stages(Encoder("test_resnet", image_size=64), "tdrg")))
    5
    """
    encoder = with_maps(encoder, method)
    available = sum(stage.channels > 0 for stage in stages(encoder)[-count:])
    if available < count:
        raise ValueError(
            f"{method} needs the maps that enter the last {count} stages, and {encoder.name} has {available} at "
            f"{encoder.image_size} pixels: choose another encoder or `image_size`"
        )
    return encoder


@functools.cache  # never evicted: the result must be available while a model is exported
def _stages(name: str, image_size: int) -> tuple[Stage, ...]:
    for device in ("meta", "cpu"):  # a few models cannot run on the meta device
        with (
            contextlib.suppress(*MODEL_ERRORS),
            torch.device(device),
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
        ):
            return _find_stages(Encoder(name, image_size=image_size).eval())
    return ()


def _find_stages(encoder: Encoder) -> tuple[Stage, ...]:
    """Return the stages in the order of a forward pass, as long as enough of the parameters are still ahead."""
    try:
        unused = _beyond_maps(encoder.name, encoder.image_size)
    except MODEL_ERRORS:  # there are no maps: all parameters count
        unused = frozenset()
    sizes = {key: p.numel() for key, p in encoder.model.named_parameters() if key not in unused}
    enough = LEARNING_SHARE * sum(sizes.values())
    finished: list[str] = []
    entered: list[Stage] = []

    def enter(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        done = tuple(f"{other}." for other in finished)
        if sum(size for key, size in sizes.items() if not key.startswith(done)) >= enough:
            entered.append(_stage(encoder, name, inputs[0]))

    for name, module in encoder.model.named_modules():
        module.register_forward_hook(lambda *_, name=name: finished.append(name))
    for info in getattr(encoder.model, "feature_info", []):
        name = info["module"]
        encoder.model.get_submodule(name).register_forward_pre_hook(functools.partial(enter, name))
    encoder(torch.empty(1, 3, encoder.image_size, encoder.image_size))
    return tuple(entered)


def _stage(encoder: Encoder, name: str, activation: Tensor) -> Stage:
    try:
        _, channels, height, width = encoder.laid_out(activation).shape
    except MODEL_ERRORS:
        return Stage(name, 0, 0)
    return Stage(name, channels, height) if height == width else Stage(name, 0, 0)


class Trunk(nn.Module):
    """The part of an encoder before its last stage: from images to the activations that enter it, without gradient."""

    def __init__(self, encoder: Encoder, last_stage: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.last_stage = last_stage

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N ..."]:
        """Return the input of the last stage, where the pass through the encoder stops."""
        stage = self.encoder.model.get_submodule(self.last_stage)
        handle = stage.register_forward_pre_hook(_leave_with_input)
        try:
            self.encoder(images)
        except _Reached as reached:
            return reached.activation
        finally:
            handle.remove()
        raise RuntimeError(f"{self.encoder.name} did not run {self.last_stage}")


class SplitEncoder(NamedTuple):
    """An encoder split in two: `tail(trunk(images))` is its feature.

    The tail is an encoder whose images are the trunk's activations. It has copies of the weights, under the same names
    as in the whole encoder, and its batch normalization keeps its statistics in training.
    """

    trunk: Trunk
    tail: Encoder


def split_encoder(encoder: Encoder) -> SplitEncoder | None:
    """Split an encoder before its last stage; None if its stages are not a chain that passes on one tensor.

    The tail is a copy in which every module before the last stage is the identity. That is correct only for a chain of
    modules, so the encoder and its two parts are run once and compared.

    >>> encoder = Encoder("test_resnet", image_size=64).eval()
    >>> trunk, tail = split_encoder(encoder)
    >>> images = torch.rand(2, 3, 64, 64)
    >>> trunk(images).shape, torch.allclose(tail(trunk(images)), encoder(images), atol=1e-6)
    (torch.Size([2, 192, 4, 4]), True)
    """
    if not stages(encoder):
        return None
    last_stage = stages(encoder)[-1].module
    trunk, tail = Trunk(encoder, last_stage), copy.deepcopy(encoder).eval()
    tail.fixed_statistics = True
    was_training = encoder.training
    encoder.eval()
    try:
        for name in _modules_before(encoder, last_stage):
            parent, _, child = name.rpartition(".")
            setattr(tail.model.get_submodule(parent), child, nn.Identity())
        return SplitEncoder(trunk, tail) if _equal(encoder, trunk, tail) else None
    except MODEL_ERRORS:
        return None  # the tail does not accept the trunk's activations in place of images
    finally:
        encoder.train(was_training)


class _Reached(Exception):  # noqa: N818  # not an error, but the way to stop a forward pass in the middle
    def __init__(self, activation: Tensor) -> None:
        self.activation = activation


def _leave_with_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    (activation,) = inputs
    raise _Reached(activation)


def _modules_before(encoder: Encoder, last_stage: str) -> list[str]:
    """Return the names of the outermost modules that have finished when the last stage begins."""
    finished: set[str] = set()
    handles = [
        module.register_forward_hook(lambda *_, name=name: finished.add(name))
        for name, module in encoder.model.named_modules()
        if name
    ]
    try:
        Trunk(encoder, last_stage)(_random_image(encoder))
    finally:
        for handle in handles:
            handle.remove()
    return [name for name in finished if not any(name.startswith(f"{other}.") for other in finished)]


@torch.inference_mode()
def _equal(encoder: Encoder, trunk: Trunk, tail: Encoder) -> bool:
    image = _random_image(encoder)
    whole, parts = encoder(image), tail(trunk(image))
    return bool(torch.allclose(whole, parts, rtol=1e-3, atol=1e-4 * float(whole.abs().max())))


def _random_image(encoder: Encoder) -> Float[Tensor, "1 3 S S"]:
    generator = torch.Generator().manual_seed(0)
    device = next(encoder.parameters()).device
    return torch.rand(1, 3, encoder.image_size, encoder.image_size, generator=generator).to(device)
