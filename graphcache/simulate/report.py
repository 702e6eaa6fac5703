"""Several policies through one scenario, beside the floors that none can beat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphcache.errors import ConfigError
from graphcache.optimum import Bound
from graphcache.policy.protocol import Budget
from graphcache.problem import Problem, Schedule, cost
from graphcache.simulate.options import format_budget
from graphcache.simulate.run import Run
from graphcache.simulate.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Report:
    """What every policy did at every budget, what keeping everything costs, and the offline optimum.

    ``runs`` are in the order of budgets, then candidates; ``optima`` are per budget.
    """

    scenario: Scenario
    unbounded: Run
    runs: Sequence[Run]
    optima: Mapping[Budget, Bound]

    def regret(self, run: Run) -> float:
        """Return how much a run cost over the optimum, as a share of it; over the best known, if inexact."""
        floor: float = self.optima[run.budget].cost.seconds
        return run.cost_seconds / floor - 1

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        return {
            **describe(self.scenario),
            "unbounded": figures(self.unbounded),
            "optimum": [
                {"budget": budget._asdict(), **self.floor(solution)}
                for budget, solution in self.optima.items()
            ],
            "runs": [{**figures(run), "regret": self.regret(run)} for run in self.runs],
        }

    def emit(self) -> dict[str, Any]:
        """Return the problem, and each policy's schedule, so that anyone can add the costs up again.

        A run whose schedule can't be told in keys of one row, one for each batch, is listed under
        ``unscheduled`` with the reason.

        Raises:
            ConfigError: the report has several budgets.
        """
        if len(self.optima) != 1:
            raise ConfigError.of("budgets", [format_budget(b) for b in self.optima], "one, to emit schedules")
        ((budget, solution),) = self.optima.items()
        problem = self.scenario.problem(budget)
        floor = self.floor(solution)
        results, unscheduled = {"optimum": {**floor, "schedule": solution.schedule.to_json()}}, {}
        for run in self.runs:
            try:
                schedule = schedule_of(run, problem)
            except ConfigError as error:
                unscheduled[run.policy] = {**figures(run), "reason": str(error)}
            else:
                results[run.policy] = {**figures(run), "schedule": schedule.to_json()}
        return {
            **describe(self.scenario),
            **problem.to_json(),
            "results": results,
            "unscheduled": unscheduled,
            "unbounded": figures(self.unbounded),
        }

    def floor(self, solution: Bound) -> dict[str, Any]:
        """Return a solution's figures as plain JSON values.

        It is ``exact`` if no policy that packs each batch can cost less; ``lower_bound_seconds`` is what
        none can go below in any case.  With compiles in the background it is a bound only: a graph is
        there as soon as it is wanted, at no more than the charge.
        """
        cost = solution.cost
        paid = {"stall_seconds": cost.stall_seconds, "charged_seconds": 0.0}
        if self.scenario.background:
            paid = {"stall_seconds": 0.0, "charged_seconds": cost.stall_seconds}
        return {
            "cost_seconds": cost.seconds,
            "run_seconds": cost.run_seconds,
            **paid,
            "compiles": cost.compiles,
            "exact": solution.exact and not self.scenario.background,
            "lower_bound_seconds": solution.lower_bound,
        }


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


def write_json(document: dict[str, Any], path: Path) -> None:
    """Write plain JSON values to a file.

    Raises:
        ConfigError: it can't be written.
    """
    write_text(json.dumps(document, allow_nan=False), path)


def write_text(text: str, path: Path) -> None:
    """Write a text to a file.

    Raises:
        ConfigError: it can't be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: can't be written: {error.strerror}") from None


def describe(scenario: Scenario) -> dict[str, Any]:
    """Return what was simulated, as plain JSON values."""
    steps = scenario.steps
    return {
        "trace": steps.name,
        "notes": list(steps.notes),
        "requests": len(steps.new),
        "left_out": steps.left_out,
        "steps": len(steps),
        "single_share": steps.single_share,
        "busy_share": steps.busy_share,
        "ladder": list(scenario.ladder),
        "compile": "background" if scenario.background else "inline",
        "background_share": scenario.background_share if scenario.background else None,
    }


def figures(run: Run) -> dict[str, Any]:
    """Return one run's figures as plain JSON values."""
    step_seconds = run.step_seconds
    p50, p99 = np.quantile(step_seconds, [0.5, 0.99]).tolist()
    return {
        "policy": run.policy,
        "budget": run.budget._asdict(),
        "cost_seconds": run.cost_seconds,
        "run_seconds": float(run.run_seconds.sum()),
        "padding_seconds": run.padding_seconds,
        "mask_seconds": run.mask_seconds,
        "stall_seconds": float(run.stall_seconds.sum()),
        "charged_seconds": run.charged_seconds,
        "compiles": run.counters.compiles,
        "hits": run.counters.hits,
        "fallbacks": run.counters.fallbacks,
        "evictions": run.counters.evictions,
        "p50_step_seconds": p50,
        "p99_step_seconds": p99,
        "max_step_seconds": float(step_seconds.max()),
        "mean_resident": run.mean_resident,
        "resident": [list(change) for change in run.resident],
    }
