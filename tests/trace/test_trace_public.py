"""Public traces, where their files are at hand: `GRAPHCACHE_TRACES` says where."""

import os
from pathlib import Path

import numpy as np
import pytest

from graphcache.trace import SOURCES, Limits, generate, read_trace, replay
from graphcache.trace.generate import SHARES

DIRECTORY = Path(
    os.environ.get("GRAPHCACHE_TRACES", Path(__file__).resolve().parents[2].parent / "shared" / "traces")
)
FILES = {
    "azure-code": ("AzureLLMInferenceTrace_code.csv", 8819),
    "azure-conv": ("AzureLLMInferenceTrace_conv.csv", 19366),
    "vtc-arena": ("vtc_lmsys_arena_real_trace.csv", 1500),
    "servegen-r1": ("servegen_deepseek-r1_24h_x0.02.csv", 27708),
}
SINGLE_SHARES = {
    "azure-code": {0.1: 0.79, 0.3: 0.44, 0.6: 0.28, 0.9: 0.24},
    "azure-conv": {0.1: 0.99, 0.3: 0.93, 0.6: 0.78},
    "vtc-arena": {0.1: 0.97, 0.3: 0.92, 0.6: 0.79},
    "servegen-r1": {0.1: 0.95, 0.3: 0.87, 0.6: 0.73},
}
"""Steps of one sequence, pooling, 8 sequences and 8,192 tokens a step, from an independent replay."""


@pytest.fixture(params=FILES)
def public(request):
    file, count = FILES[request.param]
    path = DIRECTORY / file
    if not path.exists():
        pytest.skip(f"no {file} in {DIRECTORY}; set GRAPHCACHE_TRACES to the directory of public traces")
    trace = read_trace(path)
    assert len(trace) == count
    return request.param, trace


def test_the_generator_is_like_the_trace_it_is_named_after(public):
    name, trace = public
    made = generate(name, 20_000, seed=1)
    real, drawn = (np.quantile(t.prompt_tokens, SHARES[1:-1]) for t in (trace, made))
    assert drawn == pytest.approx(real, rel=0.03, abs=1)
    assert real == pytest.approx(np.array(SOURCES[name].prompt_tokens[1:-1]), rel=0.02, abs=1)
    assert np.median(trace.output_tokens) == pytest.approx(SOURCES[name].output_tokens, rel=0.02)
    assert len(trace) / trace.span_seconds == pytest.approx(SOURCES[name].rate, rel=0.03)
    gaps = [np.diff(t.arrived_seconds) for t in (trace, made)]
    assert gaps[1].std() / gaps[1].mean() == pytest.approx(gaps[0].std() / gaps[0].mean(), rel=0.2)


def test_steps_hold_one_sequence_as_often_as_an_independent_replay_says(public):
    name, trace = public
    for load, expected in SINGLE_SHARES[name].items():
        assert replay(trace, Limits(8, 8192), load=load).single_share == pytest.approx(expected, abs=0.04)


def test_a_generated_trace_makes_batches_like_the_real_one(public):
    name, trace = public
    real, made = (replay(t, Limits(8, 8192), load=0.3) for t in (trace, generate(name, len(trace), seed=1)))
    assert made.single_share == pytest.approx(real.single_share, abs=0.1)
    assert np.median(made.tokens) == pytest.approx(np.median(real.tokens), rel=0.35)
