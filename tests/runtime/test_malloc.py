import subprocess
import sys

import pytest

CODE = """
import resource, sys
from probmcl.runtime.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
import torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(40):
    if number == 30:  # by now the heap has found its size
        before = faults()
    torch.ones(16_000_000)
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_memory_that_was_freed_is_used_again() -> None:
    """Tensors of 64 MB, one after the other: 16,000 pages for each of the last ten, or none."""

    def pages(word: str) -> int:
        run = subprocess.run([sys.executable, "-c", CODE, word], capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert pages("keep") < pages("give back") / 10


def test_elsewhere_nothing_is_told_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    from probmcl.runtime.malloc import keep_freed_memory

    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
