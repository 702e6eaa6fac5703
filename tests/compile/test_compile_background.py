from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from compile_processes import gone, until
from fakes import FakeBackend

from graphcache.backends.protocol import Job
from graphcache.compile.background import BackgroundSupplier
from graphcache.compile.flights import Stage
from graphcache.compile.inline import InlineSupplier
from graphcache.compile.process import Limits
from graphcache.compile.protocol import Failed, Supplied, Urgency
from graphcache.errors import ClosedError, CompileError, ConfigError, CorruptError, LoadError
from graphcache.key import GraphKey
from graphcache.stats import Stats
from graphcache.store.memory import MemoryStore

KEYS = tuple(GraphKey(1, 128 << n) for n in range(5))
KEY, OTHER, *REST = KEYS


class Detachable(FakeBackend):
    """The fake backend, whose jobs are done by real workers: ``tasks`` says what each does."""

    def __init__(self, tasks: dict[GraphKey, Job] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.tasks = tasks or {}
        self.traced: list[tuple[GraphKey, threading.Thread]] = []

    def job(self, key: GraphKey) -> Job:
        self.traced.append((key, threading.current_thread()))
        self.on_compile(key)
        task = self.tasks.get(key, Job("worker_tasks:echo", b""))
        return Job(task.task, str(key).encode(), task.arguments)


Make = Callable[..., BackgroundSupplier]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[BackgroundSupplier] = []

    def supplier(backend: Detachable | None = None, store: Any = None, **options: Any) -> BackgroundSupplier:
        options.setdefault("stats", Stats())
        made.append(BackgroundSupplier(backend or Detachable(), store, **options))
        return made[-1]

    yield supplier
    for each in made:
        each.close()


def collect(supplier: BackgroundSupplier, count: int) -> list[Supplied | Failed]:
    """Call ``ready`` as steps would, until so many results have come."""
    results: list[Supplied | Failed] = []

    def enough() -> bool:
        results.extend(supplier.ready())
        return len(results) >= count

    until(enough)
    return results


def waits_for_a_worker(supplier: BackgroundSupplier, key: GraphKey) -> bool:
    flight = supplier._flights._flights.get(key)
    return flight is not None and flight.stage is Stage.WORKER


def test_what_is_requested_is_handed_over_once(make: Make) -> None:
    supplier = make()
    supplier.request(KEY)
    supplier.request(KEY)
    (supplied,) = collect(supplier, 1)
    assert isinstance(supplied, Supplied)
    assert (supplied.key, supplied.source, supplied.graph()) == (KEY, "compile", (str(KEY), ()))
    assert supplier.ready() == []


def test_what_is_stored_is_loaded_and_never_traced(make: Make) -> None:
    store = MemoryStore()
    make(store=store).fetch(KEY)
    backend = Detachable()
    supplier = make(backend, store)
    supplier.request(KEY)
    (supplied,) = collect(supplier, 1)
    assert isinstance(supplied, Supplied)
    assert (supplied.source, backend.traced) == ("load", [])
    assert supplied.saved_seconds > 0
    assert make(Detachable(), store).fetch(KEY).source == "load"


def test_what_a_worker_compiled_another_process_loads(make: Make) -> None:
    store = MemoryStore()
    supplier = make(store=store)
    supplier.request(KEY)
    collect(supplier, 1)
    assert InlineSupplier(FakeBackend(), store).fetch(KEY).source == "load"


def test_a_fetch_waits_for_what_is_under_way(make: Make) -> None:
    backend = Detachable()
    supplier = make(backend)
    supplier.request(KEY)
    assert supplier.fetch(KEY).source == "compile"
    assert len(backend.traced) == 1
    assert supplier.ready() == []


def test_the_model_is_traced_and_graphs_are_loaded_on_the_runner_s_thread_alone(make: Make) -> None:
    loads: list[threading.Thread] = []
    backend = Detachable(on_load=lambda key: loads.append(threading.current_thread()))
    supplier = make(backend, workers=2)
    for key in KEYS:
        supplier.request(key)
    collect(supplier, len(KEYS))
    assert {thread for _, thread in backend.traced} == {threading.current_thread()} == set(loads)


def test_one_call_of_ready_traces_one_graph_at_most(make: Make) -> None:
    backend = Detachable()
    supplier = make(backend)
    for key in KEYS:
        supplier.request(key)
    before = 0
    while before < len(KEYS):
        supplier.ready()
        assert len(backend.traced) - before <= 1
        before = len(backend.traced)


def test_what_is_prepared_is_not_traced_while_serving(make: Make) -> None:
    backend = Detachable()
    store = MemoryStore()
    make(store=store).fetch(OTHER)
    supplier = make(backend, store)
    assert supplier.prepare([KEY, OTHER]) == 1
    assert supplier.prepare([KEY, OTHER]) == 0
    supplier.request(KEY)
    until(lambda: bool(supplier.ready()))
    assert [key for key, _ in backend.traced] == [KEY]


def test_a_graph_that_can_t_be_traced_is_a_failed_compile(make: Make) -> None:
    def refuse(key: GraphKey) -> None:
        raise RuntimeError("data-dependent branch")

    supplier = make(Detachable(on_compile=refuse))
    with pytest.raises(CompileError, match="data-dependent"):
        supplier.fetch(KEY)
    supplier.request(OTHER)
    (failed,) = collect(supplier, 1)
    assert isinstance(failed, Failed)
    assert (failed.key, failed.reason) == (OTHER, "compile")
    assert supplier.prepare([REST[0]]) == 1
    with pytest.raises(CompileError):
        supplier.fetch(REST[0])


def test_demand_comes_before_upgrades_of_value_and_warm_up_last(make: Make, tmp_path: Path) -> None:
    order: list[str] = []

    class Watching(MemoryStore):
        def put(self, digest: str, record: Any, payload: bytes) -> None:
            order.append(record.key)
            super().put(digest, record, payload)

    holding, entered = threading.Event(), threading.Event()

    @contextmanager
    def exclusive(digest: str) -> Iterator[None]:
        entered.set()
        holding.wait()
        yield

    supplier = make(store=Watching(), exclusive=exclusive, value=lambda key: key.seq_len)
    first, demanded, cheap, dear, warm = KEYS
    supplier.prepare(KEYS)
    supplier.request(first)
    entered.wait()
    supplier.request(warm, Urgency.WARM)
    supplier.request(cheap)
    supplier.request(dear)
    fetcher = threading.Thread(target=supplier.fetch, args=(demanded,))
    fetcher.start()
    waiting = (warm, cheap, dear, demanded)
    until(lambda: all(waits_for_a_worker(supplier, key) for key in waiting))
    holding.set()
    fetcher.join()
    collect(supplier, 4)
    assert order == [str(key) for key in (first, demanded, dear, cheap, warm)]


def test_a_worker_that_dies_costs_a_retry_counted_by_reason(make: Make, tmp_path: Path) -> None:
    job = Job("worker_tasks:die_once", b"", {"marker": str(tmp_path / "died")})
    supplier = make(Detachable({KEY: job}), backoff_seconds=0.0)
    supplier.request(KEY)
    (supplied,) = collect(supplier, 1)
    assert isinstance(supplied, Supplied)
    assert supplier.stats.snapshot()["errors"]["worker-crashed"] == 1


def test_a_retry_waits_for_its_time_unless_a_step_waits(make: Make, tmp_path: Path) -> None:
    now = [0.0]
    job = Job("worker_tasks:die_once", b"", {"marker": str(tmp_path / "died")})
    supplier = make(Detachable({KEY: job}), clock=lambda: now[0], backoff_seconds=1000.0)
    supplier.request(KEY)
    until(lambda: bool(supplier.ready()) or supplier.stats.snapshot()["errors"].get("worker-crashed") == 1)
    until(lambda: waits_for_a_worker(supplier, KEY))
    assert supplier._flights._flights[KEY].not_before == 1000.0
    assert supplier.fetch(KEY).source == "compile"
    assert now == [0.0]


def test_a_worker_that_always_dies_is_a_failed_compile_that_is_remembered(make: Make) -> None:
    now = [0.0]
    backend = Detachable({KEY: Job("worker_tasks:die", b"")})
    supplier = make(backend, retries=1, backoff_seconds=0.0, clock=lambda: now[0], forget_seconds=60.0)
    supplier.request(KEY)
    (failed,) = collect(supplier, 1)
    assert isinstance(failed, Failed)
    assert failed.reason == "crashed"
    assert supplier.stats.snapshot()["errors"]["worker-crashed"] == 2
    with pytest.raises(CompileError, match="SIGKILL"):
        supplier.fetch(KEY)
    assert supplier.stats.snapshot()["errors"]["worker-crashed"] == 2
    now[0] = 61.0
    backend.tasks.clear()
    assert supplier.fetch(KEY).source == "compile"


def test_what_the_compiler_refuses_is_not_tried_again(make: Make) -> None:
    backend = Detachable({KEY: Job("worker_tasks:refuse", b"")})
    store = MemoryStore()
    supplier = make(backend, store)
    with pytest.raises(CompileError, match="no such operator"):
        supplier.fetch(KEY)
    with pytest.raises(CompileError, match="no such operator"):
        supplier.fetch(KEY)
    assert len(backend.traced) == 1
    assert list(store.scan()) == []
    assert supplier.fetch(OTHER).source == "compile"


def test_strict_statistics_survive_no_dead_worker_and_stop_none(make: Make, tmp_path: Path) -> None:
    job = Job("worker_tasks:die_once", b"", {"marker": str(tmp_path / "died")})
    supplier = make(Detachable({KEY: job}), stats=Stats(strict=True), backoff_seconds=0.0)
    with pytest.raises(CompileError, match="SIGKILL"):
        supplier.fetch(KEY)
    assert supplier.fetch(OTHER).source == "compile"


def test_a_stored_graph_that_can_t_be_loaded_costs_a_compile(make: Make) -> None:
    store = MemoryStore()
    make(store=store).fetch(KEY)
    bad = [True]

    def on_load(key: GraphKey) -> None:
        if bad.pop():
            bad.append(False)
            raise LoadError("another machine's")
        bad.append(False)

    supplier = make(Detachable(on_load=on_load), store)
    supplier.request(KEY)
    (supplied,) = collect(supplier, 1)
    assert isinstance(supplied, Supplied)
    assert supplied.source == "compile"
    assert supplier.stats.snapshot()["errors"] == {"load": 1}


def test_a_broken_store_costs_compiles_and_no_thread(make: Make) -> None:
    class Broken(MemoryStore):
        def get(self, digest: str) -> Any:
            raise CorruptError("torn")

    supplier = make(store=Broken())
    for key in KEYS[:2]:
        supplier.request(key)
    assert all(isinstance(each, Supplied) for each in collect(supplier, 2))
    strict = make(store=Broken(), stats=Stats(strict=True))
    strict.request(KEY)
    (failed,) = collect(strict, 1)
    assert isinstance(failed, Failed)


def test_another_process_s_compile_is_taken_over(make: Make) -> None:
    store = MemoryStore()

    @contextmanager
    def exclusive(digest: str) -> Iterator[None]:
        InlineSupplier(FakeBackend(), store).fetch(KEY)  # The other process, which held the lock meanwhile.
        yield

    supplier = make(store=store, exclusive=exclusive)
    assert supplier.fetch(KEY).source == "load"
    assert all(worker.pid is None for worker in supplier.workers)


@pytest.mark.parametrize("demanded", [True, False])
def test_closing_is_prompt_and_leaves_nothing(
    make: Make, tmp_path: Path, pids_in: Callable[[Path], list[int]], demanded: bool
) -> None:
    job = Job("worker_tasks:hang", b"", {"pids": str(tmp_path / "pids")})
    supplier = make(Detachable({KEY: job}), workers=2)
    scratch = supplier.workers[0]._scratch
    raised: list[Exception] = []

    def fetch() -> None:
        try:
            supplier.fetch(KEY)
        except ClosedError as error:
            raised.append(error)

    fetcher = threading.Thread(target=fetch)
    supplier.prepare([KEY])
    if demanded:
        fetcher.start()
    else:
        supplier.request(KEY)
    pids = pids_in(tmp_path / "pids")
    supplier.close()
    supplier.close()
    if demanded:
        fetcher.join()
        assert len(raised) == 1
    until(lambda: all(gone(pid) for pid in pids))
    assert not scratch.exists()
    assert not any(thread.is_alive() for thread in supplier._threads)
    assert supplier.ready() == []
    supplier.request(OTHER)
    with pytest.raises(ClosedError):
        supplier.fetch(OTHER)


def test_a_hung_worker_is_one_failed_compile(make: Make, tmp_path: Path) -> None:
    job = Job("worker_tasks:hang", b"", {"pids": str(tmp_path / "pids")})
    supplier = make(Detachable({KEY: job}), limits=Limits(seconds=1.0), retries=0)
    supplier.request(KEY)
    supplier.request(OTHER)
    results = {each.key: each for each in collect(supplier, 2)}
    assert isinstance(results[OTHER], Supplied)
    failed = results[KEY]
    assert isinstance(failed, Failed)
    assert failed.reason == "hung"


def test_a_backend_whose_compiles_can_t_leave_the_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="fake"):
        BackgroundSupplier(FakeBackend())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="workers"):
        BackgroundSupplier(Detachable(), workers=0)
