from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes import FakeBackend

from graphcache.backends.protocol import Graph
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.errors import (
    BudgetError,
    ClosedError,
    CompileError,
    FrozenError,
    GraphCacheError,
    LadderError,
    PolicyError,
)
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.miss import OnMiss
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask
from graphcache.stats import Stats

LADDERS = Ladders(Ladder.pow2(128, 1024))


def make(policy=DynamicDual, backend=None, *, strict=True, store=None, options=None, **cache):
    stats = Stats(strict=strict)
    backend = backend or FakeBackend()
    supplier = InlineSupplier(backend, store, stats=stats)
    return GraphCache(
        policy(LADDERS, **(options or {})), supplier, stats=stats, evict_unit=backend.evict_unit, **cache
    )


def run(cache, *new):
    """Run one step, and return (served, wanted, outcome, sequences) of each launch."""
    with cache.step(Batch.of(new)) as step:
        return [(str(b.key), str(b.wanted), b.outcome.value, b.sequences) for b in step]


def test_dynamic_dual_takes_a_mask_only_for_several():
    cache = make()
    assert run(cache, 200) == [("prefill/causal/1x256", "prefill/causal/1x256", "compile", (0,))]
    assert run(cache, 200, 100) == [("prefill/custom/1x512", "prefill/custom/1x512", "compile", (0, 1))]
    assert run(cache, 130)[0][2] == "hit"


def test_static_mask_packs_a_lone_sequence_with_a_mask():
    assert run(make(StaticMask), 200)[0][0] == "prefill/custom/1x256"


def test_static_causal_runs_one_launch_a_sequence():
    cache = make(StaticCausal)
    launches = run(cache, 100, 600, 100)
    assert [(launch[0], launch[3]) for launch in launches] == [
        ("prefill/causal/1x128", (0,)),
        ("prefill/causal/1x1024", (1,)),
        ("prefill/causal/1x128", (2,)),
    ]
    assert cache.supplier.backend.compiles.total() == 2


def test_static_causal_refuses_several_where_configured():
    cache = make(StaticCausal, options={"several": "refuse"})
    with pytest.raises(PolicyError, match="2 sequences; set max_num_seqs to 1"):
        cache.step(Batch.of([1, 2]))
    assert run(cache, 5)


def test_a_batch_above_the_ladder_names_the_limit():
    with pytest.raises(LadderError, match="1025 is above the ladder's top of 1024"):
        make().step(Batch.of([1000, 25]))


def test_a_step_that_raised_leaves_the_cache_usable():
    cache = make()
    with pytest.raises(LadderError):
        cache.step(Batch.of([4096]))
    assert run(cache, 5)


def test_two_open_steps_are_refused():
    cache = make()
    with cache.step(Batch.of([5])), pytest.raises(GraphCacheError, match="a step is open"):
        cache.step(Batch.of([5]))
    assert run(cache, 5)


def test_the_graph_is_the_one_of_its_key():
    cache = make()
    with cache.step(Batch.of([5])) as step:
        (launch,) = step
        assert launch.graph(1, 2) == ("prefill/causal/1x128", (1, 2))


def test_least_recently_used_leaves_first():
    cache = make(StaticMask, budget=Budget(graphs=2))
    for new in (100, 200, 100, 400):
        run(cache, new)
    assert [str(key) for key in cache.resident] == ["prefill/custom/1x128", "prefill/custom/1x512"]
    assert cache.supplier.backend.loaded[GraphKey(1, 256, mode=MaskMode.CUSTOM)] == 0


def test_a_step_that_needs_more_graphs_than_the_budget_runs_on_the_largest():
    cache = make(StaticCausal, budget=Budget(graphs=1))
    assert [launch[:3] for launch in run(cache, 100, 600)] == [
        ("prefill/causal/1x1024", "prefill/causal/1x128", "fallback"),
        ("prefill/causal/1x1024", "prefill/causal/1x1024", "compile"),
    ]


def test_what_finds_no_room_beside_a_step_s_graphs_is_not_fetched_again_for_it_and_serves_elsewhere():
    cache = make(StaticCausal, budget=Budget(bytes=1100))
    for _ in range(3):
        assert [launch[0] for launch in run(cache, 600, 200)] == ["prefill/causal/1x1024"] * 2
    assert cache.supplier.backend.compiles[GraphKey(1, 256)] == 1
    assert [launch[0] for launch in run(cache, 200)] == ["prefill/causal/1x256"]
    assert cache.snapshot()["blocked"] == cache.snapshot()["errors"] == {}


def test_a_graph_larger_than_the_budget_says_so():
    cache = make(StaticMask, budget=Budget(bytes=500))
    run(cache, 100)
    with pytest.raises(BudgetError, match=r"holds 512 bytes, more than the whole budget\.bytes of 500"):
        run(cache, 400)
    assert len(cache.resident) == 1


def test_bytes_bound_what_is_resident():
    cache = make(StaticMask, budget=Budget(bytes=1100))
    for new in (100, 200, 400, 1000):
        run(cache, new)
        assert sum(graph.nbytes for graph in cache.resident.values()) <= 1100
    assert [str(key) for key in cache.resident] == ["prefill/custom/1x1024"]


def test_a_failed_compile_raises_with_key_and_cause_and_is_remembered():
    def fail(key):
        raise RuntimeError("no such instruction")

    backend = FakeBackend(on_compile=fail)
    cache = make(backend=backend)
    for _ in range(2):
        with pytest.raises(CompileError, match=r"prefill/causal/1x128 failed: no such instruction") as caught:
            run(cache, 5)
    assert caught.value.key == GraphKey(1, 128)
    assert backend.compiles.total() == 1


def test_a_failed_compile_is_forgotten_after_a_while():
    now = [0.0]
    broken = [True]

    def fail(key):
        if broken[0]:
            raise RuntimeError("out of memory")

    backend = FakeBackend(on_compile=fail)
    supplier = InlineSupplier(backend, clock=lambda: now[0], forget_seconds=10)
    with pytest.raises(CompileError):
        supplier.fetch(GraphKey(1, 128))
    broken[0] = False
    now[0] = 9.9
    with pytest.raises(CompileError):
        supplier.fetch(GraphKey(1, 128))
    now[0] = 10.0
    assert supplier.fetch(GraphKey(1, 128)).source == "compile"


def test_a_failed_compile_falls_back_to_what_dominates():
    def fail(key):
        if key.mode is MaskMode.CAUSAL:
            raise RuntimeError("no")

    cache = make(backend=FakeBackend(on_compile=fail), strict=False)
    run(cache, 100, 100)
    assert run(cache, 100)[0] == ("prefill/custom/1x256", "prefill/causal/1x128", "fallback", (0,))
    assert cache.snapshot()["errors"] == {"CompileError": 1}


def test_raise_on_miss_names_the_key_after_freezing():
    cache = make(frozen_on_miss=OnMiss.RAISE)
    cache.warm([GraphKey(1, 128)])
    cache.freeze()
    assert run(cache, 5)[0][2] == "hit"
    with pytest.raises(FrozenError, match="prefill/causal/1x256"):
        run(cache, 200)


def test_warm_stops_at_the_budget_and_reports():
    cache = make(StaticMask, budget=Budget(graphs=3))
    seen = []
    report = cache.warm(progress=lambda key, index, count: seen.append((str(key), index, count)))
    assert [key.seq_len for key in report.compiled] == [1024, 512, 256]
    assert [key.seq_len for key in report.left_out] == [128]
    assert seen[0] == ("prefill/custom/1x1024", 0, 4)
    again = cache.warm()
    assert [key.seq_len for key in again.present] == [1024, 512, 256]


def test_warm_begins_nothing_after_the_deadline():
    now = [0.0]
    cache = make(StaticMask, FakeBackend(on_compile=lambda key: now.__setitem__(0, now[0] + 60)))
    cache._clock = lambda: now[0]
    report = cache.warm(deadline_seconds=100)
    assert (len(report.compiled), len(report.left_out), report.seconds) == (2, 2, 120.0)


def test_warm_goes_on_after_a_failed_compile():
    def fail(key):
        if key.seq_len == 512:
            raise RuntimeError("no")

    cache = make(StaticMask, FakeBackend(on_compile=fail), strict=False)
    report = cache.warm()
    assert [key.seq_len for key in report.failed] == [512]
    assert [key.seq_len for key in report.compiled] == [1024, 256, 128]


def test_a_blocked_graph_is_stood_in_for():
    cache = make(StaticMask)
    cache.warm()
    cache.block(GraphKey(1, 128, mode=MaskMode.CUSTOM))
    assert run(cache, 5)[0][0] == "prefill/custom/1x256"
    assert "prefill/custom/1x128" not in map(str, cache.resident)


def test_counters_add_up():
    cache = make()
    for new in ([5], [6], [5, 6], [5], [200]):
        with cache.step(Batch.of(new)) as step:
            for launch in step:
                step.ran(launch, 0.5)
    total = cache.snapshot()["total"]
    assert (total["hits"], total["compiles"], total["stalls"], total["runs"]) == (2, 3, 3, 5)
    assert total["run_seconds"] == 2.5


def test_get_or_compile_compiles_once_for_all_who_ask():
    cache = make()
    gate, compiles = threading.Event(), []

    def compile_fn(key):
        compiles.append(key)
        gate.wait(10)
        return lambda: str(key)

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(cache.get_or_compile, GraphKey(1, 128), compile_fn) for _ in range(8)]
        gate.set()
        graphs = {id(ask.result()) for ask in asked}
    assert len(graphs) == 1
    assert compiles == [GraphKey(1, 128)]


def test_get_or_compile_fails_for_all_who_waited():
    cache = make()
    gate = threading.Event()

    def compile_fn(key):
        gate.wait(10)
        raise RuntimeError("boom")

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(cache.get_or_compile, GraphKey(1, 128), compile_fn) for _ in range(4)]
        gate.set()
        errors = [ask.exception() for ask in asked]
    assert [str(error) for error in errors] == ["compiling prefill/causal/1x128 failed: boom"] * 4
    assert all(isinstance(error, CompileError) for error in errors)


def test_get_or_compile_changes_nothing_while_a_step_is_open():
    cache = make(budget=Budget(graphs=1))
    with cache.step(Batch.of([5])) as step:
        graph = cache.get_or_compile(GraphKey(1, 512), lambda key: Graph(lambda: "other"))
        assert graph() == "other"
        assert [str(key) for key in cache.resident] == ["prefill/causal/1x128"]
        assert step.launches[0].graph() == ("prefill/causal/1x128", ())
        assert cache.get_or_compile(GraphKey(1, 512), lambda key: pytest.fail("compiled twice")) is graph
    run(cache, 400)
    assert [str(key) for key in cache.resident] == ["prefill/causal/1x512"]


def test_a_pinned_graph_is_not_evicted():
    cache = make(budget=Budget(graphs=2))
    keys = [GraphKey(1, 128), GraphKey(1, 256), GraphKey(1, 512)]
    for key in keys[:2]:
        cache.get_or_compile(key, lambda key: lambda: key)
    with cache.pin(keys[0]):
        cache.get_or_compile(keys[2], lambda key: lambda: key)
        assert set(cache.resident) == {keys[0], keys[2]}
        with cache.pin(keys[2]), pytest.raises(BudgetError, match="pinned"):
            cache.get_or_compile(keys[1], lambda key: lambda: key)


def test_a_closed_cache_says_so_and_lets_graphs_go():
    cache = make()
    run(cache, 5)
    cache.close()
    cache.close()
    assert cache.supplier.backend.loaded.total() == 0
    with pytest.raises(ClosedError):
        run(cache, 5)
    with pytest.raises(ClosedError):
        cache.get_or_compile(GraphKey(1, 128), lambda key: lambda: None)
