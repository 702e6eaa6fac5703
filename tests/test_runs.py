"""Runs are kept with their policy, and add up."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.key import GraphKey
from graphcache.runs import RunLog, hit_ratio, summarise
from graphcache.stats import Stats
from graphcache.store.ledger import Ledger, MemoryTable


def stats(hits=0, stalls=0, fallbacks=0, steps=0, key="prefill/causal/1x128"):
    counted = Stats()
    counted.steps = steps
    counters = counted.of(GraphKey.parse(key))
    counters.hits, counters.stalls, counters.fallbacks = hits, stalls, fallbacks
    counted.event("stall", GraphKey.parse(key))
    return counted


def test_a_run_is_kept_in_place_of_what_it_was_before():
    ledger, counted, now = Ledger(MemoryTable()), stats(hits=1), iter([10.0, 11.0, 12.0])
    log = RunLog(ledger, counted, "dynamic-dual", clock=lambda: next(now))
    log.flush()
    counted.of(GraphKey(1, 128)).hits = 5
    log.flush()
    (run_id, kept), *others = ledger.runs().items()
    assert (run_id, others) == (log.run_id, [])
    assert (kept["policy"], kept["started"], kept["updated"]) == ("dynamic-dual", 10.0, 12.0)
    assert kept["total"]["hits"] == 5
    assert "events" not in kept


def test_two_caches_are_two_runs():
    ledger = Ledger(MemoryTable())
    for policy in ("static-mask", "dynamic-dual"):
        RunLog(ledger, stats(hits=1), policy).flush()
    assert [run["policy"] for run in ledger.runs().values()] == ["static-mask", "dynamic-dual"]


counts = st.integers(0, 100)


@given(st.lists(st.tuples(st.sampled_from("ab"), counts, counts, counts, counts)))
def test_runs_add_up_in_all_and_per_policy(rows):
    runs = {
        str(index): {**stats(hits, stalls, fallbacks, steps).snapshot(), "policy": policy}
        for index, (policy, hits, stalls, fallbacks, steps) in enumerate(rows)
    }
    summary = summarise(runs)
    assert summary["total"]["total"]["hits"] == sum(row[1] for row in rows)
    assert summary["total"]["steps"] == sum(row[4] for row in rows)
    assert summary["policies"].keys() == {row[0] for row in rows}
    for policy, merged in summary["policies"].items():
        assert merged["total"]["stalls"] == sum(row[2] for row in rows if row[0] == policy)
        assert merged["hit_ratio"] == hit_ratio(merged["total"])
    assert [head["id"] for head in summary["runs"]] == list(runs)
    json.dumps(summary)


def test_the_hit_ratio_counts_each_wanted_graph_once():
    total = stats(hits=6, stalls=1, fallbacks=3).snapshot()["total"]
    assert hit_ratio(total) == pytest.approx(0.6)
    assert hit_ratio(stats().snapshot()["total"]) is None


@pytest.mark.parametrize(
    "damaged",
    [{}, {"keys": 3}, {"keys": {"k": {"hits": 1, "of-a-newer-version": 2}}, "errors": {}, "steps": 1}],
)
def test_a_run_that_can_not_be_read_is_left_out_and_counted(damaged):
    summary = summarise({"good": stats(hits=2).snapshot(), "bad": damaged})
    assert summary["unreadable"] == 1
    assert [head["id"] for head in summary["runs"]] == ["good"]
    assert summary["total"]["total"]["hits"] == 2


def test_a_run_without_a_policy_is_told_as_such():
    assert summarise({"r": stats(hits=1).snapshot()})["policies"].keys() == {"unknown"}
