"""``graphcache stats``."""

import json

import pytest

from graphcache.key import GraphKey
from graphcache.runs import RunLog
from graphcache.stats import Stats
from graphcache.store.disk import DiskStore

KEY = GraphKey(8, 1, 2048, "prefix", "decode", ("greedy",))


@pytest.fixture
def logs(tmp_path):
    """Keep two runs, of two policies."""
    logs = []
    with DiskStore(tmp_path / "store") as store:
        for policy, hits in (("static-mask", 3), ("dynamic-dual", 5)):
            counted = Stats()
            counted.steps = hits + 1
            counters = counted.of(KEY)
            counters.hits, counters.stalls, counters.compiles = hits, 1, 1
            counters.stall_seconds, counters.saved_seconds = 2.0, 0.25
            counted.errors["store-full"] += 1
            logs.append(RunLog(store.ledger, counted, policy))
            logs[-1].flush()
    return logs


def row(out, name):
    (line,) = (line for line in out.splitlines() if line.strip().startswith(name))
    return line.split()


@pytest.mark.usefixtures("logs")
def test_one_screen_tells_hits_saved_and_stalled_seconds_per_policy_and_key(run):
    ran = run("stats")
    assert ran.code == 0
    assert row(ran.out, "static-mask") == ["static-mask", "4", "75.0%", "0", "1", "0", "0.25", "2.00", "0.00"]
    assert row(ran.out, "all") == ["all", "10", "80.0%", "0", "2", "0", "0.50", "4.00", "0.00"]
    assert row(ran.out, "decode/")[:2] == [str(KEY), "80.0%"]
    assert "faults: store-full 2" in ran.out
    assert len(ran.out.splitlines()) < 24


def test_one_run(run, logs):
    summary = json.loads(run("stats", "--json", "--run", logs[1].run_id[:6]).out)
    assert [head["id"] for head in summary["runs"]] == [logs[1].run_id]
    assert summary["policies"].keys() == {"dynamic-dual"}
    assert summary["total"]["hit_ratio"] == pytest.approx(5 / 6)


@pytest.mark.usefixtures("logs")
def test_as_json(run):
    summary = json.loads(run("stats", "--json").out)
    assert summary["total"]["total"]["hits"] == 8
    assert summary["total"]["keys"][str(KEY)]["stalls"] == 2
    assert summary["unreadable"] == 0


def test_a_run_that_is_not_there_names_those_that_are(run, logs):
    ran = run("stats", "--run", "nope")
    assert (ran.code, ran.out) == (2, "")
    assert f"allowed: {logs[0].run_id}, {logs[1].run_id}" in ran.err


def test_a_store_without_a_run(run, tmp_path):
    DiskStore(tmp_path / "store").close()
    ran = run("stats")
    assert ran.code == 0
    assert "0 runs" in ran.out


def test_many_keys_stay_on_one_screen(run, tmp_path):
    counted = Stats()
    for seq_len in range(1, 101):
        counted.of(GraphKey(1, seq_len)).hits = 1
    with DiskStore(tmp_path / "store") as store:
        RunLog(store.ledger, counted, "static-mask").flush()
    ran = run("stats")
    assert "80 more in --json" in ran.out
    assert len(ran.out.splitlines()) < 50
