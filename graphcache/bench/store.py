"""What a store costs: put, get, many gets at once and a listing, as the number of entries grows."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from diskcache_community import Cache

from graphcache.fingerprint import digest
from graphcache.store.disk import DiskStore
from graphcache.store.files import EntryFiles
from graphcache.store.format import encode_header
from graphcache.store.protocol import Record

PAYLOAD_BYTES = 2_000_000
SIZES = (10, 1_000, 10_000)
READERS = 4
_REAL = 16
"""Entries that are written and read whole; the others are holes of the same length, and take no space."""
_SAMPLES = 24


class Row(NamedTuple):
    """One measurement: medians in milliseconds, gets per second of `READERS` threads, a listing's seconds."""

    store: str
    entries: int
    fsync: bool
    put_ms: float
    get_ms: float
    gets_per_second: float
    scan_seconds: float


class Contender(Protocol):
    """A store that is measured; entries have numbers."""

    def fill(self, number: int) -> None:
        """Make an entry of `PAYLOAD_BYTES` that is a hole."""
        ...

    def put(self, number: int, payload: bytes) -> None:
        """Write an entry."""
        ...

    def get(self, number: int) -> bytes:
        """Read an entry."""
        ...

    def scan(self) -> int:
        """List all entries; return how many."""
        ...


class Ours:
    """This package's disk store."""

    def __init__(self, root: Path, fsync: bool) -> None:
        self._store = DiskStore(root, fsync=fsync)
        self._holes = EntryFiles(root)
        self._hole_digest = hashlib.sha256(bytes(PAYLOAD_BYTES)).hexdigest()

    def fill(self, number: int) -> None:
        """Write a header, and a hole behind it."""
        record = Record("bench", str(number), PAYLOAD_BYTES, self._hole_digest, seconds=10.0)
        _write_hole(self._holes.root / "entries" / digest("bench", str(number)), encode_header(record))

    def put(self, number: int, payload: bytes) -> None:
        """Write an entry."""
        self._store.put(
            digest("bench", str(number)), Record.of("bench", number, payload, seconds=10.0), payload
        )

    def get(self, number: int) -> bytes:
        """Read and verify an entry."""
        stored = self._store.get(digest("bench", str(number)))
        return stored.payload if stored else b""

    def scan(self) -> int:
        """List the records of all entries."""
        return sum(1 for _ in self._store.scan())


class PlainDiskcache:
    """diskcache as it comes, values in files of its own; its settings have no fsync but SQLite's."""

    def __init__(self, root: Path, fsync: bool) -> None:
        self._root = root
        synchronous = 2 if fsync else 0
        self._cache = Cache(root, size_limit=1 << 62, cull_limit=0, sqlite_synchronous=synchronous)

    def fill(self, number: int) -> None:
        """Set a small value, and make its file a hole."""
        self._cache.set(f"fill-{number}", bytes(self._cache.disk.min_file_size))
        (row,) = self._cache._sql("SELECT filename FROM Cache WHERE key = ?", (f"fill-{number}",)).fetchall()
        os.truncate(self._root / row[0], PAYLOAD_BYTES)

    def put(self, number: int, payload: bytes) -> None:
        """Set a value."""
        self._cache.set(f"fill-{number}", payload)

    def get(self, number: int) -> bytes:
        """Get a value."""
        return self._cache.get(f"fill-{number}")

    def scan(self) -> int:
        """List all keys."""
        return sum(1 for _ in self._cache.iterkeys())


class LruDirectory:
    """The scheme of JAX's compilation cache: a file and a file of its last use per key, one lock.

    Written from its description: under the lock a put looks at every file's size and use before it
    writes, and a get reads the file and writes the time.
    """

    def __init__(self, root: Path, fsync: bool) -> None:
        root.mkdir()
        self._root = root
        self._fsync = fsync

    def fill(self, number: int) -> None:
        """Make both files."""
        _write_hole(self._root / f"{number}-cache", b"")
        (self._root / f"{number}-atime").write_bytes(time.time_ns().to_bytes(8, "little"))

    def put(self, number: int, payload: bytes) -> None:
        """Look at all files, then write two."""
        with self._locked():
            uses = [
                (path.with_name(path.name.replace("-cache", "-atime")).read_bytes(), path.stat().st_size)
                for path in self._root.glob("*-cache")
            ]
            sum(nbytes for _, nbytes in sorted(uses))
            _write_file(self._root / f"{number}-cache", payload, self._fsync)
            (self._root / f"{number}-atime").write_bytes(time.time_ns().to_bytes(8, "little"))

    def get(self, number: int) -> bytes:
        """Read one file, and write the other."""
        with self._locked():
            payload = (self._root / f"{number}-cache").read_bytes()
            (self._root / f"{number}-atime").write_bytes(time.time_ns().to_bytes(8, "little"))
        return payload

    def scan(self) -> int:
        """List all keys."""
        return sum(1 for _ in self._root.glob("*-cache"))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._root / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class BareFiles:
    """Files in a directory: the floor, which verifies, bounds and counts nothing."""

    def __init__(self, root: Path, fsync: bool) -> None:
        root.mkdir()
        self._root = root
        self._fsync = fsync

    def fill(self, number: int) -> None:
        """Make a hole."""
        _write_hole(self._root / str(number), b"")

    def put(self, number: int, payload: bytes) -> None:
        """Write a file."""
        _write_file(self._root / str(number), payload, self._fsync)

    def get(self, number: int) -> bytes:
        """Read a file."""
        return (self._root / str(number)).read_bytes()

    def scan(self) -> int:
        """List the directory."""
        return len(os.listdir(self._root))


CONTENDERS: dict[str, Callable[[Path, bool], Contender]] = {
    "graphcache": Ours,
    "diskcache": PlainDiskcache,
    "lru directory": LruDirectory,
    "bare files": BareFiles,
}


def measure(
    directory: Path | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    contenders: Sequence[str] = tuple(CONTENDERS),
    seed: int = 0,
) -> Iterator[Row]:
    """Measure each contender at each number of entries, with and without fsync.

    Files lie in a fresh directory below ``directory``, by default that of temporary files, and are in
    memory when they are read, as those of a graph that was just written are.
    """
    root = Path(tempfile.mkdtemp(prefix="graphcache-bench-", dir=directory))
    try:
        for name in contenders:
            for fsync in (True, False):
                contender = CONTENDERS[name](root / f"{name}-{fsync}", fsync)
                yield from _measure_growing(name, contender, fsync, sizes, seed)
                shutil.rmtree(root / f"{name}-{fsync}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _measure_growing(
    name: str, contender: Contender, fsync: bool, sizes: Sequence[int], seed: int
) -> Iterator[Row]:
    chance = random.Random(seed)
    filled = 0
    for entries in sorted(sizes):
        while filled < entries:
            contender.fill(filled)
            filled += 1
        real = chance.sample(range(entries), min(entries, _REAL))
        payloads = {number: chance.randbytes(PAYLOAD_BYTES) for number in real}
        put_ms = _median_ms(partial(_put_one, contender, payloads), real)
        get_ms = _median_ms(contender.get, real)
        _check(contender, payloads)
        rate = _gets_per_second(contender, real)
        contender.scan()
        began = time.perf_counter()
        contender.scan()
        scan_seconds = time.perf_counter() - began
        yield Row(name, entries, fsync, put_ms, get_ms, rate, scan_seconds)


def _put_one(contender: Contender, payloads: dict[int, bytes], number: int) -> None:
    contender.put(number, payloads[number])


def _median_ms(work: Callable[[int], object], numbers: Sequence[int]) -> float:
    taken = []
    for sample in range(_SAMPLES):
        began = time.perf_counter()
        work(numbers[sample % len(numbers)])
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def _gets_per_second(contender: Contender, numbers: Sequence[int]) -> float:
    wanted = [numbers[sample % len(numbers)] for sample in range(READERS * _SAMPLES)]
    with ThreadPoolExecutor(READERS) as readers:
        list(readers.map(contender.get, wanted[:READERS]))
        began = time.perf_counter()
        list(readers.map(contender.get, wanted))
        return len(wanted) / (time.perf_counter() - began)


def _check(contender: Contender, payloads: dict[int, bytes]) -> None:
    for number, payload in payloads.items():
        if contender.get(number) != payload:
            raise AssertionError(f"entry {number} reads back as something else")


def _write_hole(path: Path, head: bytes) -> None:
    path.write_bytes(head)
    os.truncate(path, len(head) + PAYLOAD_BYTES)
    path.chmod(0o600)


def _write_file(path: Path, payload: bytes, fsync: bool) -> None:
    with open(path, "wb") as file:
        file.write(payload)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
