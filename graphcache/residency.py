"""What is loaded, under a budget of graphs and bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from graphcache.backends.protocol import EvictUnit, Graph
from graphcache.errors import BudgetError, ConfigError
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
            BudgetError: it can't fit, whatever is evicted; then nothing has changed.
        """
        self._check_possible(key, graph, pinned)
        evicted: list[GraphKey] = []
        while not self._fits(key, graph):
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

    def can_admit(self, pinned: Collection[GraphKey]) -> bool:
        """Say whether one more graph can be made resident while these are pinned, as far as counts go."""
        return not self.full() or bool(self.candidates(pinned))

    def _fits(self, key: GraphKey, graph: Graph) -> bool:
        if self.full() and key not in self.graphs:
            return False
        return self.budget.bytes is None or self._bytes_with(key, graph) <= self.budget.bytes

    def _bytes_with(self, key: GraphKey, graph: Graph) -> int:
        replaced = self.graphs[key].nbytes if key in self.graphs else self.retained.get(key, 0)
        return self.nbytes + self.retained_bytes - replaced + graph.nbytes

    def _check_possible(self, key: GraphKey, graph: Graph, pinned: Collection[GraphKey]) -> None:
        candidates = self.candidates(pinned)
        if self.full() and key not in self.graphs and not candidates:
            raise BudgetError(
                f"{key}: all {len(self.graphs)} graphs of the budget are pinned; raise budget.graphs"
            )
        if self.budget.bytes is None:
            return
        if graph.nbytes > self.budget.bytes:
            raise BudgetError(
                f"{key} holds {graph.nbytes} bytes, more than the whole budget.bytes of {self.budget.bytes}"
            )
        freeable = 0
        if self.evict_unit is not EvictUnit.NEVER:
            freeable = sum(self.graphs[k].nbytes for k in candidates if k != key)
        if self._bytes_with(key, graph) - freeable > self.budget.bytes:
            raise BudgetError(
                f"{key} needs {graph.nbytes} bytes; of budget.bytes {self.budget.bytes}, {self.nbytes} are"
                f" resident, {self.retained_bytes} retained by the device, and {freeable} can be freed"
            )
