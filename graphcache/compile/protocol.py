"""What a supplier is: it gets graphs that are not resident, in line or in the background."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

from graphcache.backends.protocol import Graph
from graphcache.key import GraphKey


class Urgency(IntEnum):
    """What is compiled first."""

    DEMAND = 0
    """A step waits for it."""
    UPGRADE = 1
    """A dominating graph serves meanwhile."""
    WARM = 2
    """No batch has asked for it yet."""


class Supplied(NamedTuple):
    """A graph that was fetched: where it came from, and what that took.

    ``saved_seconds`` are the compile seconds that a stored artifact avoided.
    """

    key: GraphKey
    graph: Graph
    source: Literal["load", "compile"]
    seconds: float
    saved_seconds: float = 0.0


class Failed(NamedTuple):
    """A request that came to nothing, and why, in one word for counting and in full for people."""

    key: GraphKey
    reason: str
    error: Exception


class Supplier(Protocol):
    """Gets graphs for the cache: from a store where it can, else from the compiler."""

    background: bool
    """Whether ``request`` works beside the steps; else the cache fetches upgrades in line."""
    due: bool
    """Whether the next step must call ``ready``; looked at on the hit path, so a plain attribute is best."""

    def prepare(self, keys: Iterable[GraphKey]) -> int:
        """Do before serving what would hold up a step that asks for these; return for how many it was due."""
        ...

    def fetch(self, key: GraphKey) -> Supplied:
        """Load or compile one graph, and wait for it; called on the runner's thread.

        One that was requested is waited for, and not handed over by ``ready`` again.

        Raises:
            CompileError: the compiler failed, now or a short while ago.
            LoadError: what was compiled can't be loaded.
        """
        ...

    def stored(self, key: GraphKey) -> bool:
        """Say whether an artifact is there, so that ``fetch`` would load rather than compile."""
        ...

    def request(self, key: GraphKey, urgency: Urgency = Urgency.UPGRADE) -> None:
        """Ask for one graph without waiting; asking twice is asking once, as urgently as ever it was."""
        ...

    def ready(self) -> Sequence[Supplied | Failed]:
        """Hand over what has become ready since the last call, loaded here, on the runner's thread."""
        ...

    def close(self) -> None:
        """Give up what is under way, and leave no process, file or lock behind."""
        ...
