"""Damage done to a store's files, index, clock and surroundings by whoever can reach them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from graphcache.errors import StoreError
from graphcache.store.disk import DiskStore
from graphcache.store.format import FORMAT_VERSION, NewerFormatError
from graphcache.store.ledger import FAILURE_TTL_SECONDS, Ledger, MemoryTable
from graphcache.store.lock import locks_directory
from graphcache.store.mounts import mount_of
from graphcache.torture import entries
from graphcache.torture.outcome import Plan, expect
from graphcache.torture.planted import open_store

_ENTRIES = 8
_NFS = "1 0 0:1 / / rw,relatime - nfs4 server:/home rw"


def blob_cut(root: Path, plan: Plan) -> str:
    """Cut an entry's file at random bytes."""
    return _damaged(root, plan, lambda data, at: data[:at])


def bit_flipped(root: Path, plan: Plan) -> str:
    """Flip a bit of an entry's file at random bytes."""
    return _damaged(root, plan, lambda data, at: data[:at] + bytes([data[at] ^ 0x04]) + data[at + 1 :])


def _damaged(root: Path, plan: Plan, damage: Callable[[bytes, int], bytes]) -> str:
    random = plan.random()
    with open_store(plan.store, root) as store:
        for place in range(plan.places):
            entries.put(store, 0)
            path = root / "entries" / entries.name(0)
            data = path.read_bytes()
            # Half of the places are in the header, which is far shorter than the payload.
            at = random.randrange(48, 400) if place % 2 else random.randrange(len(data))
            _replace(path, damage(data, at))
            entries.check_replaced(store, 0)
    return f"{plan.places} places: each a miss, then replaced"


def blob_of_another_key(root: Path, plan: Plan) -> str:
    """Put one entry's file in another one's place."""
    with open_store(plan.store, root) as store:
        entries.put(store, 0)
        entries.put(store, 1)
        directory = root / "entries"
        shutil.copy2(directory / entries.name(0), directory / entries.name(1))
        entries.check_replaced(store, 1)
        expect(entries.check(store, 0) == 0, "the entry that was copied is gone")
    return "a miss, then replaced"


def file_vanished(root: Path, plan: Plan) -> str:
    """Remove entries' files behind the store's back."""
    with open_store(plan.store, root) as store:
        for number in range(_ENTRIES):
            entries.put(store, number)
        listing = store.scan()
        next(listing)
        for number in range(_ENTRIES):
            (root / "entries" / entries.name(number)).unlink()
        for _ in listing:
            pass
        for number in range(_ENTRIES):
            entries.check_replaced(store, number)
    return "misses, also in the middle of a listing"


def directory_deleted(root: Path, plan: Plan) -> str:
    """Delete the whole directory while the store is open, as cleaners of temporary files do."""
    with open_store(plan.store, root) as store:
        entries.put(store, 0)
        shutil.rmtree(root)
        expect(entries.check(store, 0) is None, "an entry is served from a directory that is gone")
        store.ledger.record_run("run", {"hits": 1})
        shutil.rmtree(root, ignore_errors=True)
        entries.check_replaced(store, 0)
        expect(root.stat().st_mode & 0o077 == 0, "the directory was made again for everybody")
    return "a miss, then made again"


def index_deleted(root: Path, plan: Plan) -> str:
    """Delete the index while the store is open."""
    with open_store(plan.store, root, max_bytes=1 << 30) as store:
        _fill(store)
        shutil.rmtree(root / "index")
        _expect_whole(store)
    shutil.rmtree(root / "index")
    with open_store(plan.store, root, max_bytes=1 << 30) as store:
        _expect_whole(store)
    return "made anew from the entries"


def index_cut(root: Path, plan: Plan) -> str:
    """Cut the index at random bytes, and garble it."""
    random = plan.random()
    with open_store(plan.store, root, max_bytes=1 << 30) as store:
        _fill(store)
    database = root / "index" / "cache.db"
    whole = database.read_bytes()
    for place in range(plan.places):
        at = random.randrange(len(whole))
        garbled = whole[:at] + random.randbytes(64) + whole[at + 64 :]
        _replace(database, whole[:at] if place % 2 else garbled)
        with open_store(plan.store, root, max_bytes=1 << 30) as store:
            _expect_whole(store)
    return f"{plan.places} places: made anew from the entries"


def index_busy(root: Path, plan: Plan) -> str:
    """Hold the index locked from another connection."""
    with open_store(plan.store, root, max_bytes=1 << 30) as store:
        _fill(store)
    with closing(sqlite3.connect(root / "index" / "cache.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with open_store(plan.store, root, max_bytes=1 << 30) as store:
            _expect_whole(store)
            expect(store.faults["index_busy"] > 0, "the index was not busy")
    return "worked without it, and counted"


def clock_backwards(root: Path, plan: Plan) -> str:
    """Set file times far ahead, as a clock does that is then set back, and remember a failed compile."""
    with open_store(plan.store, root) as store:
        for number in range(4):
            entries.put(store, number)
            os.utime(root / "entries" / entries.name(number), (4e9 - number, 4e9 - number))
        entries.check(store, 0)
        nbytes = (root / "entries" / entries.name(0)).stat().st_size
        store.make_room(nbytes, 4 * nbytes)
        left = [number for number in range(4) if entries.check(store, number) is not None]
        expect(left == [0, 2, 3], f"{left} are left, and not the last recently used")
    now = [1e9]
    ledger = Ledger(MemoryTable(), lambda: now[0])
    ledger.remember_failure(entries.name(0), "compiler", "message")
    now[0] -= FAILURE_TTL_SECONDS
    expect(ledger.failure(entries.name(0), "compiler") is None, "a failed compile outlasts its expiry")
    return "the order of use is kept without a clock, no failure lasts"


def failure_remembered(root: Path, plan: Plan) -> str:
    """Remember a failed compile, until it expires or the compiler changes."""
    now = [1e9]
    with DiskStore(root, clock=lambda: now[0]) as store:
        store.ledger.remember_failure(entries.name(0), "compiler 1", "message")
        expect(store.ledger.failure(entries.name(0), "compiler 1") is not None, "it is forgotten at once")
        expect(store.ledger.failure(entries.name(0), "compiler 2") is None, "a new compiler is not tried")
        now[0] += FAILURE_TTL_SECONDS
        expect(store.ledger.failure(entries.name(0), "compiler 1") is None, "it is remembered for ever")
    return f"for its compiler's version and {FAILURE_TTL_SECONDS:.0f} s"


def newer_version(root: Path, plan: Plan) -> str:
    """Meet an entry, then a whole store, of a newer version of this package."""
    with open_store(plan.store, root) as store:
        entries.put(store, 0)
        path = root / "entries" / entries.name(0)
        data = bytearray(path.read_bytes())
        data[8] = FORMAT_VERSION + 1
        _replace(path, bytes(data))
        with suppress(NewerFormatError):
            entries.check(store, 0)
            expect(False, "an entry of a newer version is served")
        expect(path.exists(), "an entry of a newer version was put aside, though its version needs it")
    (root / "FORMAT").write_text(f"{FORMAT_VERSION + 1}\n")
    with suppress(NewerFormatError):
        open_store(plan.store, root)
        expect(False, "a store of a newer version was opened")
    return "named, and left alone"


def another_owner(root: Path, plan: Plan) -> str:
    """Let others write the directory, and own an entry."""
    with open_store(plan.store, root) as store:
        entries.put(store, 0)
        if os.geteuid() == 0:
            os.chown(root / "entries" / entries.name(0), 54321, -1)
        else:
            (root / "entries" / entries.name(0)).chmod(0o666)
        entries.check_replaced(store, 0)
    root.chmod(0o777)
    with suppress(StoreError):
        open_store(plan.store, root)
        expect(False, "a store that everybody can write was opened")
    return "refused; the entry a miss, then replaced"


def symbolic_link(root: Path, plan: Plan) -> str:
    """Put a link to a whole entry elsewhere in an entry's place."""
    with open_store(plan.store, root) as store:
        entries.put(store, 0)
        path = root / "entries" / entries.name(0)
        path.rename(root / "elsewhere")
        path.symlink_to(root / "elsewhere")
        entries.check_replaced(store, 0)
        expect((root / "elsewhere").exists(), "what the link led to was touched")
    return "not followed; a miss, then replaced"


def network_home(root: Path, plan: Plan) -> str:
    """Put the store on a network file system, as the mount table would say it."""
    mount = mount_of(root, _NFS)
    expect(mount.network, "nfs4 was not taken for a network")
    expect(locks_directory(root, {}, mount) is None, "locks are kept on the network")
    runtime = root / "run"
    runtime.mkdir(mode=0o700, parents=True)
    local = locks_directory(root / "store", {"XDG_RUNTIME_DIR": str(runtime)}, mount)
    expect(local is not None and local.is_relative_to(runtime), "locks are not kept on this host")
    return "locks on this host, or none (mount table made up)"


def _fill(store: DiskStore) -> None:
    for number in range(_ENTRIES):
        entries.put(store, number)
        entries.check(store, number)
    for _ in store.scan():
        pass
    store.ledger.record_run("run", {"hits": 1})


def _expect_whole(store: DiskStore) -> None:
    expect(len(list(store.scan())) == _ENTRIES, "entries are missing from a listing")
    for number in range(_ENTRIES):
        expect(entries.check(store, number) is not None, f"entry {number} is missing")
    entries.put(store, 0, version=2)
    expect(entries.check(store, 0) == 2, "an entry can't be replaced")
    expect(store.ledger.runs() in ({}, {"run": {"hits": 1}}), "a run's statistics are wrong")


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)
    path.chmod(0o600)
