"""Offline bounds: the exact optimum where that is feasible, a lower and an upper bound beyond."""

from __future__ import annotations

from typing import NamedTuple

from graphcache.optimum.exact import MAX_KEYS, exact_schedule, useful_keys
from graphcache.optimum.relaxed import best_found, lower_bound
from graphcache.problem import Cost, Problem, Schedule, cost

__all__ = ["Bound", "bound", "exact_schedule"]


class Bound(NamedTuple):
    """The best schedule known, what it costs, and what none can go below; both are one if it is exact."""

    schedule: Schedule
    cost: Cost
    lower_bound: float
    exact: bool


def bound(problem: Problem, max_keys: int = MAX_KEYS) -> Bound:
    """Solve a problem exactly if at most ``max_keys`` of its keys can matter, else bound it on both sides."""
    if len(useful_keys(problem)) <= max_keys:
        schedule = exact_schedule(problem)
        paid = cost(problem, schedule)
        return Bound(schedule, paid, paid.seconds, True)
    schedule = best_found(problem)
    paid = cost(problem, schedule)
    return Bound(schedule, paid, lower_bound(problem, paid.seconds), False)
