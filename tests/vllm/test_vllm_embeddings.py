"""Embeddings of a real engine equal stock vLLM's, whatever the policy; and a broken mask shows."""

from __future__ import annotations

from functools import cache

import pytest
from comparison import Answers, compare, equal, graphs_run, modes_of

from graphcache.vllm.models import write_model

POLICIES = {
    "static-mask": "policy: static-mask",
    "dense-mask": "policy: static-mask, mask: dense",
    "flex-mask": "policy: static-mask, mask: flex",
    "static-causal": "policy: static-causal",
    "dynamic-dual": "policy: dynamic-dual",
    "rows-causal": "policy: rows-causal",
    "stand-ins": "policy: dynamic-dual, budget: {graphs: 1}, on_miss: fallback",
    "rows": "policy: {name: adaptive, options: {layouts: [rows]}}",
}
CONTROLS = {
    "leaking mask": ("static-mask", "leak"),
    "leaking mask from the host": ("dense-mask", "leak"),
    "leaking blocks": ("flex-mask", "leak"),
    "causal term dropped from the mask": ("static-mask", "drop-causal"),
    "causal term dropped without a mask": ("static-causal", "drop-causal"),
    "positions off by one": ("dynamic-dual", "shift-positions"),
}
CASES = [
    ("qwen3", "float32"),
    ("qwen3", "bfloat16"),
    ("llama", "float32"),
    pytest.param(("llama", "bfloat16"), marks=pytest.mark.slow),
]
pytestmark = [pytest.mark.parametrize("case", CASES, ids="-".join), pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def embeddings(run_batches, tmp_path_factory):
    """Per model and dtype: embeddings and statistics of each run, of one stock engine and one of ours."""

    @cache
    def of(case: tuple[str, str]) -> Answers:
        family, dtype = case
        folder = tmp_path_factory.mktemp("-".join(case))
        job = {"model": str(write_model(folder / "model", family=family)), "dtype": dtype}
        return compare(run_batches, folder, job, POLICIES, CONTROLS)

    return of


@pytest.mark.parametrize("policy", POLICIES)
def test_embeddings_equal_stock_vllm(embeddings, case, policy):
    arrays, _ = embeddings(case)
    assert equal(case[1], arrays[policy], arrays["stock"])


@pytest.mark.parametrize("control", CONTROLS)
def test_a_wrong_graph_fails_the_comparison(embeddings, case, control):
    arrays, _ = embeddings(case)
    assert not equal(case[1], arrays[control], arrays["stock"])


def test_each_policy_ran_the_graphs_it_stands_for(embeddings, case):
    _, stats = embeddings(case)
    ran = graphs_run(stats, POLICIES)
    modes = modes_of(ran)
    assert modes["static-mask"] == modes["dense-mask"] == modes["flex-mask"] == {"custom"}
    assert modes["static-causal"] == {"causal"}
    assert modes["dynamic-dual"] == {"custom", "causal"}
    assert modes["rows-causal"] == {"causal"}
    for policy in ("rows-causal", "rows"):
        assert any(not key.split("/")[2].startswith("1x") for key in ran[policy])
    assert stats["stand-ins"]["total"]["fallbacks"] > 0
    sequences = 2 + 3 + sum(range(1, 9))
    assert stats["static-mask"]["total"]["runs"] == stats["static-mask"]["steps"] == 11
    assert stats["static-causal"]["total"]["runs"] == sequences
    assert stats["dynamic-dual"]["total"]["runs"] == 11
