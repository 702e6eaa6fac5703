"""Every store, driven beside the simplest one: what they answer must be the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from store_entries import entry

from graphcache.errors import ConfigError, CorruptError
from graphcache.fingerprint import digest
from graphcache.store.disk import DiskStore
from graphcache.store.memory import MemoryStore
from graphcache.store.protocol import Store
from graphcache.store.readonly import ReadOnlyStore
from graphcache.store.sealed import SealedStore, SealKeys

KEYS = SealKeys([b"k" * 32])
numbers = st.integers(0, 5)


class EveryStore(RuleBasedStateMachine):
    """Puts, gets, deletes, scans, reopens, damages: beside a memory store that does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="graphcache-test-"))
        self.model = MemoryStore()
        self.disk = self.open()

    def open(self) -> DiskStore:
        return DiskStore(self.root / "store", fsync=False)

    @property
    def store(self) -> Store:
        return self.disk

    @rule(number=numbers, payload=st.binary(max_size=50), group=st.sets(numbers, max_size=2))
    def put(self, number: int, payload: bytes, group: set[int]) -> None:
        members = [entry(member)[0] for member in group]
        self.model.put(*entry(number, payload, group=members))
        self.store.put(*entry(number, payload, group=members))

    @rule(number=numbers)
    def get(self, number: int) -> None:
        peeked = self.store.peek(entry(number)[0])
        got, expected = self.store.get(entry(number)[0]), self.model.get(entry(number)[0])
        assert (got is None) == (expected is None)
        assert peeked == (got.record if got else None)
        if got and expected:
            assert got.payload == expected.payload
            assert (got.record.key, got.record.group) == (expected.record.key, expected.record.group)

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        assert self.store.delete(entry(number)[0]) == self.model.delete(entry(number)[0])

    @rule()
    def reopen(self) -> None:
        self.disk.close()
        self.disk = self.open()

    @rule()
    def lose_the_index(self) -> None:
        shutil.rmtree(self.root / "store" / "index", ignore_errors=True)

    @rule(number=numbers, where=st.floats(0, 1, exclude_max=True))
    def damage(self, number: int, where: float) -> None:
        path = self.root / "store" / "entries" / entry(number)[0]
        if not path.exists():
            return
        data = bytearray(path.read_bytes())
        data[int(where * len(data))] ^= 0x10
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(CorruptError):
            self.store.get(entry(number)[0])
        assert self.store.get(entry(number)[0]) is None
        self.model.delete(entry(number)[0])

    @invariant()
    def scan_lists_what_is_there(self) -> None:
        said = {name: record.payload_digest for name, record in self.store.scan()}
        assert said == {name: record.payload_digest for name, record in self.model.scan()}

    def teardown(self) -> None:
        self.disk.close()
        shutil.rmtree(self.root)


class EverySealedStore(EveryStore):
    @property
    def store(self) -> Store:
        return SealedStore(self.disk, KEYS)


SETTINGS = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDiskStore = EveryStore.TestCase
TestDiskStore.settings = SETTINGS
TestSealedStore = EverySealedStore.TestCase
TestSealedStore.settings = SETTINGS


@pytest.fixture(params=["memory", "disk", "sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    disk = DiskStore(tmp_path / "store", fsync=False)
    return disk if request.param == "disk" else SealedStore(disk, KEYS)


def test_put_replaces(store: Store) -> None:
    store.put(*entry(1, b"old"))
    store.put(*entry(1, b"new"))
    got = store.get(entry(1)[0])
    assert got
    assert got.payload == b"new"


def test_what_is_not_there_is_none(store: Store) -> None:
    assert store.get(digest("nothing")) is None
    assert not store.delete(digest("nothing"))
    assert list(store.scan()) == []


def test_parts_that_disagree_are_refused(store: Store) -> None:
    name, record, payload = entry(1)
    for wrong in ((entry(2)[0], record, payload), (name, record, b"other")):
        with pytest.raises(ConfigError):
            store.put(*wrong)
    assert list(store.scan()) == []


def test_an_empty_payload_is_kept(store: Store) -> None:
    store.put(*entry(1, b""))
    got = store.get(entry(1)[0])
    assert got
    assert got.payload == b""


def test_a_group_is_served_whole_or_not_at_all(store: Store) -> None:
    members = [entry(number)[0] for number in range(3)]
    for number in range(2):
        store.put(*entry(number, group=members))
        assert [store.get(member) for member in members] == [None] * 3
    store.put(*entry(2, group=members))
    assert all(store.get(member) for member in members)
    store.delete(members[1])
    assert [store.get(member) for member in members] == [None] * 3


def test_a_read_only_store_reads_the_same(tmp_path: Path) -> None:
    with DiskStore(tmp_path / "store", fsync=False) as disk:
        disk.put(*entry(1, b"payload"))
        disk.put(*entry(2, b"alone", group=[entry(3)[0]]))
        shown = dict(disk.scan())
    reader = ReadOnlyStore(tmp_path / "store")
    got = reader.get(entry(1)[0])
    assert got
    assert got.payload == b"payload"
    assert reader.peek(entry(1)[0]) == got.record
    for number in (2, 9):
        assert reader.get(entry(number)[0]) is reader.peek(entry(number)[0]) is None
    assert dict(reader.scan()) == shown
