import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.images import label_space
from probmcl.cost.speed import seconds_per_row, seconds_per_step
from probmcl.encoders import PrecomputedFeatures
from probmcl.methods.bce import BCE
from probmcl.run.budget import MAX_VIEWS, Costs, JobCost, plan_epochs
from probmcl.training import Training

BCE_COST = JobCost("bce", "bce", 10.0, 5.0, 1, 12)
PROBMCL_COST = JobCost("probmcl", "probmcl", 25.0, 5.0, 2, 6)


def costs(shared: float, *jobs: JobCost) -> Costs:
    return Costs(shared, jobs or (BCE_COST, PROBMCL_COST))


def test_without_a_budget_epochs_come_from_the_settings() -> None:
    plan = plan_epochs(costs(1.0), spent=1e9, budget=None)
    assert plan.epochs == {"bce": 12, "probmcl": 6}


def test_a_budget_gives_every_method_the_same_views() -> None:
    plan = plan_epochs(costs(40.0), spent=50.0, budget=100.0 + 3 * 45.0 + 1.0)
    assert plan.epochs == {"bce": 6, "probmcl": 3}


def test_a_small_budget_leaves_out_the_last_method() -> None:
    plan = plan_epochs(costs(0.0), spent=0.0, budget=40.0)
    assert plan.epochs == {"bce": 3}
    assert "too small to train probmcl" in plan.messages[-1]


def test_a_spent_budget_trains_no_method() -> None:
    plan = plan_epochs(costs(0.0), spent=100.0, budget=90.0)
    assert plan.epochs == {}
    assert "too small to train bce, probmcl" in plan.messages[0]


def test_epochs_are_limited_in_a_large_budget() -> None:
    plan = plan_epochs(costs(0.0), spent=0.0, budget=1e9)
    assert plan.epochs == {"bce": MAX_VIEWS, "probmcl": MAX_VIEWS // 2}


@given(
    st.floats(0.1, 100.0), st.floats(0.1, 100.0), st.floats(0.0, 50.0), st.floats(0.0, 500.0), st.floats(1.0, 5000.0)
)
def test_a_plan_fits_the_budget(one: float, two: float, once: float, spent: float, budget: float) -> None:
    jobs = JobCost("bce", "bce", one, once, 1, 12), JobCost("probmcl", "probmcl", two, once, 2, 6)
    plan = plan_epochs(costs(1.0, *jobs), spent=spent, budget=budget)
    trained = [job for job in jobs if job.key in plan.epochs]
    total = spent + 1.0 + sum(job.once + plan.epochs[job.key] * job.epoch for job in trained)
    assert not trained or total <= budget + 1e-6


def test_timed_steps_do_real_work() -> None:
    small, large = (seconds_per_row(torch.nn.Linear(d, d), torch.zeros(64, d)) for d in (8, 2000))
    assert 0 < small < large
    method = BCE(PrecomputedFeatures(8), label_space())
    before = method.linear.weight.detach().clone()
    assert seconds_per_step(method, torch.ones(1, 4, 8), torch.ones(4, 3), Training()) > 0
    assert not torch.equal(method.linear.weight, before)  # it is trained in place, so callers pass a copy


@pytest.mark.parametrize("budget", [None, 100.0])
def test_a_plan_without_methods_is_empty(budget: float | None) -> None:
    assert plan_epochs(Costs(1.0, ()), spent=0.0, budget=budget).epochs == {}
