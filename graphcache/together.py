"""Which graphs a store serves together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from graphcache.key import GraphKey

Together: TypeAlias = Callable[[GraphKey], Iterable[GraphKey]]
"""Returns the keys that are of no use without one another, a key's own among them."""


def alone(key: GraphKey) -> tuple[GraphKey, ...]:
    """Return the key: each graph is served by itself."""
    return (key,)


def by_shape(keys: Iterable[GraphKey]) -> Together:
    """Group keys that differ in their mask mode alone; one that is not among them is by itself."""
    groups: dict[tuple[object, ...], list[GraphKey]] = {}
    for key in keys:
        groups.setdefault(_shape(key), []).append(key)
    return lambda key: {key, *groups.get(_shape(key), ())}


def _shape(key: GraphKey) -> tuple[object, ...]:
    return key.rows, key.seq_len, key.kv_len, key.kind, key.flags
