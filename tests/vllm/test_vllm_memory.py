"""Compile workers have their memory before vLLM sizes its KV cache."""

from __future__ import annotations

import json

import pytest

GIB = 2**30
POLICIES = {
    "in line": "{policy: static-mask}",
    "one worker": "{policy: static-mask, on_miss: fallback}",
    "two bounded": "{policy: static-mask, compile: {workers: 2, max_bytes: 1GiB}}",
    "too many": "{policy: static-mask, compile: {workers: 3}}",
}


@pytest.mark.timeout(300)
def test_what_the_workers_need_is_left_to_them_unless_the_cache_s_size_was_given(vllm_script, tmp_path):
    for name, policy in POLICIES.items():
        (tmp_path / f"{name}.yaml").write_text(policy)
    printed = vllm_script("reserve.py", str(4 * GIB), *(tmp_path / f"{name}.yaml" for name in POLICIES))
    asked, explicit = (
        json.loads(printed.split(label)[1].splitlines()[0]) for label in ("RESULTS ", "EXPLICIT ")
    )
    assert asked[:3] == [4 * GIB, 4 * GIB - 3 * GIB // 2, 2 * GIB]
    assert asked[3].startswith("graphcache: 3 compile workers take 4.5 GiB, and vLLM has 4.0 GiB for its KV")
    assert explicit == [4 * GIB] * 4
