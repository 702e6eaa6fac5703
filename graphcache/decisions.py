"""What an adaptive policy decided in earlier processes, and why, as a store remembers it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from graphcache.store.disk import DiskStore
from graphcache.store.readonly import ReadOnlyStore


class Decided(NamedTuple):
    """One decision: the launch before which a graph came in, what left for it, and the reason."""

    namespace: str
    launch: int
    key: str
    left: tuple[str, ...]
    reason: str


def decisions(
    store: DiskStore | ReadOnlyStore,
    keys: Collection[str] = (),
    namespace: str | None = None,
    policy: str = "adaptive",
) -> list[Decided]:
    """Return the last decisions of each namespace that the store holds entries of, oldest first.

    With ``keys``, only those that brought one of them in, or let one go.
    """
    known = sorted({record.namespace for _, record in store.scan()})
    found = []
    for name in known:
        if namespace is not None and not name.startswith(namespace):
            continue
        state = (store.ledger.load_manifest(name, policy) or {}).get("state")
        for launch, key, left, reason in (state or {}).get("log", ()):
            decided = Decided(name, launch, key, tuple(left), reason)
            if not keys or {key, *left} & set(keys):
                found.append(decided)
    return found
