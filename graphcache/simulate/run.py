"""One policy driven through a scenario: the live cache, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from graphcache.batch import Batch, Layout
from graphcache.cache import GraphCache
from graphcache.key import GraphKey, MaskMode
from graphcache.miss import OnMiss
from graphcache.policy.protocol import Budget, Policy
from graphcache.problem import BatchType
from graphcache.simulate.scenario import Scenario
from graphcache.simulate.virtual import VirtualClock, VirtualSupplier
from graphcache.stats import KeyCounters, Stats
from graphcache.step import BoundLaunch
from graphcache.trace.requests import Times


class Change(NamedTuple):
    """What changed before the batch of one step: graphs that left, and then graphs that came in."""

    step: int
    dropped: tuple[GraphKey, ...]
    compiled: tuple[GraphKey, ...]


def _carried(launch: BoundLaunch, batch: Batch) -> BatchType:
    """Return what a launch carries of a batch, by its tokens themselves in place of their bucket."""
    lengths = [batch.sequences[index].new for index in launch.sequences]
    if launch.layout is Layout.ROWS or len(lengths) == 1:
        return BatchType(max(lengths), single=True, rows=len(lengths))
    return BatchType(sum(lengths), single=False)


@dataclass(frozen=True, eq=False)
class Run:
    """What one policy did and what that took.

    Arrays are per step; ``served`` are the graphs that ran, ``stall_seconds`` what the step waited before.
    ``mask_seconds`` is what the graphs with a mask took longer than those of the same shape without,
    ``padding_seconds`` the share of all other run seconds that went into padding tokens.
    ``charged_seconds`` is the charge for compiles beside the steps.  ``carried`` holds, for steps of several
    launches or rows, what each launch had to hold, its length in tokens.
    """

    policy: str
    budget: Budget
    run_seconds: Times
    stall_seconds: Times
    padding_seconds: float
    mask_seconds: float
    charged_seconds: float
    served: Sequence[tuple[GraphKey, ...]]
    changes: Sequence[Change]
    resident: Sequence[tuple[int, int, int]]
    """Step, graphs and bytes, at each step before which they changed."""
    counters: KeyCounters
    saved_state: Any = None
    carried: Mapping[int, tuple[BatchType, ...]] = field(default_factory=dict)

    @property
    def cost_seconds(self) -> float:
        """What policies are compared by: running, waiting, and the charge for compiles beside the steps."""
        return float(self.run_seconds.sum() + self.stall_seconds.sum()) + self.charged_seconds

    @property
    def step_seconds(self) -> Times:
        """What each step took, waiting and all."""
        return self.run_seconds + self.stall_seconds

    @property
    def splits(self) -> bool:
        """Whether a batch ran in several launches."""
        return any(len(keys) > 1 for keys in self.served)

    @property
    def mean_resident(self) -> float:
        """Resident graphs, on average over the steps."""
        steps = np.array([step for step, _, _ in self.resident] + [len(self.served)])
        graphs = np.array([graphs for _, graphs, _ in self.resident])
        return float((np.diff(steps) * graphs).sum() / len(self.served))


def drive(
    scenario: Scenario,
    policy: Policy,
    budget: Budget,
    *,
    name: str = "",
    on_miss: OnMiss = OnMiss.COMPILE,
    saved_state: Any = None,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Run the live cache over a scenario's batches; equal arguments give equal runs.

    The batches are given: a step starts when it was scheduled, or when the one before it has ended, and
    waiting does not change what is batched.  ``progress`` is told the number of steps done, now and then.

    Raises:
        ConfigError: the policy can't serve a batch.
        BudgetError: a graph that is needed does not fit.
    """
    clock = VirtualClock()
    supplier = VirtualSupplier(scenario.costs, clock, background=scenario.background)
    cache = GraphCache(
        policy,
        supplier,
        budget=budget,
        on_miss=on_miss,
        costs=scenario.costs,
        saved_state=saved_state,
        stats=Stats(strict=True),
        clock=clock,
    )
    with cache:
        journal = _Journal(scenario, cache, supplier, clock)
        starts = scenario.steps.started_seconds.tolist()
        for index, (start, batch) in enumerate(zip(starts, scenario.batches, strict=True)):
            clock.wait_until(start)
            journal.take(index, batch)
            if progress is not None and index % 1024 == 0:
                progress(index)
        return journal.run(name, budget)


class _Journal:
    """Steps a cache, and writes down what it does."""

    def __init__(
        self, scenario: Scenario, cache: GraphCache, supplier: VirtualSupplier, clock: VirtualClock
    ) -> None:
        self.scenario = scenario
        self.cache = cache
        self.supplier = supplier
        self.clock = clock
        self.run_seconds: list[float] = []
        self.stall_seconds: list[float] = []
        self.served: list[tuple[GraphKey, ...]] = []
        self.changes: list[Change] = []
        self.carried: dict[int, tuple[BatchType, ...]] = {}
        self.resident: list[tuple[int, int, int]] = [(0, 0, 0)]
        self.padding_seconds = self.mask_seconds = self.charged_seconds = 0.0
        self._graphs = cache.resident
        self._key_seconds: dict[GraphKey, tuple[float, float]] = {}

    def take(self, index: int, batch: Batch) -> None:
        """Run one step."""
        began = self.clock.now
        with self.cache.step(batch) as step:
            self.stall_seconds.append(self.clock.now - began)
            if self.cache.resident is not self._graphs:
                self._note_change(index)
            seconds = sum([self._launch(batch, step.ran, launch) for launch in step.launches])
            if len(step.launches) > 1 or step.launches[0].key.rows > 1:
                self.carried[index] = tuple(_carried(launch, batch) for launch in step.launches)
        self.run_seconds.append(seconds)
        self.served.append(tuple([launch.key for launch in step.launches]))
        self.clock.spend(seconds)

    def _launch(self, batch: Batch, ran: Callable[[BoundLaunch, float], None], launch: BoundLaunch) -> float:
        seconds, mask = self._seconds(launch.key)
        tokens = sum([batch.sequences[index].new for index in launch.sequences])
        self.padding_seconds += (seconds - mask) * (1 - tokens / launch.key.tokens)
        self.mask_seconds += mask
        ran(launch, seconds)
        return seconds

    def _seconds(self, key: GraphKey) -> tuple[float, float]:
        """Return what a graph takes, and what its mask takes of it."""
        known = self._key_seconds.get(key)
        if known is None:
            seconds, mask = self.scenario.costs.run_seconds(key), 0.0
            if key.mode is MaskMode.CUSTOM:
                bare = GraphKey(key.rows, key.seq_len, key.kv_len, MaskMode.CAUSAL, key.kind, key.flags)
                mask = max(0.0, seconds - self.scenario.costs.run_seconds(bare))
            known = self._key_seconds[key] = seconds, mask
        return known

    def _note_change(self, index: int) -> None:
        before, now = self._graphs, self.cache.resident
        delivered = tuple(self.supplier.delivered)
        self.supplier.delivered.clear()
        dropped = tuple(key for key in before if key not in now or key in delivered)
        self.changes.append(Change(index, dropped, delivered))
        self.charged_seconds += sum(self.scenario.charged_seconds(key) for key in delivered)
        if self.resident[-1][0] == index:
            self.resident.pop()
        self.resident.append((index, len(now), sum(graph.nbytes for graph in now.values())))
        self._graphs = now

    def run(self, name: str, budget: Budget) -> Run:
        """Return what was written down."""
        return Run(
            policy=name,
            budget=budget,
            run_seconds=np.array(self.run_seconds),
            stall_seconds=np.array(self.stall_seconds),
            padding_seconds=self.padding_seconds,
            mask_seconds=self.mask_seconds,
            charged_seconds=self.charged_seconds,
            served=self.served,
            changes=self.changes,
            resident=self.resident,
            counters=self.cache.stats.total(),
            saved_state=self.cache.saved_state(),
            carried=self.carried,
        )
