"""Several policies through one scenario, beside the floors that none can beat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphcache.errors import ConfigError
from graphcache.optimum import Bound
from graphcache.policy.protocol import Budget
from graphcache.simulate.run import Run
from graphcache.simulate.scenario import Scenario


class Unfit(NamedTuple):
    """A policy that has no run at a budget: it came to a batch whose graphs the budget can't hold."""

    policy: str
    budget: Budget
    reason: str


@dataclass(frozen=True, eq=False)
class Report:
    """What every policy did at every budget, what keeping everything costs, and the offline optimum.

    ``runs`` are in the order of budgets, then candidates; ``optima`` are per budget.
    """

    scenario: Scenario
    unbounded: Run
    runs: Sequence[Run]
    optima: Mapping[Budget, Bound]
    unfit: Sequence[Unfit] = ()

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
            "unfit": [{**each._asdict(), "budget": each.budget._asdict()} for each in self.unfit],
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
