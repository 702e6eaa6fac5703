"""Virtual time, and a supplier whose compiles take it: what stands in for the machine in a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphcache.backends.protocol import Graph
from graphcache.compile.protocol import Failed, Supplied, Urgency
from graphcache.costs import Costs
from graphcache.key import GraphKey


class VirtualClock:
    """Seconds that pass only when they are spent."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the seconds since the simulation began."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def wait_until(self, moment: float) -> None:
        """Let time pass up to a moment, if it is still to come."""
        self.now = max(self.now, moment)


class VirtualSupplier:
    """Compiles in virtual time: a graph that is waited for takes its compile seconds from the clock.

    With ``background``, requests are compiled one after the other beside the steps, and each is ready its
    compile seconds after it was begun.  ``delivered`` lists the graphs handed over since it was cleared.
    """

    def __init__(self, costs: Costs, clock: VirtualClock, *, background: bool = False) -> None:
        self.background = background
        self.due = False
        self.delivered: list[GraphKey] = []
        self._costs = costs
        self._clock = clock
        self._under_way: dict[GraphKey, float] = {}
        self._idle_at = 0.0

    def fetch(self, key: GraphKey) -> Supplied:
        """Compile while the step waits; what is under way already is only waited for."""
        due = self._under_way.pop(key, None)
        if due is None:
            self._clock.spend(self._costs.compile_seconds(key))
        else:
            self._clock.wait_until(due)
        return self._deliver(key)

    def stored(self, key: GraphKey) -> bool:
        """Say no: a simulation starts with an empty store."""
        return False

    def prepare(self, keys: Iterable[GraphKey]) -> int:
        """Do nothing: a simulation traces no model."""
        return 0

    def request(self, key: GraphKey, urgency: Urgency = Urgency.UPGRADE) -> None:
        """Begin a compile as soon as the one before is done."""
        if key not in self._under_way:
            self._idle_at = max(self._clock.now, self._idle_at) + self._costs.compile_seconds(key)
            self._under_way[key] = self._idle_at
            self.due = True

    def ready(self) -> Sequence[Supplied | Failed]:
        """Hand over what is done by now."""
        done = [key for key, due in self._under_way.items() if due <= self._clock.now]
        for key in done:
            del self._under_way[key]
        self.due = bool(self._under_way)
        return [self._deliver(key) for key in done]

    def close(self) -> None:
        """Forget what is under way."""
        self._under_way.clear()
        self.due = False

    def _deliver(self, key: GraphKey) -> Supplied:
        self.delivered.append(key)
        graph = Graph(_never_run, nbytes=self._costs.nbytes(key))
        return Supplied(key, graph, "compile", self._costs.compile_seconds(key))


def _never_run(*inputs: object, **named: object) -> None:
    raise AssertionError("a simulated graph was run")
