"""Compiled graphs in a real engine, as users start it: worker processes, a store, frozen when warm."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from graphcache.vllm.models import write_model

pytestmark = pytest.mark.timeout(1800)
KEYS = {"prefill/custom/1x128", "prefill/causal/1x128"}


def warm(model, policy, store, *arguments, options=(), exits=0):
    """Run ``graphcache warm`` as a user does; return what became of each graph; no file is left of it."""
    scratch = store.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "graphcache",
        "warm",
        model,
        "--policy",
        policy,
        "--store",
        store,
        "--json",
    ]
    done = subprocess.run(
        [*map(str, command), *options, "--", "--dtype", "float32", *arguments],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == exits, done.stderr[-3000:]
    assert [path for path in scratch.rglob("*") if path.is_file()] == []
    return {graph["key"]: graph["outcome"] for graph in json.loads(done.stdout)["graphs"]}


@pytest.fixture(scope="module")
def starts(run_batches, tmp_path_factory):
    """Embeddings and statistics of stock vLLM, of two starts of the plugin over one store, and of one that
    falls back while its graphs compile, and makes its masks outside of them.
    """
    folder = tmp_path_factory.mktemp("inductor")
    policy = folder / "policy.yaml"
    policy.write_text(
        "{policy: dynamic-dual, ladder: {kind: explicit, sizes: [128]}, backend: inductor, strict: true,"
        f" frozen_on_miss: raise, store: {{path: {folder / 'store'}}}}}"
    )
    falling_back = folder / "falling-back.yaml"
    falling_back.write_text(
        "{policy: dynamic-dual, ladder: {kind: explicit, sizes: [128]}, backend: inductor, strict: true,"
        " on_miss: fallback, mask: dense, store: null}"
    )
    model = str(write_model(folder / "model", hidden=128, layers=1))
    job = {"model": model, "dtype": "float32", "runs": [], "max_tokens": 128}
    ours = {"GRAPHCACHE_PLATFORM": "cpu", "GRAPHCACHE_POLICY": str(policy)}
    falls_back = {**ours, "GRAPHCACHE_POLICY": str(falling_back)}
    limits = ("--runner=pooling", "--max-model-len=128", "--max-num-batched-tokens=128", "--max-num-seqs=8")

    def told(exits):
        return warm(model, policy, folder / "store", *limits, options=["--dry-run"], exits=exits)

    return {
        "missing": told(1),
        "stock": run_batches(job),
        "first": run_batches(job, **ours, VLLM_ENABLE_V1_MULTIPROCESSING="1"),
        "stored": told(0),
        "second": run_batches(job, **ours),
        "falling back": run_batches({**job, "resident": len(KEYS)}, **falls_back),
    }


@pytest.mark.parametrize("start", ["first", "second"])
def test_embeddings_equal_stock_vllm(starts, start):
    stock, ours = starts["stock"][0]["engine"], starts[start][0]["engine"]
    assert len(stock) >= 5
    assert np.abs(ours - stock).max() <= 1e-4


@pytest.mark.parametrize(("start", "compiles", "loads"), [("first", 2, 0), ("second", 0, 2)])
def test_only_the_first_start_compiles(starts, start, compiles, loads):
    stats = starts[start][1]["engine"]
    assert stats["resident"].keys() == KEYS
    assert (stats["total"]["compiles"], stats["total"]["loads"]) == (compiles, loads)
    assert stats["total"]["stalls"] == 0
    assert stats["total"]["hits"] == stats["total"]["runs"] == stats["steps"]


def test_what_a_server_would_find_is_told_without_one(starts):
    assert starts["missing"] == dict.fromkeys(KEYS, "missing")
    assert starts["stored"] == dict.fromkeys(KEYS, "stored")


def test_embeddings_equal_stock_vllm_before_during_and_after_a_graph_is_swapped_in(starts):
    stock, ours = starts["stock"][0]["engine"], starts["falling back"][0]
    for embeddings in (ours["engine"], *ours["during"], ours["after"]):
        assert np.abs(embeddings - stock).max() <= 1e-4


def test_an_engine_that_falls_back_serves_while_its_graphs_compile_and_nothing_waits(starts):
    stats = starts["falling back"][1]
    before, after = stats["before"], stats["engine"]
    assert before["resident"].keys() == {"prefill/custom/1x128"}
    assert before["total"]["fallbacks"] > 0
    assert after["resident"].keys() == KEYS
    causal = after["keys"]["prefill/causal/1x128"]
    assert (causal["upgrades"], causal["compiles"]) == (1, 1)
    assert causal["hits"] > 0
    assert (after["total"]["stalls"], after["errors"]) == (0, {})
    assert [event["kind"] for event in after["events"]].count("trace") == 0


@pytest.mark.slow
def test_a_server_loads_what_was_warmed_whatever_its_kv_cache_and_copies_nothing_of_it(
    run_generation, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("inductor-generation")
    policy = folder / "policy.yaml"
    policy.write_text(
        "{policy: dynamic-dual, ladders: {prefill: {kind: explicit, sizes: [32]}, rows: {kind: explicit,"
        " sizes: [2]}, decode: {kind: explicit, sizes: [64]}}, backend: inductor, strict: true,"
        f" store: {{path: {folder / 'store'}}}}}"
    )
    limits = {"max_model_len": 64, "max_num_batched_tokens": 32, "max_num_seqs": 2, "block_size": 32}
    job = {
        "model": str(write_model(folder / "model", hidden=128, layers=1)),
        "engine": {**limits, "num_gpu_blocks_override": 20, "kv_cache_memory_bytes": 64 * 2**20},
        "new_tokens": 16,
        "runs": [],
    }
    large = {**job, "engine": {**limits, "kv_cache_memory_bytes": 2**30}}
    ours = {"GRAPHCACHE_PLATFORM": "cpu", "GRAPHCACHE_POLICY": str(policy)}
    stock = run_generation(job)["engine"]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]
    filled = warm(job["model"], policy, folder / "store", *flags, options=["--workers=2"])
    assert list(filled.values()) == ["compiled"] * 4
    first = run_generation(job, **ours)["engine"]
    second = run_generation(large, **ours)["engine"]
    assert len(stock["tokens"]) >= 6
    assert first["tokens"] == second["tokens"] == stock["tokens"]
    for start in (first, second):
        assert (start["stats"]["total"]["compiles"], start["stats"]["total"]["loads"]) == (0, 4)
    # Pages of the cache that nothing wrote to are not resident: one copy of it would make them so.
    assert second["grown_bytes"] < 2**28


@pytest.mark.slow
def test_an_encoder_runs_compiled_graphs_in_its_own_modes(run_batches, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "{policy: dynamic-dual, ladder: {kind: explicit, sizes: [64, 128]}, backend: inductor, strict: true,"
        f" frozen_on_miss: raise, store: {{path: {tmp_path / 'store'}}}}}"
    )
    model = str(write_model(tmp_path / "model", family="bert-classifier", heads=2, layers=1, max_tokens=128))
    job = {"model": model, "dtype": "float32", "convert": "auto", "runs": [], "max_tokens": 128}
    stock = run_batches(job)[0]["engine"]
    for compiles, loads in ((6, 0), (0, 6)):
        answers, stats = run_batches(job, GRAPHCACHE_PLATFORM="cpu", GRAPHCACHE_POLICY=str(policy))
        assert np.abs(answers["engine"] - stock).max() <= 1e-4
        total, keys = stats["engine"]["total"], stats["engine"]["keys"]
        assert (total["compiles"], total["loads"]) == (compiles, loads)
        assert total["hits"] == total["runs"] == stats["engine"]["steps"]
        for key in ("custom/1x64", "padded/1x64", "bidirectional/1x128"):
            assert keys[f"prefill/{key}"]["runs"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "bert"])
def test_blocks_are_skipped_in_a_graph_that_a_worker_compiled(run_batches, tmp_path, family):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "{policy: static-mask, mask: flex, ladder: {kind: explicit, sizes: [512]}, compile: {workers: 1},"
        f" backend: inductor, strict: true, frozen_on_miss: raise, store: {{path: {tmp_path / 'store'}}}}}"
    )
    model = str(write_model(tmp_path / "model", family=family, heads=2, layers=2, max_tokens=512))
    job = {"model": model, "dtype": "float32", "runs": [], "max_tokens": 512}
    stock = run_batches(job)[0]["engine"]
    for compiles, loads in ((1, 0), (0, 1)):
        answers, stats = run_batches(job, GRAPHCACHE_PLATFORM="cpu", GRAPHCACHE_POLICY=str(policy))
        assert np.abs(answers["engine"] - stock).max() <= 1e-4
        total = stats["engine"]["total"]
        assert (total["compiles"], total["loads"]) == (compiles, loads)
        assert total["hits"] == total["runs"] == stats["engine"]["steps"]
    (library,) = (path for path in (tmp_path / "store").rglob("*") if b"flex_attention" in _bytes(path))
    assert library.is_file()


@pytest.mark.slow
def test_a_prompt_s_blocks_are_skipped_beside_a_kv_cache(run_generation, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "{policy: static-mask, mask: flex, ladders: {prefill: {kind: explicit, sizes: [512]}, rows: {kind:"
        " explicit, sizes: [2]}, decode: {kind: explicit, sizes: [512]}}, backend: inductor, strict: true,"
        " compile: {workers: 2}, store: null}"
    )
    limits = {"max_model_len": 512, "max_num_batched_tokens": 512, "max_num_seqs": 2, "block_size": 32}
    job = {
        "model": str(write_model(tmp_path / "model", hidden=128, layers=1)),
        "engine": {**limits, "num_gpu_blocks_override": 64, "kv_cache_memory_bytes": 64 * 2**20},
        "new_tokens": 16,
        "runs": [],
    }
    stock = run_generation(job)["engine"]
    ours = run_generation(job, GRAPHCACHE_PLATFORM="cpu", GRAPHCACHE_POLICY=str(policy))["engine"]
    assert ours["tokens"] == stock["tokens"]
    assert ours["stats"]["keys"]["prefill/custom/1x512"]["runs"] > 0


def _bytes(path):
    return path.read_bytes() if path.is_file() else b""
