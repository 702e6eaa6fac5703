"""Greedy tokens of a real engine equal stock vLLM's, with prefixes, chunks and preemption."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from graphcache.vllm.models import write_model

POLICIES = {
    "static-mask": "policy: static-mask",
    "flex": "policy: static-mask, mask: flex",
    "static-causal": "policy: static-causal",
    "dynamic-dual": "policy: dynamic-dual, mask: dense",
    "rows-causal": "policy: rows-causal",
    "stand-ins": "policy: static-causal, budget: {graphs: 6}, on_miss: fallback",
}
CONTROLS = {
    "leaking mask": ("static-mask", "leak"),
    "positions off by one": ("dynamic-dual", "shift-positions"),
    "a prefix before it is written": ("static-mask", "join-waves"),
    "another sequence's cache": ("dynamic-dual", "swap-blocks"),
    "looking at what is not written": ("static-causal", "see-too-much"),
}
FAMILIES = ("qwen3", "llama")
CONTROLLED = "qwen3"
"""The family whose comparison is seen to fail; it is the same comparison for all."""
PROMPTS = 16
NEW_TOKENS = 64
ENGINE = {
    "max_model_len": 512,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 6,
    "block_size": 32,
    "num_gpu_blocks_override": 24,  # too few for six sequences, so that some are preempted
    "kv_cache_memory_bytes": 64 * 2**20,
}
pytestmark = pytest.mark.timeout(1800)
of_each_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="session")
def generated(run_generation, tmp_path_factory):
    """Per model family: the runs of one stock engine, and of one of ours."""

    @cache
    def of(family: str) -> dict[str, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(family)
        for policy in POLICIES:
            (folder / f"{policy}.yaml").write_text(
                f"{{{POLICIES[policy]}, ladder: {{kind: pow2, min: 16}}, backend: eager, store: null,"
                " ladders: {decode: {kind: pow2, min: 32}}, strict: true}"
            )
        runs = {name: (name, None) for name in POLICIES} | (CONTROLS if family == CONTROLLED else {})
        paths = [(name, str(folder / f"{policy}.yaml"), broken) for name, (policy, broken) in runs.items()]
        job = {
            "model": str(write_model(folder / "model", family=family)),
            "engine": ENGINE,
            "new_tokens": NEW_TOKENS,
        }
        stock = run_generation({**job, "runs": []})
        ours = {"GRAPHCACHE_PLATFORM": "cpu", "GRAPHCACHE_POLICY": paths[0][1]}
        return stock | run_generation({**job, "runs": paths}, **ours)

    return of


@of_each_family
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_equal_stock_vllm(generated, family, policy):
    runs = generated(family)
    stock = runs["engine"]["tokens"]
    assert len(stock) == 2 * PROMPTS
    assert {len(tokens) for tokens in stock} == {NEW_TOKENS}
    assert runs[policy]["tokens"] == stock


@pytest.mark.parametrize("control", CONTROLS)
def test_a_wrong_graph_fails_the_comparison(generated, control):
    runs = generated(CONTROLLED)
    assert runs[control]["tokens"] != runs["engine"]["tokens"]


@of_each_family
def test_graphs_stood_in_for_others(generated, family):
    keys = generated(family)["stand-ins"]["stats"]["keys"]
    assert any(counters["fallbacks"] for key, counters in keys.items() if key.startswith("prefill/causal"))
    assert any(counters["fallbacks"] for key, counters in keys.items() if key.startswith("decode"))


@of_each_family
@pytest.mark.parametrize("policy", ["static-mask", "static-causal", "dynamic-dual", "rows-causal"])
def test_every_kind_of_launch_was_among_them(generated, family, policy):
    run = generated(family)[policy]
    ran = {key.rsplit("/", 1)[0] for key, counters in run["stats"]["keys"].items() if counters["runs"]}
    assert {"decode/prefix", "prefill/prefix"} < ran
    assert ran & {"prefill/custom", "prefill/causal"}
    assert run["preemptions"] > 0
