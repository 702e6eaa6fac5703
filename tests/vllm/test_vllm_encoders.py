"""Encoder-only models answer as stock vLLM's do, in modes of their own; and a broken graph shows."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from comparison import Answers, compare, equal, graphs_run, modes_of

from graphcache.vllm.models import write_model

POLICIES = {
    "static-mask": "policy: static-mask",
    "static-causal": "policy: static-causal",
    "dynamic-dual": "policy: dynamic-dual",
    "rows-causal": "policy: rows-causal",
    "adaptive": "policy: adaptive",
    "rows": "policy: {name: adaptive, options: {layouts: [rows]}}",
    "dense": "policy: static-mask, mask: dense",
    "flex": "policy: static-mask, mask: flex",
    "stand-ins": "policy: dynamic-dual, budget: {graphs: 1}, on_miss: fallback",
    "one graph": "policy: static-causal, budget: {graphs: 1}",
}
CONTROLS = {
    "leaking mask": ("static-mask", "leak"),
    "leaking dense mask": ("dense", "leak"),
    "leaking blocks": ("flex", "leak"),
    "causal term in a mask": ("static-mask", "add-causal"),
    "causal term in padded and full rows": ("static-causal", "add-causal"),
    "padding attended to": ("static-causal", "see-padding"),
    "positions off by one": ("dynamic-dual", "shift-positions"),
}
TYPED_CONTROLS = {"token types dropped": ("dynamic-dual", "drop-types")}
CASES = [
    ("xlm-roberta", "float32"),
    ("bert-classifier", "float32"),
    pytest.param(("bert", "float32"), marks=pytest.mark.slow),
    pytest.param(("bert", "bfloat16"), marks=pytest.mark.slow),
    pytest.param(("bert-classifier", "bfloat16"), marks=pytest.mark.slow),
    pytest.param(("xlm-roberta", "bfloat16"), marks=pytest.mark.slow),
    pytest.param(("qwen3", "float32"), marks=pytest.mark.slow),
]
pytestmark = [pytest.mark.parametrize("case", CASES, ids="-".join), pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def answers(run_batches, tmp_path_factory):
    """Per model and dtype: answers and statistics of each run, of one stock engine and one of ours."""

    @cache
    def of(case: tuple[str, str]) -> Answers:
        family, dtype = case
        folder = tmp_path_factory.mktemp("-".join(case))
        model = write_model(folder / "model", family=family, heads=2, max_tokens=512)
        if family == "qwen3":
            _drop_causal_term(model / "config.json")
        job = {
            "model": str(model),
            "dtype": dtype,
            "convert": "auto" if family == "bert-classifier" else "embed",
        }
        if family == "bert":  # the others pool by their default, the first token
            job["engine"] = {"pooler_config": {"seq_pooling_type": "MEAN"}}
        return compare(run_batches, folder, job, POLICIES, CONTROLS | TYPED_CONTROLS)

    return of


def _drop_causal_term(config: Path) -> None:
    """Make an embedder of a decoder, as those are published that were trained without a causal term."""
    config.write_text(json.dumps({**json.loads(config.read_text()), "is_causal": False}))


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_equal_stock_vllm(answers, case, policy):
    arrays, _ = answers(case)
    assert equal(case[1], arrays[policy], arrays["stock"])


@pytest.mark.parametrize("control", CONTROLS)
def test_a_wrong_graph_fails_the_comparison(answers, case, control):
    arrays, _ = answers(case)
    assert not equal(case[1], arrays[control], arrays["stock"])


@pytest.mark.parametrize("control", TYPED_CONTROLS)
def test_types_are_told_where_a_model_takes_them(answers, case, control):
    arrays, _ = answers(case)
    typed = case[0] == "bert-classifier"
    assert equal(case[1], arrays[control], arrays["stock"]) is not typed


def test_each_policy_ran_the_graphs_it_stands_for(answers, case):
    _, stats = answers(case)
    ran = graphs_run(stats, POLICIES)
    modes = modes_of(ran)
    assert modes["static-mask"] == modes["dense"] == modes["flex"] == {"custom"}
    assert modes["static-causal"] == {"padded", "bidirectional"}
    assert modes["dynamic-dual"] == {"custom", "padded", "bidirectional"}
    assert modes["rows-causal"] == {"padded", "bidirectional"}
    assert modes["adaptive"] <= {"custom", "padded", "bidirectional"}
    for policy in ("static-causal", "dynamic-dual", "rows-causal"):
        assert "prefill/bidirectional/1x128" in ran[policy]
    for policy in ("rows-causal", "rows"):
        assert any(not key.split("/")[2].startswith("1x") for key in ran[policy])
    assert stats["stand-ins"]["total"]["fallbacks"] > 0
