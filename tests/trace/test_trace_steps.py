import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.batch import Batch, Sequence
from graphcache.errors import ConfigError
from graphcache.trace import Steps, Trace


def steps_of(batches):
    flat = [sequence for batch in batches for sequence in batch]
    return Steps(
        "s",
        np.arange(len(batches), dtype=float),
        np.cumsum([len(batch) for batch in batches], dtype=np.int64),
        np.array([new for new, _ in flat], dtype=np.int64),
        np.array([cached for _, cached in flat], dtype=np.int64),
    )


SEQUENCES = st.tuples(st.integers(1, 50), st.integers(0, 9))
BATCHES = st.lists(st.lists(SEQUENCES, min_size=1, max_size=4), max_size=9)


@given(BATCHES)
def test_batches_come_back_as_they_were(batches):
    expected = [Batch(tuple(Sequence(*pair) for pair in batch)) for batch in batches]
    steps = steps_of(batches)
    assert list(steps.batches()) == expected
    assert steps.tokens.tolist() == [batch.tokens for batch in expected]
    assert steps.sequences.tolist() == [len(batch) for batch in batches]


@given(BATCHES, st.integers(0, 40))
def test_the_first_sequences_make_whole_steps(batches, count):
    kept = []
    while len(kept) < len(batches) and sum(map(len, kept)) + len(batches[len(kept)]) <= count:
        kept.append(batches[len(kept)])
    assert list(steps_of(batches).first(count).batches()) == list(steps_of(kept).batches())


@given(BATCHES, st.floats(0, 1))
def test_the_two_parts_of_a_split_are_the_whole(batches, share):
    steps = steps_of(batches)
    parts = steps.split(share)
    assert [batch for part in parts for batch in part.batches()] == list(steps.batches())
    assert [time for part in parts for time in part.started_seconds] == list(steps.started_seconds)
    assert abs(len(parts[0]) - share * len(steps)) <= 0.5


@given(BATCHES, st.integers(1, 100))
def test_longer_steps_are_left_out_and_their_sequences_counted(batches, most):
    kept = [batch for batch in batches if sum(new for new, _ in batch) <= most]
    steps = steps_of(batches).shorter_than(most)
    assert list(steps.batches()) == list(steps_of(kept).batches())
    assert steps.left_out == sum(map(len, batches)) - sum(map(len, kept))


def test_the_share_of_single_steps():
    assert steps_of([[(1, 0)], [(1, 0), (2, 0)], [(3, 0)], [(4, 0)]]).single_share == 0.75
    assert steps_of([]).single_share == 0


@pytest.mark.parametrize(
    ("ends", "new", "cached", "message"),
    [
        ([1, 1], [5], [0], "empty step"),
        ([2], [5], [0], "arrays that fit"),
        ([1], [0], [0], "at least 1 new"),
        ([1], [5], [-1], "at least 1 new"),
    ],
)
def test_steps_that_do_not_fit_together_are_refused(ends, new, cached, message):
    with pytest.raises(ConfigError, match=message):
        Steps("s", np.zeros(len(ends)), np.array(ends), np.array(new), np.array(cached))


@pytest.mark.parametrize(
    ("arrived", "prompt", "output", "message"),
    [
        ([0.0, 1.0], [1], [1], "arrays of one length"),
        ([1.0, 0.0], [1, 1], [1, 1], "never decrease"),
        ([-1.0], [1], [1], "never decrease"),
        ([0.0], [0], [1], "prompt_tokens: 0"),
        ([0.0], [1], [-1], "output_tokens: -1"),
    ],
)
def test_requests_that_do_not_fit_together_are_refused(arrived, prompt, output, message):
    with pytest.raises(ConfigError, match=message):
        Trace("t", np.array(arrived), np.array(prompt), np.array(output))


def test_a_trace_is_cut_capped_and_stretched():
    trace = Trace.of("t", np.array([5.0, 3.0, 4.0]), np.array([50, 30, 40]), np.array([5, 3, 4]))
    assert trace.arrived_seconds.tolist() == [0, 1, 2]
    assert trace.prompt_tokens.tolist() == [30, 40, 50]
    assert trace.first(2).prompt_tokens.tolist() == [30, 40]
    assert trace.capped(35).prompt_tokens.tolist() == [30, 35, 35]
    assert trace.stretched(3).arrived_seconds.tolist() == [0, 3, 6]
    assert trace.span_seconds == 2
    assert trace.first(0).span_seconds == 0
