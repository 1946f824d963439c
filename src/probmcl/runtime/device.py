"""Where tensors are computed: the devices that this machine has, by name."""

from __future__ import annotations

import torch

from probmcl.errors import OptionError


def find_device(name: str) -> str:
    """The device of a name; `auto` is a CUDA device where there is one, and else the CPU.

    >>> find_device("cpu")
    'cpu'
    >>> find_device("meta")
    Traceback (most recent call last):
    ...
    probmcl.errors.OptionError: device 'meta': this machine with this build of torch has cpu; give one it has, or auto
    """
    here = _here()
    if name == "auto":
        return "cuda" if "cuda" in here else "cpu"
    if name not in here:
        has = ", ".join(here)
        raise OptionError(f"device {name!r}: this machine with this build of torch has {has}; give one it has, or auto")
    return name


def _here() -> list[str]:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = ["cuda", *(f"cuda:{number}" for number in range(gpus))] if gpus else []
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]
