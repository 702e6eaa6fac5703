"""What is loaded, under a budget of graphs and bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from graphcache.backends.protocol import EvictUnit, Graph
from graphcache.errors import BudgetError, ConfigError, TooLargeError
from graphcache.key import GraphKey
from graphcache.policy.protocol import Budget

Choose = Callable[[Sequence[GraphKey]], GraphKey]


class Residency:
    """The loaded graphs; ``graphs`` is replaced whole at each change, so that readers need no lock.

    ``retained`` are bytes of graphs that were let go but that the device did not give back (evict unit
    ``never``); they count against the budget's bytes until their key is loaded again.

    Raises:
        ConfigError: a budget that is not positive.
    """

    def __init__(self, budget: Budget, evict_unit: EvictUnit = EvictUnit.ENTRY) -> None:
        for field, bound in zip(("budget.graphs", "budget.bytes"), budget, strict=True):
            if bound is not None and bound < 1:
                raise ConfigError.of(field, bound, "at least 1, or nothing for no bound")
        self.budget = budget
        self.evict_unit = evict_unit
        self.graphs: Mapping[GraphKey, Graph] = {}
        self.retained: dict[GraphKey, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the resident graphs hold."""
        return sum(graph.nbytes for graph in self.graphs.values())

    @property
    def retained_bytes(self) -> int:
        """Bytes that graphs hold which are no longer resident."""
        return sum(self.retained.values())

    def full(self) -> bool:
        """Say whether the budget of graphs is used up."""
        return self.budget.graphs is not None and len(self.graphs) >= self.budget.graphs

    def candidates(self, pinned: Collection[GraphKey]) -> list[GraphKey]:
        """List what may leave now, oldest first: nothing pinned, nor freed together with what is pinned."""
        if self.evict_unit is not EvictUnit.GENERATION:
            return [key for key in self.graphs if key not in pinned]
        held = {self.graphs[key].generation for key in pinned if key in self.graphs}
        return [key for key, graph in self.graphs.items() if graph.generation not in held]

    def insert(
        self, key: GraphKey, graph: Graph, *, pinned: Collection[GraphKey] = (), choose: Choose
    ) -> list[GraphKey]:
        """Make a graph resident, after evicting what ``choose`` names until it fits; return the evicted.

        Raises:
            BudgetError: it can't fit while ``pinned`` stay; then nothing has changed.
        """
        refusal = self.refusal(key, graph.nbytes, pinned)
        if refusal is not None:
            raise refusal
        evicted: list[GraphKey] = []
        while not self._fits(key, graph.nbytes):
            evicted += self.remove(choose(self.candidates(pinned)))
        self.retained.pop(key, None)
        self.graphs = {**self.graphs, key: graph}
        return evicted

    def remove(self, key: GraphKey) -> list[GraphKey]:
        """Let a graph go, with all that its evict unit frees together; return which went."""
        if key not in self.graphs:
            return []
        gone = [key]
        if self.evict_unit is EvictUnit.GENERATION:
            generation = self.graphs[key].generation
            gone = [k for k, graph in self.graphs.items() if graph.generation == generation]
        for k in gone:
            graph = self.graphs[k]
            if self.evict_unit is EvictUnit.NEVER:
                self.retained[k] = graph.nbytes
            graph.close()
        self.graphs = {k: graph for k, graph in self.graphs.items() if k not in gone}
        return gone

    def refusal(self, key: GraphKey, nbytes: int, pinned: Collection[GraphKey]) -> BudgetError | None:
        """Return why a graph of so many bytes can't be made resident while these are pinned, if it can't."""
        if self.full() and key not in self.graphs and not self.candidates(pinned):
            return BudgetError(
                f"{key}: all {len(self.graphs)} graphs of the budget are pinned; raise budget.graphs"
            )
        if self.budget.bytes is None:
            return None
        if nbytes > self.budget.bytes:
            return TooLargeError(
                f"{key} holds {nbytes} bytes, more than the whole budget.bytes of {self.budget.bytes}"
            )
        held = self._bytes_with(key, nbytes)
        freeable = self._freeable(key, pinned)
        if held - freeable <= self.budget.bytes:
            return None
        alone = held - self._freeable(key, ()) <= self.budget.bytes
        return (BudgetError if alone else TooLargeError)(
            f"{key} needs {nbytes} bytes; of budget.bytes {self.budget.bytes}, {self.nbytes} are"
            f" resident, {self.retained_bytes} retained by the device, and {freeable} can be freed"
        )

    def _fits(self, key: GraphKey, nbytes: int) -> bool:
        if self.full() and key not in self.graphs:
            return False
        return self.budget.bytes is None or self._bytes_with(key, nbytes) <= self.budget.bytes

    def _bytes_with(self, key: GraphKey, nbytes: int) -> int:
        replaced = self.graphs[key].nbytes if key in self.graphs else self.retained.get(key, 0)
        return self.nbytes + self.retained_bytes - replaced + nbytes

    def _freeable(self, key: GraphKey, pinned: Collection[GraphKey]) -> int:
        """Return the bytes that evicting all but ``key`` and what is pinned would free."""
        if self.evict_unit is EvictUnit.NEVER:
            return 0
        return sum(self.graphs[k].nbytes for k in self.candidates(pinned) if k != key)
