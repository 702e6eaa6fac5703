"""What is in a store, for people: its entries, found by key or digest."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphcache.config import Environment
from graphcache.errors import ConfigError, StoreError
from graphcache.store.disk import DiskStore
from graphcache.store.open import Opened, open_store
from graphcache.store.private import default_path
from graphcache.store.protocol import Record


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored artifact: its record, and how often it was used as far as that is known."""

    digest: str
    record: Record
    uses: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {"digest": self.digest, **asdict(self.record), "uses": self.uses}


def chosen_store(path: Path | None) -> Path:
    """Return the store that is meant: the one given, else ``GRAPHCACHE_STORE``, else the user's own."""
    return Path(os.path.expanduser(path or Environment.read().store or default_path()))


def store_directory(path: Path | None) -> Path:
    """Return the store to look at, as `chosen_store` does.

    Raises:
        StoreError: there is no such directory.
    """
    where = chosen_store(path)
    if not where.exists():
        raise StoreError(f"{os.fspath(where)!r}: no such store")
    return where


def open_existing(path: Path | None) -> Opened:
    """Open a store to look at it; one that can't be written is opened to be read only.

    Raises:
        StoreError: there is none, or it can't be used, saying why.
    """
    where = store_directory(path)
    try:
        return open_store(where, shared=True)
    except StoreError:
        return open_store(where, shared=True, read_only=True)


def entries(opened: Opened) -> list[Entry]:
    """Return all entries, by key and then by namespace."""
    uses = opened.disk.uses() if isinstance(opened.disk, DiskStore) else None
    found = [
        Entry(digest, record, None if uses is None else uses[digest].uses if digest in uses else 0)
        for digest, record in opened.disk.scan()
    ]
    return sorted(found, key=lambda entry: (entry.record.key, entry.record.namespace))


def matching(found: Iterable[Entry], text: str) -> list[Entry]:
    """Return the entries of a key's text form, or of a digest or namespace that begins with ``text``.

    Raises:
        ConfigError: nothing matches.
    """
    found = list(found)
    chosen = [entry for entry in found if entry.record.key == text]
    chosen = chosen or [e for e in found if e.digest.startswith(text) or e.record.namespace.startswith(text)]
    if not chosen:
        raise ConfigError.of(
            "entry", text, "a key, or the first letters of a digest or namespace, as in `ls`"
        )
    return chosen


def remove(opened: Opened, chosen: Iterable[Entry]) -> int:
    """Remove entries; return how many were there.

    Raises:
        StoreError: the store can't be written.
    """
    return sum(opened.disk.delete(entry.digest) for entry in chosen)
