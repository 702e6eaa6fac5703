"""What no policy can go below."""

from __future__ import annotations

from typing import NamedTuple

from graphcache.optimum.exact import exact_schedule
from graphcache.problem import Cost, Problem, Schedule, cost


class Solution(NamedTuple):
    """A schedule, what it costs, a bound below which none can go, and whether it is exactly that."""

    schedule: Schedule
    cost: Cost
    lower_bound: float
    exact: bool


def solve(problem: Problem) -> Solution:
    """Return the exact optimum.

    Raises:
        ConfigError: the problem is too large for it.
    """
    schedule = exact_schedule(problem)
    total = cost(problem, schedule)
    return Solution(schedule, total, total.seconds, True)
