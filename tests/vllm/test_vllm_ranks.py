"""Tensor parallel ranks: the outputs of one, out of graphs that hold collectives, by equal decisions."""

from __future__ import annotations

import numpy as np
import pytest

from graphcache.errors import GraphCacheError
from graphcache.fill import Filling, fill
from graphcache.vllm.models import write_model

POLICIES = {
    "eager": "policy: dynamic-dual, backend: eager",
    "inductor": "policy: dynamic-dual",
    "learned": "policy: adaptive, backend: eager, learn_costs: true, on_miss: fallback, budget: {graphs: 4}",
}
LADDERS = "ladders: {prefill: {kind: explicit, sizes: [64]}, decode: {kind: explicit, sizes: [64]}, " + (
    "rows: {kind: explicit, sizes: [4]}}"
)
PROMPTS = ["one", "a second prompt", "and a third one that is longer", "four", "user: why?"]
ENGINE = {"max_model_len": 64, "max_num_batched_tokens": 64, "max_num_seqs": 4}
ENGINE["kv_cache_memory_bytes"] = 64 * 2**20
TWO = {"tensor_parallel_size": 2}
FLOAT32 = 1e-5
"""Within how much embeddings agree: ranks add up in another order."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("ranks") / "model"))


@pytest.fixture(scope="module")
def job(model):
    return {"model": model, "engine": ENGINE, "new_tokens": 16, "runs": [], "prompts": PROMPTS}


@pytest.fixture(scope="module")
def stock(run_generation, job):
    return run_generation(job)["engine"]["tokens"]


def ours(folder, policy):
    (folder / "policy.yaml").write_text(f"{{{policy}, {LADDERS}, strict: true}}")
    return {
        "GRAPHCACHE_PLATFORM": "cpu",
        "GRAPHCACHE_POLICY": str(folder / "policy.yaml"),
        "GRAPHCACHE_STORE": str(folder / "store"),
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_two_ranks_generate_what_one_does(run_generation, job, stock, tmp_path, policy):
    run = run_generation({**job, "engine": ENGINE | TWO}, **ours(tmp_path, POLICIES[policy]))["engine"]
    assert run["tokens"] == stock
    one, other = ({k: c["runs"] for k, c in rank["keys"].items()} for rank in run["ranks"])
    assert one == other
    assert sum(one.values()) > 0
    for counted in ("hits", "compiles", "fallbacks", "stalls", "evictions"):
        assert len({rank["total"][counted] for rank in run["ranks"]}) == 1, counted


def test_two_ranks_embed_as_one_does(run_batches, model, tmp_path):
    job = {"model": model, "dtype": "float32", "runs": [], "max_tokens": 256}
    (tmp_path / "policy.yaml").write_text("{policy: dynamic-dual, backend: eager, strict: true}")
    stock, _ = run_batches(job)
    variables = {"GRAPHCACHE_PLATFORM": "cpu", "GRAPHCACHE_POLICY": str(tmp_path / "policy.yaml")}
    two, _ = run_batches({**job, "engine": TWO}, **variables)
    np.testing.assert_allclose(two["engine"], stock["engine"], atol=FLOAT32)


def test_a_store_is_not_filled_for_ranks_without_their_server(model, tmp_path):
    job = Filling(model, "static-mask", str(tmp_path / "store"), ["--tensor-parallel-size", "2"], dry=True)
    with pytest.raises(GraphCacheError, match="tensor_parallel_size: 2 is not allowed; allowed: 1"):
        fill(job)
