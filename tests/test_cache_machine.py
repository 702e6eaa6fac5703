"""A state machine drives the cache with a backend and a store that fail at chosen moments."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fakes import FakeBackend
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from graphcache.backends.protocol import EvictUnit, Graph
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.errors import BudgetError, CompileError, CorruptError, FrozenError, StoreError, StoreFullError
from graphcache.eviction.lfu import Lfu
from graphcache.eviction.lru import Lru
from graphcache.key import GraphKey, MaskMode, dominates
from graphcache.ladder import Ladder
from graphcache.miss import OnMiss
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders
from graphcache.policy.rows_causal import RowsCausal
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask
from graphcache.stats import Stats
from graphcache.store.memory import MemoryStore

SIZES = (16, 32, 64, 128, 256)
KEYS = [GraphKey(1, size, mode=mode) for size in SIZES for mode in (MaskMode.CUSTOM, MaskMode.CAUSAL)]
EXPECTED = (CompileError, BudgetError, FrozenError)


class FaultyStore:
    """A memory store that raises what it is told to."""

    def __init__(self):
        self.inner = MemoryStore()
        self.get_error = self.put_error = None

    def get(self, digest):
        if self.get_error:
            raise self.get_error
        return self.inner.get(digest)

    def peek(self, digest):
        if self.get_error:
            raise self.get_error
        return self.inner.peek(digest)

    def put(self, digest, record, payload):
        if self.put_error:
            raise self.put_error
        self.inner.put(digest, record, payload)

    def delete(self, digest):
        return self.inner.delete(digest)

    def scan(self):
        return self.inner.scan()


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from([StaticMask, StaticCausal, DynamicDual, RowsCausal]),
        eviction=st.sampled_from([Lru, Lfu]),
        graphs=st.integers(1, 3),
        nbytes=st.sampled_from([None, None, 200, 1000]),
        unit=st.sampled_from(list(EvictUnit)),
        on_miss=st.sampled_from([OnMiss.COMPILE, OnMiss.FALLBACK, OnMiss.LOG]),
    )
    def build(self, policy, eviction, graphs, nbytes, unit, on_miss):
        self.failing: set[GraphKey] = set()
        self.met: list[GraphKey] = []
        self.unit = unit
        self.backend = FakeBackend(
            evict_unit=unit, on_compile=self.on_compile, generation=lambda key: key.seq_len // 64
        )
        self.store = FaultyStore()
        self.stats = Stats()
        self.now = 0.0
        supplier = InlineSupplier(self.backend, self.store, stats=self.stats, clock=lambda: self.now)
        self.cache = GraphCache(
            policy(Ladders(Ladder(SIZES)), eviction()),
            supplier,
            budget=Budget(graphs, nbytes),
            evict_unit=unit,
            on_miss=on_miss,
            stats=self.stats,
        )
        self.launches = 0
        self.asked = 0
        self.foreign: Counter[GraphKey] = Counter()

    def on_compile(self, key):
        if key in self.failing:
            raise RuntimeError("planted")

    @rule(keys=st.sets(st.sampled_from(KEYS)))
    def some_compiles_fail(self, keys):
        self.failing = keys

    @rule(error=st.sampled_from([None, CorruptError("cut"), StoreError("gone"), OSError(5, "I/O")]))
    def reads_fail(self, error):
        self.store.get_error = error

    @rule(error=st.sampled_from([None, StoreFullError("full"), OSError(30, "read-only")]))
    def writes_fail(self, error):
        self.store.put_error = error

    @rule(seconds=st.sampled_from([1, 400]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(lengths=st.lists(st.sampled_from([9, 30, 60, 64]), min_size=1, max_size=4))
    def step(self, lengths):
        try:
            step = self.cache.step(Batch.of(lengths))
        except EXPECTED:
            self.launches = None  # how far a step came that raised is not known: stop counting
            return
        with step:
            carried = []
            for launch in step:
                assert dominates(launch.key, launch.wanted)
                assert self.cache.resident[launch.key] is launch.graph
                assert launch.graph()[0] == str(launch.key) or launch.key in self.foreign
                carried += launch.sequences
                step.ran(launch, 1.0)
            assert sorted(carried) == list(range(len(lengths)))
            if self.launches is not None:
                self.launches += len(step)

    @rule(key=st.sampled_from(KEYS), threads=st.integers(1, 3))
    def several_ask_for_a_key(self, key, threads):
        meeting = threading.Barrier(2)

        def compile_fn(wanted):
            with suppress(threading.BrokenBarrierError):
                meeting.wait(timeout=0.002 if threads > 1 else 0)
                self.met.append(wanted)
            try:
                if wanted in self.failing:
                    raise RuntimeError("planted")
                self.foreign[wanted] += 1
                return Graph(lambda: (str(wanted),), nbytes=wanted.seq_len, generation=wanted.seq_len // 64)
            finally:
                meeting.abort()

        self.launches = None
        with ThreadPoolExecutor(threads) as pool:
            for ask in [pool.submit(self.cache.get_or_compile, key, compile_fn) for _ in range(threads)]:
                error = ask.exception()
                assert error is None or isinstance(error, EXPECTED)
                if error is None:
                    assert ask.result()()[0] == str(key)
        assert not self.met, "two compiles of one key at once"

    @rule(keys=st.lists(st.sampled_from(KEYS), unique=True))
    def warm(self, keys):
        before = set(self.cache.resident)
        report = self.cache.warm(keys)
        listed = [report.loaded, report.compiled, report.present, report.left_out, report.failed]
        assert sorted(key for keys in listed for key in keys) == sorted(keys)
        assert before <= set(self.cache.resident), "a warm-up evicted"
        self.launches = None

    @rule(key=st.sampled_from(KEYS))
    def block(self, key):
        self.cache.block(key)
        self.launches = None

    @precondition(lambda self: self.cache.on_miss is not OnMiss.RAISE)
    @rule()
    def freeze(self):
        self.cache.freeze(OnMiss.RAISE)

    @invariant()
    def the_budget_holds(self):
        if not hasattr(self, "cache"):
            return
        snapshot = self.cache.snapshot()
        budget = self.cache.view.budget
        assert len(snapshot["resident"]) <= budget.graphs
        held = snapshot["resident_bytes"] + snapshot["retained_bytes"]
        assert budget.bytes is None or held <= budget.bytes
        if self.unit is not EvictUnit.NEVER:
            assert snapshot["retained_bytes"] == 0

    @invariant()
    def what_is_loaded_is_resident(self):
        if not hasattr(self, "cache"):
            return
        loaded = {key for key, count in self.backend.loaded.items() if count}
        assert all(count in (0, 1) for count in self.backend.loaded.values())
        assert loaded <= set(self.cache.resident)
        assert set(self.cache.resident) - loaded <= set(self.foreign)

    @invariant()
    def counters_add_up(self):
        if not hasattr(self, "cache"):
            return
        total = self.stats.total()
        made = sum(self.backend.compiles.values()) + sum(self.foreign.values())
        assert total.compiles <= made
        assert total.stalls <= total.loads + total.compiles
        if self.launches is not None:
            served = total.hits + total.fallbacks + total.loads + total.compiles
            # A compile that did not fit served nobody: a stand-in did.
            assert served - self.stats.errors["BudgetError"] == self.launches == total.runs

    def teardown(self):
        if hasattr(self, "cache"):
            self.cache.close()
            assert not +self.backend.loaded, "a closed cache holds graphs"


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestCacheMachine = CacheMachine.TestCase
