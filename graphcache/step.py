"""One step's launches, bound to the graphs that serve them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol

from graphcache.backends.protocol import Graph
from graphcache.batch import Layout, Plan
from graphcache.costs import Costs
from graphcache.key import GraphKey
from graphcache.stats import KeyCounters


class Outcome(StrEnum):
    """How a launch got its graph."""

    HIT = "hit"
    """It was resident."""
    LOAD = "load"
    """It was read from the store while the step waited."""
    COMPILE = "compile"
    """It was compiled while the step waited."""
    FALLBACK = "fallback"
    """A resident graph that dominates the wanted one serves."""


class Learner(Protocol):
    """Takes measured seconds, and hands out frozen tables of what it learned."""

    def observe(self, key: GraphKey, seconds: float) -> None:
        """Take note of one run."""
        ...

    def supplied(self, key: GraphKey, source: str, seconds: float, nbytes: int) -> None:
        """Take note of a ``load`` or ``compile``, and of what the graph holds; its next run is cold."""
        ...

    def snapshot(self) -> Costs:
        """Return what is known by now."""
        ...


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """One launch, ready to run: call ``graph`` on inputs of ``key``'s shapes.

    ``key`` is the graph that serves, ``wanted`` the one the plan asked for; they differ where
    ``outcome`` is a fallback.  ``sequences`` are indices into the batch, in the order of the layout.
    """

    key: GraphKey
    wanted: GraphKey
    sequences: tuple[int, ...]
    layout: Layout
    graph: Graph
    outcome: Outcome
    counters: KeyCounters
    wanted_counters: KeyCounters
    saved_seconds: float

    def count_reuse(self) -> None:
        """Count this launch once more, as the hit or fallback that it is."""
        if self.key is self.wanted:
            self.wanted_counters.hits += 1
        else:
            self.wanted_counters.fallbacks += 1
        self.counters.saved_seconds += self.saved_seconds


class Step:
    """The launches of one step, in the plan's order; a context that unpins them when it is left."""

    __slots__ = ("_learner", "_leave", "launches", "plan")

    def __init__(
        self,
        launches: tuple[BoundLaunch, ...],
        plan: Plan,
        leave: Callable[[], None],
        learner: Learner | None,
    ) -> None:
        self.launches = launches
        self.plan = plan
        self._leave = leave
        self._learner = learner

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def __iter__(self) -> Iterator[BoundLaunch]:
        return iter(self.launches)

    def __len__(self) -> int:
        return len(self.launches)

    def ran(self, launch: BoundLaunch, seconds: float) -> None:
        """Take note of a run's seconds, measured where the runner synchronises with the device."""
        counters = launch.counters
        counters.runs += 1
        counters.run_seconds += seconds
        if self._learner is not None:
            self._learner.observe(launch.key, seconds)
