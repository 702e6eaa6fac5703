"""Prompts, decoding sequences and those behind a prefix go to launches that serve each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.batch import Batch, Layout, Sequence
from graphcache.errors import ConfigError, LadderError
from graphcache.key import GraphKey, MaskMode, dominates
from graphcache.ladder import Ladder
from graphcache.policy.adaptive import Adaptive
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.generation import Generation
from graphcache.policy.protocol import Ladders, View
from graphcache.policy.rows_causal import RowsCausal
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask

LADDERS = Ladders(Ladder.pow2(16, 256), Ladder.pow2(1, 4), Ladder.pow2(32, 256))
POLICIES = (StaticMask, StaticCausal, DynamicDual, RowsCausal, Adaptive)

fresh = st.builds(Sequence, st.integers(1, 30), st.just(0))
cached = st.builds(Sequence, st.one_of(st.just(1), st.integers(2, 60)), st.integers(1, 190))
batches = st.lists(st.one_of(fresh, cached), min_size=1, max_size=8).map(lambda s: Batch(tuple(s)))


def generation(policy=DynamicDual) -> Generation:
    return Generation(policy(LADDERS), LADDERS)


@given(batches, st.sampled_from(POLICIES))
def test_every_sequence_is_in_one_launch_whose_graph_holds_it(batch, policy):
    plan = generation(policy).plan(batch, View({}), generation(policy).start())
    assert sorted(i for launch in plan.launches for i in launch.sequences) == list(
        range(len(batch.sequences))
    )
    for launch in plan.launches:
        carried = [batch.sequences[index] for index in launch.sequences]
        if launch.key.mode is MaskMode.PREFIX:
            assert launch.layout is Layout.ROWS
            assert launch.key.rows >= len(carried)
            assert launch.key.seq_len >= max(sequence.new for sequence in carried)
            assert launch.key.kv_len >= max(sequence.cached + sequence.new for sequence in carried)
            assert launch.key.kv_len >= launch.key.seq_len
        else:
            assert not any(sequence.cached for sequence in carried)
            assert launch.key.tokens >= sum(sequence.new for sequence in carried)


@given(batches)
def test_a_step_that_only_decodes_needs_no_prefill_graph(batch):
    decoding = Batch(tuple(Sequence(1, sequence.cached + 1) for sequence in batch.sequences))
    policy = generation()
    kinds = {launch.key.kind for launch in policy.plan(decoding, View({}), policy.start()).launches}
    assert kinds == {"decode"}


def test_a_mixed_step_is_cut_by_kind():
    batch = Batch((Sequence(5), Sequence(1, 40), Sequence(20, 33), Sequence(1, 7), Sequence(6)))
    policy = generation()
    plan = policy.plan(batch, View({}), policy.start())
    assert [(str(launch.key), launch.sequences) for launch in plan.launches] == [
        ("decode/prefix/2x1+64", (1, 3)),
        ("prefill/prefix/1x32+64", (2,)),
        ("prefill/custom/1x16", (0, 4)),
    ]


def test_more_rows_than_the_ladder_holds_are_several_launches():
    policy = generation()
    plan = policy.plan(Batch((Sequence(1, 9),) * 6), View({}), policy.start())
    assert [(launch.key.rows, launch.sequences) for launch in plan.launches] == [
        (4, (0, 1, 2, 3)),
        (2, (4, 5)),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_hears_of_every_graph_that_ran(policy):
    chosen = generation(policy)
    keys = [GraphKey(2, 1, 64, MaskMode.PREFIX, "decode"), GraphKey(1, 16, mode=MaskMode.CUSTOM)]
    view = View(dict.fromkeys(keys, 1))
    state = chosen.start()
    for key in keys:
        state = chosen.inserted(state, key, view)
    batch = Batch((Sequence(5), Sequence(5), Sequence(1, 40), Sequence(1, 50)))
    state, _ = chosen.advance(state, batch, chosen.plan(batch, view, state), view)
    only_decode = Batch((Sequence(1, 40), Sequence(1, 50)))
    state, _ = chosen.advance(state, only_decode, chosen.plan(only_decode, view, state), view)
    assert chosen.victim(state, GraphKey(1, 32), keys, view) in keys
    if policy is not Adaptive:
        assert chosen.victim(state, GraphKey(1, 32), keys, view) == keys[1]
    assert chosen.start(chosen.save(state)) is not None


def test_warm_keys_are_all_that_a_plan_can_ask_for():
    policy = generation()
    keys = set(policy.warm_keys())
    state = policy.start()
    for new in (1, 7, 16, 100, 255):
        for before in (0, 1, 30, 100, 200):
            if new + before <= 256:
                for several in (1, 2, 4):
                    batch = Batch((Sequence(new, before),) * (several if before else 1))
                    assert {launch.key for launch in policy.plan(batch, View({}), state).launches} <= keys


def test_a_prefix_graph_that_stands_in_for_a_prompt_looks_at_all_of_it():
    ladders = Ladders(Ladder([256]), Ladder([1]), Ladder([100, 300]))
    policy = Generation(StaticCausal(ladders), ladders)
    (launch,) = policy.plan(Batch((Sequence(20, 30),)), View({}), policy.start()).launches
    assert str(launch.key) == "prefill/prefix/1x256+256"
    assert dominates(launch.key, GraphKey(1, 256))
    assert launch.key in policy.warm_keys()


def test_a_sequence_above_the_ladder_is_an_error():
    policy = generation()
    with pytest.raises(LadderError, match="257 is above the ladder's top of 256"):
        policy.plan(Batch((Sequence(1, 256),)), View({}), policy.start())


def test_a_ladder_of_cached_tokens_is_needed():
    ladders = Ladders(Ladder.pow2(16, 256))
    with pytest.raises(ConfigError, match=r"ladders\.decode"):
        Generation(DynamicDual(ladders), ladders)
