"""What saves the fewest seconds leaves first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from graphcache.costs import Costs, PaddedWork
from graphcache.eviction.demand import RECENT, Demand
from graphcache.key import GraphKey, dominates


class SavedSeconds:
    """Evicts the graph whose absence costs least: its demand would run on others, or wait for a compile.

    The demand is what ran, decayed.  With ``fallback`` (where misses fall back, too), a graph's worth is
    the run seconds it saves against the best other candidate that dominates it, or its compile where none
    does; without, each of its runs would wait for its compile.  Without ``costs`` the padded work ranks
    the graphs.
    """

    def __init__(self, costs: Costs | None = None, *, fallback: bool = False) -> None:
        self.costs = costs or PaddedWork()
        self.fallback = fallback

    def start(self, saved: Any = None) -> Demand:
        """Return the runs per key."""
        return Demand.load(saved or {})

    def save(self, state: Demand) -> Any:
        """Return the runs per key's text."""
        return state.save()

    def on_hit(self, state: Demand, key: GraphKey) -> None:
        """Count one run."""
        state.note(state.index(key))

    def on_insert(self, state: Demand, key: GraphKey) -> None:
        """Count nothing: only runs earn a place."""

    def victim(self, state: Demand, candidates: Sequence[GraphKey]) -> GraphKey:
        """Return the candidate that saves least; of equals, the first."""
        runs = dict(zip(state.keys, state.expected(RECENT).tolist(), strict=True))
        if not self.fallback:
            return min(candidates, key=lambda key: runs.get(key, 0.0) * self.costs.compile_seconds(key))
        return min(candidates, key=lambda key: self._loss(runs, key, candidates))

    def _loss(self, runs: dict[GraphKey, float], gone: GraphKey, held: Iterable[GraphKey]) -> float:
        """Return the seconds by which what has run would have cost more without one graph."""
        rest = [key for key in held if key != gone]
        loss = 0.0
        for key, count in runs.items():
            if count and dominates(gone, key):
                loss += count * max(0.0, self._seconds(key, rest) - self.costs.run_seconds(gone))
        return loss

    def _seconds(self, key: GraphKey, held: Iterable[GraphKey]) -> float:
        able = [self.costs.run_seconds(graph) for graph in held if dominates(graph, key)]
        return min(able, default=self.costs.run_seconds(key) + self.costs.compile_seconds(key))
