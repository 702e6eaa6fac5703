import os
from dataclasses import replace
from pathlib import Path

import pytest
from store_entries import entry

from graphcache.errors import ConfigError, CorruptError, StoreError
from graphcache.store.disk import DiskStore
from graphcache.store.memory import MemoryStore
from graphcache.store.open import open_store
from graphcache.store.sealed import SealedStore, SealKeys, read_key_files, write_key_file

OLD, NEW, FOREIGN = b"o" * 32, b"n" * 32, b"f" * 32


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(inner: MemoryStore) -> SealedStore:
    return SealedStore(inner, SealKeys([NEW, OLD]))


def test_what_was_put_here_is_served(store: SealedStore) -> None:
    store.put(*entry(1))
    got = store.get(entry(1)[0])
    assert got
    assert got.payload == b"payload"
    assert len(got.record.seal) == 64


def test_what_bears_no_seal_is_refused_and_replaced(inner: MemoryStore, store: SealedStore) -> None:
    inner.put(*entry(1, b"planted"))
    with pytest.raises(CorruptError, match="no seal"):
        store.get(entry(1)[0])
    assert inner.get(entry(1)[0]), "a key that is missing here must not empty the store"
    assert list(store.scan()) == []
    store.put(*entry(1, b"ours"))
    got = store.get(entry(1)[0])
    assert got
    assert got.payload == b"ours"


def test_a_foreign_key_seals_nothing(inner: MemoryStore, store: SealedStore) -> None:
    SealedStore(inner, SealKeys([FOREIGN])).put(*entry(1))
    with pytest.raises(CorruptError, match="no key given here"):
        store.get(entry(1)[0])


@pytest.mark.parametrize("seal", ["", "x", "é", "0" * 64, "0" * 10_000])
def test_a_made_up_seal_holds_nothing(seal: str) -> None:
    assert not SealKeys([NEW]).holds(replace(entry(1)[1], seal=seal))


@pytest.mark.parametrize(
    "changed",
    [
        {"namespace": "other"},
        {"key": "other"},
        {"payload_digest": "0" * 64},
        {"payload_bytes": 8},
        {"facts": (("a", "b"),)},
        {"meta": {"a": 1}},
        {"group": ("0" * 64,)},
        {"seconds": 2.0},
    ],
)
def test_a_seal_binds_all_that_the_record_says(changed: dict[str, object]) -> None:
    keys = SealKeys([NEW])
    sealed = keys.seal(entry(1)[1])
    assert keys.holds(sealed)
    assert not keys.holds(replace(sealed, **changed))  # type: ignore[arg-type]


def test_a_key_can_be_replaced_while_in_use(inner: MemoryStore) -> None:
    SealedStore(inner, SealKeys([OLD])).put(*entry(1))
    both = SealedStore(inner, SealKeys([NEW, OLD]))
    assert both.get(entry(1)[0])
    both.put(*entry(2))
    only_new = SealedStore(inner, SealKeys([NEW]))
    assert only_new.get(entry(2)[0])
    with pytest.raises(CorruptError):
        only_new.get(entry(1)[0])


def test_keys_that_are_no_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        SealKeys([])
    with pytest.raises(ConfigError, match="31 bytes"):
        SealKeys([b"x" * 31])


def test_a_key_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    read_key_files([path])
    with pytest.raises(StoreError, match="File exists"):
        write_key_file(path)
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(StoreError, match=r"lets (group or )?others"):
            read_key_files([path])


def test_a_key_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        read_key_files([tmp_path / "missing"])
    path = tmp_path / "key"
    path.touch(0o600)
    with pytest.raises(ConfigError, match="0 bytes"):
        read_key_files([path])
    path.write_bytes(b"x" * (1 << 17))
    with pytest.raises(StoreError, match="too long"):
        read_key_files([path])


def test_a_seal_opens_a_store_that_others_can_write(tmp_path: Path) -> None:
    key, root = tmp_path / "key", tmp_path / "store"
    write_key_file(key)
    DiskStore(root).close()
    root.chmod(0o777)
    with pytest.raises(StoreError, match="seal the store"):
        open_store(root)
    opened = open_store(root, key_files=[key])
    opened.store.put(*entry(1))
    assert opened.store.get(entry(1)[0])
    opened.close()
    unsealed = open_store(root, shared=True)
    unsealed.store.put(*entry(1))
    unsealed.close()
    with pytest.raises(CorruptError):
        opened.store.get(entry(1)[0])


def test_opening_read_only_writes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with DiskStore(root) as disk:
        disk.put(*entry(1))
    before = sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*"))
    opened = open_store(root, read_only=True)
    assert opened.store.get(entry(1)[0])
    assert len(list(opened.store.scan())) == 1
    with opened.locks.turn(entry(1)[0]) as turn:
        assert not turn.holds
    for refused in (lambda: opened.store.put(*entry(2)), lambda: opened.store.delete(entry(1)[0])):
        with pytest.raises(StoreError, match="read only"):
            refused()
    opened.close()
    assert sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*")) == before


def test_a_read_only_store_leaves_a_bad_entry_where_it_is(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with DiskStore(root) as disk:
        disk.put(*entry(1))
    path = root / "entries" / entry(1)[0]
    os.truncate(path, 60)
    opened = open_store(root, read_only=True)
    with pytest.raises(CorruptError):
        opened.store.get(entry(1)[0])
    assert path.exists()
