"""A cache that is asked for days, and graphs that come and go, take no more memory than at the start."""

import gc
import os
import tracemalloc
from pathlib import Path

import pytest
from fakes import FakeBackend

from graphcache.backends.protocol import EvictUnit
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.costs import CostLearner
from graphcache.ladder import Ladder
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders
from graphcache.policy.rows_causal import RowsCausal
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask
from graphcache.store.memory import MemoryStore

MIB = 2**20
LADDERS = Ladders(Ladder.pow2(128, 16384))


def resident_bytes():
    """Return what this process holds in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def serve(cache, batches):
    for batch in batches:
        with cache.step(batch) as step:
            for launch in step:
                step.ran(launch, 1e-3)


def batches_of_two(steps, first=0):
    """Yield batches of two sequences, no two alike."""
    for number in range(first, first + steps):
        yield Batch.of([1 + number // 8000, 1 + number % 8000])


@pytest.mark.parametrize("policy", [DynamicDual, StaticMask, StaticCausal, RowsCausal])
def test_batches_that_never_come_again_are_not_kept(policy):
    cache = GraphCache(policy(LADDERS), InlineSupplier(FakeBackend()))
    cache.warm()
    serve(cache, batches_of_two(GraphCache.MEMO_ENTRIES + 500))
    assert len(cache._memo) <= GraphCache.MEMO_ENTRIES
    assert len(cache._bound) <= GraphCache.MEMO_ENTRIES


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_million_lookups_take_no_memory():
    cache = GraphCache(DynamicDual(LADDERS), InlineSupplier(FakeBackend()), learner=CostLearner())
    cache.warm()
    lone = [Batch.of([length]) for length in range(1, 16385, 3)]
    serve(cache, lone * 20)
    serve(cache, batches_of_two(100_000))
    before = resident_bytes()
    for turn in range(95):
        serve(cache, lone * 18)
        serve(cache, batches_of_two(10_000, first=100_000 + 10_000 * turn))
    assert cache.stats.steps > 10_000_000
    assert resident_bytes() - before < 8 * MIB


@pytest.mark.parametrize("evict_unit", EvictUnit)
def test_graphs_that_come_and_go_take_no_memory(evict_unit):
    backend = FakeBackend(evict_unit=evict_unit, generation=lambda key: key.seq_len)
    supplier = InlineSupplier(backend, MemoryStore())
    cache = GraphCache(StaticMask(LADDERS), supplier, budget=Budget(graphs=1), evict_unit=evict_unit)
    turns = [Batch.of([100]), Batch.of([200])]
    tracemalloc.start()
    serve(cache, turns * 600)
    before, _ = tracemalloc.get_traced_memory()
    serve(cache, turns * 500)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.stats.total().evictions == 2 * 1100 - 1
    assert after - before < 64 * 1024


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_compiled_graphs_that_come_and_go_ten_thousand_times_take_no_memory(tmp_path):
    from graphcache.backends.inductor import InductorBackend
    from graphcache.bench.concurrent import SMALL
    from graphcache.bench.sample import SampleProgram

    program = SampleProgram(SMALL)
    backend = InductorBackend(program, unpack_dir=tmp_path)
    supplier = InlineSupplier(backend, MemoryStore())
    ladders = Ladders(Ladder((16, 32)))
    unit = backend.evict_unit
    cache = GraphCache(StaticCausal(ladders), supplier, budget=Budget(graphs=1), evict_unit=unit)
    turns = [Batch.of([16]), Batch.of([32])]

    def run_all(cycles):
        for batch in turns * (cycles // 2):
            with cache.step(batch) as step:
                for launch in step:
                    launch.graph(*program.inputs(launch.key))

    run_all(1000)
    before = resident_bytes()
    run_all(10_000)
    assert cache.stats.total().evictions == 10_999
    assert resident_bytes() - before < 8 * MIB
