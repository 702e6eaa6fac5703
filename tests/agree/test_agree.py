"""Ranks in processes of their own, each with a cache, through diverging times, failures and a death."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from graphcache.agree import Talk
from graphcache.errors import GraphCacheError

RANK = Path(__file__).with_name("rank.py")
BATCHES = [[10], [10, 10], [10], [30], [30, 30]] * 8
CAUSAL, MASK = "prefill/causal/1x16", "prefill/custom/1x64"
needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")


def run(tmp_path, *jobs):
    """Run one process per job; return what each printed, None for one that died."""
    common = {
        "batches": [[30, 30], *BATCHES],
        "failing": [],
        "stored": [],
        "delay": 1,
        "nbytes": 5,
        "factor": 1.0,
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, RANK, str(rank), str(len(jobs)), tmp_path / "meeting", json.dumps(common | job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, job in enumerate(jobs)
    ]
    printed = [process.communicate(timeout=120) for process in ranks]
    for (out, errors), process in zip(printed, ranks, strict=True):
        assert out or process.returncode < 0, errors
    return [json.loads(out) if out else None for out, _ in printed]


@needs_torch
def test_ranks_whose_compiles_take_different_times_swap_at_the_same_step(tmp_path):
    first, *others = run(tmp_path, {"delay": 1}, {"delay": 9}, {"delay": 3})
    assert first["error"] is None
    assert first["decisions"][1] == [[MASK, "fallback"]]
    assert [CAUSAL, "hit"] in [launch for step in first["decisions"] for launch in step]
    for other in others:
        assert other == first


@needs_torch
def test_no_rank_swaps_what_failed_on_another(tmp_path):
    first, second = run(tmp_path, {}, {"failing": [CAUSAL], "delay": 5})
    assert first == second
    assert CAUSAL not in first["resident"]
    assert "prefill/causal/1x32" in first["resident"]


@needs_torch
def test_a_blocking_fetch_that_fails_on_one_rank_fails_on_all(tmp_path):
    first, second = run(tmp_path, {}, {"failing": [MASK]})
    assert first["error"] == second["error"]
    assert "rank 1: compiling prefill/custom/1x64 failed: planted" in first["error"]
    assert first["decisions"] == second["decisions"] == []


@needs_torch
def test_stores_measured_costs_and_bytes_that_differ_do_not_part_the_ranks(tmp_path):
    first, second = run(
        tmp_path, {"stored": [CAUSAL], "nbytes": 5, "factor": 3.0}, {"nbytes": 30, "factor": 0.1}
    )
    assert first == second
    assert first["factor"] == 3.0
    assert len(first["resident"]) == 3, "three graphs of 30 bytes fit into 100, whatever rank 0's hold"


@needs_torch
def test_a_rank_that_dies_fails_the_step_of_all_others(tmp_path):
    first, dead, third = run(tmp_path, {}, {"dies_at": 7}, {})
    assert dead is None
    for survivor in (first, third):
        assert "lost the others" in survivor["error"]
        assert 7 <= len(survivor["decisions"]) <= 8


class Deaf:
    """A group whose other rank talks of something else."""

    rank, size = 0, 2

    def exchange(self, told):
        return [told, json.dumps(["fetch prefill/causal/1x32", True]).encode()]


def test_ranks_that_are_out_of_step_find_out():
    with pytest.raises(GraphCacheError, match="out of step: they talk of fetch prefill/causal/1x32, ready 4"):
        Talk(Deaf()).tell("ready 4", [])
