"""A report's problem and every schedule as plain JSON, so that anyone can add the costs up again."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from graphcache.costs import Costs
from graphcache.errors import ConfigError
from graphcache.key import GraphKey
from graphcache.policy.protocol import Budget
from graphcache.problem import BatchType, Problem
from graphcache.simulate.options import format_budget
from graphcache.simulate.report import Report, describe, figures
from graphcache.simulate.run import Run
from graphcache.simulate.scenario import Scenario


def emit(report: Report) -> dict[str, Any]:
    """Return the problem, and each policy's schedule: what was served, compiled and dropped at each batch.

    Keys and types beyond those of packed batches, which a policy needs that runs several launches or several
    rows, come behind them.

    Raises:
        ConfigError: the report has several budgets.
    """
    if len(report.optima) != 1:
        raise ConfigError.of("budgets", [format_budget(b) for b in report.optima], "one, to emit schedules")
    ((budget, solution),) = report.optima.items()
    tables = Tables(report.scenario.problem(budget))
    optimum = {**report.floor(solution), "schedule": solution.schedule.to_json()}
    results = {run.policy: {**figures(run), "schedule": tables.schedule(run)} for run in report.runs}
    return {
        **describe(report.scenario),
        **tables.to_json(report.scenario, budget),
        "results": {"optimum": optimum, **results},
        "unbounded": figures(report.unbounded),
    }


class Tables:
    """The keys and types of a problem, and those that runs need beside them."""

    def __init__(self, problem: Problem) -> None:
        self._batches = problem.batches.tolist()
        self._keys = {key: number for number, key in enumerate(problem.keys)}
        self._types = {kind: number for number, kind in enumerate(problem.types)}
        self._sizes = sorted({key.seq_len for key in problem.keys})

    def schedule(self, run: Run) -> list[list[Any]]:
        """Return a run's ``[served, [compiled], [dropped]]`` for each batch."""
        compiled = {change.step: change.compiled for change in run.changes}
        dropped = {change.step: change.dropped for change in run.changes}
        return [
            [
                self._served(keys, run.carried.get(step)),
                [self._key(key) for key in compiled.get(step, ())],
                [self._key(key) for key in dropped.get(step, ())],
            ]
            for step, keys in enumerate(run.served)
        ]

    def to_json(self, scenario: Scenario, budget: Budget) -> dict[str, Any]:
        """Return all that was needed so far, with what it costs."""
        return {
            "keys": [_described(key, scenario) for key in self._keys],
            "types": [kind._asdict() for kind in self._types],
            "run_seconds": [
                [_seconds(kind, key, scenario.costs) for key in self._keys] for kind in self._types
            ],
            "budget": budget._asdict(),
            "batches": self._batches,
        }

    def _served(self, keys: Sequence[GraphKey], carried: Sequence[BatchType] | None) -> Any:
        """Return the one key, or a key and a type for each launch."""
        if carried is None:
            return self._key(keys[0])
        return [[self._key(key), self._type(kind)] for key, kind in zip(keys, carried, strict=True)]

    def _key(self, key: GraphKey) -> int:
        return self._keys.setdefault(key, len(self._keys))

    def _type(self, carried: BatchType) -> int:
        bucket = next(size for size in self._sizes if size >= carried.seq_len)
        return self._types.setdefault(carried._replace(seq_len=bucket), len(self._types))


def _described(key: GraphKey, scenario: Scenario) -> dict[str, Any]:
    """Describe a key; beside the steps, its compile costs what is charged for it."""
    price = scenario.charged_seconds if scenario.background else scenario.costs.compile_seconds
    return {
        "rows": key.rows,
        "seq_len": key.seq_len,
        "mode": str(key.mode),
        "compile_seconds": float(price(key)),
        "bytes": int(scenario.costs.nbytes(key)),
    }


def _seconds(kind: BatchType, key: GraphKey, costs: Costs) -> float | None:
    seconds = kind.run_seconds(key, costs)
    return seconds if isfinite(seconds) else None
