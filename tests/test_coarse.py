"""Steps that ask for more graphs than the budget has room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphcache.batch import Batch, Launch, Plan, Sequence
from graphcache.cache import GraphCache
from graphcache.coarse import Family, joined, within
from graphcache.compile.inline import InlineSupplier
from graphcache.key import GraphKey, MaskMode, dominates
from graphcache.ladder import Ladder
from graphcache.policy.generation import Generation
from graphcache.policy.protocol import Budget, Ladders, View
from graphcache.policy.rows_causal import RowsCausal
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask
from graphcache.stats import Stats
from tests.fakes import FakeBackend

SIZES = st.sampled_from([1, 2, 4, 8])
KEYS = st.builds(
    GraphKey, SIZES, SIZES, SIZES, st.sampled_from(MaskMode), kind=st.sampled_from(["prefill", "decode"])
)
PLANS = st.lists(KEYS, min_size=1, max_size=8).map(
    lambda keys: Plan(tuple(Launch(key, (index,)) for index, key in enumerate(keys)))
)
LADDERS = Ladders(Ladder.pow2(4, 64), Ladder.pow2(1, 4), Ladder.pow2(8, 128))
SEQUENCES = st.builds(Sequence, st.integers(1, 8), st.sampled_from([0, 0, 1, 9, 30, 100]))


@given(keys=st.lists(KEYS, min_size=1))
def test_one_graph_of_a_family_serves_all_of_it(keys):
    joins = joined(keys)
    for key in keys:
        assert dominates(joins[Family.of(key)], key)
    for family, graph in joins.items():
        assert Family.of(graph) == family
        for facet in ("rows", "seq_len", "kv_len"):
            assert getattr(graph, facet) in {getattr(key, facet) for key in keys if Family.of(key) == family}


@given(plan=PLANS, graphs=st.integers(1, 8))
def test_a_plan_that_fits_stays_and_another_takes_one_graph_a_family(plan, graphs):
    result = within(plan, Budget(graphs), {})
    asked = {launch.key for launch in plan.launches}
    if len(asked) <= graphs:
        assert result is plan
    else:
        assert len({launch.key for launch in result.launches}) == len({Family.of(key) for key in asked})
    for launch, wanted in zip(result.launches, plan.launches, strict=True):
        assert dominates(launch.key, wanted.key)
        assert launch.sequences == wanted.sequences


def test_full_rows_of_several_lengths_are_padded_rows_where_there_is_room_for_one_graph():
    policy = StaticCausal(LADDERS, encoder_only=True)
    plan = policy.plan(Batch.of([4, 64, 16]), View({}), policy.start())
    assert {launch.key.mode for launch in plan.launches} == {MaskMode.BIDIRECTIONAL}
    graphs = {launch.key for launch in within(plan, Budget(1), {}).launches}
    assert graphs == {GraphKey(1, 64, mode=MaskMode.PADDED)} <= set(policy.warm_keys())


@given(plan=PLANS)
def test_without_a_bound_every_plan_fits(plan):
    assert within(plan, Budget(), {}) is plan


@given(batches=st.lists(st.lists(SEQUENCES, min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_server_that_generates_runs_every_step_with_three_graphs(batches):
    for prompts in (StaticMask(LADDERS), RowsCausal(LADDERS)):
        policy = Generation(prompts, LADDERS)
        cache = GraphCache(
            policy, InlineSupplier(FakeBackend()), budget=Budget(graphs=3), stats=Stats(strict=True)
        )
        with cache:
            for batch in batches:
                with cache.step(Batch(tuple(batch))) as step:
                    served = sorted(index for launch in step for index in launch.sequences)
                assert served == list(range(len(batch)))
                assert len(cache.resident) <= 3


def test_a_budget_of_bytes_counts_what_is_known_of_the_graphs():
    short, long = (GraphKey(1, length, mode=MaskMode.CUSTOM) for length in (128, 256))
    plan = Plan((Launch(short, (0,)), Launch(long, (1,))))
    assert within(plan, Budget(bytes=300), {long: 250}) is plan
    coarse = within(plan, Budget(bytes=300), {long: 250, short: 51})
    assert [launch.key for launch in coarse.launches] == [long, long]


@given(batches=st.lists(st.lists(SEQUENCES, min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_server_that_generates_runs_every_step_where_one_graph_of_each_kind_fits(batches):
    """Whatever came before, and filled the budget with graphs of one kind."""

    def nbytes(key):
        return key.rows * key.seq_len

    for prompts in (StaticMask(LADDERS), StaticCausal(LADDERS), RowsCausal(LADDERS)):
        policy = Generation(prompts, LADDERS)
        most = 3 * max(nbytes(key) for key in policy.warm_keys())
        cache = GraphCache(policy, InlineSupplier(FakeBackend(nbytes=nbytes)), budget=Budget(bytes=most))
        with cache:
            for batch in batches:
                with cache.step(Batch(tuple(batch))) as step:
                    served = sorted(index for launch in step for index in launch.sequences)
                assert served == list(range(len(batch)))
                assert sum(graph.nbytes for graph in cache.resident.values()) <= most
            assert not cache.stats.errors
            assert not cache.snapshot()["blocked"]
