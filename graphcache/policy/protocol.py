"""What a policy is: it decides, and does nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from graphcache.batch import Batch, Plan
from graphcache.costs import Costs, PaddedWork
from graphcache.key import GraphKey
from graphcache.ladder import Ladder

State: TypeAlias = Any
"""A policy's own state: made by ``start``, handed back to it at each call, saved by ``save``."""


class Budget(NamedTuple):
    """How much may be resident: graphs, and bytes; ``None`` where there is no bound."""

    graphs: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ladders:
    """The sizes of each dimension: prefill tokens, rows of a launch, cached tokens (decode and prefix)."""

    prefill: Ladder
    rows: Ladder = field(default_factory=lambda: Ladder((1,)))
    decode: Ladder | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What a decision may look at; replaced whole when anything in it changes.

    ``resident`` maps each loaded graph to its bytes, ``pending`` holds what was asked for and is not
    there yet, ``costs`` is a frozen table.
    """

    resident: Mapping[GraphKey, int]
    budget: Budget = field(default_factory=Budget)
    costs: Costs = field(default_factory=PaddedWork)
    pending: frozenset[GraphKey] = frozenset()


class Load(NamedTuple):
    """Bring a graph in, off the critical path where that is possible: an upgrade, not a demand."""

    key: GraphKey
    reason: str = ""


class Evict(NamedTuple):
    """Let a graph go at this step's start, unless it is pinned."""

    key: GraphKey
    reason: str = ""


Action: TypeAlias = Load | Evict


class Policy(Protocol):
    """Decides the launches of each batch, and what to load and evict.

    Every method is a pure function of its arguments: no clock, no randomness, no I/O, so that a trace
    replays exactly and all ranks decide alike.  A method may change the ``state`` it is given and hand
    the same object back: it is the caller's only copy.
    """

    def start(self, saved: Any = None) -> State:
        """Return a fresh state, or the one that ``save`` returned in an earlier process."""
        ...

    def save(self, state: State) -> Any:
        """Return the state as plain JSON values."""
        ...

    def plan(self, batch: Batch, view: View, state: State) -> Plan:
        """Return the launches for this batch; reads only.

        A plan whose graphs are all resident is used again for an equal batch until the view changes.

        Raises:
            PolicyError: the policy, as configured, can't serve this batch.
            LadderError: the batch is longer than the ladder.
        """
        ...

    def advance(self, state: State, batch: Batch, plan: Plan, view: View) -> tuple[State, Sequence[Action]]:
        """Take note of one step; return the new state and what to change.

        A graph that the plan wants and that is not resident needs no `Load`: the cache sees to it, as
        ``on_miss`` says.
        """
        ...

    def inserted(self, state: State, key: GraphKey, view: View) -> State:
        """Take note that a graph became resident."""
        ...

    def victim(self, state: State, key: GraphKey, candidates: Sequence[GraphKey], view: View) -> GraphKey:
        """Choose which of the candidates (never empty) leaves to make room for ``key``."""
        ...

    def warm_keys(self) -> Iterable[GraphKey]:
        """List every graph that a plan can ask for, the most useful first."""
        ...
