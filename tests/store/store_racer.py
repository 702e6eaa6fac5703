"""One of many processes that do everything at once to one store: ``python store_racer.py STORE SEED ROUNDS``.

Whatever a store lets through ends the process; wrong bytes do, too.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from pathlib import Path

from store_entries import entry

from graphcache.store.bundle import export_bundle, import_bundle
from graphcache.store.disk import DiskStore
from graphcache.store.ledger import Ledger
from graphcache.store.readonly import ReadOnlyStore
from graphcache.store.upkeep import gc, overhead, repair, usage, verify

ENTRIES = 12


def payload(number: int) -> bytes:
    return bytes([number]) * (1000 * number + 1)


class Racer:
    """Opens a store over and over, and does something to it each time."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.bundle = io.BytesIO()

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            with DiskStore(self.root, max_bytes=self.random.choice([None, 60_000]), fsync=False) as store:
                for act in self.random.choices(ACTS, k=4):
                    act(self, store)

    def put(self, store: DiskStore) -> None:
        number = self.random.randrange(ENTRIES)
        store.put(*entry(number, payload(number)))

    def get(self, store: DiskStore) -> None:
        number = self.random.randrange(ENTRIES)
        stored = store.get(entry(number)[0])
        assert stored is None or stored.payload == payload(number)
        peeked = store.peek(entry(number)[0])
        assert peeked is None or peeked.key == entry(number)[1].key

    def delete(self, store: DiskStore) -> None:
        store.delete(entry(self.random.randrange(ENTRIES))[0])

    def look(self, store: DiskStore) -> None:
        assert sum(used.entries for used in usage(store).values()) <= ENTRIES
        overhead(self.root)
        store.uses()

    def read_only(self, store: DiskStore) -> None:
        for digest, record in ReadOnlyStore(self.root).scan():
            assert digest == entry(int(record.key.rpartition("x")[2]))[0]

    def keep(self, store: DiskStore) -> None:
        gc(store, max_bytes=self.random.choice([0, 20_000, 80_000]))

    def mend(self, store: DiskStore) -> None:
        assert repair(store, deep=True) == []
        assert list(verify(store.files)) == []

    def take_away(self, store: DiskStore) -> None:
        self.bundle = io.BytesIO()
        export_bundle(store, self.bundle)

    def bring_back(self, store: DiskStore) -> None:
        if self.bundle.getvalue():
            self.bundle.seek(0)
            import_bundle(self.bundle, store)

    def note(self, store: DiskStore) -> None:
        ledger: Ledger = store.ledger
        ledger.save_manifest("ns", "policy", {"keys": {}})
        ledger.load_manifest("ns", "policy")
        ledger.remember_failure(entry(1)[0], "g++", "no")
        ledger.failures()


ACTS: list[Callable[[Racer, DiskStore], None]] = [
    Racer.put,
    Racer.put,
    Racer.get,
    Racer.delete,
    Racer.look,
    Racer.read_only,
    Racer.keep,
    Racer.mend,
    Racer.take_away,
    Racer.bring_back,
    Racer.note,
]


if __name__ == "__main__":
    Racer(Path(sys.argv[1]), int(sys.argv[2])).run(int(sys.argv[3]))
