from collections.abc import Iterator
from pathlib import Path

import pytest

from graphcache.errors import ConfigError
from graphcache.fingerprint import digest
from graphcache.store.disk import DiskStore
from graphcache.store.ledger import MAX_RUNS, Ledger, MemoryTable


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "disk"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    if request.param == "memory":
        yield Ledger(MemoryTable(), clock)
        return
    with DiskStore(tmp_path / "store", clock=clock) as disk:
        yield disk.ledger
        assert not disk.faults


def test_a_runs_later_snapshot_replaces_its_earlier(ledger: Ledger) -> None:
    ledger.record_run("one", {"hits": 1})
    ledger.record_run("two", {"hits": 5})
    ledger.record_run("one", {"hits": 2})
    assert list(ledger.runs().items()) == [("one", {"hits": 2}), ("two", {"hits": 5})]


def test_only_the_last_runs_are_kept() -> None:
    table = MemoryTable()
    ledger = Ledger(table)
    for number in range(MAX_RUNS + 5):
        ledger.record_run(str(number), {"hits": number})
    assert list(ledger.runs()) == [str(number) for number in range(5, MAX_RUNS + 5)]
    assert len(list(table.names())) == MAX_RUNS + 1


def test_what_is_not_json_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="snapshot"):
        ledger.record_run("one", {"hits": object()})
    with pytest.raises(ConfigError, match="manifest"):
        ledger.save_manifest("ns", "policy", {"keys": {1, 2}})


def test_a_manifest_belongs_to_a_namespace_and_a_policy(ledger: Ledger) -> None:
    ledger.save_manifest("ns", "lru", {"keys": ["a"]})
    assert ledger.load_manifest("ns", "lru") == {"keys": ["a"]}
    assert ledger.load_manifest("ns", "lfu") is None
    assert ledger.load_manifest("nsl", "ru") is None


def test_a_failed_compile_is_remembered_for_its_compiler_and_a_while(ledger: Ledger, clock: Clock) -> None:
    name = digest("a")
    ledger.remember_failure(name, "torch 2.13", "no such op")
    failure = ledger.failure(name, "torch 2.13", ttl_seconds=60)
    assert failure
    assert failure.message == "no such op"
    assert ledger.failure(name, "torch 2.14", ttl_seconds=60) is None
    assert ledger.failure(digest("b"), "torch 2.13", ttl_seconds=60) is None
    clock.now += 59
    assert ledger.failure(name, "torch 2.13", ttl_seconds=60)
    clock.now += 1
    assert ledger.failure(name, "torch 2.13", ttl_seconds=60) is None
    assert list(ledger.failures()) == [name]


def test_a_failure_from_the_future_is_expired(ledger: Ledger, clock: Clock) -> None:
    ledger.remember_failure(digest("a"), "torch", "message")
    clock.now -= 1_000
    assert ledger.failure(digest("a"), "torch") is None


def test_a_failure_is_forgotten_when_the_compile_works(ledger: Ledger) -> None:
    ledger.remember_failure(digest("a"), "torch", "message")
    ledger.forget_failure(digest("a"))
    ledger.forget_failure(digest("b"))
    assert ledger.failures() == {}
