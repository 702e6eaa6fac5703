"""What graphs are worth to a demand, in seconds: which one to bring in, and what may leave for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphcache.costs import Costs
from graphcache.eviction.demand import LONG, RECENT, Amounts, Demand, Mark
from graphcache.key import GraphKey, dominates
from graphcache.policy.protocol import Budget

LIVE = 0.5
"""Launches, in the long memory, from which on a shape is live: it must not lose its last graph."""


class Move(NamedTuple):
    """A graph to bring in, what leaves for it, and the seconds by which it pays beyond its price."""

    graph: int
    leaving: tuple[int, ...]
    surplus: float
    memory: int


@dataclass(frozen=True, eq=False)
class Market:
    """The graphs that there could be, what each asked one could be served by, and the budget.

    ``asked`` are the graphs that launches asked for, ``graphs`` those that could be loaded; both are
    numbered by position.  ``price`` of a graph is what its compile counts for, in seconds.
    """

    asked: tuple[GraphKey, ...]
    graphs: tuple[GraphKey, ...]
    costs: Costs
    budget: Budget
    compile_share: float = 1.0
    number: dict[GraphKey, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", {key: index for index, key in enumerate(self.graphs)})

    @cached_property
    def run(self) -> Amounts:
        """Return run seconds, asked x graphs; infinite where a graph can't serve."""
        seconds = np.array([self.costs.run_seconds(graph) for graph in self.graphs])
        able = [[dominates(graph, key) for graph in self.graphs] for key in self.asked]
        run: Amounts = np.where(np.array(able, dtype=np.bool_), seconds, np.inf)
        return run

    @cached_property
    def price(self) -> Amounts:
        """Return what each graph's compile counts for."""
        return np.array([self.costs.compile_seconds(graph) for graph in self.graphs]) * self.compile_share

    @cached_property
    def best(self) -> Amounts:
        """Return per asked graph the least run seconds there are."""
        least: Amounts = self.run.min(axis=1)
        return least

    @cached_property
    def missing(self) -> Amounts:
        """Return what a launch costs that no resident graph serves: its best graph, and its compile."""
        seconds = np.array([self.costs.compile_seconds(graph) for graph in self.graphs])
        exact: Amounts = seconds[self.run.argmin(axis=1)]
        return self.best + exact

    @cached_property
    def nbytes(self) -> list[int]:
        """Return the bytes of each graph."""
        return [self.costs.nbytes(graph) for graph in self.graphs]

    def fits(self, held: Collection[int]) -> bool:
        """Say whether these graphs fit into the budget together."""
        graphs, nbytes = self.budget
        if graphs is not None and len(held) > graphs:
            return False
        return nbytes is None or sum(self.nbytes[g] for g in held) <= nbytes

    def serving(self, held: Iterable[int]) -> Amounts:
        """Return per asked graph the run seconds on the best of these; infinite where none serves."""
        columns = list(held)
        if not columns:
            return np.full(len(self.asked), np.inf)
        least: Amounts = self.run[:, columns].min(axis=1)
        return least

    def seconds(self, amounts: Amounts, held: Iterable[int]) -> float:
        """Return what so many launches of each asked graph cost with these graphs."""
        return float(amounts @ np.minimum(self.serving(held), self.missing))

    def gains(self, amounts: Amounts, held: Iterable[int]) -> Amounts:
        """Return per graph what it would save, beside those that are held."""
        now = np.minimum(self.serving(held), self.missing)
        gains: Amounts = amounts @ np.maximum(now[:, None] - self.run, 0.0)
        return gains

    def room(
        self, graph: int, held: Sequence[int], amounts: Amounts, spared: Collection[int], first: int | None
    ) -> tuple[int, ...] | None:
        """Return what leaves so that ``graph`` fits: ``first``, then what loses least; None if it can't.

        Nothing of ``spared`` leaves.
        """
        kept: list[int] = [*held]
        leaving: list[int] = []
        while not self.fits([*kept, graph]):
            able = [g for g in kept if g not in spared]
            if not able:
                return None
            if first is not None and not leaving:
                gone = first
            else:
                gone = min(able, key=lambda g: self._loss_per_unit(g, graph, kept, amounts))
            kept.remove(gone)
            leaving.append(gone)
        return tuple(leaving)

    def _loss_per_unit(self, gone: int, graph: int, kept: Sequence[int], amounts: Amounts) -> float:
        """Return what losing one graph costs, by the byte where bytes bind, else by the graph."""
        seconds = self.seconds(amounts, [*(g for g in kept if g != gone), graph])
        graphs, nbytes = self.budget
        if nbytes is None or (graphs is not None and len(kept) >= graphs):
            return seconds
        loss = seconds - self.seconds(amounts, [*kept, graph])
        return loss / max(1, self.nbytes[gone])


@dataclass(frozen=True, eq=False)
class Contest:
    """One look at the market: which graph, if any, has earned its compile; and how far the next one is."""

    market: Market
    demand: Demand
    held: Sequence[int]
    threshold: float
    spared: Collection[int] = ()
    asking: int | None = None
    """The asked graph of the launch under way: it is live."""

    def decide(self) -> tuple[Move | None, float]:
        """Return the best move, or none and the seconds of regret that the closest one lacks."""
        best: Move | None = None
        lacking = float("inf")
        for memory in (LONG, RECENT):
            for move in self._moves(memory):
                if move.surplus < 0:
                    lacking = min(lacking, -move.surplus)
                elif best is None or move.surplus > best.surplus:
                    best = move
        return best, lacking

    @cached_property
    def due(self) -> Amounts:
        """Return what each graph has to have saved."""
        return self.threshold * self.market.price

    @cached_property
    def now(self) -> Amounts:
        """Return what each asked graph's launch costs now."""
        return np.minimum(self.market.serving(self.held), self.market.missing)

    @cached_property
    def _live(self) -> NDArray[np.bool_]:
        """Say which asked graphs are live and served."""
        live = self.demand.counts(LONG) >= LIVE
        if self.asking is not None:
            live[self.asking] = True
        served: NDArray[np.bool_] = live & np.isfinite(self.market.serving(self.held))
        return served

    def _moves(self, memory: int) -> Iterable[Move]:
        """Yield what could be done; graphs for which there is room only by the long memory."""
        gains = self.demand.counts(memory) @ np.maximum(self.now[:, None] - self.market.run, 0.0)
        surplus = gains - self.due
        surplus[list(self.held)] = -np.inf
        rivals = []
        for graph in np.flatnonzero(surplus >= 0).tolist():
            if not self.market.fits([*self.held, graph]):
                rivals.append(graph)
            elif memory == LONG:
                yield Move(graph, (), float(surplus[graph]), memory)
        if rivals:
            yield from self._swaps(rivals, memory)
        lacking = float(surplus.max(where=surplus < 0, initial=-np.inf))
        yield Move(-1, (), lacking, memory)

    def _swaps(self, rivals: Sequence[int], memory: int) -> Iterable[Move]:
        """Yield the ways to make room for each rival, each with its own evidence.

        What a swap would have saved counts only since the graph left, and those came in that would leave
        for it: else an old demand would undo at once what a new one has just decided.
        """
        expected = self.demand.expected(memory)
        evidence = _Evidence(self, rivals, memory)
        for first in self.held:
            if first in self.spared:
                continue
            if self.market.budget.bytes is not None:
                yield from self._swaps_of_bytes(first, evidence, expected)
                continue
            surplus = evidence.since((first,)) - self._losses((first,), rivals, expected)
            position = int(surplus.argmax())
            if surplus[position] > -np.inf:
                yield Move(rivals[position], (first,), float(surplus[position]), memory)

    def _swaps_of_bytes(self, first: int, evidence: _Evidence, expected: Amounts) -> Iterable[Move]:
        """Yield the ways to make room for each rival, where one graph's bytes need not be enough."""
        for position, graph in enumerate(evidence.rivals):
            leaving = self.market.room(graph, self.held, expected, self.spared, first)
            if leaving:
                loss = float(self._losses(leaving, [graph], expected)[0])
                surplus = float(evidence.since(leaving)[position]) - loss
                if surplus > -np.inf:
                    yield Move(graph, leaving, surplus, evidence.memory)

    def _losses(self, leaving: Collection[int], rivals: Sequence[int], expected: Amounts) -> Amounts:
        """Return per rival what it costs that these leave for it; infinite where a live shape is stranded."""
        run = self.market.run[:, rivals]
        left = self.market.serving([g for g in self.held if g not in leaving])
        after = np.minimum(np.minimum(left, self.market.missing)[:, None], run)
        losses: Amounts = expected @ (after - np.minimum(self.now[:, None], run))
        stranded = (self._live & ~np.isfinite(left))[:, None] & ~np.isfinite(run)
        losses[stranded.any(axis=0)] = np.inf
        return losses


class _Evidence:
    """What each rival would have saved beyond its due, counted since graphs last came in or left."""

    def __init__(self, contest: Contest, rivals: Sequence[int], memory: int) -> None:
        market = contest.market
        self.rivals = rivals
        self.memory = memory
        self._demand = contest.demand
        self._graphs = market.graphs
        self._due = contest.due[rivals]
        self._saved = np.maximum(contest.now[:, None] - market.run[:, rivals], 0.0)
        self._marks = [self._mark(graph) for graph in rivals]
        self._gains: dict[int, Amounts] = {}

    def since(self, leaving: Iterable[int]) -> Amounts:
        """Return per rival what it would have saved since it, and what leaves for it, last changed."""
        latest = max((self._mark(graph) for graph in leaving), key=_step)
        marks = [max(mark, latest, key=_step) for mark in self._marks]
        return np.array([self._gain(mark)[position] for position, mark in enumerate(marks)])

    def _gain(self, mark: Mark | None) -> Amounts:
        step = _step(mark)
        gains = self._gains.get(step)
        if gains is None:
            gains = self._demand.since(self.memory, mark) @ self._saved - self._due
            self._gains[step] = gains
        return gains

    def _mark(self, graph: int) -> Mark | None:
        return self._demand.marks.get(self._graphs[graph])


def _step(mark: Mark | None) -> int:
    return mark.step if mark else -1
