import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.costs import CostLearner, CostTable, Measured, PaddedWork
from graphcache.key import GraphKey, MaskMode

LENGTHS = st.integers(1, 1 << 17)
SECONDS = st.floats(1e-6, 1e4)
KEYS = st.builds(
    GraphKey,
    rows=st.sampled_from([1, 2, 8]),
    seq_len=st.sampled_from([128, 300, 1024, 16384]),
    kv_len=st.sampled_from([0, 512]),
    mode=st.sampled_from(list(MaskMode)),
    kind=st.sampled_from(["prefill", "decode"]),
)


def causal(seq_len, rows=1):
    return GraphKey(rows, seq_len)


def custom(seq_len, rows=1):
    return GraphKey(rows, seq_len, mode=MaskMode.CUSTOM)


def table(runs, **options):
    return CostTable({key: Measured(run_seconds=seconds) for key, seconds in runs.items()}, **options)


class Shape:
    """A prior that knows the true curve, at half its speed."""

    def run_seconds(self, key):
        return 2.0 * key.seq_len**1.5

    def load_seconds(self, key):
        return 2.0

    def compile_seconds(self, key):
        return 20.0

    def nbytes(self, key):
        return 1000


# -- tables -----------------------------------------------------------------------------------------


@given(st.dictionaries(KEYS, SECONDS, min_size=1, max_size=8))
def test_a_measured_key_costs_what_was_measured(runs):
    costs = table(runs)
    assert {key: costs.run_seconds(key) for key in runs} == runs


@given(KEYS, st.dictionaries(KEYS, SECONDS, max_size=8), st.booleans())
def test_every_key_has_costs_that_can_be_compared(key, runs, shaped):
    costs = table(runs, shaped=shaped)
    assert 0 < costs.run_seconds(key) < math.inf
    assert 0 < costs.load_seconds(key) < math.inf
    assert 0 < costs.compile_seconds(key) < math.inf
    assert costs.nbytes(key) == 0


def test_between_two_lengths_the_value_is_interpolated_in_log_log():
    costs = table({causal(128): 0.1, causal(2048): 1.6})
    assert costs.run_seconds(causal(512)) == pytest.approx(0.4)
    costs = table({causal(100): 1.0, causal(400): 4.0**1.7})
    assert costs.run_seconds(causal(200)) == pytest.approx(2.0**1.7)


@given(LENGTHS, st.tuples(SECONDS, SECONDS, SECONDS))
def test_between_two_lengths_the_value_is_between_the_two(length, seconds):
    runs = dict(zip(map(causal, (1, 1000, 1 << 17)), sorted(seconds), strict=True))
    low, high = (
        max(k.seq_len for k in runs if k.seq_len <= length),
        min(k.seq_len for k in runs if k.seq_len >= length),
    )
    value = table(runs).run_seconds(causal(length))
    assert runs[causal(low)] * (1 - 1e-9) <= value <= runs[causal(high)] * (1 + 1e-9)


def test_beyond_the_lengths_costs_grow_and_shrink_but_never_vanish():
    costs = table({causal(128): 0.1, causal(256): 0.15})
    seconds = [costs.run_seconds(causal(length)) for length in (1, 64, 128, 256, 512, 4096)]
    assert all(low < high for low, high in pairwise(seconds))
    assert seconds[-1] > 16 * 0.15, "at least linear above the longest"


def test_another_mode_follows_the_nearest_key_as_the_nominal_work_says():
    work = PaddedWork()
    costs = table({causal(1024): 7.0})
    ratio = work.run_seconds(custom(1024)) / work.run_seconds(causal(1024))
    assert costs.run_seconds(custom(1024)) == pytest.approx(7.0 * ratio)
    assert costs.run_seconds(causal(1024, rows=4)) > 7.0


def test_a_key_of_another_kind_says_nothing():
    key = GraphKey(4, 1, 512, kind="decode")
    assert table({causal(1024): 700.0}).run_seconds(key) == PaddedWork().run_seconds(key)


def test_a_curve_keeps_to_its_rows_mode_and_flags():
    greedy = GraphKey(1, 256, flags=("greedy",))
    costs = table({causal(128): 1.0, causal(512): 4.0, greedy: 99.0, custom(256): 99.0, causal(256, 2): 99.0})
    assert costs.run_seconds(causal(256)) == pytest.approx(2.0)


def test_compile_load_and_bytes_come_from_the_nearest_key_or_the_nominal_value():
    costs = CostTable(
        {causal(128): Measured(load_seconds=0.5, compile_seconds=9.0, nbytes=100)},
        nominal=PaddedWork(load_seconds=2.0, compile_seconds=30.0, nbytes=7),
    )
    assert (
        costs.load_seconds(custom(128)),
        costs.compile_seconds(custom(128)),
        costs.nbytes(custom(128)),
    ) == (
        0.5,
        9.0,
        100,
    )
    decode = GraphKey(1, 1, 64, kind="decode")
    assert (costs.load_seconds(decode), costs.compile_seconds(decode), costs.nbytes(decode)) == (2.0, 30.0, 7)


@given(st.dictionaries(KEYS, SECONDS, max_size=4), KEYS, st.floats(0, 1e4))
def test_one_compile_time_can_be_set_for_every_graph(runs, key, seconds):
    before = table(runs)
    after = before.with_compile_seconds(seconds)
    assert after.compile_seconds(key) == seconds
    assert after.run_seconds(key) == before.run_seconds(key)
    assert all(after.compile_seconds(other) == seconds for other in runs)


# -- learning ---------------------------------------------------------------------------------------


def feed(learner, key, *seconds):
    for value in seconds:
        learner.observe(key, value)


def test_the_first_run_is_cold_and_never_counts():
    learner = CostLearner(least=1)
    feed(learner, causal(128), 50.0)
    assert learner.snapshot().measured == {}
    feed(learner, causal(128), 0.1)
    assert learner.snapshot().run_seconds(causal(128)) == 0.1


def test_the_first_run_after_a_load_is_cold_again():
    learner = CostLearner(least=1)
    feed(learner, causal(128), 50.0, 0.1)
    for _ in range(3):
        learner.supplied(causal(128), "load", 0.01)
        feed(learner, causal(128), 50.0)
    feed(learner, causal(128), 0.1)
    assert learner.snapshot().run_seconds(causal(128)) == 0.1


def test_a_graph_loaded_twice_without_a_run_is_still_cold():
    learner = CostLearner(least=1)
    feed(learner, causal(128), 50.0, 0.1, 0.1)
    learner.supplied(causal(128), "load", 0.01)
    learner.supplied(causal(128), "load", 0.01)
    feed(learner, causal(128), 50.0)
    assert learner.snapshot().run_seconds(causal(128)) == 0.1


def test_too_few_runs_say_nothing_yet():
    learner = CostLearner(least=3)
    feed(learner, causal(128), 9.0, 0.1, 0.1)
    assert learner.snapshot().measured == {}
    feed(learner, causal(128), 0.1)
    assert learner.snapshot().run_seconds(causal(128)) == 0.1


@given(
    st.lists(st.floats(0.9, 1.1), min_size=11, max_size=40),
    st.lists(st.one_of(st.floats(0, 1e9), st.sampled_from([math.nan, math.inf, -1.0])), max_size=5),
    st.randoms(use_true_random=False),
)
def test_outliers_move_nothing(good, wild, random):
    learner = CostLearner()
    runs = good + wild
    random.shuffle(runs)
    feed(learner, causal(128), 1.0, *runs)
    assert 0.9 <= learner.snapshot().run_seconds(causal(128)) <= 1.1


def test_a_lasting_change_is_learned():
    learner = CostLearner(window=8)
    feed(learner, causal(128), *[1.0] * 20)
    assert learner.snapshot().run_seconds(causal(128)) == 1.0
    feed(learner, causal(128), *[3.0] * 8)
    assert learner.snapshot().run_seconds(causal(128)) == 3.0


def test_noise_makes_no_new_table_and_a_change_makes_one_with_the_next_version():
    learner = CostLearner(tolerance=0.05)
    feed(learner, causal(128), *[1.0] * 9)
    first = learner.snapshot()
    feed(learner, causal(128), *[1.04] * 60)
    assert learner.snapshot() is first
    feed(learner, causal(128), *[1.2] * 64)
    second = learner.snapshot()
    assert (first.version, second.version) == (1, 2)
    assert first.run_seconds(causal(128)) == 1.0, "a table that was handed out stays as it was"


def test_slow_drift_is_not_swallowed_by_the_tolerance():
    learner = CostLearner(window=4, tolerance=0.05)
    seconds = 1.0
    feed(learner, causal(128), seconds)
    for _ in range(20):
        seconds *= 1.03
        feed(learner, causal(128), *[seconds] * 4)
        assert learner.snapshot().run_seconds(causal(128)) == pytest.approx(seconds, rel=0.06)


def test_what_was_not_seen_follows_the_priors_shape_at_the_speed_that_was_seen():
    learner = CostLearner(Shape())
    for length in (128, 4096):
        feed(learner, causal(length), *[length**1.5] * 4)
    costs = learner.snapshot()
    for key in (causal(64), causal(128), causal(700), causal(4096), causal(9999), custom(512)):
        assert costs.run_seconds(key) == pytest.approx(key.seq_len**1.5)


def test_before_anything_was_seen_the_prior_stands():
    costs = CostLearner(Shape()).snapshot()
    assert costs.version == 0
    assert costs.run_seconds(causal(100)) == Shape().run_seconds(causal(100))
    assert (costs.load_seconds(causal(1)), costs.compile_seconds(causal(1)), costs.nbytes(causal(1))) == (
        2,
        20,
        1000,
    )


def test_loads_compiles_and_bytes_are_learned_apart():
    learner = CostLearner()
    learner.supplied(causal(128), "compile", 14.0, 4096)
    learner.supplied(causal(128), "load", 0.003, 4096)
    learner.supplied(causal(128), "load", 0.005, 4096)
    learner.supplied(causal(128), "load", 0.004, 4096)
    costs = learner.snapshot()
    assert costs.compile_seconds(causal(128)) == 14.0
    assert costs.load_seconds(causal(128)) == 0.004
    assert costs.nbytes(causal(128)) == 4096
    assert costs.measured[causal(128)].run_seconds is None


def test_unknown_bytes_do_not_hide_the_priors():
    learner = CostLearner(Shape())
    learner.supplied(causal(128), "load", 0.003)
    assert learner.snapshot().nbytes(causal(128)) == 1000


# -- nominal work -----------------------------------------------------------------------------------


@given(st.integers(1, 64), LENGTHS)
def test_nominal_work_grows_with_rows_lengths_and_the_mask(rows, length):
    work = PaddedWork()
    assert work.run_seconds(causal(length, rows)) < work.run_seconds(causal(length, rows + 1))
    assert work.run_seconds(causal(length, rows)) < work.run_seconds(causal(length + 1, rows))
    assert work.run_seconds(causal(length, rows)) < work.run_seconds(custom(length, rows))
    padded, bare = (GraphKey(rows, length, mode=mode) for mode in (MaskMode.PADDED, MaskMode.BIDIRECTIONAL))
    assert work.run_seconds(bare) < work.run_seconds(padded)
