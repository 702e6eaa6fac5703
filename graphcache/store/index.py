"""The index of a disk store: uses, counters and read headers, in SQLite through diskcache.

Everything here may be lost.  A damaged index is thrown away and made anew from the entries' headers; one
that can't be used at all costs speed, never an answer.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from diskcache_community import Cache, Disk, Timeout

from graphcache.store.private import make_private

T = TypeVar("T")

BUSY_TIMEOUT_SECONDS = 2
REST_SECONDS = 10.0
_DATABASE = "cache.db"
_MODE_RAW = 1
_NEVER_IN_A_FILE = 1 << 62
_CHECK_CHARS = 16


class PlainDisk(Disk):
    """Stores text and reads nothing but text.

    diskcache's own ``Disk`` unpickles any row that says so, and follows and removes the file a row names;
    whoever edits a row could run code or remove files.  This one knows neither mode.
    """

    def put(self, key: Any) -> Any:
        """Take a text as it is."""
        return _only_text(key), True

    def get(self, key: Any, raw: Any) -> Any:
        """Give a text back."""
        if not raw:
            raise sqlite3.DatabaseError("a key of the index is not text")
        return _only_text(key)

    def store(self, value: Any, read: bool, key: Any = None) -> Any:
        """Keep a text in its row."""
        return 0, _MODE_RAW, None, _only_text(value)

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> Any:
        """Give a row's text back."""
        if mode != _MODE_RAW or filename is not None:
            raise sqlite3.DatabaseError("a row of the index is not text")
        return _only_text(value)

    def remove(self, file_path: Any) -> None:
        """Remove nothing: no row has a file."""


def _only_text(value: Any) -> str:
    if not isinstance(value, str):
        raise sqlite3.DatabaseError(f"the index holds text, not {type(value).__name__}")
    return value


class Index:
    """Named JSON values in ``directory``, shared by processes: a `graphcache.store.ledger.Table`.

    ``faults`` counts what went wrong, by reason; no method raises for a fault of the index.  ``mode`` is
    that of the database's file, before the umask.  After finding it busy, nothing is asked of it for
    `REST_SECONDS` of ``clock``, so that whoever holds it can't hold this process up again and again.
    """

    def __init__(
        self, directory: Path, mode: int = 0o600, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._directory = directory
        self._mode = mode
        self._clock = clock
        self._rests_until = -math.inf
        self._cache: Cache | None = None
        self._opening = threading.Lock()

    def get(self, name: str) -> Any:
        """Return a value, or None where there is none that can be read."""
        return self._try(lambda cache: _decode(cache.get(name)), None)

    def update(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Replace a value by what ``change`` makes of it, at once for all processes; return the new one.

        ``change`` is given None where there is no value, and removes it by returning None.  Returns None
        where nothing could be kept.
        """
        return self._try(lambda cache: _replace(cache, name, change), None)

    def together(self, work: Callable[[], object]) -> None:
        """Do several updates as one, which is also one write to the disk instead of several."""
        self._try(lambda cache: _in_one(cache, work), None)

    def names(self) -> list[str]:
        """Return all names."""
        return self._try(lambda cache: list(cache.iterkeys()), [])

    def close(self) -> None:
        """Close the database; a later use opens it again."""
        with self._opening:
            if self._cache is not None:
                self._cache.close()
                self._cache = None

    def _try(self, work: Callable[[Cache], T], otherwise: T) -> T:
        """Do some work; begin a new index if this one is damaged, and give up if it is busy."""
        if self._clock() < self._rests_until:
            self.faults["index_busy"] += 1
            return otherwise
        for _ in range(2):
            try:
                return work(self._open())
            except Exception as error:  # over a damaged database diskcache trips in any way at all
                if _is_busy(error):
                    self.faults["index_busy"] += 1
                    self._rests_until = self._clock() + REST_SECONDS
                    return otherwise
                self.faults["index_damaged"] += 1
                self._discard()
        return otherwise

    def _open(self) -> Cache:
        with self._opening:
            if self._cache is not None and not (self._directory / _DATABASE).exists():
                self._cache.close()
                self._cache = None
            if self._cache is None:
                make_private(self._directory)
                _probe(self._directory / _DATABASE, self._mode)
                self._cache = _open_cache(self._directory)
            return self._cache

    def _discard(self) -> None:
        with suppress(sqlite3.Error):
            self.close()
        with self._opening, suppress(OSError):
            self._cache = None
            for path in sorted(self._directory.glob(_DATABASE + "*"), reverse=True):
                path.unlink(missing_ok=True)  # a journal before its database: it must not meet the next one


def _open_cache(directory: Path) -> Cache:
    return Cache(
        directory,
        timeout=BUSY_TIMEOUT_SECONDS,
        disk=PlainDisk,
        eviction_policy="none",
        cull_limit=0,
        size_limit=_NEVER_IN_A_FILE,
        # No shared memory and no mapping: a file that somebody cuts must not crash its readers, and network
        # file systems have neither.
        sqlite_journal_mode="delete",
        sqlite_mmap_size=0,
        sqlite_synchronous=0,  # what a power cut takes is made anew
    )


def _probe(database: Path, mode: int) -> None:
    """Fail soon where another process holds the database: diskcache itself would try for a minute."""
    os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode))
    connection = sqlite3.connect(database, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _replace(cache: Cache, name: str, change: Callable[[Any], Any]) -> Any:
    with cache.transact():
        value = change(_decode(cache.get(name)))
        if value is None:
            cache.delete(name)
        else:
            cache.set(name, _encode(value))
    return value


def _in_one(cache: Cache, work: Callable[[], object]) -> None:
    with cache.transact():
        work()


def _is_busy(error: Exception) -> bool:
    if isinstance(error, Timeout):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _encode(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return _checksum(text) + text


def _decode(text: Any) -> Any:
    """Read a value back; one that was changed behind our back is none."""
    if not isinstance(text, str) or text[:_CHECK_CHARS] != _checksum(text[_CHECK_CHARS:]):
        return None
    return json.loads(text[_CHECK_CHARS:])


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_CHECK_CHARS]
