"""Compiled graphs in a real engine, as users start it: worker processes, a store, frozen when warm."""

from __future__ import annotations

import numpy as np
import pytest

from graphcache.vllm.models import write_model

pytestmark = pytest.mark.timeout(1800)
KEYS = {"prefill/custom/1x128", "prefill/causal/1x128"}


@pytest.fixture(scope="module")
def starts(run_batches, tmp_path_factory):
    """Embeddings and statistics of stock vLLM, and of two starts of the plugin over one store."""
    folder = tmp_path_factory.mktemp("inductor")
    policy = folder / "policy.yaml"
    policy.write_text(
        "{policy: dynamic-dual, ladder: {kind: explicit, sizes: [128]}, backend: inductor, strict: true,"
        f" frozen_on_miss: raise, store: {{path: {folder / 'store'}}}}}"
    )
    model = str(write_model(folder / "model", hidden=128, layers=1))
    job = {"model": model, "dtype": "float32", "runs": [], "max_tokens": 128}
    ours = {"GRAPHCACHE_PLATFORM": "cpu", "GRAPHCACHE_POLICY": str(policy)}
    return {
        "stock": run_batches(job),
        "first": run_batches(job, **ours, VLLM_ENABLE_V1_MULTIPROCESSING="1"),
        "second": run_batches(job, **ours),
    }


@pytest.mark.parametrize("start", ["first", "second"])
def test_embeddings_equal_stock_vllm(starts, start):
    stock, ours = starts["stock"][0]["engine"], starts[start][0]["engine"]
    assert len(stock) >= 4
    assert np.abs(ours - stock).max() <= 1e-4


@pytest.mark.parametrize(("start", "compiles", "loads"), [("first", 2, 0), ("second", 0, 2)])
def test_only_the_first_start_compiles(starts, start, compiles, loads):
    stats = starts[start][1]["engine"]
    assert stats["resident"].keys() == KEYS
    assert (stats["total"]["compiles"], stats["total"]["loads"]) == (compiles, loads)
    assert stats["total"]["stalls"] == 0
    assert stats["total"]["hits"] == stats["total"]["runs"] == stats["steps"]
