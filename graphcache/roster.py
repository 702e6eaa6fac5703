"""What is resident, the policy's state about it, and the view that decisions look at."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphcache.backends.protocol import EvictUnit, Graph
from graphcache.batch import Batch, Plan
from graphcache.compile.protocol import Supplied
from graphcache.costs import Costs, PaddedWork
from graphcache.errors import BudgetError
from graphcache.key import GraphKey, dominates
from graphcache.policy.protocol import Action, Budget, Policy, View
from graphcache.residency import Residency
from graphcache.stats import Stats
from graphcache.step import Learner


class Roster:
    """Keeps residency, policy state, pins, blocklist and view in step with one another, under one lock.

    ``version`` grows with every change of the view; ``sizes`` are the bytes of every graph that ever came;
    ``lock`` is held for microseconds, never while something compiles or loads.
    """

    def __init__(
        self,
        policy: Policy,
        stats: Stats,
        budget: Budget,
        evict_unit: EvictUnit,
        costs: Costs,
        saved_state: Any,
        learner: Learner | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.costs = costs
        self.pins: Counter[GraphKey] = Counter()
        self.blocked: dict[GraphKey, str] = {}
        self.sizes: dict[GraphKey, int] = {}
        self.version = 0
        self._policy = policy
        self._stats = stats
        self._learner = learner
        self._residency = Residency(budget, evict_unit)
        self._pending: frozenset[GraphKey] = frozenset()
        self._state = policy.start(saved_state)
        self._renew()

    @property
    def graphs(self) -> Mapping[GraphKey, Graph]:
        """The resident graphs, oldest first."""
        return self._residency.graphs

    def plan(self, batch: Batch) -> Plan:
        """Return the policy's plan for a batch."""
        with self.lock:
            return self._policy.plan(batch, self.view, self._state)

    def advance(self, batch: Batch, plan: Plan) -> Sequence[Action]:
        """Tell the policy what a step ran; return what it wants to change."""
        self._state, actions = self._policy.advance(self._state, batch, plan, self.view)
        return actions

    def saved_state(self) -> Any:
        """Return the policy's state as plain JSON values."""
        with self.lock:
            return self._policy.save(self._state)

    # -- what changes -----------------------------------------------------------------------------

    def admit(self, supplied: Supplied, pinned: Iterable[GraphKey] = ()) -> None:
        """Make a graph resident, evicting what the policy names; count where it came from.

        Raises:
            BudgetError: it can't fit while ``pinned`` stay; then it is closed.
        """
        key = supplied.key
        with self.lock:
            self._count(supplied)
            self.sizes[key] = supplied.graph.nbytes
            try:
                evicted = self._residency.insert(
                    key,
                    supplied.graph,
                    pinned={*pinned, *self.pins},
                    choose=lambda able: self._policy.victim(self._state, key, able, self.view),
                )
            except BudgetError:
                supplied.graph.close()
                self.settle(key)
                raise
            self._pending -= {key}
            self._note_evicted(evicted, f"room for {key}")
            self._state = self._policy.inserted(self._state, key, self.view)

    def evict(self, key: GraphKey, reason: str) -> None:
        """Let a graph go, unless it is pinned."""
        with self.lock:
            if key not in self.pins:
                self._note_evicted(self._residency.remove(key), reason)

    def block(self, key: GraphKey, reason: str) -> None:
        """Never admit this graph again."""
        with self.lock:
            self.blocked[key] = reason

    def await_(self, key: GraphKey) -> None:
        """Take note that a graph was asked for in the background."""
        with self.lock:
            self._pending |= {key}
            self._renew()

    def settle(self, key: GraphKey) -> None:
        """Take note that what was asked for does not come."""
        with self.lock:
            self._pending -= {key}
            self._renew()

    def use_costs(self, costs: Costs) -> None:
        """Decide by another table from now on."""
        with self.lock:
            if costs is not self.costs:
                self.costs = costs
                self._renew()

    def clear(self) -> None:
        """Let all graphs go."""
        with self.lock:
            for key in tuple(self.graphs):
                self._residency.remove(key)
            self._renew()

    # -- what is asked ----------------------------------------------------------------------------

    def pending(self, key: GraphKey) -> bool:
        """Say whether a graph was asked for and is not there yet."""
        return key in self._pending

    def full(self) -> bool:
        """Say whether the budget of graphs is used up."""
        return self._residency.full()

    def room(self) -> int | None:
        """Return how many graphs fit beside those that are resident or asked for; None without a bound."""
        graphs = self._residency.budget.graphs
        return None if graphs is None else max(0, graphs - len(self.graphs) - len(self._pending))

    def refusal(self, key: GraphKey, pinned: Iterable[GraphKey] = ()) -> BudgetError | None:
        """Return why a graph can't come in while these stay, as far as its size is known; None if it can."""
        return self._residency.refusal(key, self.sizes.get(key, 0), {*pinned, *self.pins})

    def stand_in(self, key: GraphKey, without: GraphKey | None = None) -> GraphKey | None:
        """Return the cheapest resident graph that dominates ``key``."""
        able = [k for k in self.graphs if k != without and dominates(k, key)]
        return min(able, key=lambda k: (self.costs.run_seconds(k), k), default=None)

    def saved_seconds(self, key: GraphKey, wanted: GraphKey) -> float:
        """Return what one run of ``key`` saves against the next best, where seconds are known, else 0."""
        if isinstance(self.costs, PaddedWork):
            return 0.0
        next_best = self.stand_in(wanted, without=key)
        if next_best is None:
            return 0.0
        return max(0.0, self.costs.run_seconds(next_best) - self.costs.run_seconds(key))

    def snapshot(self) -> dict[str, Any]:
        """Return what is resident as plain JSON values."""
        with self.lock:
            return {
                "resident": {str(key): graph.nbytes for key, graph in self.graphs.items()},
                "resident_bytes": self._residency.nbytes,
                "retained_bytes": self._residency.retained_bytes,
                "pending": sorted(str(key) for key in self._pending),
                "blocked": {str(key): reason for key, reason in self.blocked.items()},
                "budget": self._residency.budget._asdict(),
            }

    def _count(self, supplied: Supplied) -> None:
        counters = self._stats.of(supplied.key)
        if supplied.source == "load":
            counters.loads += 1
            counters.load_seconds += supplied.seconds
        else:
            counters.compiles += 1
            counters.compile_seconds += supplied.seconds
        counters.saved_seconds += supplied.saved_seconds
        self._stats.event(supplied.source, supplied.key, seconds=supplied.seconds)
        if self._learner is not None:
            nbytes = supplied.graph.nbytes
            self._learner.supplied(supplied.key, supplied.source, supplied.seconds, nbytes)

    def _note_evicted(self, evicted: Iterable[GraphKey], reason: str) -> None:
        for gone in evicted:
            self._stats.of(gone).evictions += 1
            self._stats.event("evict", gone, reason)
        self._renew()

    def _renew(self) -> None:
        self.version += 1
        self.view = View(
            resident={key: graph.nbytes for key, graph in self.graphs.items()},
            budget=self._residency.budget,
            costs=self.costs,
            pending=self._pending,
        )
