"""The adaptive policy: what it decides, against the optimum and against what it must never do."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_play import BUDGETS, KEYS, LADDERS, SIZES, TYPES, TableCosts, batch_of, play, problem

from graphcache.batch import Batch, Launch, Layout, Plan
from graphcache.errors import BudgetError, ConfigError, LadderError
from graphcache.key import GraphKey, MaskMode, dominates
from graphcache.ladder import Ladder
from graphcache.optimum.exact import exact_schedule
from graphcache.policy.adaptive import MOST_PATIENCE, Adaptive
from graphcache.policy.protocol import Budget, Ladders, View
from graphcache.problem import BatchType, cost

STREAMS = st.lists(st.integers(0, len(TYPES) - 1), min_size=1, max_size=120)
COSTS = TableCosts()


def number(seq_len: int, single: bool) -> int:
    return TYPES.index(BatchType(seq_len, single))


def masked(size: int) -> GraphKey:
    return GraphKey(1, size, mode=MaskMode.CUSTOM)


def mixture(count: int, weights: dict[int, float], seed: int = 0) -> list[int]:
    kinds, shares = list(weights), np.array(list(weights.values()))
    return np.random.default_rng(seed).choice(kinds, size=count, p=shares / shares.sum()).tolist()


@given(STREAMS, st.sampled_from(BUDGETS), st.floats(0.1, 100))
@settings(max_examples=60)
def test_every_schedule_is_feasible_and_none_beats_the_optimum(stream, budget, compile_seconds):
    costs = TableCosts(compile_seconds)
    stated = problem(stream, budget, costs)
    schedule, _ = play(Adaptive(LADDERS), stated, costs=costs)
    paid = cost(stated, schedule)
    assert paid.seconds >= cost(stated, exact_schedule(stated)).seconds - 1e-6


@given(STREAMS)
@settings(max_examples=30)
def test_one_place_is_enough_to_serve_everything(stream):
    schedule, _ = play(Adaptive(LADDERS), problem(stream, Budget(1)))
    assert len(schedule.served) == len(stream)


@given(STREAMS, st.integers(2100, 6000))
@settings(max_examples=40)
def test_a_budget_of_bytes_is_kept(stream, nbytes):
    costs = TableCosts(nbytes=1)
    stated = problem(stream, Budget(None, nbytes), costs)
    cost(stated, play(Adaptive(LADDERS), stated, costs=costs)[0])


@given(STREAMS, STREAMS, st.sampled_from(BUDGETS))
@settings(max_examples=30)
def test_equal_streams_give_equal_decisions_and_the_state_survives_json(first, second, budget):
    stated = problem(first, budget)
    schedule, state = play(Adaptive(LADDERS), stated)
    again, twin = play(Adaptive(LADDERS), stated)
    assert schedule == again
    policy = Adaptive(LADDERS)
    saved = policy.save(state)
    assert saved == policy.save(twin)
    restored = policy.save(policy.start(json.loads(json.dumps(saved))))
    assert restored["log"] == saved["log"]
    assert restored["demand"] == saved["demand"]
    later = problem(second, budget)
    assert play(Adaptive(LADDERS), later, saved)[0] == play(Adaptive(LADDERS), later, restored)[0]


def test_plan_reads_only():
    policy = Adaptive(LADDERS)
    state = policy.start()
    before = policy.save(state)
    view = View({masked(512): 0}, Budget(2), COSTS)
    for kind in TYPES:
        policy.plan(batch_of(kind), view, state)
    assert policy.save(state) == before


@given(st.sets(st.sampled_from(KEYS)), st.sampled_from(TYPES))
def test_the_cheapest_resident_graph_serves(resident, kind):
    policy = Adaptive(LADDERS)
    asked = GraphKey(1, kind.seq_len, mode=MaskMode.CAUSAL if kind.single else MaskMode.CUSTOM)
    (launch,) = policy.plan(
        batch_of(kind), View(dict.fromkeys(resident, 0), Budget(8), COSTS), policy.start()
    ).launches
    able = [key for key in resident if dominates(key, asked)]
    assert dominates(launch.key, asked)
    if able:
        assert COSTS.run_seconds(launch.key) == min(map(COSTS.run_seconds, able))


def test_a_graph_is_compiled_when_it_would_have_paid_for_half_of_its_compile():
    # A lone 128 on the masked 1024 costs 6 s, on its own graph 0.5 s: 30 s are due after six of them.
    policy = Adaptive(LADDERS)
    state, view = policy.start(), View({masked(1024): 0}, Budget(4), COSTS)
    batch = batch_of(BatchType(128, True))
    plan = policy.plan(batch, view, state)
    asked = [policy.advance(state, batch, plan, view)[1] for _ in range(6)]
    assert [list(actions) for actions in asked[:5]] == [[]] * 5
    assert [action.key for action in asked[5]] == [GraphKey(1, 128)]
    assert "30.0 s were due" in asked[5][0].reason


def test_any_number_of_looks_may_find_nothing():
    # The only place is taken by the graph that alone serves the long batches; each short one is a look.
    costs = TableCosts(compile_seconds=5)
    policy = Adaptive(LADDERS)
    state, view = policy.start(), View({masked(1024): 0}, Budget(1), costs)
    batches = [batch_of(BatchType(1024, False)), batch_of(BatchType(128, True))]
    plans = [policy.plan(batch, view, state) for batch in batches]
    for _ in range(2000):
        for batch, plan in zip(batches, plans, strict=True):
            state, actions = policy.advance(state, batch, plan, view)
            assert not actions
    assert state.floor == MOST_PATIENCE


def test_it_finds_the_optimum_for_steady_traffic():
    stream = mixture(3000, {number(128, True): 6, number(256, True): 3, number(1024, False): 1})
    for budget in (2, 3, 4):
        stated = problem(stream, Budget(budget))
        schedule, _ = play(Adaptive(LADDERS), stated)
        assert cost(stated, schedule).seconds <= 1.05 * cost(stated, exact_schedule(stated)).seconds


def test_a_start_from_earlier_demand_pays_no_rent():
    stream = mixture(400, {number(128, True): 6, number(512, False): 3, number(1024, True): 1})
    stated = problem(stream, Budget(3))
    policy = Adaptive(LADDERS)
    cold, state = play(policy, stated)
    warm, _ = play(Adaptive(LADDERS), stated, policy.save(state))
    least = cost(stated, exact_schedule(stated)).seconds
    assert cost(stated, warm).seconds < cost(stated, cold).seconds
    assert cost(stated, warm).seconds <= least + 60


def test_it_follows_a_shift_of_traffic_within_a_bounded_regret():
    # Long batches for weeks, then only short ones: the graphs of the long ones are in the way.
    long = mixture(5000, {number(1024, True): 1, number(1024, False): 1})
    short = mixture(1500, {number(128, True): 1, number(256, False): 1})
    budget = Budget(2)
    together = problem(long + short, budget)
    schedule, _ = play(Adaptive(LADDERS), together)
    moved = [step for step in schedule.compiled if step >= len(long)]
    assert moved, "nothing was compiled for the new traffic"
    assert moved[0] - len(long) < 100
    assert cost(together, schedule).seconds <= 1.05 * cost(together, exact_schedule(together)).seconds


def test_the_last_graph_of_a_live_shape_is_never_given_up_for_another():
    # One long batch, and then short ones that would gain much from a second graph of their own.
    stream = [number(1024, False), *mixture(2000, {number(128, True): 50, number(256, True): 50})]
    stated = problem(stream, Budget(2))
    schedule, _ = play(Adaptive(LADDERS), stated)
    held: set[int] = set()
    seen = False
    for step, kind in enumerate(stream):
        held = (held - set(schedule.dropped.get(step, ()))) | set(schedule.compiled.get(step, ()))
        seen = seen or kind == number(1024, False)
        if seen:
            assert any(KEYS[index] == masked(1024) for index in held)


def test_one_graph_that_many_will_use_is_compiled_before_the_exact_one():
    policy = Adaptive(LADDERS)
    state = policy.start({"demand": {str(masked(512)): [20.0, 20.0], str(GraphKey(1, 128)): [5.0, 5.0]}})
    (launch,) = policy.plan(Batch.of([100]), View({}, Budget(1), COSTS), state).launches
    assert launch.key == masked(512)


def test_decisions_are_kept_with_their_reasons():
    stream = mixture(600, {number(128, True): 6, number(512, False): 1})
    _, state = play(Adaptive(LADDERS), problem(stream, Budget(2)))
    first, *later = state.log
    assert first.reason == "nothing that was resident could serve the batch"
    assert any("it saves" in decision.reason for decision in later)
    assert [decision.step for decision in state.log] == sorted(decision.step for decision in state.log)


# -- compiles beside the steps --------------------------------------------------------------------------


def test_in_the_background_the_anchor_comes_first_and_stays():
    policy = Adaptive(LADDERS, background=True)
    state = policy.start()
    anchor = masked(SIZES[-1])
    (launch,) = policy.plan(Batch.of([5]), View({}, Budget(2), COSTS), state).launches
    assert launch.key == anchor
    # The anchor runs nothing by now, and would be missed least.
    batch = Batch.of([500])
    view = View({anchor: 0, GraphKey(1, 512): 0}, Budget(2), COSTS)
    for _ in range(50):
        policy.advance(state, batch, policy.plan(batch, view, state), view)
    assert policy.victim(state, GraphKey(1, 128), list(view.resident), view) == GraphKey(1, 512)


def test_where_no_batch_ever_needed_a_mask_the_anchor_has_none():
    policy = Adaptive(LADDERS, background=True)
    state = policy.start({"demand": {str(GraphKey(1, 256)): [3.0, 3.0]}})
    (launch,) = policy.plan(Batch.of([5]), View({}, Budget(2), COSTS), state).launches
    assert launch.key == GraphKey(1, SIZES[-1])


def test_nothing_more_is_asked_for_while_something_is_on_its_way():
    policy = Adaptive(LADDERS, background=True)
    state, batch = policy.start(), Batch.of([100])
    view = View({masked(1024): 0}, Budget(4), COSTS, pending=frozenset([GraphKey(1, 256)]))
    plan = policy.plan(batch, view, state)
    assert all(not policy.advance(state, batch, plan, view)[1] for _ in range(50))


# -- layouts --------------------------------------------------------------------------------------------


def test_split_and_rows_compete_by_seconds():
    ladders = Ladders(Ladder(SIZES), rows=Ladder([1, 4]))
    policy = Adaptive(ladders, layouts=("packed", "split", "rows"))
    rows = GraphKey(4, 256)
    resident = dict.fromkeys([masked(1024), GraphKey(1, 256), rows], 0)
    plan = policy.plan(Batch.of([250] * 4), View(resident, Budget(), COSTS), policy.start())
    assert sum(COSTS.run_seconds(launch.key) for launch in plan.launches) == 4.0
    plan = policy.plan(Batch.of([250] * 4), View({rows: 0}, Budget(), COSTS), policy.start())
    assert [(launch.key, launch.layout) for launch in plan.launches] == [(rows, Layout.ROWS)]
    plan = policy.plan(Batch.of([250] * 4), View({GraphKey(1, 256): 0}, Budget(), COSTS), policy.start())
    assert [launch.sequences for launch in plan.launches] == [(0,), (1,), (2,), (3,)]


def test_a_batch_too_long_to_pack_is_split():
    policy = Adaptive(LADDERS, layouts=("packed", "split"))
    plan = policy.plan(Batch.of([900, 900]), View({}, Budget(), COSTS), policy.start())
    assert [launch.sequences for launch in plan.launches] == [(0,), (1,)]


def test_a_model_without_a_causal_term_is_served_in_its_own_modes():
    policy = Adaptive(LADDERS, layouts=("packed", "split"), encoder_only=True)
    resident = [GraphKey(1, 128, mode=mode) for mode in (MaskMode.PADDED, MaskMode.BIDIRECTIONAL)]
    view = View(dict.fromkeys(resident, 0), Budget(), COSTS)
    modes = {}
    for length in (100, 128):
        (launch,) = policy.plan(Batch.of([length]), view, policy.start()).launches
        modes[length] = launch.key.mode
    assert modes == {100: MaskMode.PADDED, 128: MaskMode.BIDIRECTIONAL}
    assert not any(key.mode is MaskMode.CAUSAL for key in policy.warm_keys())


@pytest.mark.parametrize(("lengths", "mode"), [([100], MaskMode.PADDED), ([100, 20], MaskMode.CUSTOM)])
def test_what_serves_everything_of_an_encoder_is_loaded_first_and_stays(lengths, mode):
    policy = Adaptive(LADDERS, background=True, encoder_only=True)
    batch, empty = Batch.of(lengths), View({}, Budget(2), COSTS)
    state = policy.start()
    state, _ = policy.advance(state, batch, policy.plan(batch, empty, state), empty)
    (launch,) = policy.plan(batch, empty, state).launches
    anchor = GraphKey(1, 1024, mode=mode)
    assert launch.key == anchor
    full = GraphKey(1, 1024, mode=MaskMode.BIDIRECTIONAL)
    view = View({anchor: 0, full: 0}, Budget(2), COSTS)
    assert policy.victim(state, GraphKey(1, 128, mode=mode), [anchor, full], view) == full


# -- what is refused ------------------------------------------------------------------------------------


def test_what_can_not_be_served_is_an_error():
    policy = Adaptive(LADDERS)
    with pytest.raises(LadderError, match="1024"):
        policy.plan(Batch.of([2000]), View({}, Budget(), COSTS), policy.start())
    with pytest.raises(BudgetError, match="fits"):
        policy.plan(Batch.of([600]), View({}, Budget(None, 10), TableCosts(nbytes=1)), policy.start())
    with pytest.raises(ConfigError, match="layouts"):
        Adaptive(LADDERS, layouts=("piled",))


def test_a_graph_asked_for_by_key_is_counted_and_can_leave():
    policy = Adaptive(LADDERS)
    decode = GraphKey(8, 1, 2048, MaskMode.PREFIX, "decode")
    state = policy.start()
    view = View({decode: 0, masked(128): 0}, Budget(2), COSTS)
    plan = Plan((Launch(decode, tuple(range(8))),))
    for _ in range(3):
        state, actions = policy.advance(state, Batch.of([1] * 8), plan, view)
        assert not actions
    counted = policy.save(state)["demand"]
    assert counted[str(decode)] == pytest.approx([3, 3], rel=0.02)
    assert not any(counted[str(key)][0] for key in KEYS)
    assert policy.victim(state, masked(256), list(view.resident), view) == masked(128)


def test_every_graph_that_a_plan_asks_for_is_warmed():
    assert set(Adaptive(LADDERS).warm_keys()) == set(KEYS)
    assert next(iter(Adaptive(LADDERS).warm_keys())) == masked(1024)
