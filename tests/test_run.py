from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.child import vllm_environment
from graphcache.errors import ConfigError, GraphCacheError
from graphcache.run import Job, Result, jobs, quantile, run_job
from graphcache.trace import Trace

TRACE = Trace("t", np.array([0.0, 1.0]), np.array([5, 9]), np.array([1, 1]))
OPTIONS = {"max_num_seqs": 4, "max_model_len": 64, "dtype": "float32", "seed": 0, "load": None}


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_the_least_value_that_the_share_does_not_exceed(values, share):
    ordered = sorted(values)
    value = quantile(ordered, share)
    assert value in ordered
    assert sum(v <= value for v in ordered) >= math.ceil(share * len(ordered))
    assert sum(v < value for v in ordered) < math.ceil(share * len(ordered))


def test_no_steps_have_no_quantile():
    assert quantile([], 0.99) == 0.0


def test_static_causal_gets_one_sequence_a_step(tmp_path):
    planned = jobs(TRACE, ["static-causal", "static-mask"], model=tmp_path, store=tmp_path, **OPTIONS)
    assert [job.max_num_seqs for job in planned] == [1, 4]
    assert planned[0].prompt_tokens == [5, 9]
    assert json.loads(json.dumps(planned[0].arrived_seconds)) == [0.0, 1.0]


def test_no_request_that_fits_is_an_error_that_names_the_limit(tmp_path):
    with pytest.raises(ConfigError, match="requests: 0 is not allowed; allowed: at least one of at most 64"):
        jobs(TRACE.first(0), ["static-mask"], model=tmp_path, store=tmp_path, **OPTIONS)


def test_the_row_adds_up():
    counters = {"hits": 3, "loads": 1, "compiles": 2, "fallbacks": 0, "stalls": 0, "compile_seconds": 7.0}
    snapshot = {"total": counters, "resident": {"a": 1, "b": 2}, "resident_bytes": 3}
    warm = {"hits": 1, "fallbacks": 0, "stalls": 0}
    row = Result("p", 4, 1.0, 3, 300, [0.1, 0.3, 0.2], 5.0, snapshot, warm).row()
    assert (row["hits"], row["loads"], row["compiles"]) == (2, 1, 2)
    assert row["steps"] == 3
    assert row["run_seconds"] == pytest.approx(0.6)
    assert row["tokens_per_second"] == pytest.approx(500)
    assert (row["p50_step_seconds"], row["p99_step_seconds"], row["resident_graphs"]) == (0.2, 0.3, 2)


def test_the_engine_gets_our_settings_and_none_of_the_callers():
    job = Job("static-mask", "model", "store", [0.0], [1], 4, 64)
    caller = {"VLLM_PLUGINS": "other", "GRAPHCACHE_DISABLE": "1", "PATH": "/bin"}
    environment = vllm_environment(job.policy, job.store, caller)
    assert "VLLM_PLUGINS" not in environment
    assert "GRAPHCACHE_DISABLE" not in environment
    assert (environment["PATH"], environment["GRAPHCACHE_POLICY"]) == ("/bin", "static-mask")


def test_an_engine_that_fails_shows_the_end_of_its_log(tmp_path):
    job = Job("static-mask", str(tmp_path / "nothing"), str(tmp_path), [0.0], [1], 4, 64)
    with pytest.raises(GraphCacheError, match=r"the engine of static-mask failed(.|\n)*nothing"):
        run_job(job)


def test_an_unknown_policy_is_refused_before_an_engine_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"policy: 'no-such' is not known; known: .*dynamic-dual"):
        jobs(TRACE, ["no-such"], model=tmp_path, store=tmp_path, **OPTIONS)
