"""What a store is: it keeps bytes under digests, and knows nothing of graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """What an entry says of itself, in its header.

    ``namespace`` and ``key`` are the full text of both, compared when the entry is read; ``facts`` are
    the namespace's labelled facts; ``payload_digest`` is the SHA-256 of the payload in hex, ``seconds``
    what the compile took, ``created`` the wall clock's seconds since 1970 (told to people, never relied
    on), ``meta`` whatever plain JSON the backend needs beside the payload.  ``group`` lists the entries,
    by digest, that are served only while all of them are there: the ranks of one launch, say.
    """

    namespace: str
    key: str
    payload_bytes: int
    payload_digest: str
    seconds: float = 0.0
    created: float = 0.0
    facts: tuple[tuple[str, str], ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)
    group: tuple[str, ...] = ()
    seal: str = ""

    @classmethod
    def of(
        cls,
        namespace: str,
        key: object,
        payload: bytes,
        *,
        seconds: float = 0.0,
        created: float = 0.0,
        facts: Iterable[tuple[str, str]] = (),
        meta: Mapping[str, Any] | None = None,
        group: Iterable[str] = (),
    ) -> Record:
        """Describe a payload: its size and digest are taken from its bytes."""
        payload_digest = hashlib.sha256(payload).hexdigest()
        described = (seconds, created, tuple(facts), dict(meta or {}), tuple(sorted(set(group))))
        return cls(namespace, str(key), len(payload), payload_digest, *described)


class Stored(NamedTuple):
    """One entry, verified: its record, and its payload."""

    record: Record
    payload: bytes


class Store(Protocol):
    """Keeps entries by digest (`graphcache.fingerprint.entry_digest` of namespace and key).

    Wrapping one store in another adds sealing, tiers, or makes it read-only.
    """

    def get(self, digest: str) -> Stored | None:
        """Return a verified entry, or None where there is none.

        Raises:
            CorruptError: there was one, and it was bad; it has been put aside, so the next ask is a miss.
            StoreError: the store can't be read.
        """
        ...

    def peek(self, digest: str) -> Record | None:
        """Return what ``get`` would say of an entry, its payload unread and unverified, and no use counted.

        Raises:
            CorruptError: its header is bad, or not one to be trusted.
            StoreError: the store can't be read.
        """
        ...

    def put(self, digest: str, record: Record, payload: bytes) -> None:
        """Keep an entry, whole or not at all; replaces one that is there.

        Raises:
            StoreFullError: no space, or over the bound.
            StoreError: the store can't be written.
            ConfigError: digest, record and payload are not one another's.
        """
        ...

    def delete(self, digest: str) -> bool:
        """Remove an entry; say whether there was one."""
        ...

    def scan(self) -> Iterator[tuple[str, Record]]:
        """Yield digest and record of each entry that can be read; payloads are not."""
        ...
