"""Small encoders of all types, and images for them."""

import torch
from torch import Tensor, nn

from probmcl.encoders import Encoder

# A small encoder of each type, with its image size and feature size.
SMALL = {
    "test_resnet": (64, 96),
    "resnet10t": (32, 512),
    "tf_efficientnet_lite0": (64, 1280),
    "mobilenetv3_small_050": (64, 1024),  # its head expands 288 pooled channels
    "efficientvit_b0": (64, 1280),  # expands 128 channels
    "ghostnet_050": (64, 1280),  # expands 480 channels
    "test_mambaout": (64, 256),  # expands 64 channels
    "convnext_atto": (64, 320),
    "regnetx_002": (64, 368),
    "poolformer_s12": (32, 512),  # does not describe its head
    "test_vit": (32, 64),
    "vit_tiny_patch16_224": (64, 192),
    "deit_tiny_distilled_patch16_224": (32, 192),
    "swin_tiny_patch4_window7_224": (64, 768),
    "mixer_s32_224": (64, 512),
    "cait_xxs24_224": (32, 192),
}


def images(side: int, number: int = 2) -> Tensor:
    """Return random images, the same in every call."""
    return torch.rand(number, 3, side, side, generator=torch.Generator().manual_seed(0))


def ready(name: str, image_size: int | None = None) -> Encoder:
    """Return an encoder with random weights, the same in every call, in evaluation mode."""
    torch.manual_seed(0)
    return Encoder(name, image_size=image_size).eval()


def same(model: nn.Module, state: dict[str, Tensor]) -> bool:
    """Return whether a model has exactly the tensors of `state`."""
    own_state = model.state_dict()
    if own_state.keys() != state.keys():
        return False
    return all(torch.equal(own_state[key], state[key]) for key in own_state)
