"""A store on a local disk, bounded, that several processes use at once."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from graphcache.errors import ConfigError, CorruptError, StoreError, StoreFullError
from graphcache.store.files import EntryFiles, Listed, no_step
from graphcache.store.format import check_entry, check_name, encode_header, from_json, to_json
from graphcache.store.index import Index
from graphcache.store.ledger import Ledger
from graphcache.store.protocol import Record, Stored

_BYTES = "bytes"
_TURN = "turn"
_USES_BEFORE_FLUSH = 64


class Use(NamedTuple):
    """How often an entry was read, and at which turn last: a counter that all processes share, no clock."""

    uses: int = 0
    turn: int = 0


class DiskStore:
    """Keeps entries below ``path``, at most ``max_bytes`` of them; the least recently used leave first.

    ``fsync=False`` gives up surviving a power cut.  ``shared`` trusts everybody who can write the
    directory: only with a seal around the store, or where the file system says who that is.  ``ledger``
    holds runs, manifests and failed compiles.  ``faults`` counts what went wrong, by reason.  ``on_step``
    and ``files`` are for breaking it in tests.

    Raises:
        ConfigError: ``max_bytes`` is not positive.
        StoreError: the path is a file, can't be written, is somebody else's, or a newer version's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        fsync: bool = True,
        shared: bool = False,
        clock: Callable[[], float] = time.time,
        on_step: Callable[[str], None] = no_step,
        files: type[EntryFiles] = EntryFiles,
    ) -> None:
        if max_bytes is not None and max_bytes <= 0:
            raise ConfigError.of("max_bytes", max_bytes, "a positive number of bytes, or none for no bound")
        self.path = Path(path).expanduser()
        self.files = files(self.path, fsync=fsync, shared=shared, on_step=on_step)
        self.files.prepare()
        self.max_bytes = max_bytes
        self.shared = shared
        self._index = Index(self.path / "index", 0o666 if shared else 0o600)
        self.ledger = Ledger(self._index, clock)
        self._used: dict[str, int] = {}
        self._counted = True
        self._lock = threading.Lock()
        self.files.sweep()

    def __enter__(self) -> DiskStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def faults(self) -> Counter[str]:
        """What went wrong in the index so far, by reason; none of it failed a caller."""
        return self._index.faults

    def get(self, digest: str) -> Stored | None:
        """Return a verified entry, or None where there is none, or its group is not complete."""
        stored = self.files.read(digest)
        if stored is None or not self.files.complete(stored.record):
            return None
        self._note_use(digest)
        return stored

    def peek(self, digest: str) -> Record | None:
        """Return an entry's record, its payload unread."""
        return self.files.peek(digest)

    def put(self, digest: str, record: Record, payload: bytes) -> None:
        """Keep an entry, whole or not at all; makes room first."""
        check_entry(digest, record, payload)
        nbytes = len(encode_header(record)) + len(payload)
        self._reserve(nbytes)
        replaced = self.files.size(digest)
        try:
            self.files.write(digest, record, payload)
        except StoreError:
            self._add_bytes(-nbytes)
            raise
        self._index.together(lambda: self._take_note(digest, replaced))

    def _take_note(self, digest: str, replaced_bytes: int) -> None:
        self._add_bytes(-replaced_bytes)
        self._note_use(digest, times=0)

    def delete(self, digest: str) -> bool:
        """Remove an entry; say whether there was one."""
        nbytes = self.files.remove(digest)
        self._add_bytes(-(nbytes or 0))
        return nbytes is not None

    def scan(self) -> Iterator[tuple[str, Record]]:
        """Yield digest and record of each entry that can be read; the index saves opening the files."""
        by_shard: dict[str, list[Listed]] = {}
        for item in self.files.listed():
            by_shard.setdefault(item.digest[:2], []).append(item)
        for shard, items in sorted(by_shard.items()):
            yield from self._scan_shard(f"records:{shard}", items)

    def uses(self) -> dict[str, Use]:
        """Return how often and how recently each entry was used, as far as that is known."""
        self.flush()
        found: dict[str, Use] = {}
        for shard in (f"{number:02x}" for number in range(256)):
            found.update(_uses(self._index.get(f"uses:{shard}")))
        return found

    def flush(self) -> None:
        """Write what is known of uses into the index."""
        with self._lock:
            used, self._used = self._used, {}
        if not used:
            return
        self._index.together(lambda: self._write_uses(used))

    def _write_uses(self, used: dict[str, int]) -> None:
        last = _integer(self._index.update(_TURN, lambda old: _integer(old) + len(used)))
        turns = dict(zip(used, range(last - len(used) + 1, last + 1), strict=True))
        for shard in sorted({digest[:2] for digest in used}):
            fresh = {digest: Use(used[digest], turns[digest]) for digest in used if digest[:2] == shard}
            self._index.update(f"uses:{shard}", partial(_merge_uses, fresh))

    def close(self) -> None:
        """Flush, and close the index; the store can still be used afterwards."""
        self.flush()
        self._index.close()

    def recount(self) -> int:
        """Count the bytes of all entries anew, and forget the uses of those that are gone."""
        sizes = {item.digest: item.nbytes for item in self.files.listed()}
        self.flush()
        for shard in range(256):
            self._index.update(f"uses:{shard:02x}", lambda old: _only(sizes, _uses(old)))
        self._index.update(_BYTES, lambda _: sum(sizes.values()))
        return sum(sizes.values())

    def make_room(self, nbytes: int, max_bytes: int) -> list[str]:
        """Remove least recently used entries until ``nbytes`` more fit; return what was removed."""
        uses = self.uses()
        items = sorted(
            self.files.listed(), key=lambda item: (uses.get(item.digest, Use()).turn, item.mtime_ns)
        )
        total = sum(item.nbytes for item in items)
        removed: dict[str, None] = {}
        for item in items:
            if total + nbytes <= max_bytes:
                break
            for member in self._with_group(item.digest) - removed.keys():
                total -= self.files.remove(member) or 0
                removed[member] = None
        self._counted = self._index.update(_BYTES, lambda _: total) is not None
        return list(removed)

    def _reserve(self, nbytes: int) -> None:
        """Count bytes before they are written, so that a killed writer can only make us count too many.

        Several writers together can pass the bound by what they are writing at that moment.
        """
        if self.max_bytes is not None:
            if nbytes > self.max_bytes:
                raise StoreFullError(f"an entry of {nbytes} bytes can't fit into {self.max_bytes} bytes")
            total = self._index.get(_BYTES) if self._counted else None
            if not isinstance(total, int) or total + nbytes > self.max_bytes:
                self.make_room(nbytes, self.max_bytes)
        self._add_bytes(nbytes)

    def _add_bytes(self, nbytes: int) -> None:
        """Add to the count of bytes; there is none until somebody opened the store with a bound."""
        if nbytes and (self.max_bytes is not None or self._index.get(_BYTES) is not None):
            total = self._index.update(_BYTES, lambda old: old + nbytes if isinstance(old, int) else None)
            self._counted = self._counted and total is not None

    def _with_group(self, digest: str) -> set[str]:
        """Return an entry and those that are of no use without it."""
        with suppress(StoreError):
            record = self.files.read_record(digest)
            return {digest, *record.group} if record else {digest}
        return {digest}

    def _note_use(self, digest: str, times: int = 1) -> None:
        with self._lock:
            self._used[digest] = self._used.pop(digest, 0) + times
            due = len(self._used) >= _USES_BEFORE_FLUSH
        if due or not times:
            self.flush()

    def _scan_shard(self, row: str, items: list[Listed]) -> Iterator[tuple[str, Record]]:
        known = self._index.get(row)
        known = known if isinstance(known, dict) else {}
        rows: dict[str, Any] = {}
        for item in items:
            said = known.get(item.digest)
            record = _known_record(said, item)
            if record is None:
                with suppress(StoreError):  # a bad entry is put aside by being read, a newer one stays
                    record = self.files.read_record(item.digest)
                said = record and [item.nbytes, item.mtime_ns, to_json(record)]
            if record is not None:
                rows[item.digest] = said
                yield item.digest, record
        if rows != known:
            self._index.update(row, lambda _: rows or None)


def _known_record(row: Any, item: Listed) -> Record | None:
    """Return a record that the index holds, if it was read from this very file."""
    match row:
        case [item.nbytes, item.mtime_ns, str(text)]:
            with suppress(CorruptError):
                record = from_json(text)
                check_name(record, item.digest)
                return record
    return None


def _uses(row: Any) -> dict[str, Use]:
    found = row.items() if isinstance(row, dict) else ()
    return {digest: Use(*map(_integer, pair)) for digest, pair in found if _is_pair(pair)}


def _only(known: Container[str], uses: dict[str, Use]) -> dict[str, Use] | None:
    return {digest: use for digest, use in uses.items() if digest in known} or None


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _merge_uses(fresh: dict[str, Use], old: Any) -> dict[str, Use]:
    merged = _uses(old)
    for digest, use in fresh.items():
        merged[digest] = Use(merged.get(digest, Use()).uses + use.uses, use.turn)
    return merged


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0
