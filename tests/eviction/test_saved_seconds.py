"""The order that keeps what saves the most seconds."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from graphcache.costs import PaddedWork
from graphcache.eviction.saved_seconds import SavedSeconds
from graphcache.key import GraphKey, MaskMode

MASKED = [GraphKey(1, size, mode=MaskMode.CUSTOM) for size in (128, 256, 512)]
CAUSAL = [GraphKey(1, size) for size in (128, 256, 512)]
RUNS = st.lists(st.sampled_from(MASKED + CAUSAL), max_size=60)


def after(runs, order=None):
    order = order or SavedSeconds(fallback=True)
    state = order.start()
    for key in runs:
        order.on_hit(state, key)
    return state


def loss(gone, held, runs, costs=PaddedWork()):  # noqa: B008
    """Return the seconds that a graph's absence costs, in as few words as possible."""
    rest = [key for key in held if key != gone]
    total = 0.0
    for key in runs:
        now, then = (
            min(
                (costs.run_seconds(g) for g in graphs if g.seq_len >= key.seq_len
                 and (g.mode is MaskMode.CUSTOM or key.mode is MaskMode.CAUSAL)),
                default=costs.run_seconds(key) + costs.compile_seconds(key),
            )
            for graphs in (held, rest)
        )  # fmt: skip
        total += then - now
    return total


@given(RUNS, st.lists(st.sampled_from(MASKED + CAUSAL), min_size=1, unique=True))
def test_the_victim_costs_least_to_miss(runs, held):
    chosen = SavedSeconds(fallback=True).victim(after(runs), held)
    losses = {key: loss(key, held, runs) for key in held}
    assert losses[chosen] <= min(losses.values()) * 1.05 + 1e-6 * max(1.0, max(losses.values()))


def test_a_graph_that_another_stands_in_for_leaves_before_one_that_is_alone():
    # The short causal graph runs most, but the masked one of the same length serves its batches too.
    runs = [CAUSAL[0]] * 50 + [MASKED[2]] * 5
    assert SavedSeconds(fallback=True).victim(after(runs), [CAUSAL[0], MASKED[0], MASKED[2]]) == MASKED[0]
    assert SavedSeconds(fallback=True).victim(after(runs), [CAUSAL[0], MASKED[2]]) == CAUSAL[0]


def test_old_demand_fades():
    runs = [MASKED[2]] * 2000 + [CAUSAL[1]] * 3000
    order = SavedSeconds(fallback=True)
    assert order.victim(after(runs), [MASKED[2], CAUSAL[1]]) == CAUSAL[1]
    apart = [GraphKey(1, 512, kind="decode"), CAUSAL[1]]
    runs = [apart[0]] * 2000 + [apart[1]] * 3000
    assert order.victim(after(runs), apart) == apart[0]


@given(RUNS, RUNS)
def test_a_saved_state_goes_on_as_if_it_had_never_stopped(before, later):
    order = SavedSeconds(fallback=True)
    state = after(before)
    restored = order.start(json.loads(json.dumps(order.save(state))))
    for key in later:
        order.on_hit(state, key)
        order.on_hit(restored, key)
    assert order.victim(restored, MASKED + CAUSAL) == order.victim(state, MASKED + CAUSAL)


def test_what_never_ran_is_worth_nothing():
    assert SavedSeconds(fallback=True).victim(after([CAUSAL[0]]), [CAUSAL[0], CAUSAL[2]]) == CAUSAL[2]


def test_where_every_miss_compiles_nothing_stands_in():
    runs = [MASKED[0]] * 5 + [MASKED[2]] * 4
    assert SavedSeconds().victim(after(runs), [MASKED[0], MASKED[2]]) == MASKED[2]
    assert SavedSeconds(fallback=True).victim(after(runs), [MASKED[0], MASKED[2]]) == MASKED[0]
