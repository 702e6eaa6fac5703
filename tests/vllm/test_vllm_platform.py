"""When the platform is active, and what it refuses at start."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from graphcache.errors import ConfigError, GraphCacheError
from graphcache.vllm import check_platform, check_version, platform
from graphcache.vllm.models import write_model

SERVED = {
    "plain": {},
    "chunks of 100 tokens": {"max_num_batched_tokens": 100},
    "bidirectional attention": {"hf_overrides": {"is_causal": False}},
}
ONE_GRAPH = "{policy: static-mask, budget: {graphs: 1}}"
GENERATION = {"runner": "generate", "convert": "none", "max_num_batched_tokens": 200}
REFUSED = {
    "LoRA": ({"enable_lora": True}, "--enable-lora"),
    "float16": ({"dtype": "float16"}, "--dtype bfloat16"),
    "pipeline parallel": ({"pipeline_parallel_size": 2}, "parallel sizes to 1"),
    "quantised KV cache": ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
    "KV cache of another dtype": (
        {"dtype": "float32", "kv_cache_dtype": "bfloat16"},
        "another dtype than the model's",
    ),
    "quantised weights": ({"quantization": "fp8"}, "quantised weights are not supported"),
    "prompt embeddings": ({"enable_prompt_embeds": True}, "prompt embeddings are not supported"),
    "sliding window": (
        {"hf_overrides": {"sliding_window": 128, "use_sliding_window": True}},
        "--disable-sliding-window",
    ),
    "speculative decoding": (
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "prompt_lookup_max": 3,
            }
        },
        "--speculative-config",
    ),
}
MISCONFIGURED = {
    "Model Runner V2": ({"VLLM_USE_V2_MODEL_RUNNER": "1"}, {}, "VLLM_USE_V2_MODEL_RUNNER=0"),
    "unknown policy": ({"GRAPHCACHE_POLICY": "fastest"}, {}, "'fastest' is not known; known: .*dynamic-dual"),
    "ladder too short": (
        {"GRAPHCACHE_POLICY": "{policy: dynamic-dual, ladder: {kind: explicit, sizes: [128, 256]}}"},
        {},
        "max_model_len 512: length: 512 is above the ladder's top of 256; raise the ladder's max",
    ),
    "several sequences refused": (
        {"GRAPHCACHE_POLICY": "{policy: {name: static-causal, options: {several: refuse}}}"},
        {"max_num_seqs": 4},
        "max_num_seqs 4 and max_num_batched_tokens 512: .*set max_num_seqs to 1, or several: split",
    ),
    "ladder of cached tokens too short": (
        {"GRAPHCACHE_POLICY": "{policy: dynamic-dual, ladders: {decode: {kind: explicit, sizes: [256]}}}"},
        GENERATION,
        "max_model_len 512: length: 512 is above the ladder's top of 256",
    ),
    "budget smaller than the kinds of graphs": (
        {"GRAPHCACHE_POLICY": "{policy: rows-causal, budget: {graphs: 2}}"},
        GENERATION,
        r"budget.graphs 2 is too small for vLLM's max_num_seqs \d+: one step can need 3 graphs at once"
        r" \(decode/prefix, prefill/causal, prefill/prefix\); set budget.graphs to 3 or more",
    ),
    "causal graphs for an encoder": (
        {"GRAPHCACHE_POLICY": "{policy: {name: dynamic-dual, options: {encoder_only: false}}}"},
        {"hf_overrides": {"is_causal": False}},
        "dynamic-dual asks for prefill/causal/1x.* encoder-only model .* option encoder_only",
    ),
    "budget of one graph": (
        {"GRAPHCACHE_POLICY": ONE_GRAPH},
        {**GENERATION, "max_num_seqs": 2},
        r"can need 2 graphs at once \(decode/prefix, prefill/custom\)",
    ),
}


pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def configure(vllm_script, model, tmp_path_factory):
    """Build engine configurations in one process; return what became of each."""

    def run(cases: dict, **variables: str) -> dict[str, str]:
        file = tmp_path_factory.mktemp("cases") / "cases.json"
        file.write_text(json.dumps(cases))
        return json.loads(vllm_script("refusals.py", model, file, variables=variables).split("RESULTS ")[1])

    return run


@pytest.fixture(scope="module")
def outcomes(configure, tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    cases = {name: [arguments, {}] for name, arguments in SERVED.items()}
    cases["generation"] = [GENERATION, {}]
    (folder / "one.yaml").write_text(ONE_GRAPH)
    cases["one graph"] = [{}, {"GRAPHCACHE_POLICY": str(folder / "one.yaml")}]
    cases |= {name: [arguments, {}] for name, (arguments, _) in REFUSED.items()}
    for name, (variables, arguments, _) in MISCONFIGURED.items():
        policy = variables.get("GRAPHCACHE_POLICY", "")
        if policy.startswith("{"):
            path = folder / f"{name}.yaml"
            path.write_text(policy)
            variables = {"GRAPHCACHE_POLICY": str(path)}
        cases[name] = [arguments, variables]
    return configure(cases, GRAPHCACHE_PLATFORM="cpu")


@pytest.mark.parametrize("name", SERVED)
def test_prompts_run_whole(outcomes, name):
    assert outcomes[name] == (
        "worker=graphcache.vllm.worker.GraphCacheWorker prefix_caching=False chunked_prefill=False "
        "tokens=512 mode=NONE dtype=torch.bfloat16"
    )


def test_a_server_that_generates_keeps_prefixes_and_chunks(outcomes):
    assert outcomes["generation"] == (
        "worker=graphcache.vllm.worker.GraphCacheWorker prefix_caching=True chunked_prefill=True "
        "tokens=200 mode=NONE dtype=torch.bfloat16"
    )


def test_one_graph_is_enough_for_a_server_that_does_not_generate(outcomes):
    assert outcomes["one graph"] == outcomes["plain"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_with_a_sentence(outcomes, name):
    assert "graphcache: " in outcomes[name]
    assert REFUSED[name][1] in outcomes[name]


@pytest.mark.parametrize("name", MISCONFIGURED)
def test_a_mistake_is_an_error_at_start(outcomes, name):
    with pytest.raises(ValueError, match=MISCONFIGURED[name][2]):
        raise ValueError(outcomes[name])


def test_disabled_it_is_stock_vllm(configure):
    outcome = configure({"plain": [{}, {}]}, GRAPHCACHE_PLATFORM="cpu", GRAPHCACHE_DISABLE="1")
    assert "worker=vllm.v1.worker.cpu_worker.CPUWorker prefix_caching=True" in outcome["plain"]


def test_a_platform_that_is_bypassed_is_an_error(configure):
    outcome = configure({"plain": [{}, {}]}, GRAPHCACHE_PLATFORM="cpu", VLLM_TARGET_DEVICE="cpu")
    assert outcome["plain"].startswith("GraphCacheError: GRAPHCACHE_PLATFORM=cpu asks for")
    assert "unset VLLM_TARGET_DEVICE" in outcome["plain"]


@pytest.mark.parametrize(
    ("wanted", "disabled", "active"),
    [(None, None, False), ("cpu", None, True), ("cpu", "1", False), ("cpu", "0", True), ("tpu", None, False)],
)
def test_the_environment_decides(monkeypatch, wanted, disabled, active):
    for name, value in (("GRAPHCACHE_PLATFORM", wanted), ("GRAPHCACHE_DISABLE", disabled)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert platform() == ("graphcache.vllm.platform.GraphCachePlatform" if active else None)


def test_an_unknown_platform_is_an_error(monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_PLATFORM", "tpu")
    with pytest.raises(
        ConfigError, match="GRAPHCACHE_PLATFORM: 'tpu' is not allowed; allowed: cpu, or unset"
    ):
        check_platform()


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0.0", "0.320.0"])
def test_another_vllm_is_refused(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
    with pytest.raises(GraphCacheError, match=f"vLLM {version} is not supported; supported: 0.32"):
        check_version()


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu"])
def test_a_supported_vllm_passes(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
    check_version()
