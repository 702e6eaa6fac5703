import json
from collections import Counter

import numpy as np
import pytest
from fakes import FakeBackend
from hypothesis import given
from hypothesis import strategies as st
from schedules import schedule_of

from graphcache.backends.protocol import EvictUnit
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.costs import CostTable, Measured, PaddedWork
from graphcache.errors import BudgetError, ConfigError
from graphcache.eviction.lfu import Lfu
from graphcache.eviction.lru import Lru
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.miss import OnMiss
from graphcache.optimum.exact import exact_schedule
from graphcache.policy.adaptive import Adaptive
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders
from graphcache.policy.rows_causal import RowsCausal
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask
from graphcache.problem import cost
from graphcache.simulate import Scenario, drive
from graphcache.stats import Stats
from graphcache.trace import Limits, StepRecorder, Steps, generate, read_trace, replay

LADDER = Ladder((16, 64, 256))
LADDERS = Ladders(LADDER)
COSTS = CostTable(
    {
        GraphKey(1, seq_len, mode=mode): Measured(run_seconds=seconds, nbytes=seq_len)
        for seq_len, custom, causal in ((16, 1.5, 1.0), (64, 4.0, 3.0), (256, 20.0, 11.0))
        for mode, seconds in ((MaskMode.CUSTOM, custom), (MaskMode.CAUSAL, causal))
    },
    nominal=PaddedWork(compile_seconds=30),
)
PACKING = [StaticMask, DynamicDual, Adaptive]
POLICIES = [*PACKING, StaticCausal, RowsCausal]
BATCHES = st.lists(st.lists(st.integers(1, 80), min_size=1, max_size=3), min_size=1, max_size=40)
BUDGETS = st.builds(Budget, st.integers(1, 6), st.none() | st.integers(512, 1200))


def steps_of(batches, gap=1.0):
    flat = [tokens for batch in batches for tokens in batch]
    return Steps(
        "hand",
        np.arange(len(batches)) * gap,
        np.cumsum([len(batch) for batch in batches]),
        np.array(flat),
        np.zeros(len(flat), dtype=np.int64),
    )


def scenario_of(batches, **options):
    return Scenario(steps_of(batches), LADDER, COSTS, **options)


def summary(run):
    return (
        run.run_seconds.tolist(),
        run.stall_seconds.tolist(),
        run.padding_seconds,
        run.mask_seconds,
        run.charged_seconds,
        run.served,
        run.changes,
        run.resident,
        run.counters,
    )


# -- laws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [StaticMask, DynamicDual, StaticCausal, RowsCausal])
@given(batches=BATCHES)
def test_unbounded_misses_are_the_distinct_graphs(policy, batches):
    run = drive(scenario_of(batches), policy(LADDERS), Budget())
    assert run.counters.compiles == len({key for keys in run.served for key in keys})
    assert run.stall_seconds.sum() == 30 * run.counters.compiles
    assert run.counters.evictions == run.counters.fallbacks == 0


@pytest.mark.parametrize("eviction", [Lru, Lfu])
@pytest.mark.parametrize("policy", PACKING)
@given(batches=BATCHES, budget=BUDGETS, on_miss=st.sampled_from([OnMiss.COMPILE, OnMiss.FALLBACK]))
def test_nothing_beats_the_optimum(policy, eviction, batches, budget, on_miss):
    scenario = scenario_of(batches)
    run = drive(scenario, policy(LADDERS, eviction()), budget, on_miss=on_miss)
    problem = scenario.problem(budget)
    assert cost(problem, exact_schedule(problem)).seconds <= run.cost_seconds + 1e-9


@pytest.mark.parametrize("policy", PACKING)
@given(batches=BATCHES, budget=BUDGETS)
def test_no_policy_in_the_background_beats_its_bound(policy, batches, budget):
    scenario = scenario_of(batches, background=True, background_share=0.2)
    run = drive(scenario, policy(LADDERS), budget, on_miss=OnMiss.FALLBACK)
    problem = scenario.problem(budget)
    assert cost(problem, exact_schedule(problem)).seconds <= run.cost_seconds + 1e-9


@pytest.mark.parametrize("policy", POLICIES)
@given(batches=BATCHES, budget=BUDGETS, background=st.booleans())
def test_simulating_twice_gives_the_same(policy, batches, budget, background):
    budget = Budget(max(3, budget.graphs))
    one, two = (drive(scenario_of(batches, background=background), policy(LADDERS), budget) for _ in range(2))
    assert summary(one) == summary(two)


@pytest.mark.parametrize("policy", POLICIES)
@given(batches=BATCHES, budget=BUDGETS)
def test_the_budget_holds_and_what_is_told_of_residency_adds_up(policy, batches, budget):
    budget = Budget(max(3, budget.graphs), budget.bytes)
    run = drive(scenario_of(batches), policy(LADDERS), budget)
    resident: set[GraphKey] = set()
    told = {step: (graphs, nbytes) for step, graphs, nbytes in run.resident}
    changes = {change.step: change for change in run.changes}
    for step, served in enumerate(run.served):
        if step in changes:
            assert resident.issuperset(changes[step].dropped)
            resident -= set(changes[step].dropped)
            assert resident.isdisjoint(changes[step].compiled)
            resident |= set(changes[step].compiled)
            assert told[step] == (len(resident), sum(COSTS.nbytes(key) for key in resident))
        assert resident.issuperset(served)
        assert len(resident) <= budget.graphs
        assert budget.bytes is None or sum(COSTS.nbytes(key) for key in resident) <= budget.bytes


@pytest.mark.parametrize("policy", POLICIES)
@given(batches=BATCHES)
def test_tokens_padding_and_mask_make_up_the_run_seconds(policy, batches):
    run = drive(scenario_of(batches), policy(LADDERS), Budget())
    launches = Counter(key for keys in run.served for key in keys)
    mask = sum(
        (COSTS.run_seconds(key) - COSTS.run_seconds(GraphKey(1, key.seq_len))) * count
        for key, count in launches.items()
    )
    assert run.mask_seconds == pytest.approx(mask)
    assert 0 <= run.padding_seconds <= run.run_seconds.sum() - run.mask_seconds


@pytest.mark.parametrize("policy", PACKING)
@given(batches=BATCHES, budget=BUDGETS)
def test_a_run_as_a_schedule_costs_what_the_run_cost(policy, batches, budget):
    scenario = scenario_of(batches)
    run = drive(scenario, policy(LADDERS), budget)
    added = cost(scenario.problem(budget), schedule_of(run, scenario.problem(budget)))
    assert added.seconds == pytest.approx(run.cost_seconds)
    assert added.compiles == run.counters.compiles


# -- live -------------------------------------------------------------------------------------------


class Ticks:
    """A clock of the wall: every look at it is later, by no amount that the costs know of."""

    now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


@pytest.mark.parametrize("eviction", [Lru, Lfu])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("graphs", [2, 3, 5])
def test_the_live_cache_decides_as_the_simulator_does(tmp_path, policy, eviction, graphs):
    """A server records its steps; simulated from that record, every decision is the server's own."""
    requests = generate("vtc-arena", 400, seed=7).capped(80)
    served, residents = [], []
    cache = GraphCache(
        policy(LADDERS, eviction()),
        InlineSupplier(FakeBackend(nbytes=COSTS.nbytes, evict_unit=EvictUnit.ENTRY)),
        budget=Budget(graphs),
        costs=COSTS,
        stats=Stats(strict=True),
        clock=Ticks(),
    )
    with cache, StepRecorder(tmp_path / "steps.jsonl", clock=Ticks()) as recorder:
        for batch in replay(requests, Limits(2, 256), load=0.5).batches():
            recorder.record(batch)
            with cache.step(batch) as step:
                served.append(tuple(launch.key for launch in step))
                residents.append(set(cache.resident))
                for launch in step:
                    step.ran(launch, COSTS.run_seconds(launch.key))

    run = drive(
        Scenario(read_trace(tmp_path / "steps.jsonl"), LADDER, COSTS),
        policy(LADDERS, eviction()),
        Budget(graphs),
    )
    assert run.served == served
    assert simulated_residents(run) == residents


def simulated_residents(run):
    changes = {change.step: change for change in run.changes}
    resident: set[GraphKey] = set()
    residents = []
    for step in range(len(run.served)):
        if step in changes:
            resident = (resident - set(changes[step].dropped)) | set(changes[step].compiled)
        residents.append(set(resident))
    return residents


# -- by hand ----------------------------------------------------------------------------------------


def test_in_line_every_miss_waits():
    run = drive(scenario_of([[10], [5, 5], [10]]), DynamicDual(LADDERS), Budget(1))
    assert run.stall_seconds.tolist() == [30, 30, 30]
    assert run.run_seconds.tolist() == [1.0, 1.5, 1.0]
    assert run.cost_seconds == 93.5
    assert run.resident == [(0, 1, 16), (1, 1, 16), (2, 1, 16)]
    assert run.mean_resident == 1
    assert run.padding_seconds == pytest.approx(3 * 6 / 16)
    assert run.mask_seconds == 0.5


def test_in_the_background_a_graph_is_usable_its_compile_seconds_later():
    """The mask graph of 256 is waited for; the causal one of 16 is asked for, and there 30 s later."""
    batches = [[100, 100], *[[10]] * 60]
    scenario = scenario_of(batches, background=True, background_share=0.5)
    run = drive(scenario, DynamicDual(LADDERS), Budget(4), on_miss=OnMiss.FALLBACK)
    fallbacks = [step for step, keys in enumerate(run.served) if keys[0].seq_len == 256 and step]
    # Steps start at 50 s, when the first is done, and take 20 s each: the upgrade is there at 80 s.
    assert fallbacks == [1, 2]
    assert run.stall_seconds.tolist() == [30] + [0] * 60
    assert run.charged_seconds == 30
    assert run.cost_seconds == pytest.approx(30 + 30 + 3 * 20 + 58 * 1)
    assert (run.counters.compiles, run.counters.fallbacks, run.counters.upgrades) == (2, 2, 1)


def test_a_step_starts_when_it_was_scheduled_or_when_the_one_before_is_done():
    """With 100 s between steps the upgrade is there at the third, however short the steps are."""
    scenario = Scenario(steps_of([[200], [10], [10]], gap=100), LADDER, COSTS, background=True)
    run = drive(scenario, DynamicDual(LADDERS), Budget(4), on_miss=OnMiss.FALLBACK)
    assert [keys[0].seq_len for keys in run.served] == [256, 256, 16]


def test_progress_is_told():
    told = []
    drive(scenario_of([[1]] * 2049), DynamicDual(LADDERS), Budget(4), progress=told.append)
    assert told == [0, 1024, 2048]


def test_saved_states_are_plain_and_can_be_started_from():
    scenario = scenario_of([[10], [100], [5, 5]])
    first = drive(scenario, DynamicDual(LADDERS), Budget(2))
    state = json.loads(json.dumps(first.saved_state))
    again = drive(scenario, DynamicDual(LADDERS), Budget(2), saved_state=state)
    assert again.served == first.served


def test_what_came_and_went_before_a_batch_is_noted_and_has_no_schedule():
    """One slot: the upgrade throws the mask graph out, which the very batch needs again."""
    scenario = scenario_of([[100, 100], [10], *[[100, 100]] * 3], background=True)
    run = drive(scenario, DynamicDual(LADDERS), Budget(1), on_miss=OnMiss.FALLBACK)
    mask, upgrade = GraphKey(1, 256, mode=MaskMode.CUSTOM), GraphKey(1, 16)
    assert run.changes == [(0, (), (mask,)), (3, (mask,), (upgrade, mask))]
    assert run.counters.compiles == 3
    with pytest.raises(ConfigError, match="resident at batch 3"):
        schedule_of(run, scenario.problem(Budget(1)))


def test_split_batches_have_no_schedule():
    scenario = scenario_of([[10], [5, 5]])
    run = drive(scenario, StaticCausal(LADDERS), Budget(3))
    assert run.splits
    with pytest.raises(ConfigError, match="step 1 was split into 2"):
        schedule_of(run, scenario.problem(Budget(3)))


def test_a_graph_that_can_not_fit_ends_the_simulation():
    with pytest.raises(BudgetError, match="256"):
        drive(scenario_of([[200]]), DynamicDual(LADDERS), Budget(None, 100))


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        ([], {}, "no step is left"),
        ([[100, 100, 100]], {}, "300 .* ladder's top, 256"),
        ([[1]], {"background_share": 1.5}, "background_share: 1.5"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(batches, options, message):
    with pytest.raises(ConfigError, match=message):
        scenario_of(batches, **options)


def test_a_problem_holds_the_types_and_the_batches_of_the_steps():
    problem = scenario_of([[10], [5, 5], [10], [200]]).problem(Budget(2))
    assert [problem.types[index] for index in problem.batches] == [
        (16, True, 1),
        (16, False, 1),
        (16, True, 1),
        (256, True, 1),
    ]
    assert len(problem.keys) == 6
    assert problem.compile_seconds.tolist() == [30] * 6


def test_in_the_background_a_problem_prices_a_compile_at_its_share():
    problem = scenario_of([[10]], background=True, background_share=0.25).problem(Budget(2))
    assert problem.compile_seconds.tolist() == [7.5] * 6
