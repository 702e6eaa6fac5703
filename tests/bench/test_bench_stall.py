import json
import threading

import pytest
from fakes import FakeBackend

from graphcache.backends.eager import EagerBackend
from graphcache.bench import stall
from graphcache.bench.concurrent import SMALL
from graphcache.bench.stall import CONTENDERS, InThread, Nobody, Row, measure
from graphcache.compile.protocol import Failed
from graphcache.key import GraphKey

KEY = GraphKey(1, 64)
IN_PROCESS = ("none", "in line", "in a thread")


def test_each_way_serves_and_only_the_floor_compiles_nothing():
    told = []
    rows = list(
        measure(
            0.5,
            2,
            contenders=IN_PROCESS,
            make_backend=EagerBackend,
            sizes=SMALL,
            progress=lambda what, done, total: told.append((what, done, total)),
        )
    )
    assert [row.compile for row in rows] == list(IN_PROCESS)
    assert told == [(f"compiles: {name}", index, 3) for index, name in enumerate(IN_PROCESS)]
    for row in rows:
        assert row.steps > 0
        assert 0 < row.p50_seconds <= row.p99_seconds <= row.max_seconds
    floor, in_line, in_a_thread = rows
    assert (floor.stalls, floor.upgrades) == (0, 0)
    assert (in_line.upgrades, in_a_thread.stalls) == (0, 0)
    assert 1 <= in_line.stalls <= 2
    assert in_a_thread.upgrades <= 2


def test_all_ways_are_measured_unless_some_are_named():
    assert list(CONTENDERS) == ["none", "in line", "in a thread", "in workers"]


def test_nobody_lets_requests_lie():
    supplier = Nobody(FakeBackend())
    supplier.request(KEY)
    assert (supplier.ready(), supplier.due, supplier.background) == ((), False, True)


def test_a_thread_hands_over_what_it_compiled():
    begun, go_on = threading.Event(), threading.Event()

    def on_compile(key):
        begun.set()
        assert go_on.wait(60)

    supplier = InThread(FakeBackend(on_compile=on_compile))
    supplier.request(KEY)
    assert begun.wait(60)
    assert (list(supplier.ready()), supplier.due) == ([], False)
    go_on.set()
    supplier.close()
    assert supplier.due
    (supplied,) = supplier.ready()
    assert (supplied.key, supplied.source, supplied.graph()) == (KEY, "compile", (str(KEY), ()))
    assert (list(supplier.ready()), supplier.due) == ([], False)


def test_what_a_thread_is_at_is_waited_for_and_handed_over_once():
    backend = FakeBackend()
    supplier = InThread(backend)
    supplier.request(KEY)
    assert supplier.fetch(KEY).graph() == (str(KEY), ())
    supplier.close()
    assert (supplier.ready(), backend.compiles[KEY]) == ([], 1)


def test_a_thread_tells_what_failed():
    def on_compile(key):
        raise RuntimeError("planted")

    supplier = InThread(FakeBackend(on_compile=on_compile))
    supplier.request(KEY)
    supplier.close()
    (failed,) = supplier.ready()
    assert isinstance(failed, Failed)
    assert "planted" in str(failed.error)


def test_the_command_prints_a_table_or_json(run, monkeypatch):
    row = Row("in line", 100, 0.001, 0.002, 3.5, 4, 0)
    monkeypatch.setattr(stall, "measure", lambda seconds, shapes, progress: [row])
    assert "3500.0" in run("bench", "stall").out
    assert json.loads(run("bench", "stall", "--json").out) == {"rows": [row._asdict()]}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_step_waits_for_workers():
    (row,) = measure(20, 1, contenders=["in workers"], sizes=SMALL)
    assert row.steps > 0
    assert row.stalls == 0
    assert row.upgrades <= 1
