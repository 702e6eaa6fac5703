"""A store that is only read: on a read-only mount, baked into an image, or somebody else's to fill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from graphcache.errors import StoreError
from graphcache.store.files import EntryFiles
from graphcache.store.ledger import Ledger, MemoryTable
from graphcache.store.protocol import Record, Stored


class ReadOnlyStore:
    """Reads a disk store's entries and writes nothing, not even to put a bad one aside.

    Raises:
        StoreError: there is no store, or it is somebody else's or a newer version's.
    """

    def __init__(self, path: str | os.PathLike[str], *, shared: bool = False) -> None:
        self.path = Path(path).expanduser()
        self.files = EntryFiles(self.path, shared=shared, read_only=True)
        self.files.check()
        self.ledger = Ledger(MemoryTable())

    def get(self, digest: str) -> Stored | None:
        """Return a verified entry, or None where there is none, or its group is not complete."""
        stored = self.files.read(digest)
        return stored if stored and self.files.complete(stored.record) else None

    def peek(self, digest: str) -> Record | None:
        """Return an entry's record, its payload unread."""
        return self.files.peek(digest)

    def put(self, digest: str, record: Record, payload: bytes) -> None:
        """Refuse.

        Raises:
            StoreError: always.
        """
        raise StoreError(f"the store {str(self.path)!r} is opened to be read only")

    def delete(self, digest: str) -> bool:
        """Refuse.

        Raises:
            StoreError: always.
        """
        raise StoreError(f"the store {str(self.path)!r} is opened to be read only")

    def scan(self) -> Iterator[tuple[str, Record]]:
        """Yield digest and record of each entry that can be read."""
        for item in self.files.listed():
            with suppress(StoreError):
                record = self.files.read_record(item.digest)
                if record:
                    yield item.digest, record

    def flush(self) -> None:
        """Do nothing: nothing is kept."""

    def close(self) -> None:
        """Do nothing: nothing is open."""
