"""The laws of ladders: the smallest size that holds a length, and how ladders are made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.errors import LadderError
from graphcache.ladder import Ladder

sizes = st.sets(st.integers(1, 1000), min_size=1).map(sorted)
ends = st.tuples(st.integers(1, 5000), st.integers(1, 5000)).map(sorted)


@given(sizes, st.integers(1, 1000))
def test_a_bucket_is_the_smallest_size_that_holds_the_length(sizes, length):
    ladder = Ladder(sizes)
    enough = [size for size in sizes if size >= length]
    if enough:
        assert ladder.bucket(length) == min(enough)
    else:
        with pytest.raises(LadderError, match=f"{length} is above the ladder's top of {max(sizes)}"):
            ladder.bucket(length)


@given(sizes)
def test_a_size_is_its_own_bucket(sizes):
    assert [Ladder(sizes).bucket(size) for size in sizes] == sizes


@pytest.mark.parametrize("length", [0, -1])
def test_a_length_below_1_names_the_limits(length):
    with pytest.raises(LadderError, match=f"length: {length} is not allowed; allowed: 1 to 256"):
        Ladder([128, 256]).bucket(length)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([], "at least 1"),
        ([0, 1], "at least 1"),
        ([-128, 128], "at least 1"),
        ([128, 128], "128 after 128 is not allowed; allowed: sizes that increase"),
        ([128, 512, 256], "256 after 512"),
    ],
)
def test_what_does_not_increase_is_no_ladder(sizes, message):
    with pytest.raises(LadderError, match=message):
        Ladder(sizes)


@given(ends)
def test_pow2_doubles_and_ends_at_the_top(ends):
    low, high = ends
    *doubled, top = Ladder.pow2(low, high)
    assert top == high
    assert doubled == [low * 2**i for i in range(len(doubled))]
    assert not doubled or doubled[-1] * 2 >= high


def test_pow2():
    assert Ladder.pow2(128, 1024).sizes == (128, 256, 512, 1024)
    assert Ladder.pow2(128, 1000).sizes == (128, 256, 512, 1000)
    assert Ladder.pow2(128, 128).sizes == (128,)


@given(ends, st.integers(1, 700))
def test_linear_steps_evenly_and_ends_at_the_top(ends, step):
    low, high = ends
    ladder = Ladder.linear(low, high, step)
    assert ladder.sizes[0] == low
    assert ladder.top == high
    gaps = [b - a for a, b in zip(ladder.sizes, ladder.sizes[1:], strict=False)]
    assert set(gaps[:-1]) <= {step}
    assert not gaps or 1 <= gaps[-1] <= step


def test_linear():
    assert Ladder.linear(100, 350, 100).sizes == (100, 200, 300, 350)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ladder.pow2(0, 8), "min: 0"),
        (lambda: Ladder.pow2(16, 8), "max: 8 is not allowed; allowed: at least min, which is 16"),
        (lambda: Ladder.linear(0, 8, 1), "min: 0"),
        (lambda: Ladder.linear(16, 8, 1), "max: 8"),
        (lambda: Ladder.linear(1, 8, 0), "step: 0"),
    ],
)
def test_wrong_ends_are_named(make, message):
    with pytest.raises(LadderError, match=f"^{message}"):
        make()


@given(sizes)
def test_ladders_are_values(sizes):
    assert Ladder(sizes) == Ladder(iter(sizes))
    assert hash(Ladder(sizes)) == hash(Ladder(tuple(sizes)))
    assert list(Ladder(sizes)) == sizes
    assert len(Ladder(sizes)) == len(sizes)
    assert repr(Ladder(sizes)) == f"Ladder({sizes})"
    assert Ladder(sizes) != sizes
