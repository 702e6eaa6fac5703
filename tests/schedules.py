"""A simulated run as a schedule of the problem that it solves."""

from __future__ import annotations

from graphcache.errors import ConfigError
from graphcache.problem import Problem, Schedule, cost
from graphcache.simulate import Run


def schedule_of(run: Run, problem: Problem) -> Schedule:
    """Return a run as a schedule of a problem's keys, checked against its rules.

    Raises:
        ConfigError: it has none: a batch was split, or served by a graph that is not among the keys.
    """
    index = {key: number for number, key in enumerate(problem.keys)}
    served = []
    for step, keys in enumerate(run.served):
        if len(keys) != 1:
            raise ConfigError(f"the batch of step {step} was split into {len(keys)} launches")
        if keys[0] not in index:
            raise ConfigError(f"the batch of step {step} was served by {keys[0]}")
        served.append(index[keys[0]])
    schedule = Schedule(
        served,
        {c.step: tuple(index[key] for key in c.compiled) for c in run.changes if c.compiled},
        {c.step: tuple(index[key] for key in c.dropped) for c in run.changes if c.dropped},
    )
    cost(problem, schedule)
    return schedule
