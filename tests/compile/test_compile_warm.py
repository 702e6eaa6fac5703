"""Warming a cache whose graphs are compiled by processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compile_processes import until
from test_compile_background import Detachable

from graphcache.backends.protocol import Job
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.background import BackgroundSupplier
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.miss import OnMiss
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders
from graphcache.stats import Stats
from graphcache.store.memory import MemoryStore

LADDERS = Ladders(Ladder((16, 32)))
ANCHOR, MASKED = (GraphKey(1, length, mode=MaskMode.CUSTOM) for length in (32, 16))
LONG, SHORT = GraphKey(1, 32), GraphKey(1, 16)
Make = Callable[..., GraphCache]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[GraphCache] = []

    def cache(
        backend: Detachable | None = None, store: Any = None, *, workers: int = 1, **settings: Any
    ) -> GraphCache:
        stats = Stats(strict=True)
        supplier = BackgroundSupplier(backend or Detachable(), store, stats=stats, workers=workers)
        made.append(GraphCache(DynamicDual(LADDERS), supplier, stats=stats, **settings))
        return made[-1]

    yield cache
    for each in made:
        each.close()


def come_in(cache: GraphCache, count: int) -> None:
    """Take steps until so many graphs are resident."""

    def step() -> bool:
        with cache.step(Batch.of([5, 5])):
            return len(cache.resident) == count

    until(step)


def test_what_is_waited_for_is_compiled_side_by_side(make: Make, tmp_path: Path) -> None:
    meeting = Job("worker_tasks:meet", b"", {"place": str(tmp_path), "others": 2})
    cache = make(Detachable({SHORT: meeting, LONG: meeting}), workers=2)
    assert set(cache.warm([SHORT, LONG]).compiled) == {SHORT, LONG}


def test_where_misses_fall_back_only_what_nothing_stands_in_for_is_waited_for(make: Make) -> None:
    cache = make(on_miss=OnMiss.FALLBACK)
    report = cache.warm()
    assert (report.compiled, report.asked) == ([ANCHOR], [LONG, MASKED, SHORT])
    with cache.step(Batch.of([5])) as step:
        assert [launch.key for launch in step] == [ANCHOR]
    come_in(cache, 4)
    total = cache.stats.total()
    assert (total.compiles, total.upgrades, total.stalls) == (4, 3, 0)
    with cache.step(Batch.of([5])) as step:
        assert [launch.key for launch in step] == [SHORT]


def test_what_is_stored_is_waited_for_as_well(make: Make) -> None:
    store = MemoryStore()
    make(store=store).warm()
    report = make(store=store, on_miss=OnMiss.FALLBACK).warm()
    assert (sorted(report.loaded), report.asked) == (sorted([ANCHOR, LONG, MASKED, SHORT]), [])


def test_where_only_the_frozen_cache_falls_back_all_are_waited_for(make: Make) -> None:
    report = make(on_miss=OnMiss.COMPILE, frozen_on_miss=OnMiss.FALLBACK).warm()
    assert (len(report.compiled), report.asked) == (4, [])
    report = make(on_miss=OnMiss.FALLBACK, frozen_on_miss=OnMiss.RAISE).warm()
    assert (len(report.compiled), report.asked) == (4, [])


def test_no_more_are_asked_for_than_the_budget_has_room_for(make: Make) -> None:
    cache = make(on_miss=OnMiss.FALLBACK, budget=Budget(graphs=2))
    report = cache.warm()
    assert (report.compiled, report.asked, report.left_out) == ([ANCHOR], [LONG], [MASKED, SHORT])
    backend = Detachable()
    report = make(backend, budget=Budget(graphs=2)).warm()
    assert len(report.compiled) == len(report.left_out) == 2
    assert sum(backend.loaded.values()) == 2
