"""What an eviction order is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from graphcache.key import GraphKey

EvictionState: TypeAlias = Any


class Eviction(Protocol):
    """Says which of several graphs leaves first; what it must remember is in ``state``."""

    def start(self, saved: Any = None) -> EvictionState:
        """Return a fresh state, or the one saved by ``save``."""
        ...

    def save(self, state: EvictionState) -> Any:
        """Return the state as plain JSON values."""
        ...

    def on_hit(self, state: EvictionState, key: GraphKey) -> None:
        """Take note that a resident graph ran."""
        ...

    def on_insert(self, state: EvictionState, key: GraphKey) -> None:
        """Take note that a graph became resident."""
        ...

    def victim(self, state: EvictionState, candidates: Sequence[GraphKey]) -> GraphKey:
        """Return the candidate (there is at least one) that leaves first."""
        ...
