"""Stages of an encoder, their input maps, and encoders split before the last stage."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.encoders.encoder import MODEL_ERRORS, Encoder, PrecomputedFeatures
from probmcl.errors import counted

LEARNING_SHARE = 0.05
"""Minimum share of the parameters in and after the last stage; it keeps a final norm from counting as a stage."""

StageHook = Callable[[Float[Tensor, "N E h w"]], Float[Tensor, "N E h w"] | None]
"""Hook for the input maps of a stage; if it returns maps of the same shape, they replace the input."""


class Stage(NamedTuple):
    """A stage of an encoder.

    Attributes:
        module: name of the module in the model.
        channels: number of channels of the input maps; 0 if the input is not a square map.
        side: side of the input maps, in positions.
    """

    module: str
    channels: int
    side: int


class TwoMaps(NamedTuple):
    """Input and output maps of the last stage of an encoder."""

    entering: Float[Tensor, "N E h1 w1"]
    last: Float[Tensor, "N K h2 w2"]


def stages(encoder: Encoder) -> tuple[Stage, ...]:
    """Return the stages of an encoder; for a tail, the stages of the full encoder.

    >>> [(stage.module, stage.channels, stage.side) for stage in stages(Encoder("resnet101", image_size=448))][-2:]
    [('layer3', 512, 56), ('layer4', 1024, 28)]
    """
    return _stages(encoder.name, encoder.image_size)


def has_stage(encoder: Encoder, stage: Stage) -> bool:
    """Return True if an encoder contains this stage; a tail contains only the last one."""
    module = dict(encoder.model.named_modules()).get(stage.module)
    return module is not None and not isinstance(module, nn.Identity)


def two_maps(encoder: Encoder, images: Float[Tensor, "N *image"]) -> TwoMaps:
    """Return the input and output maps of the last stage, in one forward pass.

    In most networks, the last stage halves the side of the maps; in EfficientNets, it leaves the side unchanged.

    >>> entering, last = two_maps(Encoder("test_resnet", image_size=64), torch.zeros(1, 3, 64, 64))
    >>> entering.shape, last.shape
    (torch.Size([1, 192, 4, 4]), torch.Size([1, 96, 2, 2]))
    """
    last_stage = stages(encoder)[-1]
    inputs: list[Tensor] = []
    with hook_stage_inputs(encoder, {last_stage: inputs.append}):
        last = encoder.maps(images)
    (entering,) = inputs
    return TwoMaps(entering, last)


@contextlib.contextmanager
def hook_stage_inputs(encoder: Encoder, hooks: Mapping[Stage, StageHook]) -> Iterator[None]:
    """Call hooks on the input maps of stages in every forward pass within the context.

    >>> encoder = Encoder("test_resnet", image_size=64).eval()
    >>> image, last = torch.rand(1, 3, 64, 64), stages(encoder)[-1]
    >>> with hook_stage_inputs(encoder, {last: torch.zeros_like}):
    ...     torch.equal(encoder(image), encoder(0 * image))
    True
    """

    def call_hook(hook: StageHook, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the inputs of a module with new maps; None leaves them unchanged."""
        activation, *others = inputs
        new_maps = hook(encoder.to_maps(activation))
        if new_maps is None:
            return None
        return encoder.from_maps(new_maps, activation), *others

    handles = []
    for stage, hook in hooks.items():
        module = encoder.model.get_submodule(stage.module)
        handles.append(module.register_forward_pre_hook(functools.partial(call_hook, hook)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def with_maps(encoder: Encoder | PrecomputedFeatures, method: str) -> Encoder:
    """Return the encoder for a method that needs feature maps, or raise ValueError if it has none.

    Parameters after the maps are frozen because they get no gradient. They are identified using a model of the same
    name on the meta device, because the input of a tail is not an image.

    >>> with_maps(Encoder("test_resnet", image_size=64), "csra").channels
    96
    >>> with_maps(PrecomputedFeatures(96), "csra")
    Traceback (most recent call last):
    ValueError: csra needs feature maps, but stored features have none; use `tune="last"` or `tune="all"`
    """
    if isinstance(encoder, PrecomputedFeatures):
        raise ValueError(
            f'{method} needs feature maps, but stored features have none; use `tune="last"` or `tune="all"`'
        )
    try:
        unused = _unused_by_maps(encoder.name, encoder.image_size)
    except MODEL_ERRORS as error:
        raise ValueError(
            f"{method} needs feature maps, but {encoder.name} has none at {encoder.image_size} pixels; choose another "
            f"encoder or `image_size` ({error})"
        ) from error
    for name, parameter in encoder.model.named_parameters():
        if name in unused:
            parameter.requires_grad_(False)
    return encoder


@functools.cache
def _unused_by_maps(name: str, image_size: int) -> frozenset[str]:
    """Return the names of the parameters that do not affect the maps: they get no gradient on the meta device."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.enable_grad():
        encoder = Encoder(name, image_size=image_size).eval()
        maps = encoder.maps(torch.empty(1, 3, image_size, image_size))
        maps.sum().backward()  # type: ignore[no-untyped-call]
    return frozenset(key for key, parameter in encoder.model.named_parameters() if parameter.grad is None)


def with_stages(encoder: Encoder | PrecomputedFeatures, method: str, count: int = 1) -> Encoder:
    """Return the encoder for a method that needs its maps and the input maps of the last `count` stages.

    >>> len(stages(with_stages(Encoder("test_resnet", image_size=64), "tdrg")))
    5
    """
    encoder = with_maps(encoder, method)
    last_stages = stages(encoder)[-count:]
    available = sum(stage.channels > 0 for stage in last_stages)
    if available < count:
        raise ValueError(
            f"{method} needs the input maps of the last {counted(count, 'stage')}, but {encoder.name} has {available} "
            f"at {encoder.image_size} pixels; choose another encoder or `image_size`"
        )
    return encoder


@functools.cache  # never evicted: the result must be available while a model is exported
def _stages(name: str, image_size: int) -> tuple[Stage, ...]:
    """Return the stages of a model with random weights; none if the model cannot run at this image size."""
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
    """Return the stages in forward-pass order, up to the last one with enough parameters in and after it.

    Enough is a share of `LEARNING_SHARE` of all parameters that affect the maps.

    Hooks in one forward pass note when a module of the model has finished, and when a stage is entered.
    """
    try:
        unused = _unused_by_maps(encoder.name, encoder.image_size)
    except MODEL_ERRORS:  # without maps, all parameters count
        unused = frozenset()
    sizes = {key: parameter.numel() for key, parameter in encoder.model.named_parameters() if key not in unused}
    smallest_rest = LEARNING_SHARE * sum(sizes.values())
    finished_modules: list[str] = []
    entered_stages: list[Stage] = []

    def enter(stage_name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Add a stage if enough parameters belong to modules that have not finished yet."""
        finished_prefixes = tuple(f"{finished}." for finished in finished_modules)
        rest = sum(size for key, size in sizes.items() if not key.startswith(finished_prefixes))
        if rest >= smallest_rest:
            activation = inputs[0]
            entered_stages.append(_stage(encoder, stage_name, activation))

    for module_name, module in encoder.model.named_modules():
        # The default argument keeps the name of this module; the loop variable will change.
        module.register_forward_hook(lambda *_, name=module_name: finished_modules.append(name))
    for info in getattr(encoder.model, "feature_info", []):  # timm's list of the stages
        stage_name = info["module"]
        stage_module = encoder.model.get_submodule(stage_name)
        stage_module.register_forward_pre_hook(functools.partial(enter, stage_name))
    encoder(torch.empty(1, 3, encoder.image_size, encoder.image_size))
    return tuple(entered_stages)


def _stage(encoder: Encoder, name: str, activation: Tensor) -> Stage:
    """Return the stage with this input; it has 0 channels if the input is not a square map."""
    without_square_map = Stage(name, channels=0, side=0)
    try:
        _, channels, height, width = encoder.to_maps(activation).shape
    except MODEL_ERRORS:
        return without_square_map
    if height != width:
        return without_square_map
    return Stage(name, channels, height)


class Trunk(nn.Module):
    """Frozen part of an encoder that maps images to the input activations of its last stage."""

    def __init__(self, encoder: Encoder, last_stage: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.last_stage = last_stage

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N ..."]:
        """Return the input of the last stage; the forward pass stops there."""
        stage = self.encoder.model.get_submodule(self.last_stage)
        handle = stage.register_forward_pre_hook(_stop_with_input)
        try:
            self.encoder(images)
        except _StageReached as reached:
            return reached.activation
        finally:
            handle.remove()
        raise RuntimeError(f"{self.encoder.name} did not run {self.last_stage}")


class SplitEncoder(NamedTuple):
    """An encoder split in two, whose features are `tail(trunk(images))`.

    The tail is an encoder with the trunk's activations as input. It has copies of the weights, under the same names as
    in the full encoder, and its batch normalization uses fixed statistics during training.
    """

    trunk: Trunk
    tail: Encoder


def split_encoder(encoder: Encoder) -> SplitEncoder | None:
    """Split an encoder before its last stage, or return None if its stages are not a chain of modules.

    The tail is a copy in which all modules before the last stage are replaced by the identity. This is correct only for
    a chain of modules with one input, so the encoder and its two parts are run once and compared.

    >>> encoder = Encoder("test_resnet", image_size=64).eval()
    >>> trunk, tail = split_encoder(encoder)
    >>> images = torch.rand(2, 3, 64, 64)
    >>> trunk(images).shape, torch.allclose(tail(trunk(images)), encoder(images), atol=1e-6)
    (torch.Size([2, 192, 4, 4]), True)
    """
    if not stages(encoder):
        return None
    last_stage = stages(encoder)[-1].module
    trunk = Trunk(encoder, last_stage)
    tail = copy.deepcopy(encoder).eval()
    tail.fixed_statistics = True  # its batch normalization stays in evaluation mode
    was_training = encoder.training
    encoder.eval()
    try:
        for module_name in _modules_before(encoder, last_stage):
            parent_name, _, child_name = module_name.rpartition(".")
            parent = tail.model.get_submodule(parent_name)
            setattr(parent, child_name, nn.Identity())
        if not _is_equivalent(encoder, trunk, tail):
            return None
        return SplitEncoder(trunk, tail)
    except MODEL_ERRORS:
        return None  # the tail does not accept the activations as input
    finally:
        encoder.train(was_training)


class _StageReached(Exception):  # noqa: N818  # not an error; it stops a forward pass
    """The input of a stage, raised to stop the forward pass of a model before this stage."""

    def __init__(self, activation: Tensor) -> None:
        self.activation = activation


def _stop_with_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Stop the forward pass: a hook that raises the only input of its module as `_StageReached`."""
    (activation,) = inputs
    raise _StageReached(activation)


def _modules_before(encoder: Encoder, last_stage: str) -> list[str]:
    """Return the names of the outermost modules that run before the last stage."""
    finished: set[str] = set()
    handles = []
    for module_name, module in encoder.model.named_modules():
        if module_name:  # the model itself has an empty name
            # The default argument keeps the name of this module; the loop variable will change.
            handle = module.register_forward_hook(lambda *_, name=module_name: finished.add(name))
            handles.append(handle)
    try:
        Trunk(encoder, last_stage)(_random_image(encoder))
    finally:
        for handle in handles:
            handle.remove()
    prefixes = tuple(f"{name}." for name in finished)
    return [name for name in finished if not name.startswith(prefixes)]


@torch.inference_mode()
def _is_equivalent(encoder: Encoder, trunk: Trunk, tail: Encoder) -> bool:
    """Return whether the two parts compute the same features of a random image as the encoder, except for rounding."""
    image = _random_image(encoder)
    expected = encoder(image)
    actual = tail(trunk(image))
    largest = float(expected.abs().max())
    return bool(torch.allclose(expected, actual, rtol=1e-3, atol=1e-4 * largest))


def _random_image(encoder: Encoder) -> Float[Tensor, "1 3 S S"]:
    """Return an image of random noise, always the same for an image size, on the device of the encoder."""
    generator = torch.Generator().manual_seed(0)
    device = next(encoder.parameters()).device
    return torch.rand(1, 3, encoder.image_size, encoder.image_size, generator=generator).to(device)
