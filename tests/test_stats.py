from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.errors import StoreError
from graphcache.key import GraphKey
from graphcache.stats import KeyCounters, Stats, merge

KEYS = [GraphKey(1, 16), GraphKey(1, 32)]
COUNTS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(["hits", "loads", "run_seconds"]), st.integers(0, 9))
)


def counted(counts):
    stats = Stats()
    for key, name, amount in counts:
        counters = stats.of(key)
        setattr(counters, name, getattr(counters, name) + amount)
        stats.steps += 1
    return stats


@given(COUNTS, COUNTS)
def test_snapshots_add_up(first, second):
    merged = merge([counted(first).snapshot(), counted(second).snapshot()])
    both = counted(first + second).snapshot()
    del both["events"]
    assert merged == both


def test_a_snapshot_is_plain_json():
    stats = Stats()
    stats.event("evict", KEYS[0], "room")
    stats.fault("store-read", StoreError("gone"))
    snapshot = stats.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert snapshot["events"] == [
        {"step": 0, "kind": "evict", "key": "prefill/causal/1x16", "reason": "room", "seconds": 0.0}
    ]


def test_a_fault_is_counted_always_and_logged_once(caplog):
    stats = Stats()
    with caplog.at_level(logging.WARNING, "graphcache"):
        for _ in range(3):
            stats.fault("store-read", StoreError("gone"))
        stats.fault("store-full", StoreError("full"))
    assert stats.errors == {"store-read": 3, "store-full": 1}
    assert len(caplog.records) == 2


def test_strict_raises_the_fault():
    with pytest.raises(StoreError, match="gone"):
        Stats(strict=True).fault("store-read", StoreError("gone"))


def test_only_the_last_events_are_kept():
    stats = Stats()
    for step in range(Stats.EVENTS_KEPT + 5):
        stats.steps = step
        stats.event("hit", KEYS[0])
    assert len(stats.events) == Stats.EVENTS_KEPT
    assert stats.events[0].step == 5


def test_adding_counters_adds_every_field():
    ones = KeyCounters(**dict.fromkeys(KeyCounters.__slots__, 1))
    total = KeyCounters()
    total.add(ones)
    total.add(ones)
    assert {getattr(total, name) for name in KeyCounters.__slots__} == {2}
