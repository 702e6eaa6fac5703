"""What becomes of a launch whose graph is not resident."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum

from graphcache.compile.protocol import Supplier, Urgency
from graphcache.errors import BudgetError, CompileError, FrozenError, LoadError, TooLargeError
from graphcache.key import GraphKey
from graphcache.roster import Roster
from graphcache.stats import Stats
from graphcache.step import Outcome

logger = logging.getLogger("graphcache")


class OnMiss(StrEnum):
    """What a step does when a graph it wants is not resident."""

    COMPILE = "compile"
    """Wait for it: load it, or compile it."""
    LOG = "log"
    """The same, and say so in the log."""
    FALLBACK = "fallback"
    """Run the cheapest resident graph that dominates it, and ask for it in the background."""
    RAISE = "raise"
    """Load it where it is stored; raise `FrozenError` where it would have to be compiled."""


class Misses:
    """Decides between waiting for a graph and running one that dominates it; fetches, counts and survives."""

    def __init__(
        self,
        roster: Roster,
        supplier: Supplier,
        stats: Stats,
        on_miss: OnMiss,
        max_slowdown: float | None,
        clock: Callable[[], float],
    ) -> None:
        self.on_miss = on_miss
        self._roster = roster
        self._supplier = supplier
        self._stats = stats
        self._max_slowdown = max_slowdown
        self._clock = clock

    def serve(self, key: GraphKey, pinned: set[GraphKey]) -> tuple[GraphKey, Outcome]:
        """Return the resident graph that serves ``key``, after fetching it where that is called for.

        Raises:
            CompileError: it can't be compiled, and no resident graph can stand in.
            LoadError: what was compiled can't be loaded, and none can stand in.
            BudgetError: it does not fit, or is blocked, and none can stand in.
            FrozenError: it would have to be compiled, and must not be.
        """
        if key in self._roster.graphs:
            return key, Outcome.HIT
        stand_in = self._roster.stand_in(key)
        if stand_in is not None and self._prefer(stand_in, key, pinned):
            return stand_in, Outcome.FALLBACK
        self._check_may_fetch(key, pinned)
        try:
            return key, self.demand(key, pinned)
        except (CompileError, LoadError, BudgetError) as error:
            if stand_in is None:
                raise
            self.survive(key, error)
            return stand_in, Outcome.FALLBACK

    def demand(self, key: GraphKey, pinned: Iterable[GraphKey] = ()) -> Outcome:
        """Fetch a graph while the step waits, and make it resident; count the stall."""
        began = self._clock()
        supplied = self._supplier.fetch(key)
        self._roster.admit(supplied, pinned)
        waited = self._clock() - began
        counters = self._stats.of(key)
        counters.stalls += 1
        counters.stall_seconds += waited
        self._stats.event("stall", key, supplied.source, waited)
        return Outcome(supplied.source)

    def request(self, key: GraphKey, urgency: Urgency = Urgency.UPGRADE) -> None:
        """Ask for a graph in the background, if there is somebody to ask and nobody has."""
        if self._supplier.background and not self._roster.pending(key):
            self._supplier.request(key, urgency)
            self._roster.await_(key)

    def survive(self, key: GraphKey, error: Exception) -> None:
        """Count a fault; what never fits is not tried again.

        What only found no room beside the graphs in use is no fault: now that its size is known, it is not
        fetched again while they are.
        """
        if isinstance(error, TooLargeError):
            self._roster.block(key, str(error))
        elif isinstance(error, BudgetError):
            self._stats.event("no-room", key, str(error))
            return
        self._stats.fault(type(error).__name__, error)

    def check_may_compile(self, key: GraphKey) -> None:
        """Refuse what ``on_miss: raise`` forbids.

        Raises:
            FrozenError: naming the key.
        """
        if self.on_miss is OnMiss.RAISE:
            raise FrozenError(f"{key} is not resident, and on_miss is raise: nothing compiles any more")

    def _prefer(self, stand_in: GraphKey, key: GraphKey, pinned: set[GraphKey]) -> bool:
        """Say whether a stand-in serves rather than waiting for ``key``."""
        if key in self._roster.blocked or self._roster.refusal(key, pinned):
            return True
        if self.on_miss is not OnMiss.FALLBACK:
            return False
        costs = self._roster.costs
        slow, fast = costs.run_seconds(stand_in), costs.run_seconds(key)
        if self._max_slowdown is not None and slow > self._max_slowdown * fast:
            return False
        if self._supplier.stored(key) and costs.load_seconds(key) < slow - fast:
            return False
        self.request(key)
        return True

    def _check_may_fetch(self, key: GraphKey, pinned: set[GraphKey]) -> None:
        if key in self._roster.blocked:
            reason = self._roster.blocked[key]
            raise BudgetError(f"{key} is not served ({reason}), and no resident graph dominates it")
        refusal = self._roster.refusal(key, pinned)
        if refusal is not None:
            raise refusal
        if self.on_miss is OnMiss.RAISE and not self._supplier.stored(key):
            self.check_may_compile(key)
        if self.on_miss is OnMiss.LOG:
            logger.warning("%s is not resident: the step waits for it", key)
