"""Least recently used leaves first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from graphcache.key import GraphKey

Order: TypeAlias = dict[GraphKey, None]


class Lru:
    """Evicts the graph whose last run is the longest ago; one that never ran counts from its insertion."""

    def start(self, saved: Any = None) -> Order:
        """Return the order of last use, oldest first."""
        return {GraphKey.parse(text): None for text in saved or ()}

    def save(self, state: Order) -> Any:
        """Return the keys, oldest first."""
        return [str(key) for key in state]

    def on_hit(self, state: Order, key: GraphKey) -> None:
        """Move the key to the young end."""
        state.pop(key, None)
        state[key] = None

    def on_insert(self, state: Order, key: GraphKey) -> None:
        """Move the key to the young end."""
        self.on_hit(state, key)

    def victim(self, state: Order, candidates: Sequence[GraphKey]) -> GraphKey:
        """Return the candidate used longest ago; one never seen is older than all."""
        age = {key: position for position, key in enumerate(state)}
        return min(candidates, key=lambda key: age.get(key, -1))
