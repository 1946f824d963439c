import pytest
import torch

from probmcl.errors import OptionError
from probmcl.runtime.device import find_device


class Machine:
    """Stands in for a machine with so many GPUs, or Apple's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, gpus: int = 0, apple: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)


def test_auto_is_a_gpu_of_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch)
    assert find_device("auto") == "cpu"
    Machine(monkeypatch, apple=True)
    assert find_device("auto") == "cpu"
    Machine(monkeypatch, gpus=1)
    assert find_device("auto") == "cuda"


def test_what_is_here_is_found_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, gpus=2, apple=True)
    for name in ("cpu", "cuda", "cuda:0", "cuda:1", "mps"):
        assert find_device(name) == name


@pytest.mark.parametrize("name", ["cuda:2", "cuda:7", "cuda:-1", "cuda:01", "cuda:", "mps", "meta", "gpu", "cpu:0", ""])
def test_what_is_not_here_is_answered_with_what_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Machine(monkeypatch, gpus=2)
    said = f"`device={name}` is not available: torch has cpu, cuda, cuda:0, cuda:1 on this machine; give one, or auto"
    with pytest.raises(OptionError, match=said):
        find_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_without_a_gpu_there_is_only_the_cpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Machine(monkeypatch)
    with pytest.raises(ValueError, match="has cpu on this machine; give one, or auto"):
        find_device(name)
