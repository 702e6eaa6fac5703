from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
from fakes import FakeBackend

from graphcache.compile.inline import InlineSupplier
from graphcache.compile.single_flight import SingleFlight
from graphcache.errors import CompileError, ConfigError, CorruptError, LoadError, StoreError, StoreFullError
from graphcache.key import GraphKey
from graphcache.stats import Stats
from graphcache.store.disk import DiskStore
from graphcache.store.ledger import Ledger, MemoryTable
from graphcache.store.lock import Turn
from graphcache.store.memory import MemoryStore
from graphcache.store.sealed import SealedStore, SealKeys

KEY, OTHER = GraphKey(1, 128), GraphKey(1, 256)


def supplier(backend=None, store=None, *, strict=False, **options):
    return InlineSupplier(backend or FakeBackend(), store, stats=Stats(strict=strict), **options)


class Raising(MemoryStore):
    """A store that raises in one of its methods."""

    def __init__(self, method, error):
        super().__init__()
        setattr(self, method, self._raise)
        self.error = error

    def _raise(self, *arguments):
        raise self.error


def test_the_second_process_loads_what_the_first_compiled():
    store = MemoryStore()
    assert supplier(store=store).fetch(KEY).source == "compile"
    second = supplier(store=store, strict=True)
    assert second.stored(KEY)
    assert second.fetch(KEY).source == "load"
    assert second.backend.compiles.total() == 0


def test_a_load_saves_the_seconds_that_the_compile_took():
    now = [0.0]
    store = MemoryStore()
    backend = FakeBackend(on_compile=lambda key: now.__setitem__(0, now[0] + 60))
    assert supplier(backend, store, clock=lambda: now[0]).fetch(KEY).seconds == 60
    loading = FakeBackend(on_load=lambda key: now.__setitem__(0, now[0] + 2))
    loaded = supplier(loading, store, clock=lambda: now[0]).fetch(KEY)
    assert (loaded.seconds, loaded.saved_seconds) == (2, 58)


def test_other_facts_are_another_namespace():
    store = MemoryStore()
    supplier(store=store).fetch(KEY)
    other = FakeBackend()
    other.fingerprint = lambda: [("backend", "fake"), ("torch", "2.14")]
    assert supplier(other, store).fetch(KEY).source == "compile"


@pytest.mark.parametrize(
    ("method", "error", "reason"),
    [
        ("get", CorruptError("cut"), "corrupt-entry"),
        ("get", StoreError("gone"), "store-read"),
        ("get", OSError(5, "I/O error"), "store-read"),
        ("put", StoreFullError("full"), "store-full"),
        ("put", StoreError("gone"), "store-write"),
        ("put", OSError(30, "read-only"), "store-write"),
    ],
)
def test_a_fault_of_the_store_costs_at_most_a_compile(method, error, reason):
    supply = supplier(store=Raising(method, error))
    assert supply.fetch(KEY).source == "compile"
    assert set(supply.stats.errors) == {reason}
    with pytest.raises(type(error)):
        supplier(store=Raising(method, error), strict=True).fetch(KEY)


@pytest.mark.parametrize("changes", [{"key": str(OTHER)}, {"namespace": "0" * 64}])
def test_another_keys_or_namespaces_entry_is_not_loaded(changes):
    store = MemoryStore()
    supplier(store=store).fetch(KEY)
    honest = store.get

    def lie(digest):
        stored = honest(digest)
        return stored and stored._replace(record=replace(stored.record, **changes))

    store.get = lie
    second = supplier(store=store)
    assert second.fetch(KEY).source == "compile"
    assert set(second.stats.errors) == {"wrong-entry"}


def test_what_can_not_be_loaded_is_compiled_anew_and_replaced():
    store = MemoryStore()
    supplier(store=store).fetch(KEY)
    refusals = [LoadError("other weights")]

    def refuse_once(key):
        if refusals:
            raise refusals.pop()

    second = supplier(FakeBackend(on_load=refuse_once), store)
    assert second.fetch(KEY).source == "compile"
    assert second.stats.errors == {"load": 1}
    assert supplier(store=store, strict=True).fetch(KEY).source == "load"


def test_a_failed_compile_leaves_nothing_in_the_store():
    def fail(key):
        raise RuntimeError("internal compiler error")

    store = MemoryStore()
    with pytest.raises(CompileError, match=r"prefill/causal/1x128 failed: internal compiler error"):
        supplier(FakeBackend(on_compile=fail), store).fetch(KEY)
    assert list(store.scan()) == []


def test_who_waited_for_another_process_loads_what_it_made():
    store = MemoryStore()
    elsewhere = supplier(store=store)

    class Turn:
        def __enter__(self):
            elsewhere.fetch(KEY)

        def __exit__(self, *exception):
            pass

    supply = supplier(store=store, exclusive=lambda digest: Turn())
    assert supply.fetch(KEY).source == "load"
    assert supply.backend.compiles.total() == 0


def test_the_turn_is_taken_for_the_entry_and_left_after_it_is_stored():
    store, log = MemoryStore(), []

    class Turn:
        def __init__(self, digest):
            self.digest = digest

        def __enter__(self):
            log.append(self.digest)

        def __exit__(self, *exception):
            log.append(store.get(self.digest) is not None)

    supply = supplier(store=store, exclusive=Turn)
    supply.fetch(KEY)
    assert log == [supply.shelf.digest(KEY), True]


def test_one_flight_at_a_time_per_key_and_none_kept():
    flights: SingleFlight[int] = SingleFlight()
    gate, calls = threading.Event(), []

    def slow():
        calls.append(1)
        gate.wait(10)
        return len(calls)

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(flights.do, KEY, slow)
        while not calls:
            pass
        others = [pool.submit(flights.do, KEY, slow) for _ in range(2)]
        assert flights.do(OTHER, lambda: 7) == 7
        gate.set()
        assert first.result() == 1
        assert {other.result() for other in others} <= {1, 2, 3}
    assert flights._flights == {}


def test_a_failed_compile_is_remembered_for_other_processes_until_it_expires():
    now = [1000.0]
    ledger = Ledger(MemoryTable(), clock=lambda: now[0])

    def fail(key):
        raise RuntimeError("internal compiler error")

    with pytest.raises(CompileError):
        supplier(FakeBackend(on_compile=fail), failures=ledger).fetch(KEY)
    other = FakeBackend()
    with pytest.raises(CompileError, match=r"internal compiler error \(remembered from another process\)"):
        supplier(other, failures=ledger).fetch(KEY)
    assert other.compiles.total() == 0
    assert supplier(other, failures=ledger).fetch(OTHER).source == "compile"
    now[0] += 300
    assert supplier(other, failures=ledger).fetch(KEY).source == "compile"
    assert ledger.failures() == {}, "a compile that worked did not forget the failure"


def test_what_the_user_mends_by_hand_is_not_remembered_for_other_processes():
    def fail(key):
        raise ConfigError("cxx: install the package g++")

    ledger = Ledger(MemoryTable())
    with pytest.raises(CompileError, match=r"g\+\+"):
        supplier(FakeBackend(on_compile=fail), failures=ledger).fetch(KEY)
    assert ledger.failures() == {}


def test_a_compile_without_the_turn_to_do_so_is_counted_by_its_reason():
    supply = supplier(exclusive=lambda digest: nullcontext(Turn(False, True, "holder_hangs")))
    assert supply.fetch(KEY).source == "compile"
    assert supply.stats.errors == {"lock-holder_hangs": 1}


def test_whether_an_entry_is_there_is_told_without_its_payload(tmp_path):
    with DiskStore(tmp_path, fsync=False) as disk:
        told = supplier(store=disk)
        told.fetch(KEY)
        path = tmp_path / "entries" / told.shelf.digest(KEY)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert told.stored(KEY)
        assert not told.stored(OTHER)
        assert not told.stats.errors
        assert (told.shelf.get(KEY), told.stats.errors) == (None, {"corrupt-entry": 1})


def test_an_entry_without_the_seal_is_not_there_and_is_counted():
    inner = MemoryStore()
    supplier(store=inner).fetch(KEY)
    told = supplier(store=SealedStore(inner, SealKeys([b"k" * 32])))
    assert not told.stored(KEY)
    assert told.stats.errors == {"corrupt-entry": 1}
