"""Which entries a store serves together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from graphcache.fingerprint import entry_digest
from graphcache.key import GraphKey


def alone(key: GraphKey) -> tuple[GraphKey, ...]:
    """Return the key: each graph is served by itself."""
    return (key,)


def by_shape(keys: Iterable[GraphKey]) -> Callable[[GraphKey], Iterable[GraphKey]]:
    """Group keys that differ in their mask mode alone; one that is not among them is by itself."""
    groups: dict[tuple[object, ...], list[GraphKey]] = {}
    for key in keys:
        groups.setdefault(_shape(key), []).append(key)
    return lambda key: groups.get(_shape(key), (key,))


class Together(NamedTuple):
    """The graphs that are of no use without one another.

    ``keys`` returns those of a key, its own among them; ``namespaces`` are those of all ranks that start with
    the same graphs, or none where each starts by itself.
    """

    keys: Callable[[GraphKey], Iterable[GraphKey]] = alone
    namespaces: tuple[str, ...] = ()

    def digests(self, namespace: str, key: GraphKey) -> tuple[str, ...]:
        """Return the digests of the group of a key's entry, or none where it is alone."""
        members = {
            entry_digest(each, member)
            for each in {namespace, *self.namespaces}
            for member in {key, *self.keys(key)}
        }
        return tuple(sorted(members)) if len(members) > 1 else ()


ALONE = Together()


def _shape(key: GraphKey) -> tuple[object, ...]:
    return key.rows, key.seq_len, key.kv_len, key.kind, key.flags
