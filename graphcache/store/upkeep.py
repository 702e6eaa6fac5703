"""Looking after a disk store: what it holds, whether it is whole, and what may leave."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from graphcache.errors import ConfigError, StoreError
from graphcache.store.disk import DiskStore, Use
from graphcache.store.files import EntryFiles
from graphcache.store.format import NewerFormatError
from graphcache.store.protocol import Record, Store


@dataclass(slots=True)
class Usage:
    """What one namespace takes: entries, bytes of their payloads, seconds of compiling they stand for."""

    entries: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    backend: str = ""


class Overhead(NamedTuple):
    """Bytes that a store takes beside its entries, by directory."""

    index_bytes: int
    quarantine_bytes: int
    temporary_bytes: int
    locks_bytes: int


class Problem(NamedTuple):
    """One entry that is bad, or can't be read by this version, and why."""

    digest: str
    reason: str
    bad: bool


class Candidate(NamedTuple):
    """An entry that may leave; ``worth`` is the seconds of compiling it saves per byte that it takes."""

    digest: str
    record: Record
    uses: int

    @property
    def worth(self) -> float:
        """Return seconds of compiling saved so far, and once more, per byte."""
        return self.record.seconds * (1 + self.uses) / max(1, self.record.payload_bytes)


def usage(store: Store) -> dict[str, Usage]:
    """Return what each namespace takes, the largest first."""
    found: dict[str, Usage] = {}
    for _, record in store.scan():
        used = found.setdefault(record.namespace, Usage())
        used.entries += 1
        used.nbytes += record.payload_bytes
        used.seconds += record.seconds
        used.backend = dict(record.facts).get("backend", "")
    return dict(sorted(found.items(), key=lambda item: -item[1].nbytes))


def overhead(root: Path) -> Overhead:
    """Return what a store takes beside its entries."""
    return Overhead(*(_directory_bytes(root / name.removesuffix("_bytes")) for name in Overhead._fields))


def verify(files: EntryFiles, *, deep: bool = False) -> Iterator[Problem]:
    """Check every entry's header and length, and with ``deep`` its whole payload; yield what is wrong.

    Files that were opened ``read_only`` change nothing; others put aside what is bad, so that its next
    use replaces it.
    """
    for item in files.listed():
        try:
            if deep:
                files.read(item.digest)
            else:
                files.read_record(item.digest)
        except StoreError as error:
            yield Problem(item.digest, str(error), bad=not isinstance(error, NewerFormatError))


def repair(store: DiskStore, *, deep: bool = False) -> list[Problem]:
    """Put aside what is bad, remove what dead writers left, and count anew; return what was wrong."""
    problems = list(verify(store.files, deep=deep))
    store.files.sweep()
    store.recount()
    return problems


def gc(
    store: DiskStore,
    *,
    max_bytes: int | None = None,
    older_than_seconds: float | None = None,
    namespace: str | None = None,
    now: float = 0.0,
    dry_run: bool = False,
) -> list[Candidate]:
    """Remove what is worth least, and return it, the first to leave first.

    ``namespace`` (the first letters of one) limits what may leave.  ``older_than_seconds`` removes what
    was made longer ago than that before ``now``, in seconds since 1970; ``max_bytes`` removes until the
    payloads of the whole store fit.  With neither, the whole namespace leaves.

    Raises:
        ConfigError: nothing says what should leave.
    """
    if max_bytes is None and older_than_seconds is None and not namespace:
        raise ConfigError.of("gc", "no bound", "at least one of max_bytes, older_than and namespace")
    everything = _candidates(store)
    chosen = [c for c in everything if c.record.namespace.startswith(namespace or "")]
    if older_than_seconds is not None:
        chosen = [c for c in chosen if now - c.record.created > older_than_seconds]
    if max_bytes is not None:
        excess = sum(c.record.payload_bytes for c in everything) - max_bytes
        chosen = list(_until_freed(chosen, excess))
    if not dry_run:
        for candidate in chosen:
            store.delete(candidate.digest)
    return chosen


def _candidates(store: DiskStore) -> list[Candidate]:
    uses = store.uses()
    found = [Candidate(digest, record, uses.get(digest, Use()).uses) for digest, record in store.scan()]
    return sorted(found, key=lambda candidate: (candidate.worth, candidate.digest))


def _until_freed(candidates: Sequence[Candidate], excess: int) -> Iterator[Candidate]:
    for candidate in candidates:
        if excess <= 0:
            return
        excess -= candidate.record.payload_bytes
        yield candidate


def _directory_bytes(directory: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(directory) as found:
        for item in found:
            with suppress(OSError):
                total += item.stat(follow_symlinks=False).st_size
    return total
