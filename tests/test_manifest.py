from __future__ import annotations

import json

import pytest
from fakes import FakeBackend

from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.config import load_config
from graphcache.config.build import build_cache
from graphcache.errors import StoreError
from graphcache.eviction.lru import Lru
from graphcache.journal import Journal
from graphcache.key import GraphKey
from graphcache.ladder import Ladder
from graphcache.manifest import key_value, usable_state, write_manifest
from graphcache.policy.protocol import Budget, Ladders
from graphcache.policy.static_causal import StaticCausal
from graphcache.stats import Stats

LADDERS = Ladders(Ladder.pow2(128, 1024))


def serve(cache, *lengths):
    for length in lengths:
        with cache.step(Batch.of([length])) as step:
            for launch in step:
                step.ran(launch, launch.key.seq_len / 1000)


def make(**options):
    return GraphCache(StaticCausal(LADDERS), InlineSupplier(FakeBackend()), **options)


def test_a_manifest_tells_uses_seconds_and_bytes():
    cache = make()
    serve(cache, 100, 100, 100, 500)
    manifest = write_manifest(cache, None)
    assert json.loads(json.dumps(manifest)) == manifest
    entry = manifest["keys"]["prefill/causal/1x128"]
    assert (entry["uses"], entry["run_seconds"], entry["bytes"]) == (3, pytest.approx(0.128), 128)
    assert key_value(manifest)(GraphKey(1, 128)) == pytest.approx(0.384)
    assert key_value(manifest)(GraphKey(1, 256)) == 0


def test_earlier_uses_count_for_half():
    first, second = make(), make()
    serve(first, 100, 100)
    serve(second, 100)
    manifest = write_manifest(second, write_manifest(first, None))
    assert manifest["keys"]["prefill/causal/1x128"]["uses"] == 2


@pytest.mark.parametrize(
    "damage", [None, {}, {"keys": 3}, {"keys": {"x": {}}}, {"keys": {"x": {"uses": "y"}}}]
)
def test_a_damaged_manifest_is_worth_nothing(damage):
    assert key_value(damage)(GraphKey(1, 128)) == 0


def test_a_state_that_the_policy_does_not_understand_is_not_used():
    stats = Stats()
    policy = StaticCausal(LADDERS, Lru())
    assert usable_state({"state": ["prefill/causal/1x128"]}, policy, stats)
    assert usable_state({"state": ["what is this"]}, policy, stats) is None
    assert usable_state({"state": 7}, policy, stats) is None
    assert stats.errors == {"manifest": 2}


def test_a_restart_warms_the_most_used_after_the_one_that_serves_most():
    before = make()
    serve(before, 100, 100, 100, 100, 100, 500, 200)
    value = key_value(write_manifest(before, None))
    cache = make(budget=Budget(graphs=3), key_value=value)
    cache.warm()
    assert [key.seq_len for key in cache.resident] == [1024, 128, 512]


def test_a_configured_cache_keeps_its_counters_and_its_manifest(tmp_path):
    config = load_config({"policy": "static-causal", "store": {"path": str(tmp_path / "store")}})
    with build_cache(config, FakeBackend()) as cache:
        cache.warm([GraphKey(1, 256)])
        serve(cache, 200, 200)
    with build_cache(config, FakeBackend()) as again:
        assert again._key_value(GraphKey(1, 256)) == pytest.approx(2 * 0.256)
        assert [key.seq_len for key in again.warm().loaded] == [256]


class Writer:
    def __init__(self, error=None):
        self.calls, self.error = 0, error

    def __call__(self):
        self.calls += 1
        if self.error:
            raise self.error


def test_a_journal_writes_at_the_end_once():
    writer = Writer()
    journal = Journal([writer], Stats(), period_seconds=3600)
    journal.close()
    journal.close()
    assert writer.calls == 1


def test_a_writer_that_fails_is_counted_and_keeps_no_other_from_writing():
    stats, healthy = Stats(), Writer()
    Journal([Writer(StoreError("full")), healthy], stats, period_seconds=3600).close()
    assert healthy.calls == 1
    assert stats.errors == {"journal": 1}


def test_a_journal_writes_from_time_to_time():
    writer = Writer()
    journal = Journal([writer], Stats(), period_seconds=0.001)
    while writer.calls < 3:
        pass
    journal.close()
