"""What has been asked for: decayed counts per asked graph, in a short memory and a long one."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphcache.key import GraphKey

Amounts: TypeAlias = NDArray[np.float64]

RECENT, LONG = range(2)
HALF_LIVES = (200.0, 20_000.0)
"""Launches after which a count has halved: what is going on now, and what the server's traffic is."""

SHRINK = 200.0
"""Launches that the long memory counts for, where the recent one is read with it in mind."""


@dataclass(slots=True)
class Mark:
    """When a graph last came in or left: the launch's number, and the weighed counts at that time."""

    step: int
    weighed: list[list[float]]


class Demand:
    """Counts launches by the graph they ask for, the exact one, whichever serves.

    Instead of letting every count decay at each launch, later launches weigh more; a count is its weighed
    sum over the weight of now.
    """

    __slots__ = ("_growth", "_weighed", "_weights", "asked", "keys", "marks", "step")

    def __init__(self) -> None:
        self.keys: list[GraphKey] = []
        self.asked: dict[GraphKey, int] = {}
        self.marks: dict[GraphKey, Mark] = {}
        self.step = 0
        self._growth = [2.0 ** (1.0 / half_life) for half_life in HALF_LIVES]
        self._weights = [1.0] * len(HALF_LIVES)
        self._weighed: list[list[float]] = [[] for _ in HALF_LIVES]

    def index(self, key: GraphKey) -> int:
        """Return the number of an asked graph, a new one for a new graph."""
        index = self.asked.get(key)
        if index is None:
            index = self.asked[key] = len(self.keys)
            self.keys.append(key)
            for weighed in self._weighed:
                weighed.append(0.0)
        return index

    def note(self, index: int) -> None:
        """Count one launch."""
        self.step += 1
        weights = self._weights
        for memory, growth in enumerate(self._growth):
            weights[memory] *= growth
            self._weighed[memory][index] += weights[memory]
        if weights[RECENT] > 1e100:
            self._rescale()

    def mark(self, key: GraphKey) -> None:
        """Remember that a graph came in, or left, now."""
        self.marks[key] = Mark(self.step, [list(weighed) for weighed in self._weighed])

    def counts(self, memory: int) -> Amounts:
        """Return the launches per asked graph, as the memory holds them."""
        return np.array(self._weighed[memory]) / self._weights[memory]

    def since(self, memory: int, mark: Mark | None) -> Amounts:
        """Return the launches since a mark, as the memory holds them; all of them without one."""
        counts = self.counts(memory)
        if mark is not None:
            weighed = mark.weighed[memory]
            counts[: len(weighed)] -= np.array(weighed) / self._weights[memory]
        return counts

    def expected(self, memory: int) -> Amounts:
        """Return the counts, never below what the longer memory lets expect over as many launches."""
        counts = self.counts(memory)
        if memory == LONG or not counts.any():
            return counts
        rates = self.counts(LONG)
        total = counts.sum()
        shrunk: Amounts = (counts + SHRINK * rates / rates.sum()) * total / (total + SHRINK)
        return np.maximum(counts, shrunk)

    def save(self) -> dict[str, Any]:
        """Return all counts as plain JSON values; marks belong to this process's graphs."""
        columns = [self.counts(memory).tolist() for memory in range(len(HALF_LIVES))]
        return {str(key): list(row) for key, row in zip(self.keys, zip(*columns, strict=True), strict=True)}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Demand:
        """Read what ``save`` returned.

        Raises:
            ConfigError: a key that is none.
            ValueError: a count that is not a finite number.
        """
        demand = cls()
        for text, counts in saved.items():
            index = demand.index(GraphKey.parse(text))
            for memory, count in enumerate(counts):
                if not isfinite(count):
                    raise ValueError(f"demand of {text}: {count!r} is not a count")
                demand._weighed[memory][index] = max(0.0, float(count))
        return demand

    def _rescale(self) -> None:
        """Count in units of now, before the weights exceed what a float holds."""
        for memory, weight in enumerate(self._weights):
            for weighed in (self._weighed, *(mark.weighed for mark in self.marks.values())):
                weighed[memory] = [value / weight for value in weighed[memory]]
            self._weights[memory] = 1.0
