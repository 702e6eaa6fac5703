"""Least frequently used leaves first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from graphcache.key import GraphKey

Uses: TypeAlias = dict[GraphKey, int]


class Lfu:
    """Evicts the graph with the fewest runs since it was first seen; of equals, the first candidate.

    Counts outlive an eviction, so that a graph in constant use comes back with what it has earned.
    """

    def start(self, saved: Any = None) -> Uses:
        """Return the runs per key."""
        return {GraphKey.parse(text): int(uses) for text, uses in (saved or {}).items()}

    def save(self, state: Uses) -> Any:
        """Return the runs per key's text."""
        return {str(key): uses for key, uses in state.items()}

    def on_hit(self, state: Uses, key: GraphKey) -> None:
        """Count one run."""
        state[key] = state.get(key, 0) + 1

    def on_insert(self, state: Uses, key: GraphKey) -> None:
        """Count nothing: only runs earn a place."""

    def victim(self, state: Uses, candidates: Sequence[GraphKey]) -> GraphKey:
        """Return the candidate with the fewest runs."""
        return min(candidates, key=lambda key: state.get(key, 0))
