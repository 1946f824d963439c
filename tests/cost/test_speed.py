from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.images import label_space
from probmcl.cost.speed import peak_memory
from probmcl.encoders import Encoder
from probmcl.methods.bce import BCE


def linear_on(name: str, classes: int = 9, image_size: int | None = None) -> BCE:
    return BCE(Encoder(name, image_size=image_size), label_space(classes))


KB = 1024


def ones(kilobytes: int) -> Tensor:
    return torch.ones(kilobytes * KB // 4)


def both_alive() -> None:
    first = ones(10)
    second = ones(20)
    del first, second


def one_at_a_time() -> None:
    first = ones(10)
    del first
    second = ones(20)
    del second


def through_a_view() -> None:
    part = ones(30)[:1]  # holds all of it
    other = ones(5)
    del part, other


def in_place() -> None:
    ones(30).add_(1).mul_(2).relu_().view(-1, 2).t_()


def from_a_list() -> None:
    kept = torch.tensor([0.0] * 256), ones(3)
    del kept


def resized() -> None:
    kept = ones(1)
    torch.add(ones(4), 1, out=kept.resize_(KB))  # grows to 4 kB
    del kept


def reference_cycle() -> None:
    """A reference cycle is alive until the garbage collector runs."""
    cycle: list[Any] = [ones(7)]
    cycle.append(cycle)


@pytest.mark.parametrize(
    ("work", "kilobytes"),
    [
        (both_alive, 30),
        (one_at_a_time, 20),
        (through_a_view, 35),
        (in_place, 30),
        (from_a_list, 4),
        (resized, 8),
        (reference_cycle, 7),
        (lambda: None, 0),
    ],
)
def test_peak_memory_of_known_work(work: Any, kilobytes: int) -> None:
    assert peak_memory(work) == kilobytes * KB
    assert peak_memory(work) == kilobytes * KB  # the first count has no effect


def test_existing_memory_is_not_counted() -> None:
    before = ones(100)

    def work() -> None:
        before.mul_(2)
        before.view(2, -1)[0].add_(1)
        half = before[: len(before) // 2] + 1
        del half

    assert peak_memory(work) == 50 * KB


def test_training_step_includes_gradients_and_activations() -> None:
    """The weights (1 MB) have a gradient; the output of 64 rows (128 kB), its square and their gradients add to it."""
    layer, rows = nn.Linear(512, 512, bias=False), torch.ones(64, 512)

    def step() -> None:
        layer(rows).square().mean().backward()
        layer.zero_grad()

    weights, activations = 512 * 512 * 4, 64 * 512 * 4
    measured = peak_memory(step)
    assert weights + activations < measured < weights + 5 * activations
    assert layer.weight.grad is None
    deep = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512, bias=False), nn.Tanh()) for _ in range(6)])
    with torch.no_grad():
        without = peak_memory(lambda: deep(rows))
    with_gradient = peak_memory(lambda: deep(rows).sum())
    assert without <= 3 * activations
    assert with_gradient >= 6 * activations


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Use one thread, because attention allocates temporary memory per thread, which the profiler counts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
def test_matches_the_profiler() -> None:
    classifier = linear_on("test_vit", image_size=160).train()
    views, labels = torch.rand(1, 2, 3, 160, 160), torch.ones(2, 9)

    def step() -> None:
        classifier(views, labels).loss.backward()
        classifier.zero_grad()

    measured = peak_memory(step)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        step()
    results: Any = profile.kineto_results
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    assert measured == pytest.approx(peak, rel=0.02)


def test_errors_propagate() -> None:
    with pytest.raises(ZeroDivisionError):
        peak_memory(lambda: 1 // 0)
    assert peak_memory(lambda: ones(1)) == KB


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_peak_memory_on_a_gpu() -> None:
    measured = peak_memory(lambda: torch.ones(2**20, device="cuda") + torch.ones(2**20, device="cuda"), device="cuda")
    assert measured == 3 * 2**22
