"""What the plugin overrides is there in the installed vLLM, under the same signatures."""

from __future__ import annotations

import json

import pytest

OVERRIDES = {
    "GraphCachePlatform": {
        "__init__",
        "check_and_update_config",
        "get_attn_backend_cls",
        "get_device_communicator_cls",
        "opaque_attention_op",
        "supported_dtypes",
        "use_custom_op_collectives",
    },
    "GraphCacheWorker": {
        "_maybe_get_memory_pool_context",
        "compile_or_warm_up_model",
        "init_device",
        "shutdown",
    },
    "GraphCacheModelRunner": {"_model_forward", "load_model", "reload_weights"},
    "RowAttentionBackend": {"get_builder_cls", "get_impl_cls", "get_name"},
    "RowAttention": {"__init__", "forward"},
    "BatchMetadataBuilder": {"__init__", "build"},
    "ExportableRMSNorm": {"forward_oot"},
    "GraphCommunicator": {"all_reduce"},
}
NEW = {
    "GraphCacheWorker": {"graphcache_stats"},
    "GraphCacheModelRunner": {"_waves", "load_model_only", "warm"},
}


pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def report(vllm_script):
    output = vllm_script("signatures.py", variables={"GRAPHCACHE_PLATFORM": "cpu"})
    return json.loads(output.split("RESULTS ")[1])


@pytest.mark.parametrize("name", OVERRIDES)
def test_signatures_are_those_of_the_installed_vllm(report, name):
    assert report[name]["misfits"] == {}
    assert OVERRIDES[name] <= set(report[name]["overrides"])
    assert set(report[name]["new"]) == NEW.get(name, set())


def test_every_class_is_listed(report):
    assert report.keys() == OVERRIDES.keys()
