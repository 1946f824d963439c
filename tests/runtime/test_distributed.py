from typing import Any

import pytest
import torch
from torch import distributed as dist

from helpers import processes
from probmcl.runtime import distributed

SOME = torch.arange(6.0).reshape(3, 2)


def in_both(two_processes: Any, key: str) -> Any:
    """What both processes have alike."""
    a, b = (results[key] for results in two_processes)
    assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return a


def test_each_process_knows_its_number(two_processes: Any) -> None:
    assert [results["rank, world, first"] for results in two_processes] == [(0, 2, True), (1, 2, False)]


def test_rows_are_gathered_in_the_order_of_the_processes(two_processes: Any) -> None:
    assert torch.equal(in_both(two_processes, "gather"), torch.cat([SOME, SOME + 10]))
    assert torch.equal(in_both(two_processes, "gather booleans"), torch.cat([SOME, SOME + 10]) > 11)
    assert torch.equal(in_both(two_processes, "gather transposed"), torch.cat([SOME.T, SOME.T + 10]))


def test_each_process_may_have_its_own_number_of_rows_or_none(two_processes: Any) -> None:
    assert torch.equal(in_both(two_processes, "unequal"), torch.cat([SOME[:1], SOME[:2] + 10]))
    assert torch.equal(in_both(two_processes, "nothing from the first"), SOME + 10)
    assert in_both(two_processes, "nothing from anybody").shape == (0, 5)


def test_the_mean_is_over_processes(two_processes: Any) -> None:
    assert torch.equal(in_both(two_processes, "mean"), SOME + 5)


def test_what_the_first_has_is_broadcast(two_processes: Any) -> None:
    assert in_both(two_processes, "broadcast") == {"rank": 0, "more": ["ä", None, 0.5]}


def test_shares_are_every_second_item(two_processes: Any) -> None:
    assert [results["share"] for results in two_processes] == [[0, 2, 4], [1, 3]]


def test_nobody_passes_a_barrier_before_all_are_there(two_processes: Any) -> None:
    assert in_both(two_processes, "everybody here")


def test_shapes_that_differ_are_refused_in_all_processes_and_nothing_hangs(two_processes: Any) -> None:
    assert "shapes [(2,), (3,)]; give each the same number of images" in in_both(two_processes, "refused")
    assert "shapes [(2,), (2, 1)]" in in_both(two_processes, "refused axes")


def test_the_gradient_of_gathered_rows_is_that_of_the_sum_of_all_losses(two_processes: Any) -> None:
    rows = torch.cat([SOME, SOME + 10]).double().requires_grad_()
    (expected,) = torch.autograd.grad(processes.own_loss(rows, 0) + processes.own_loss(rows, 1), rows)
    torch.testing.assert_close(torch.cat([results["gradient"] for results in two_processes]), expected)


def test_predicting_in_two_processes_gives_the_scores_of_one_in_its_order(two_processes: Any) -> None:
    assert torch.equal(in_both(two_processes, "predicted"), processes.predicted(7))


def test_a_process_without_a_batch_gets_the_scores_all_the_same(two_processes: Any) -> None:
    scores = in_both(two_processes, "predicted by one")
    assert scores.shape == (2, 4)
    assert torch.equal(scores, processes.predicted(2))


def test_nothing_of_a_group_outlives_it(two_processes: Any) -> None:
    """Threads that still run when the interpreter ends can abort it, and torchrun then kills all other processes."""
    assert in_both(two_processes, "threads at work")
    assert in_both(two_processes, "threads left") == []


def test_one_process_exchanges_nothing() -> None:
    rows = SOME.clone().requires_grad_()
    value = {"a": (1, 2)}
    assert distributed.gather(rows) is rows
    assert torch.equal(distributed.gather_unequal(rows), SOME)
    assert not distributed.gather_unequal(rows).requires_grad
    assert torch.equal(distributed.all_reduce_mean(rows), SOME)
    assert distributed.broadcast(value) is value
    assert distributed.shard([1, 2]) == [1, 2]
    assert distributed.local_rows(3) == slice(0, 3)
    distributed.barrier()
    assert (distributed.rank(), distributed.world_size(), distributed.is_main_process()) == (0, 1, True)


@pytest.mark.parametrize("processes_there", [None, "1"])
def test_a_single_process_starts_nothing(monkeypatch: pytest.MonkeyPatch, processes_there: str | None) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if processes_there is not None:
        monkeypatch.setenv("WORLD_SIZE", processes_there)
    with distributed.process_group():
        assert not dist.is_initialized()


class Joined:
    """Stands in for torch's processes, and writes down who comes and goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, gpus: int) -> None:
        self.seen: list[Any] = []
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: self.seen.append(backend))
        monkeypatch.setattr(dist, "destroy_process_group", lambda: self.seen.append("left"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", self.seen.append)


@pytest.mark.parametrize(("gpus", "expected"), [(0, ["gloo"]), (2, [1, "cpu:gloo,cuda:nccl"])])
def test_torchruns_processes_join_and_leave_also_after_an_error(
    monkeypatch: pytest.MonkeyPatch, gpus: int, expected: list[Any]
) -> None:
    joined = Joined(monkeypatch, gpus=gpus)
    with pytest.raises(ZeroDivisionError), distributed.process_group():
        joined.seen.append(1 / 0)
    assert joined.seen == [*expected, "left"]
    with distributed.process_group():
        joined.seen.append("at work")
    assert joined.seen[len(expected) + 1 :] == [*expected, "at work", "left"]


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
def test_gpus_are_left_alone_where_something_else_computes(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: list[Any]
) -> None:
    joined = Joined(monkeypatch, gpus=2)
    with distributed.process_group(device):
        assert joined.seen == expected


def test_more_processes_than_gpus_are_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    Joined(monkeypatch, gpus=1)
    with pytest.raises(ValueError, match=r"no GPU for process 1 .*there are 1.; run torchrun with nproc-per-node=1"):
        distributed.process_group().__enter__()
