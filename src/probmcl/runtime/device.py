"""The devices of this machine, by name."""

import torch

from probmcl.errors import OptionError

CPU_PIXELS, GPU_PIXELS = 400_000, 12_000_000
"""Pixels of a batch in inference: few on a CPU, so that its cache holds the activations between layers."""


def find_device(name: str) -> str:
    """Return the device of a name; `auto` is a CUDA device if there is one, otherwise the CPU.

    >>> find_device("cpu")
    'cpu'
    >>> find_device("meta")
    Traceback (most recent call last):
    probmcl.errors.OptionError: `device=meta` is not available: torch has cpu on this machine; give one, or auto
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = ["cuda", *(f"cuda:{number}" for number in range(gpus))] if gpus else []
    available = ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]
    if name == "auto":
        return "cuda" if "cuda" in available else "cpu"
    if name not in available:
        devices = ", ".join(available)
        raise OptionError("device", name, f"is not available: torch has {devices} on this machine; give one, or auto")
    return name
