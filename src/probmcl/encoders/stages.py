"""The stages of an encoder, what enters them, and what of it maps depend on: found without any numbers."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.encoders.encoder import MODEL_ERRORS, Encoder, PrecomputedFeatures

LEARNING_SHARE = 0.05
"""Of an encoder's parameters, at least so many are in what counts as its last stage: a norm is none."""

Visit = Callable[[Float[Tensor, "N E h w"]], Float[Tensor, "N E h w"] | None]
"""What is done with the maps that enter a stage: they are looked at, or replaced by others of the same shape."""


class Stage(NamedTuple):
    """A stage of an encoder.

    Attributes:
        module: its name in the model.
        channels: of the maps that enter it; 0 where what enters is no square map.
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
    """The stages of an encoder up to its last that learns, where `halves` cuts; those of a tail are the whole's.

    >>> [(stage.module, stage.channels, stage.side) for stage in stages(Encoder("resnet101", image_size=448))][-2:]
    [('layer3', 512, 56), ('layer4', 1024, 28)]
    """
    return _stages(encoder.name, encoder.image_size)


def is_part(encoder: Encoder, stage: Stage) -> bool:
    """Whether an encoder has this stage; a tail has the last one alone."""
    module = dict(encoder.model.named_modules()).get(stage.module)
    return module is not None and not isinstance(module, nn.Identity)


def two_maps(encoder: Encoder, images: Float[Tensor, "N *image"]) -> TwoMaps:
    """The maps before and after the last stage, in one pass.

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
    """While it lasts, whoever calls the encoder has the maps that enter these stages visited on their way.

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
    """The encoder, for a method that needs its maps and would rather know at once that there are none.

    What the model computes from its maps only afterwards is frozen: no gradient will reach it. Nothing is run, since
    the images of a tail are activations; an empty model of the same name tells what there is.

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
    """Parameters that have no part in a model's maps, found without any numbers."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.enable_grad():
        empty = Encoder(name, image_size=image_size).eval()
        empty.maps(torch.empty(1, 3, image_size, image_size)).sum().backward()  # type: ignore[no-untyped-call]
    return frozenset(key for key, parameter in empty.model.named_parameters() if parameter.grad is None)


def with_stages(encoder: Encoder | PrecomputedFeatures, method: str, count: int = 1) -> Encoder:
    """The encoder, for a method that needs its maps and those that enter its last `count` stages.

    >>> len(stages(with_stages(Encoder("test_resnet", image_size=64), "tdrg")))
    5
    """
    encoder = with_maps(encoder, method)
    there = sum(stage.channels > 0 for stage in stages(encoder)[-count:])
    if there < count:
        raise ValueError(
            f"{method} needs the maps that enter the last {count} stages, and {encoder.name} shows {there} of them at "
            f"{encoder.image_size} pixels: choose another encoder or `image_size`"
        )
    return encoder


@functools.cache  # kept for good: a model is built with it, and must find it while it is exported
def _stages(name: str, image_size: int) -> tuple[Stage, ...]:
    for device in ("meta", "cpu"):  # a few models cannot do without numbers
        with (
            contextlib.suppress(*MODEL_ERRORS),
            torch.device(device),
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
        ):
            return _walked(Encoder(name, image_size=image_size).eval())
    return ()


def _walked(encoder: Encoder) -> tuple[Stage, ...]:
    """The stages that an image comes to, in their order, as long as enough of what learns is still before it."""
    sizes = _sizes(encoder)
    enough = LEARNING_SHARE * sum(sizes.values())
    finished: list[str] = []
    found: list[Stage] = []

    def enter(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        done = tuple(f"{other}." for other in finished)
        if sum(size for key, size in sizes.items() if not key.startswith(done)) >= enough:
            found.append(_stage(encoder, name, inputs[0]))

    for name, module in encoder.model.named_modules():
        module.register_forward_hook(lambda *_, name=name: finished.append(name))
    for info in getattr(encoder.model, "feature_info", []):
        name = info["module"]
        encoder.model.get_submodule(name).register_forward_pre_hook(functools.partial(enter, name))
    encoder(torch.empty(1, 3, encoder.image_size, encoder.image_size))
    return tuple(found)


def _stage(encoder: Encoder, name: str, activation: Tensor) -> Stage:
    try:
        _, channels, height, width = encoder.laid_out(activation).shape
    except MODEL_ERRORS:
        return Stage(name, 0, 0)
    return Stage(name, channels, height) if height == width else Stage(name, 0, 0)


def _sizes(encoder: Encoder) -> dict[str, int]:
    """Of each parameter that feature maps depend on, which all methods train; of every one where there are no maps."""
    try:
        unused = _beyond_maps(encoder.name, encoder.image_size)
    except MODEL_ERRORS:
        unused = frozenset()
    return {key: p.numel() for key, p in encoder.model.named_parameters() if key not in unused}
