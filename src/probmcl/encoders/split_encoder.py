"""An encoder in two: a frozen trunk, whose outputs can be stored, and the last stage, which learns."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.encoders.encoder import MODEL_ERRORS, Encoder
from probmcl.encoders.stages import stages


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


class SplitEncoder(NamedTuple):
    """An encoder in two: `tail(trunk(images))` is its feature.

    The tail is an encoder too, whose images are the trunk's activations. It has copies of the weights, under the names
    they have in the whole encoder, and keeps to its statistics in training.
    """

    trunk: Trunk
    tail: Encoder


def split_encoder(encoder: Encoder) -> SplitEncoder | None:
    """Cut an encoder in front of its last stage, or None where its stages do not simply pass one tensor on.

    The tail is a copy in which everything that runs before the last stage passes its input through. That is right for
    a chain of modules and wrong for anything else, so both are run once and compared.

    >>> encoder = Encoder("test_resnet", image_size=64).eval()
    >>> trunk, tail = split_encoder(encoder)
    >>> images = torch.rand(2, 3, 64, 64)
    >>> trunk(images).shape, torch.allclose(tail(trunk(images)), encoder(images), atol=1e-6)
    (torch.Size([2, 192, 4, 4]), True)
    """
    there = stages(encoder)
    return _cut(encoder, there[-1].module) if there else None


def _cut(encoder: Encoder, last_stage: str) -> SplitEncoder | None:
    trunk, tail = Trunk(encoder, last_stage), copy.deepcopy(encoder).eval()
    tail.fixed_statistics = True
    was_training = encoder.training
    encoder.eval()
    try:
        _pass_through(tail.model, _run_before(encoder, last_stage))
        return SplitEncoder(trunk, tail) if _equal(encoder, trunk, tail) else None
    except MODEL_ERRORS:
        return None  # what a model does with activations that it takes for images is its own affair
    finally:
        encoder.train(was_training)


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
