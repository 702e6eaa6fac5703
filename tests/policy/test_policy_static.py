"""The policies that decide by a fixed rule, and what every policy must hold to."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.batch import Batch, Layout
from graphcache.errors import ConfigError, LadderError
from graphcache.key import MaskMode, dominates
from graphcache.ladder import Ladder
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Ladders, View
from graphcache.policy.rows_causal import RowsCausal
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask

LADDERS = Ladders(Ladder.pow2(16, 1024))
RULES = [StaticMask, StaticCausal, DynamicDual, RowsCausal]
ENCODER = {rule: partial(rule, encoder_only=True) for rule in RULES}
POLICIES = [*RULES, *(pytest.param(rule, id=f"{name.__name__}-encoder") for name, rule in ENCODER.items())]
LENGTHS = st.lists(st.integers(1, 128) | st.sampled_from([16, 64, 128]), min_size=1, max_size=8)


@pytest.mark.parametrize("policy", POLICIES)
@given(lengths=LENGTHS)
def test_every_sequence_is_in_one_launch_that_holds_it(policy, lengths):
    plan = policy(LADDERS).plan(Batch.of(lengths), View({}), None)
    assert sorted(i for launch in plan.launches for i in launch.sequences) == list(range(len(lengths)))
    for launch in plan.launches:
        assert launch.key.seq_len >= sum(lengths[i] for i in launch.sequences)
        if launch.key.mode is not MaskMode.CUSTOM and launch.layout is Layout.PACKED:
            assert len(launch.sequences) == 1, "several sequences in a row without a mask see each other"


@pytest.mark.parametrize("rule", RULES)
@given(lengths=LENGTHS)
def test_a_model_without_a_causal_term_is_served_in_its_own_modes(rule, lengths):
    causal = rule(LADDERS).plan(Batch.of(lengths), View({}), None).launches
    launches = ENCODER[rule](LADDERS).plan(Batch.of(lengths), View({}), None).launches
    assert [replace(each, key=replace(each.key, mode="causal")) for each in launches] == [
        replace(each, key=replace(each.key, mode="causal")) for each in causal
    ]
    for ours, theirs in zip(launches, causal, strict=True):
        full = {lengths[index] for index in ours.sequences} == {ours.key.seq_len}
        if theirs.key.mode is MaskMode.CUSTOM:
            assert ours == theirs
        else:
            assert ours.key.mode is (MaskMode.BIDIRECTIONAL if full else MaskMode.PADDED)


@pytest.mark.parametrize("policy", POLICIES)
@given(lengths=LENGTHS)
def test_a_plan_asks_only_for_graphs_that_are_warmed(policy, lengths):
    policy = policy(LADDERS)
    plan = policy.plan(Batch.of(lengths), View({}), None)
    assert {launch.key for launch in plan.launches} <= set(policy.warm_keys())


@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_graph_warmed_serves_most(policy):
    keys = list(policy(LADDERS).warm_keys())
    served = [sum(dominates(graph, key) for key in keys) for graph in keys]
    assert served[0] == max(served)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_state_is_plain_json(policy):
    policy = policy(LADDERS)
    batch, view = Batch.of([5]), View({})
    state = policy.start()
    plan = policy.plan(batch, view, state)
    state, actions = policy.advance(state, batch, plan, view)
    state = policy.inserted(state, plan.launches[0].key, view)
    assert not actions
    saved = json.loads(json.dumps(policy.save(state)))
    assert policy.save(policy.start(saved)) == saved


@pytest.mark.parametrize(
    ("policy", "graphs"),
    [
        (StaticMask, 7),
        (StaticCausal, 7),
        (DynamicDual, 14),
        (ENCODER[StaticMask], 7),
        (ENCODER[StaticCausal], 14),
        (ENCODER[DynamicDual], 21),
    ],
)
def test_graphs_per_length(policy, graphs):
    assert len(set(policy(LADDERS).warm_keys())) == graphs


@pytest.mark.parametrize("policy", [StaticMask, DynamicDual])
def test_packed_tokens_above_the_ladder_name_the_limit(policy):
    with pytest.raises(LadderError, match="1025 is above the ladder's top of 1024"):
        policy(LADDERS).plan(Batch.of([1000, 25]), View({}), None)


def test_static_causal_takes_each_sequence_by_itself_up_to_the_ladder():
    plan = StaticCausal(LADDERS).plan(Batch.of([1000, 25]), View({}), None)
    assert [launch.key.seq_len for launch in plan.launches] == [1024, 32]


def test_static_causal_knows_two_ways_with_several():
    with pytest.raises(ConfigError, match="several: 'drop' is not allowed; allowed: split, refuse"):
        StaticCausal(LADDERS, several="drop")
