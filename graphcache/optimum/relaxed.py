"""Bounds where the exact optimum is out of reach: from below by a Lagrangian, from above by a schedule.

The problem as an integer program: ``x`` says that a graph is resident at a run of batches, ``y`` that it
serves it; each run is served once, by what is resident, within the budget; each time a graph comes in, its
compile is paid.  With a price ``u`` on serving each run and a price ``p`` on each unit of each budget, the
graphs no longer depend on one another, and each one's best residence is a shortest path through two states.
Whatever the prices, the sum is a lower bound (Lagrange duality); a subgradient method looks for good ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphcache.optimum.exact import Runs, exact_schedule, merge_runs
from graphcache.problem import Problem, Schedule, Seconds

ITERATIONS = 120
STALL = 6
SUBSET = 13
"""Keys among which the best schedule is looked for."""

Choice: TypeAlias = NDArray[np.bool_]


def lower_bound(problem: Problem, upper: float, iterations: int = ITERATIONS) -> float:
    """Return seconds that no schedule can go below; ``upper`` is what some schedule costs."""
    runs = merge_runs(problem)
    if not len(runs.types):
        return 0.0
    dual = _Dual.of(problem, runs)
    serve, prices = dual.start()
    best, scale, stalled = 0.0, 1.0, 0
    for _ in range(iterations):
        bound, served, used = dual.evaluate(serve, prices)
        stalled = 0 if bound > best * (1 + 1e-4) else stalled + 1
        best = max(best, bound)
        if stalled >= STALL:
            scale, stalled = scale / 2, 0
        slope = float(served @ served + (used * used).sum())
        if slope <= 0 or upper - bound <= 1e-9 * upper:
            break
        step = scale * (upper - bound) / slope
        serve = serve + step * served
        prices = np.maximum(prices + step * used, 0.0)
    return best


@dataclass(frozen=True, eq=False)
class _Dual:
    """The Lagrangian: ``run`` is runs x keys, ``weights`` budgets x keys, ``bounds`` one per budget."""

    run: Seconds
    compiles: Seconds
    weights: Seconds
    bounds: Seconds

    @classmethod
    def of(cls, problem: Problem, runs: Runs) -> _Dual:
        graphs, nbytes = problem.budget
        rows, bounds = [], []
        if graphs is not None:
            rows.append(np.ones(len(runs.keys)))
            bounds.append(float(graphs))
        if nbytes is not None:  # in shares of the budget, so that both prices are seconds
            rows.append(runs.nbytes / nbytes)
            bounds.append(1.0)
        weights = np.array(rows).reshape(len(rows), len(runs.keys))
        seconds = runs.run_seconds[runs.types] * runs.lengths[:, None]
        return cls(seconds, runs.compile_seconds, weights, np.array(bounds))

    def start(self) -> tuple[Seconds, Seconds]:
        """Return prices to begin with: each run's best seconds, and budgets for nothing."""
        finite = np.where(np.isfinite(self.run), self.run, 0.0)
        return (self.run.min(axis=1) + finite.max(axis=1)) / 2, np.zeros((len(self.bounds), len(self.run)))

    def evaluate(self, serve: Seconds, prices: Seconds) -> tuple[float, Seconds, Seconds]:
        """Return the bound at these prices, and by how much its solution breaks each rule."""
        profit = np.maximum(serve[:, None] - self.run, 0.0)
        rent = prices.T @ self.weights
        seconds, resident = self._residences(rent - profit)
        bound = float(serve.sum() - self.bounds @ prices.sum(axis=1) + seconds)
        served = 1.0 - ((profit > 0) & resident).sum(axis=1)
        used = self.weights @ resident.T - self.bounds[:, None]
        return bound, served, used

    def _residences(self, stay: Seconds) -> tuple[float, Choice]:
        """Return the least cost of all graphs' residences, and when each is resident."""
        count, keys = stay.shape
        out, inside = np.zeros(keys), np.full(keys, np.inf)
        left, came = np.empty((count, keys), dtype=bool), np.empty((count, keys), dtype=bool)
        for run in range(count):
            entering = out + self.compiles
            np.less(inside, out, out=left[run])
            np.less(entering, inside, out=came[run])
            out = np.minimum(out, inside)
            inside = np.minimum(inside, entering) + stay[run]
        resident = np.empty((count, keys), dtype=bool)
        state = inside < out
        total = float(np.minimum(inside, out).sum())
        for run in range(count - 1, -1, -1):
            resident[run] = state
            state = np.where(state, ~came[run], left[run])
        return total, resident


def best_found(problem: Problem) -> Schedule:
    """Return the best schedule found: an exact one among the keys that a fixed set would want most."""
    keys = _wanted(problem, SUBSET)
    part = Problem(
        tuple(problem.keys[k] for k in keys),
        problem.types,
        problem.run_seconds[:, keys],
        problem.compile_seconds[keys],
        problem.nbytes[keys],
        problem.budget,
        problem.batches,
    )
    found = exact_schedule(part)
    named = [
        {step: tuple(keys[k] for k in change) for step, change in changes.items()}
        for changes in (found.compiled, found.dropped)
    ]
    return Schedule([keys[k] for k in found.served], named[0], named[1])


def _wanted(problem: Problem, count: int) -> list[int]:
    """Return the keys that save most, one after the other; first what has to serve what nothing else does."""
    counts = np.bincount(problem.batches, minlength=len(problem.types)).astype(np.float64)
    seen = counts > 0
    able = np.flatnonzero(problem.fitting()).tolist()
    finite = problem.run_seconds[:, able]
    penalty = float(finite[np.isfinite(finite)].max()) * 2 + float(problem.compile_seconds.max())
    run = np.where(np.isfinite(problem.run_seconds), problem.run_seconds, penalty)[seen]
    now = np.full(int(seen.sum()), penalty)
    chosen: list[int] = []
    for _ in range(min(count, len(able))):
        saved = counts[seen] @ np.maximum(now[:, None] - run, 0.0)
        key = max((k for k in able if k not in chosen), key=lambda k: float(saved[k]))
        chosen.append(key)
        now = np.minimum(now, run[:, key])
    return sorted(chosen)
