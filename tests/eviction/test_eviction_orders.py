"""Every eviction order against a naive model of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.eviction.lfu import Lfu
from graphcache.eviction.lru import Lru
from graphcache.key import GraphKey

KEYS = [GraphKey(1, size) for size in (16, 32, 64, 128)]
EVENTS = st.lists(st.tuples(st.sampled_from(["hit", "insert"]), st.sampled_from(KEYS)), max_size=40)


def play(eviction, events, state=None):
    state = eviction.start() if state is None else state
    for event, key in events:
        (eviction.on_hit if event == "hit" else eviction.on_insert)(state, key)
    return state


@given(EVENTS, st.lists(st.sampled_from(KEYS), min_size=1, unique=True))
def test_lru_evicts_what_was_touched_longest_ago(events, candidates):
    touched = {key: index for index, (_, key) in enumerate(events)}
    chosen = Lru().victim(play(Lru(), events), candidates)
    assert touched.get(chosen, -1) == min(touched.get(key, -1) for key in candidates)


@given(EVENTS, st.lists(st.sampled_from(KEYS), min_size=1, unique=True))
def test_lfu_evicts_what_ran_least(events, candidates):
    runs = [key for event, key in events if event == "hit"]
    chosen = Lfu().victim(play(Lfu(), events), candidates)
    assert chosen == min(candidates, key=lambda key: (runs.count(key), candidates.index(key)))


@pytest.mark.parametrize("eviction", [Lru(), Lfu()])
@given(before=EVENTS, after=EVENTS)
def test_a_saved_state_goes_on_as_if_it_had_never_stopped(eviction, before, after):
    state = play(eviction, before)
    restored = eviction.start(json.loads(json.dumps(eviction.save(state))))
    assert eviction.victim(play(eviction, after, restored), KEYS) == eviction.victim(
        play(eviction, after, state), KEYS
    )
