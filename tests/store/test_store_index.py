import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_entries import entry

from graphcache.store import index as index_module
from graphcache.store.disk import DiskStore
from graphcache.store.index import Index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    opened = Index(tmp_path / "index")
    yield opened
    opened.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BUSY_TIMEOUT_SECONDS", 0.01)


def edit(index: Index, tmp_path: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(tmp_path / "index" / "cache.db")
    with connection:
        assert connection.execute(statement, values).rowcount
    connection.close()


def test_values_are_kept_and_removed(index: Index, tmp_path: Path) -> None:
    assert index.get("a") is None
    assert index.update("a", lambda old: [old, 1]) == [None, 1]
    assert index.update("a", lambda old: [old, 2]) == [[None, 1], 2]
    assert Index(tmp_path / "index").get("a") == [[None, 1], 2]
    assert index.names() == ["a"]
    assert index.update("a", lambda _: None) is None
    assert index.names() == []
    assert not index.faults


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (Path.touch, (Path("/nonexistent/pwned"),))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE Cache SET mode = 4, value = x'80049524'",
        "UPDATE Cache SET mode = 4, value = NULL, filename = '../secret'",
        "UPDATE Cache SET mode = 2, value = NULL, filename = '../secret'",
        "UPDATE Cache SET mode = 3, value = NULL, filename = '../secret'",
        "UPDATE Cache SET filename = '../secret'",
        "UPDATE Cache SET value = 7",
        "UPDATE Cache SET value = 'ff' || value",
        "UPDATE Cache SET value = x'00ff'",
        "UPDATE Cache SET raw = 0, key = x'80049524'",
    ],
)
def test_an_edited_row_is_never_followed(
    index: Index, tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text('"secret"')
    index.update("a", lambda _: 1)
    edit(index, tmp_path, statement)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the index was unpickled")

    monkeypatch.setattr("pickle.load", refuse)
    monkeypatch.setattr("pickle.loads", refuse)
    assert index.get("a") is None
    index.names()
    index.update("a", lambda old: old or 2)
    index.update("a", lambda _: None)
    assert secret.exists()
    index.update("a", lambda _: 3)
    assert index.get("a") == 3


def test_only_text_goes_in() -> None:
    disk = index_module.PlainDisk("/nonexistent")
    for value in (1, b"x", Bomb(), None):
        with pytest.raises(sqlite3.DatabaseError):
            disk.store(value, False)
        with pytest.raises(sqlite3.DatabaseError):
            disk.put(value)


def test_a_busy_index_is_counted_and_passed_over(index: Index, tmp_path: Path, impatient: None) -> None:
    index.update("a", lambda _: 1)
    other = sqlite3.connect(tmp_path / "index" / "cache.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    now = [0.0]
    fresh = Index(tmp_path / "index", clock=lambda: now[0])
    assert fresh.get("a") is None
    assert fresh.update("a", lambda _: 2) is None
    assert fresh.faults == {"index_busy": 2}
    other.execute("ROLLBACK")
    other.close()
    assert fresh.get("a") is None, "it was asked again at once"
    now[0] += index_module.REST_SECONDS
    assert fresh.get("a") == 1
    fresh.close()


def test_a_store_works_with_a_busy_index(tmp_path: Path, impatient: None) -> None:
    with DiskStore(tmp_path / "store", fsync=False, max_bytes=5000) as disk:
        disk.put(*entry(1))
    other = sqlite3.connect(tmp_path / "store" / "index" / "cache.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with DiskStore(tmp_path / "store", fsync=False, max_bytes=5000) as disk:
        assert disk.get(entry(1)[0])
        for number in range(2, 9):
            disk.put(*entry(number, b"x" * 1000))
        assert 1 <= len(list(disk.scan())) <= 4
        assert disk.faults["index_busy"]
    other.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "store"
    with DiskStore(root, fsync=False) as disk:
        for number in range(6):
            disk.put(*entry(number))
            disk.get(entry(number)[0])
        list(disk.scan())
    return root


@given(st.integers(0, 1 << 16), st.sampled_from(["cut", "flip", "zero"]), st.binary(min_size=1, max_size=1))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_index_damaged_anywhere_is_made_anew(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, where: int, how: str, byte: bytes
) -> None:
    root = tmp_path_factory.mktemp("damaged") / "store"
    shutil.copytree(whole, root)
    database = root / "index" / "cache.db"
    data = bytearray(database.read_bytes())
    where %= len(data)
    if how == "cut":
        data = data[:where]
    elif how == "flip":
        data[where] ^= byte[0] or 1
    else:
        data[where : where + 4096] = bytes(4096)
    database.write_bytes(data)
    with DiskStore(root, fsync=False, max_bytes=1 << 30) as disk:
        assert len(list(disk.scan())) == 6
        assert len(list(disk.scan())) == 6
        for number in range(6):
            assert disk.get(entry(number)[0])
        disk.put(*entry(6))
        disk.ledger.record_run("run", {"hits": 1})
        assert disk.ledger.runs().get("run", {"hits": 1}) == {"hits": 1}
        assert len(list(disk.scan())) == 7
    shutil.rmtree(root)


def test_values_are_plain_json(index: Index, tmp_path: Path) -> None:
    index.update("a", lambda _: {"b": [1, 2.5, None, "c"]})
    connection = sqlite3.connect(tmp_path / "index" / "cache.db")
    ((text,),) = connection.execute("SELECT value FROM Cache").fetchall()
    connection.close()
    assert json.loads(text[16:]) == {"b": [1, 2.5, None, "c"]}
