from typing import Any

import pytest
import torch
from torch import distributed as dist

from helpers import processes
from probmcl.runtime import distributed

ROWS = torch.arange(6.0).reshape(3, 2)


def in_both(two_processes: Any, key: str) -> Any:
    """Return a result that must be equal in both processes."""
    a, b = (results[key] for results in two_processes)
    assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return a


def test_rank_and_world_size(two_processes: Any) -> None:
    assert [results["rank, world, first"] for results in two_processes] == [(0, 2, True), (1, 2, False)]


def test_rows_are_gathered_in_the_order_of_ranks(two_processes: Any) -> None:
    assert torch.equal(in_both(two_processes, "gather"), torch.cat([ROWS, ROWS + 10]))
    assert torch.equal(in_both(two_processes, "gather booleans"), torch.cat([ROWS, ROWS + 10]) > 11)
    assert torch.equal(in_both(two_processes, "gather transposed"), torch.cat([ROWS.T, ROWS.T + 10]))


def test_gather_unequal_accepts_any_number_of_rows(two_processes: Any) -> None:
    assert torch.equal(in_both(two_processes, "unequal"), torch.cat([ROWS[:1], ROWS[:2] + 10]))
    assert torch.equal(in_both(two_processes, "empty on rank 0"), ROWS + 10)
    assert in_both(two_processes, "empty on all ranks").shape == (0, 5)


def test_all_reduce_mean(two_processes: Any) -> None:
    assert torch.equal(in_both(two_processes, "mean"), ROWS + 5)


def test_broadcast_sends_the_value_of_rank_0(two_processes: Any) -> None:
    assert in_both(two_processes, "broadcast") == {"rank": 0, "more": ["ä", None, 0.5]}


def test_shards_are_interleaved(two_processes: Any) -> None:
    assert [results["shard"] for results in two_processes] == [[0, 2, 4], [1, 3]]


def test_barrier_waits_for_all_processes(two_processes: Any) -> None:
    assert in_both(two_processes, "all at the barrier")


def test_different_shapes_are_an_error_on_all_processes(two_processes: Any) -> None:
    assert "shapes [(2,), (3,)]" in in_both(two_processes, "different lengths")
    assert "shapes [(2,), (2, 1)]" in in_both(two_processes, "different dimensions")


def test_gradient_of_gathered_rows_is_that_of_the_sum_of_all_losses(two_processes: Any) -> None:
    rows = torch.cat([ROWS, ROWS + 10]).double().requires_grad_()
    (expected,) = torch.autograd.grad(processes.own_loss(rows, 0) + processes.own_loss(rows, 1), rows)
    torch.testing.assert_close(torch.cat([results["gradient"] for results in two_processes]), expected)


def test_two_processes_predict_the_same_scores_as_one(two_processes: Any) -> None:
    assert torch.equal(in_both(two_processes, "predicted"), processes.predicted(7))


def test_process_without_a_batch_receives_all_scores(two_processes: Any) -> None:
    scores = in_both(two_processes, "predicted by rank 0 only")
    assert scores.shape == (2, 4)
    assert torch.equal(scores, processes.predicted(2))


def test_threads_of_a_group_end_with_it(two_processes: Any) -> None:
    """A thread that runs at interpreter exit can abort the process, and torchrun then kills all other processes."""
    assert in_both(two_processes, "threads running")
    assert in_both(two_processes, "threads left") == []


def test_single_process_communicates_nothing() -> None:
    rows = ROWS.clone().requires_grad_()
    value = {"a": (1, 2)}
    assert distributed.gather(rows) is rows
    assert torch.equal(distributed.gather_unequal(rows), ROWS)
    assert not distributed.gather_unequal(rows).requires_grad
    assert torch.equal(distributed.all_reduce_mean(rows), ROWS)
    assert distributed.broadcast(value) is value
    assert distributed.shard([1, 2]) == [1, 2]
    assert distributed.local_rows(3) == slice(0, 3)
    distributed.barrier()
    assert (distributed.rank(), distributed.world_size(), distributed.is_main_process()) == (0, 1, True)


@pytest.mark.parametrize("world_size", [None, "1"])
def test_single_process_starts_no_group(monkeypatch: pytest.MonkeyPatch, world_size: str | None) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    with distributed.process_group():
        assert not dist.is_initialized()


class FakeGroup:
    """A fake process group that records the calls to torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, gpus: int) -> None:
        self.calls: list[Any] = []
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: self.calls.append(backend))
        monkeypatch.setattr(dist, "destroy_process_group", lambda: self.calls.append("destroyed"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", self.calls.append)


@pytest.mark.parametrize(("gpus", "expected"), [(0, ["gloo"]), (2, [1, "cpu:gloo,cuda:nccl"])])
def test_group_is_destroyed_even_after_an_error(
    monkeypatch: pytest.MonkeyPatch, gpus: int, expected: list[Any]
) -> None:
    group = FakeGroup(monkeypatch, gpus=gpus)
    with pytest.raises(ZeroDivisionError), distributed.process_group():
        group.calls.append(1 / 0)
    assert group.calls == [*expected, "destroyed"]
    with distributed.process_group():
        group.calls.append("body")
    assert group.calls[len(expected) + 1 :] == [*expected, "body", "destroyed"]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", ["gloo"]),
        ("mps", ["gloo"]),
        ("auto", [1, "cpu:gloo,cuda:nccl"]),
        ("cuda", [1, "cpu:gloo,cuda:nccl"]),
        ("cuda:0", [1, "cpu:gloo,cuda:nccl"]),
    ],
)
def test_gpus_are_used_only_if_the_device_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: list[Any]
) -> None:
    group = FakeGroup(monkeypatch, gpus=2)
    with distributed.process_group(device):
        assert group.calls == expected


def test_more_processes_than_gpus_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGroup(monkeypatch, gpus=1)
    with pytest.raises(ValueError, match=r"process 1 .*nproc-per-node=1"):
        distributed.process_group().__enter__()
