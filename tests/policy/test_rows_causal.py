"""One row for each sequence: how a batch is cut into launches."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.batch import Batch, Layout
from graphcache.costs import CostTable, Measured, PaddedWork
from graphcache.errors import ConfigError, LadderError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.policy.protocol import Ladders, View
from graphcache.policy.rows_causal import RowsCausal

LADDERS = Ladders(Ladder.pow2(16, 256), rows=Ladder.pow2(1, 4))
GUESSED = View({})
LENGTHS = st.lists(st.integers(1, 256), min_size=1, max_size=6)
PADDING = st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0])


def table(seconds_per_launch, seconds_per_token):
    """Return costs that were measured, for every graph that the ladders allow."""
    return CostTable(
        {
            GraphKey(rows, seq_len): Measured(
                run_seconds=seconds_per_launch + seconds_per_token * rows * seq_len
            )
            for rows in LADDERS.rows
            for seq_len in LADDERS.prefill
        }
    )


COSTS = st.builds(table, st.floats(0.001, 1), st.floats(0.0001, 0.01))


def plan_of(lengths, view=GUESSED, **options):
    return RowsCausal(LADDERS, **options).plan(Batch.of(lengths), view, None)


def alone(length):
    return LADDERS.prefill.bucket(length)


def partitions(items):
    """Yield every way to put items into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for groups in partitions(rest):
        yield [[first], *groups]
        for index, group in enumerate(groups):
            yield [*groups[:index], [first, *group], *groups[index + 1 :]]


@given(lengths=LENGTHS, max_padding=PADDING)
def test_every_sequence_has_a_row_of_its_own_that_holds_it(lengths, max_padding):
    plan = plan_of(lengths, max_padding=max_padding)
    assert sorted(i for launch in plan.launches for i in launch.sequences) == list(range(len(lengths)))
    for launch in plan.launches:
        assert launch.layout is Layout.ROWS
        assert launch.key.mode is MaskMode.CAUSAL
        assert len(launch.sequences) <= launch.key.rows
        assert max(lengths[i] for i in launch.sequences) <= launch.key.seq_len


@given(lengths=LENGTHS, max_padding=PADDING)
def test_no_launch_is_padded_beyond_the_bound(lengths, max_padding):
    for launch in plan_of(lengths, max_padding=max_padding).launches:
        least = sum(alone(lengths[i]) for i in launch.sequences)
        assert len(launch.sequences) == 1 or launch.key.tokens <= (1 + max_padding) * least


@given(lengths=LENGTHS, max_padding=PADDING)
def test_no_cut_of_neighbours_within_the_bound_has_fewer_launches(lengths, max_padding):
    sizes = sorted(map(alone, lengths), reverse=True)

    def least(start):
        if start == len(sizes):
            return 0, 0
        ways = []
        for end in range(start + 1, min(len(sizes), start + LADDERS.rows.top) + 1):
            tokens = LADDERS.rows.bucket(end - start) * sizes[start]
            if end - start == 1 or tokens <= (1 + max_padding) * sum(sizes[start:end]):
                launches, rest = least(end)
                ways.append((1 + launches, tokens + rest))
        return min(ways)

    launches = plan_of(lengths, max_padding=max_padding).launches
    assert (len(launches), sum(launch.key.tokens for launch in launches)) == least(0)


@given(lengths=LENGTHS, costs=COSTS)
def test_by_measured_costs_no_partition_at_all_is_cheaper(lengths, costs):
    def seconds(group):
        rows, longest = LADDERS.rows.bucket(len(group)), max(lengths[i] for i in group)
        return costs.run_seconds(GraphKey(rows, alone(longest)))

    planned = sum(
        costs.run_seconds(launch.key) for launch in plan_of(lengths, View({}, costs=costs)).launches
    )
    allowed = (
        groups
        for groups in partitions(list(range(len(lengths))))
        if all(len(group) <= LADDERS.rows.top for group in groups)
    )
    assert planned == pytest.approx(min(sum(map(seconds, groups)) for groups in allowed))


def test_a_launch_that_costs_much_is_shared_and_one_that_costs_nothing_is_not():
    dear, cheap = (View({}, costs=table(each, 0.001)) for each in (1.0, 0.001))
    assert [str(launch.key) for launch in plan_of([200, 20], dear).launches] == ["prefill/causal/2x256"]
    assert [str(launch.key) for launch in plan_of([200, 20], cheap).launches] == [
        "prefill/causal/1x256",
        "prefill/causal/1x32",
    ]


@pytest.mark.parametrize("costs", [PaddedWork(), CostTable({})])
def test_a_guess_at_costs_leaves_the_bound_in_force(costs):
    assert len(plan_of([256, 128], View({}, costs=costs), max_padding=0.3).launches) == 2
    assert len(plan_of([256, 128], View({}, costs=costs), max_padding=0.4).launches) == 1


def test_costs_that_change_change_the_cut():
    policy, batch = RowsCausal(LADDERS), Batch.of([200, 20])
    counts = [
        len(policy.plan(batch, View({}, costs=table(each, 0.001)), None).launches)
        for each in (1.0, 0.001, 1.0)
    ]
    assert counts == [1, 2, 1]


def test_more_sequences_than_rows_take_several_launches():
    plan = plan_of([16] * 10)
    assert sorted((launch.key.rows, len(launch.sequences)) for launch in plan.launches) == [
        (2, 2),
        (4, 4),
        (4, 4),
    ]


@given(lengths=LENGTHS, max_padding=PADDING)
def test_what_fits_a_step_of_the_ladders_top_is_warmed(lengths, max_padding):
    within = [length for length, total in zip(lengths, running(lengths), strict=True) if total <= 256]
    policy = RowsCausal(LADDERS, max_padding=max_padding)
    plan = policy.plan(Batch.of(within or [1]), View({}), None)
    assert {launch.key for launch in plan.launches} <= set(policy.warm_keys())


def running(lengths):
    """Return the sums of the first one, two, … lengths."""
    return [sum(lengths[: end + 1]) for end in range(len(lengths))]


def test_many_rows_of_the_longest_sizes_are_not_warmed():
    keys = list(RowsCausal(LADDERS).warm_keys())
    assert len(keys) == len(set(keys)) == 14
    assert GraphKey(4, 256) not in keys
    assert [key.seq_len for key in keys[:5]] == [256, 128, 64, 32, 16]
    for before, after in pairwise(keys):
        assert before.rows <= after.rows


def test_a_sequence_above_the_ladder_names_the_limit():
    with pytest.raises(LadderError, match="257 is above the ladder's top of 256"):
        plan_of([16, 257])


def test_padding_is_no_negative_share():
    with pytest.raises(
        ConfigError, match=r"max_padding: -0\.1 is not allowed; allowed: a share of 0 or more"
    ):
        RowsCausal(LADDERS, max_padding=-0.1)
