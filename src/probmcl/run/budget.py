"""How long each part of a run will take, from a few measured steps, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from probmcl.tables import rough_duration

MOST_VIEWS = 60
"""Times that a contender sees each image at most, however large the budget: more has never helped us."""


@dataclass(frozen=True)
class Cost:
    """What a contender costs in seconds, and the views an epoch shows.

    `epoch` is one of them, `once` is probing and scoring, `tested` is scoring both heads on test, where all are tested.
    """

    name: str
    epoch: float
    once: float
    n_views: int
    epochs: int
    tested: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Epochs of each contender that is trained, the views after which each of them ends, and the same in words."""

    epochs: Mapping[str, int]
    said: tuple[str, ...]
    views: int | None = None


Planner = Callable[[Sequence[Cost], float, float], Plan]
"""From what each contender costs, the seconds that come once, whatever is trained, and those that have passed."""


def make_plan(costs: Sequence[Cost], shared: float, spent: float, budget: float | None) -> Plan:
    """Train every contender as long as its settings say or, with a budget, all on as many views as fit into it.

    `shared` are the seconds that come once, whatever is trained; `spent` those that have passed.

    >>> bce, probmcl = Cost("bce", 10.0, 5.0, 1, 12), Cost("probmcl", 20.0, 5.0, 2, 6)
    >>> make_plan([bce, probmcl], shared=30.0, spent=60.0, budget=None).said[0]
    'plan: bce, 12 epochs of 1 view (2 min); probmcl, 6 epochs of 2 views (2 min); about 5 min with probes and test'
    >>> make_plan([bce, probmcl], shared=30.0, spent=60.0, budget=300.0).epochs
    {'bce': 10, 'probmcl': 5}
    """
    if not costs:
        return Plan({}, ())
    if budget is None:
        return _said(costs, {cost.name: cost.epochs for cost in costs}, shared)
    for count in range(len(costs), 0, -1):
        trained = costs[:count]
        left = budget - spent - shared - sum(cost.once for cost in trained)
        widest = max(cost.n_views for cost in trained)
        rounds = int(left // sum(cost.epoch * widest / cost.n_views for cost in trained))
        rounds = min(rounds, max(1, MOST_VIEWS // widest))
        if rounds >= 1:
            plan = _said(trained, {cost.name: rounds * widest // cost.n_views for cost in trained}, shared)
            return Plan(plan.epochs, (*plan.said, *_left_out(costs[count:], budget)))
    return Plan({}, _left_out(costs, budget))


def _said(costs: Sequence[Cost], epochs: Mapping[str, int], shared: float) -> Plan:
    parts = [
        f"{cost.name}, {epochs[cost.name]} epochs of {cost.n_views} view{'s' if cost.n_views > 1 else ''} "
        f"({rough_duration(epochs[cost.name] * cost.epoch)})"
        for cost in costs
    ]
    total = shared + sum(epochs[cost.name] * cost.epoch + cost.once for cost in costs)
    return Plan(epochs, (f"plan: {'; '.join(parts)}; about {rough_duration(total)} with probes and test",))


def _left_out(costs: Sequence[Cost], budget: float) -> tuple[str, ...]:
    names = ", ".join(cost.name for cost in costs)
    return (
        (f"  note: a budget of {rough_duration(budget)} leaves no time for {names}; give more to try it",)
        if costs
        else ()
    )
