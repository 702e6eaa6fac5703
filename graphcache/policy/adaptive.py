"""Keeps the graphs that save the most seconds; compiles one when the regret without it has paid for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from graphcache.batch import Batch, Launch, Plan
from graphcache.errors import BudgetError
from graphcache.eviction.demand import LONG, Demand
from graphcache.eviction.protocol import Eviction
from graphcache.key import GraphKey, MaskMode, dominates
from graphcache.policy.modes import row_modes
from graphcache.policy.outlook import choose, expect
from graphcache.policy.protocol import Action, Ladders, Load, View
from graphcache.policy.shapes import Ask, Shape, Shaper
from graphcache.policy.worth import Contest, Market, Move

THRESHOLD = 0.5
"""A graph is compiled when it would have saved this share of its compile seconds."""

BACKGROUND_SHARE = 0.1
"""What a compile beside the steps counts for, of its seconds: it takes from them, but nothing waits."""

PATIENCE = 0.02
"""The least regret between two looks, as a share of the cheapest compile: looks cost time as well.

Where something has to leave, it doubles with each look that finds nothing, up to `MOST_PATIENCE`; with
room, the next look is due exactly when a graph can have earned its compile.
"""
MOST_PATIENCE = 0.64

LOG_ENTRIES = 256


class Decision(NamedTuple):
    """What was decided at one step, and why."""

    step: int
    graph: str
    leaving: tuple[str, ...]
    reason: str


@dataclass(slots=True)
class Desk:
    """The state: what has been asked for, the regret since the last look, and what was decided.

    ``patience`` is the regret, in seconds, at which the next look is due, and ``floor`` the least that it
    may be, as a share of the cheapest compile; ``leaving`` holds, per graph that was asked for, what leaves
    when it comes, and the reason.
    """

    demand: Demand
    regret: float = 0.0
    patience: float = 0.0
    floor: float = PATIENCE
    leaving: dict[GraphKey, tuple[tuple[GraphKey, ...], str]] = field(default_factory=dict)
    log: deque[Decision] = field(default_factory=lambda: deque(maxlen=LOG_ENTRIES))


class Service(NamedTuple):
    """How a shape is served now: its plan, and the seconds beyond what is best; None: not at all."""

    plan: Plan | None
    regret: float
    noted: tuple[int, ...]
    """The numbers of the graphs that the best way asks for."""


class Adaptive:
    """Chooses each batch's graph, what to compile and what to let go, all by seconds saved.

    ``layouts`` says which ways to lay out a batch compete: ``packed``, ``split`` (a launch a sequence),
    ``rows`` (a row a sequence); the runner must be able to run them.  With ``background``, compiles run
    beside the steps: an anchor that serves everything is loaded first and never leaves.  It decides by
    itself what leaves: ``unused`` is where the other policies take their eviction order.  ``encoder_only``
    says that the model's attention has no causal term.

    Raises:
        ConfigError: a layout that is not known.
    """

    def __init__(
        self,
        ladders: Ladders,
        unused: Eviction | None = None,
        *,
        background: bool = False,
        layouts: Sequence[str] = ("packed",),
        encoder_only: bool = False,
    ) -> None:
        self.ladders = ladders
        self.background = background
        self._shaper = Shaper(ladders, tuple(layouts), encoder_only)
        self._alone = row_modes(encoder_only)
        self._keys = self._shaper.keys()
        self._own = frozenset(self._keys)
        self._shapes: dict[Any, Shape] = {}
        self._services: dict[Shape, Service] = {}
        self._view: View | None = None
        self._market: Market | None = None

    # -- the state ------------------------------------------------------------------------------

    def start(self, saved: Any = None) -> Desk:
        """Return a fresh state, or the demand and the decisions of an earlier process."""
        saved = saved or {}
        demand = Demand.load({**{str(key): (0.0, 0.0) for key in self._keys}, **saved.get("demand", {})})
        desk = Desk(demand)
        desk.log.extend(Decision(d[0], d[1], tuple(d[2]), d[3]) for d in saved.get("log", ()))
        return desk

    def save(self, state: Desk) -> Any:
        """Return demand and decisions as plain JSON values."""
        log = [[d.step, d.graph, list(d.leaving), d.reason] for d in state.log]
        return {"demand": state.demand.save(), "log": log}

    # -- what a step asks -----------------------------------------------------------------------

    def plan(self, batch: Batch, view: View, state: Desk) -> Plan:
        """Return the cheapest way that resident graphs serve the batch, or else the graph worth a compile.

        Raises:
            LadderError: the batch is longer than the ladder.
            BudgetError: no graph that serves it fits into the budget.
        """
        shape = self._shape(batch)
        service = self._service(shape, view, state)
        return service.plan or self._demand(shape, view, state)

    def advance(self, state: Desk, batch: Batch, plan: Plan, view: View) -> tuple[Desk, Sequence[Action]]:
        """Count what was asked for; when enough regret has come together, see what to compile for it."""
        if plan.launches[0].key not in self._own:
            return self._advance_foreign(state, plan)
        service = self._service(self._shape(batch), view, state)
        for index in service.noted:
            state.demand.note(index)
        state.regret += service.regret
        if state.regret < state.patience or view.pending or service.plan is None:
            return state, ()
        return state, self._look(state, view, service.noted[0])

    def _advance_foreign(self, state: Desk, plan: Plan) -> tuple[Desk, Sequence[Action]]:
        """Count graphs that were asked for by key, and that no batch asks for."""
        for launch in plan.launches:
            state.demand.note(state.demand.index(launch.key))
        return state, ()

    def inserted(self, state: Desk, key: GraphKey, view: View) -> Desk:
        """Note since when the graph is there; look again at the next step."""
        state.demand.mark(key)
        leaving, reason = state.leaving.pop(key, ((), "nothing that was resident could serve the batch"))
        gone = tuple(str(k) for k in leaving if k not in view.resident)
        state.log.append(Decision(state.demand.step, str(key), gone, reason))
        state.regret = state.patience = 0.0
        state.floor = PATIENCE
        return state

    def victim(self, state: Desk, key: GraphKey, candidates: Sequence[GraphKey], view: View) -> GraphKey:
        """Return what was decided to leave for ``key``, or else what loses least at what is expected."""
        planned, reason = state.leaving.get(key, ((), "nothing that was resident could serve the batch"))
        gone = next((k for k in planned if k in candidates), None)
        if gone is None:
            gone = self._least(state, key, candidates, view)
            state.leaving[key] = ((*planned, gone), reason)
        state.demand.mark(gone)
        return gone

    def warm_keys(self) -> Iterable[GraphKey]:
        """List the graphs, the longest first, of equal lengths those with a mask first."""
        return sorted(self._keys, key=lambda key: (-key.tokens, key.mode is not MaskMode.CUSTOM))

    # -- how a shape is served ------------------------------------------------------------------

    def _shape(self, batch: Batch) -> Shape:
        shape = self._shapes.get(batch.sequences)
        if shape is None:
            if len(self._shapes) >= 65536:
                self._shapes.clear()
                self._services.clear()
            shape = self._shapes[batch.sequences] = self._shaper.shape(batch)
        return shape

    def _known(self, state: Desk, view: View) -> Market:
        """Return the market of this view's costs and budget, and of all that was ever asked for."""
        market = self._market
        if view is not self._view or market is None or len(market.asked) != len(state.demand.keys):
            self._services.clear()
            self._view = view
            if (
                market is None
                or market.costs is not view.costs
                or market.budget != view.budget
                or list(market.asked) != state.demand.keys
            ):
                keys = tuple(state.demand.keys)
                share = BACKGROUND_SHARE if self.background else 1.0
                market = self._market = Market(keys, keys, view.costs, view.budget, share)
        return market

    def _service(self, shape: Shape, view: View, state: Desk) -> Service:
        market = self._known(state, view)
        service = self._services.get(shape)
        if service is None:
            service = self._services[shape] = self._serve(shape, market, view.resident)
        return service

    def _serve(self, shape: Shape, market: Market, resident: Mapping[GraphKey, int]) -> Service:
        best = min(shape.ways, key=lambda way: sum(market.best[market.number[ask.key]] for ask in way))
        least = sum(market.best[market.number[ask.key]] for ask in best)
        noted = tuple(market.number[ask.key] for ask in best)
        found, seconds = None, float("inf")
        for way in shape.ways:
            launches = [_launch(ask, resident, market) for ask in way]
            total = sum(market.costs.run_seconds(launch.key) for launch in launches if launch)
            if all(launches) and total < seconds:
                found, seconds = Plan(tuple(launch for launch in launches if launch)), total
        return Service(found, seconds - least if found else 0.0, noted)

    def _demand(self, shape: Shape, view: View, state: Desk) -> Plan:
        """Return a plan with graphs that are not resident: the cache has to get them."""
        market = self._known(state, view)
        held = [market.number[key] for key in view.resident if key in market.number]
        way = min(shape.ways, key=lambda way: sum(market.best[market.number[ask.key]] for ask in way))
        launches: dict[Ask, Launch] = {}
        for ask in sorted(way, key=lambda ask: -ask.key.tokens):
            asking = market.number[ask.key]
            graph = int(np.argmin(market.run[asking, held])) if held else -1
            if held and np.isfinite(market.run[asking, held[graph]]):
                graph = held[graph]
            else:
                graph = self._buy(market, state, held, asking)
                held.append(graph)
            launches[ask] = Launch(market.graphs[graph], ask.sequences, ask.layout)
        return Plan(tuple(launches[ask] for ask in way))

    def _buy(self, market: Market, state: Desk, held: Sequence[int], asking: int) -> int:
        anchor = market.number[self._anchor(state)]
        if self.background and np.isfinite(market.run[asking, anchor]) and market.fits([anchor]):
            return anchor
        graph = choose(market, expect(state.demand, asking), held, asking)
        if graph is None:
            raise BudgetError(f"{market.asked[asking]}: no graph that serves it fits {market.budget}")
        return graph

    def _anchor(self, state: Desk) -> GraphKey:
        """Return the graph that serves all: without a mask if no batch has ever needed one."""
        counts = state.demand.counts(LONG)
        asked = {key.mode for key, count in zip(state.demand.keys, counts, strict=True) if count}
        mode = self._alone[0] if asked and asked <= set(self._alone) else MaskMode.CUSTOM
        return GraphKey(1, self.ladders.prefill.top, mode=mode)

    # -- what to change -------------------------------------------------------------------------

    def _look(self, state: Desk, view: View, asking: int) -> list[Action]:
        """Return the graphs that have earned their compile, and plan what leaves for them."""
        market = self._known(state, view)
        held = [market.number[key] for key in view.resident if key in market.number]
        actions: list[Action] = []
        while True:
            spared = self._spared(market, held)
            contest = Contest(market, state.demand, held, THRESHOLD, spared, asking)
            move, lacking = contest.decide()
            if move is None:
                break
            actions.append(self._load(state, market, move))
            held.append(market.number[actions[-1].key])
            if move.leaving or self.background:
                break
        least = float(market.price.min())
        crowded = not any(market.fits([*held, graph]) for graph in range(len(market.graphs)))
        state.floor = min(2 * state.floor, MOST_PATIENCE) if crowded else PATIENCE
        state.regret, state.patience = 0.0, max(min(lacking, least), state.floor * least)
        return actions

    def _load(self, state: Desk, market: Market, move: Move) -> Load:
        due = THRESHOLD * float(market.price[move.graph])
        leaving = tuple(market.graphs[g] for g in move.leaving)
        memory = "all" if move.memory == LONG else "recent"
        reason = f"by {memory} demand it saves {due + move.surplus:.1f} s, of which {due:.1f} s were due"
        if leaving:
            reason += f", after what {', '.join(map(str, leaving))} saved"
        state.leaving[market.graphs[move.graph]] = (leaving, reason)
        return Load(market.graphs[move.graph], reason)

    def _spared(self, market: Market, held: Iterable[int]) -> set[int]:
        """Return what never leaves: the anchor, where steps must not wait."""
        if not self.background:
            return set()
        top = self.ladders.prefill.top
        shapes = {GraphKey(1, top, mode=mode) for mode in (MaskMode.CUSTOM, self._alone[0])}
        anchors = [g for g in held if market.graphs[g] in shapes]
        masked = [g for g in anchors if market.graphs[g].mode is MaskMode.CUSTOM]
        return set(masked or anchors)

    def _least(self, state: Desk, key: GraphKey, candidates: Sequence[GraphKey], view: View) -> GraphKey:
        market = self._known(state, view)
        if key not in market.number or any(k not in market.number for k in candidates):
            return candidates[0]
        held = [market.number[k] for k in view.resident if k in market.number]
        spared = self._spared(market, held) | {
            market.number[k] for k in candidates if _fresh(state.demand, k)
        }
        able = [market.number[k] for k in candidates if market.number[k] not in spared]
        amounts = expect(state.demand, market.number[key])
        graph = market.number[key]
        able = able or [market.number[k] for k in candidates]
        gone = min(able, key=lambda g: market.seconds(amounts, [*(h for h in held if h != g), graph]))
        return market.graphs[gone]


def _fresh(demand: Demand, key: GraphKey) -> bool:
    """Say whether a resident graph came in at this very step: its compile must not have been for nothing."""
    mark = demand.marks.get(key)
    return mark is not None and mark.step == demand.step


def _launch(ask: Ask, resident: Mapping[GraphKey, int], market: Market) -> Launch | None:
    able = [key for key in resident if dominates(key, ask.key)]
    key = min(able, key=lambda key: (market.costs.run_seconds(key), key), default=None)
    return Launch(key, ask.sequences, ask.layout) if key else None
