import json
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest

from graphcache.batch import Batch
from graphcache.bench import dispatch
from graphcache.bench.dispatch import BURST, LADDER, measure, steps, warm_cache

FIELDS = [
    "ours_us",
    "ours_eight_us",
    "torch_compile_us",
    "vllm_dispatcher_us",
    "lru_cache_us",
    "cachetools_us",
]


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)


def test_what_is_not_installed_is_none(nothing_installed):
    found = measure(repeats=2)
    assert list(found) == FIELDS
    assert {name for name, value in found.items() if value is None} == {
        "torch_compile_us",
        "vllm_dispatcher_us",
        "cachetools_us",
    }
    assert all(value is None or value > 0 for value in found.values())


def test_the_command_prints_a_table_or_json(nothing_installed, run):
    out = run("bench", "dispatch", "--repeats", 2).out
    assert "vllm dispatcher" in out
    assert "not installed" in out
    assert list(json.loads(run("bench", "dispatch", "--repeats", 2, "--json").out)) == FIELDS


def test_every_step_that_is_measured_hits_and_is_counted():
    cache = warm_cache()
    steps(cache, [Batch.of([length]) for length in LADDER] * 2)
    total = cache.stats.total()
    assert (total.hits, total.runs, total.stalls) == (2 * len(LADDER), 2 * len(LADDER), 0)
    assert total.run_seconds == pytest.approx(2 * len(LADDER) * dispatch.SECONDS)


def test_all_buckets_come_alike():
    batches = dispatch._lone(random.Random(0))
    buckets = [LADDER.bucket(batch.tokens) for batch in batches]
    assert len(buckets) == BURST
    assert {bucket: buckets.count(bucket) for bucket in LADDER} == dict.fromkeys(LADDER, BURST // len(LADDER))


@pytest.mark.skipif(not find_spec("cachetools"), reason="cachetools is not installed")
def test_the_other_caches_find_the_same():
    batches = [Batch.of([5]), Batch.of([200]), Batch.of([100, 200])]
    expected = [(128, False), (256, False), (512, True)]
    for lookup in (dispatch._lru_cache(), dispatch._cachetools()):
        assert [lookup(batch) for batch in batches] == expected


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("vllm"), reason="vLLM is not installed")
def test_all_are_measured_in_one_run():
    line = [sys.executable, "-c", "from graphcache.cli import main; main()", "bench", "dispatch"]
    ran = subprocess.run([*line, "--repeats", "2", "--json"], capture_output=True, text=True, check=True)
    assert all(value > 0 for value in json.loads(ran.stdout).values())
    assert ran.stderr == ""
