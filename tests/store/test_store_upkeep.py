from collections.abc import Iterator
from pathlib import Path

import pytest
from store_entries import entry

from graphcache.errors import ConfigError
from graphcache.store.disk import DiskStore
from graphcache.store.files import EntryFiles
from graphcache.store.upkeep import gc, overhead, repair, usage, verify

DAY = 86400.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def disk(root: Path) -> Iterator[DiskStore]:
    with DiskStore(root, fsync=False) as store:
        yield store


def damage(root: Path, number: int, at: int, cut: bool = False) -> None:
    path = root / "entries" / entry(number)[0]
    data = path.read_bytes()
    at %= len(data)
    path.write_bytes(data[:at] if cut else data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])


def reader(root: Path) -> EntryFiles:
    return EntryFiles(root, read_only=True)


def test_usage_is_per_namespace_the_largest_first(disk: DiskStore) -> None:
    disk.put(*entry(1, b"x" * 10, seconds=2.0, facts=[("backend", "inductor")]))
    disk.put(*entry(2, b"x" * 10, seconds=3.0))
    disk.put(*entry(3, b"x" * 50, namespace="other", seconds=4.0))
    used = usage(disk)
    assert list(used) == ["other", "ns"]
    assert (used["ns"].entries, used["ns"].nbytes, used["ns"].seconds) == (2, 20, 5.0)


def test_overhead_is_what_lies_beside(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    (root / "quarantine" / "bad").write_bytes(b"x" * 7)
    beside = overhead(root)
    assert beside.quarantine_bytes == 7
    assert beside.index_bytes > 0
    assert beside.temporary_bytes == 0
    assert overhead(root / "missing") == (0, 0, 0, 0)


def test_verify_finds_what_is_bad_and_changes_nothing(root: Path, disk: DiskStore) -> None:
    for number in range(5):
        disk.put(*entry(number))
    damage(root, 0, at=60)
    damage(root, 1, at=200, cut=True)
    damage(root, 2, at=-1)
    damage(root, 3, at=8)
    before = sorted(str(path) for path in root.rglob("*"))
    shallow = {problem.digest: problem.bad for problem in verify(reader(root))}
    assert shallow == {entry(0)[0]: True, entry(1)[0]: True, entry(3)[0]: False}
    deep = {problem.digest: problem.bad for problem in verify(reader(root), deep=True)}
    assert deep == {**shallow, entry(2)[0]: True}
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_repair_puts_aside_what_is_bad(root: Path, disk: DiskStore) -> None:
    for number in range(3):
        disk.put(*entry(number))
    damage(root, 0, at=-1)
    (root / "temporary" / "left").touch()
    (root / "index" / "cache.db").write_bytes(b"garbage" * 1000)
    assert [problem.digest for problem in repair(disk, deep=True)] == [entry(0)[0]]
    assert list(verify(reader(root), deep=True)) == []
    assert list((root / "temporary").iterdir()) == []
    assert disk.files.quarantined() == 1
    assert len(list(disk.scan())) == 2


def test_what_is_worth_least_leaves_first(disk: DiskStore) -> None:
    disk.put(*entry(1, b"x" * 100, seconds=100.0))
    disk.put(*entry(2, b"x" * 100, seconds=1.0))
    disk.put(*entry(3, b"x" * 100, seconds=30.0))
    disk.put(*entry(4, b"x" * 400, seconds=100.0))
    for _ in range(3):
        disk.get(entry(3)[0])
    would = gc(disk, max_bytes=150, dry_run=True)
    assert [int(c.record.key.rpartition("x")[2]) for c in would] == [2, 4, 1]
    assert len(list(disk.scan())) == 4
    assert gc(disk, max_bytes=150) == would
    assert [digest for digest, _ in disk.scan()] == [entry(3)[0]]
    assert gc(disk, max_bytes=150) == []


def test_what_is_old_leaves(disk: DiskStore) -> None:
    now = 100 * DAY
    for number, created in enumerate((now - 3 * DAY, now - DAY, now + DAY)):
        disk.put(*entry(number, created=created))
    left = gc(disk, older_than_seconds=2 * DAY, now=now)
    assert [c.digest for c in left] == [entry(0)[0]]


def test_only_one_namespace_leaves(disk: DiskStore) -> None:
    disk.put(*entry(1, b"x" * 100, namespace="abc"))
    disk.put(*entry(1, b"x" * 100, namespace="xyz", seconds=5.0))
    assert [c.record.namespace for c in gc(disk, max_bytes=50, namespace="xy", dry_run=True)] == ["xyz"]
    assert [c.record.namespace for c in gc(disk, namespace="abc")] == ["abc"]


def test_without_a_bound_nothing_leaves(disk: DiskStore) -> None:
    disk.put(*entry(1))
    with pytest.raises(ConfigError, match="at least one of"):
        gc(disk)
    with pytest.raises(ConfigError, match="at least one of"):
        gc(disk, namespace="")


def test_a_recount_forgets_what_is_gone(root: Path, disk: DiskStore) -> None:
    disk.put(*entry(1))
    disk.put(*entry(2))
    (root / "entries" / entry(1)[0]).unlink()
    assert disk.recount() == (root / "entries" / entry(2)[0]).stat().st_size
    assert list(disk.uses()) == [entry(2)[0]]
