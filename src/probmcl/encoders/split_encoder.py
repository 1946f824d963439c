"""An encoder split in two: a frozen trunk, whose activations can be cached, and a tail, its last stage."""

import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.encoders.encoder import MODEL_ERRORS, Encoder
from probmcl.encoders.stages import stages


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
