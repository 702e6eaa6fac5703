"""Metrics, without an engine: what workers write, and what a scrape makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from fakes import FakeBackend

from graphcache import snapshots
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.ladder import Ladder
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders

prometheus_client = pytest.importorskip("prometheus_client")
exporter = pytest.importorskip("graphcache.exporter")


def served(*batches):
    """Return a cache that has served these batches, with room for two graphs."""
    cache = GraphCache(
        DynamicDual(Ladders(Ladder((16, 32, 64)))), InlineSupplier(FakeBackend()), budget=Budget(graphs=2)
    )
    for lengths in batches:
        with cache.step(Batch.of(lengths)) as step:
            for launch in step:
                step.ran(launch, 0.25)
    return cache


def values(read):
    return {(sample.name, *dict(sample.labels).values()): sample.value for sample in exporter.samples(read)}


def test_samples_add_up_over_workers_and_lengths():
    one, two = served([10], [10], [30]).snapshot(), served([10], [5, 5]).snapshot()
    found = values([one, two])
    assert found["graphcache_compiles", "causal", "prefill"] == 3
    assert found["graphcache_compiles", "custom", "prefill"] == 1
    assert found["graphcache_hits", "causal", "prefill"] == 1
    assert found["graphcache_run_seconds", "causal", "prefill"] == 1.0
    assert found["graphcache_resident_graphs", "causal", "prefill"] == 3
    assert found["graphcache_steps",] == 5
    assert not any("16" in part or "32" in part for name in found for part in name), "a length became a label"


def test_a_shape_that_has_left_is_a_series_of_zero():
    assert (
        values([served([10], [5, 5], [9, 9]).snapshot()])["graphcache_resident_graphs", "causal", "prefill"]
        == 0
    )


def test_a_scrape_shows_what_the_workers_wrote_last(tmp_path):
    registry = prometheus_client.CollectorRegistry()
    registry.register(exporter.SnapshotCollector(lambda: snapshots.read(tmp_path)))
    assert b"graphcache_hits" not in prometheus_client.generate_latest(registry)
    for rank, batches in enumerate([([10], [10]), ([10], [10], [10])]):
        cache = served(*batches)
        snapshots.publish(cache, tmp_path, rank)
        cache.close()
    text = prometheus_client.generate_latest(registry).decode()
    assert 'graphcache_hits_total{kind="prefill",mode="causal"} 3.0' in text.replace(
        'mode="causal",kind="prefill"', 'kind="prefill",mode="causal"'
    )


def test_a_worker_is_seen_at_once(tmp_path):
    with served([10]) as cache:
        snapshots.publish(cache, tmp_path, 0)
        assert [snapshot["steps"] for snapshot in snapshots.read(tmp_path)] == [1]


def test_a_torn_or_foreign_file_is_left_out(tmp_path):
    (tmp_path / "0-1.json").write_text('{"keys": ')
    (tmp_path / "1-1.json").write_text("[1, 2]")
    (tmp_path / "2-1.json").write_text(json.dumps({"keys": {}}))
    assert snapshots.read(tmp_path) == [{"keys": {}}]


def test_a_directory_of_snapshots_is_private_and_goes_with_its_process():
    code = "from graphcache.snapshots import make_directory as m; d = m(); print(d, oct(d.stat().st_mode))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    directory, mode = done.stdout.split()
    assert mode == "0o40700"
    assert not os.path.exists(directory)


SHARED = """
import sys, json
from graphcache.exporter import SharedMetrics
metrics = SharedMetrics()
for snapshot in json.load(sys.stdin):
    metrics.update(snapshot)
"""
SCRAPE = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_shared_metrics_of_several_processes_are_added_up(tmp_path):
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    cache = served([10])
    first = cache.snapshot()
    for _ in range(2):
        cache.step(Batch.of([10])).__exit__(None, None, None)
    story = json.dumps([first, cache.snapshot()])
    for _ in range(2):
        subprocess.run([sys.executable, "-c", SHARED], input=story, env=environment, text=True, check=True)
    text = subprocess.run(
        [sys.executable, "-c", SCRAPE], env=environment, text=True, check=True, capture_output=True
    ).stdout
    line = next(line for line in text.splitlines() if line.startswith("graphcache_hits_total{"))
    assert line.endswith(" 4.0"), line
