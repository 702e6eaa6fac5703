"""The simplest store: a dictionary.  Every other store behaves as this one does."""

from __future__ import annotations

from collections.abc import Iterator

from graphcache.store.format import check_entry, from_json, to_json
from graphcache.store.ledger import Ledger, MemoryTable
from graphcache.store.protocol import Record, Stored


class MemoryStore:
    """Keeps entries for as long as the process lives."""

    def __init__(self) -> None:
        self._entries: dict[str, Stored] = {}
        self.ledger = Ledger(MemoryTable())

    def get(self, digest: str) -> Stored | None:
        """Return an entry, or None where there is none, or where its group is not complete."""
        stored = self._entries.get(digest)
        if stored and all(member in self._entries for member in stored.record.group):
            return stored
        return None

    def peek(self, digest: str) -> Record | None:
        """Return an entry's record."""
        stored = self.get(digest)
        return stored.record if stored else None

    def put(self, digest: str, record: Record, payload: bytes) -> None:
        """Keep an entry; the record goes through JSON, as in every store."""
        check_entry(digest, record, payload)
        self._entries[digest] = Stored(from_json(to_json(record)), bytes(payload))

    def delete(self, digest: str) -> bool:
        """Remove an entry; say whether there was one."""
        return self._entries.pop(digest, None) is not None

    def scan(self) -> Iterator[tuple[str, Record]]:
        """Yield digest and record of each entry."""
        yield from [(digest, stored.record) for digest, stored in self._entries.items()]
