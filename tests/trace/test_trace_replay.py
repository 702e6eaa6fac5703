import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.costs import PaddedWork
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.trace import Limits, Trace, best_step_seconds, generate, nominal_step_seconds, replay
from graphcache.trace.replay import DECODE_SECONDS


def trace(*requests):
    arrived, prompt, output = zip(*requests, strict=True)
    return Trace.of("t", np.array(arrived, float), np.array(prompt), np.array(output))


TRACES = st.lists(
    st.tuples(st.floats(0, 5), st.integers(1, 3000), st.integers(0, 40)), min_size=1, max_size=60
).map(lambda requests: trace(*requests))
LIMITS = st.builds(Limits, st.integers(1, 9), st.integers(1, 4000))
TASKS = st.sampled_from(["pooling", "generate"])


def held(steps):
    """Return the prompts of each step."""
    return [[sequence.new for sequence in batch.sequences] for batch in steps.batches()]


@given(TRACES, LIMITS, TASKS)
def test_every_prompt_that_fits_runs_once_in_order(requests, limits, task):
    steps = replay(requests, limits, task=task)
    fitting = requests.prompt_tokens[requests.prompt_tokens <= limits.max_num_batched_tokens]
    assert steps.new.tolist() == fitting.tolist()
    assert steps.left_out == len(requests) - len(fitting)


@given(TRACES, LIMITS, TASKS)
def test_no_step_is_over_a_limit_or_empty(requests, limits, task):
    for prompts in held(replay(requests, limits, task=task)):
        assert 1 <= len(prompts) <= limits.max_num_seqs
        assert sum(prompts) <= limits.max_num_batched_tokens


@given(TRACES, LIMITS, TASKS)
def test_steps_neither_overlap_nor_hold_what_has_not_arrived(requests, limits, task):
    steps = replay(requests, limits, task=task)
    arrived = requests.arrived_seconds[requests.prompt_tokens <= limits.max_num_batched_tokens]
    took = [nominal_step_seconds(*pair) for pair in zip(steps.tokens, steps.sequences, strict=True)]
    ends = steps.started_seconds + took
    assert (steps.started_seconds[1:] >= ends[:-1] - 1e-9).all()
    assert (np.repeat(steps.started_seconds, steps.sequences) >= arrived - 1e-9).all()


@given(TRACES, LIMITS)
def test_the_server_never_idles_while_a_prompt_waits(requests, limits):
    """Every step starts when its first prompt arrives, or when the step before it ends."""
    steps = replay(requests, limits)
    arrived = requests.arrived_seconds[requests.prompt_tokens <= limits.max_num_batched_tokens]
    end = 0.0
    first = 0
    for start, tokens, count in zip(steps.started_seconds, steps.tokens, steps.sequences, strict=True):
        assert start == pytest.approx(max(end, arrived[first]))
        first += count
        end = start + nominal_step_seconds(tokens, count)


@given(TRACES, LIMITS)
def test_a_step_takes_all_that_waits_and_fits(requests, limits):
    steps = replay(requests, limits)
    kept = requests.prompt_tokens <= limits.max_num_batched_tokens
    arrived, prompt = requests.arrived_seconds[kept], requests.prompt_tokens[kept]
    for start, tokens, count, end in zip(
        steps.started_seconds, steps.tokens, steps.sequences, steps.ends, strict=True
    ):
        if end < len(arrived) and arrived[end] <= start and count < limits.max_num_seqs:
            assert tokens + prompt[end] > limits.max_num_batched_tokens


@given(TRACES, LIMITS, TASKS, st.floats(0.1, 0.9))
def test_replaying_twice_gives_the_same(requests, limits, task, load):
    one, two = (replay(requests, limits, task=task, load=load) for _ in range(2))
    for field in ("started_seconds", "ends", "new", "cached"):
        assert (getattr(one, field) == getattr(two, field)).all()


@pytest.mark.parametrize("name", ["azure-code", "azure-conv", "vtc-arena"])
@pytest.mark.parametrize("load", [0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("task", ["pooling", "generate"])
def test_the_load_is_the_share_of_time_in_which_the_server_is_busy(name, load, task):
    steps = replay(generate(name, 2000, seed=2), load=load, task=task)
    assert steps.busy_share == pytest.approx(load, rel=0.03)


def test_higher_load_makes_fuller_batches():
    requests = generate("azure-conv", 3000, seed=2)
    shares = [replay(requests, load=load).single_share for load in (0.1, 0.3, 0.6, 0.9)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.95


def test_a_pooling_batch_by_hand():
    requests = trace((0, 100, 0), (0.001, 50, 0), (0.002, 60, 0), (9, 70, 0))
    steps = replay(requests, Limits(8, 1000))
    assert held(steps) == [[100], [50, 60], [70]]
    assert steps.started_seconds.tolist() == pytest.approx([0, 0.015, 9])
    assert steps.busy_share == pytest.approx((0.015 + 0.016 + 0.012) / 9.012)


def test_a_generating_batch_by_hand():
    """Two slots: the third prompt waits until the first request has its three tokens."""
    requests = trace((0, 100, 3), (0, 100, 9), (0, 50, 1))
    steps = replay(requests, Limits(2, 1000), task="generate")
    assert held(steps) == [[100, 100], [50]]
    assert steps.started_seconds.tolist() == pytest.approx([0, 0.025 + 2 * DECODE_SECONDS])


def test_a_prompt_that_arrives_meanwhile_runs_after_the_decode_step_under_way():
    requests = trace((0, 100, 100), (0.1, 50, 1))
    steps = replay(requests, Limits(2, 1000), task="generate")
    assert steps.started_seconds[1] == pytest.approx(0.015 + 4 * DECODE_SECONDS)


def test_step_seconds_by_a_cost_table_are_those_of_the_best_graph():
    ladder, work = Ladder((128, 1024)), PaddedWork()
    seconds = best_step_seconds(ladder, work)
    assert seconds(100, 1) == work.run_seconds(GraphKey(1, 128))
    assert seconds(129, 2) == work.run_seconds(GraphKey(1, 1024, mode=MaskMode.CUSTOM))


def test_a_trace_without_a_request_that_fits_gives_no_step():
    steps = replay(trace((0, 100, 1)), Limits(8, 50), load=0.5)
    assert (len(steps), steps.left_out, steps.busy_share) == (0, 1, 0)


def test_wrong_arguments_are_refused():
    requests = trace((0, 1, 1))
    for load in (0, 1, -1, 7):
        with pytest.raises(ConfigError, match="load"):
            replay(requests, load=load)
    with pytest.raises(ConfigError, match="pooling, generate"):
        replay(requests, task="train")
    with pytest.raises(ConfigError, match="max_num_seqs: 0"):
        Limits(0)
    with pytest.raises(ConfigError, match="max_num_batched_tokens: 0"):
        Limits(8, 0)
