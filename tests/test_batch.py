"""What a batch refuses, and what it counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.batch import Batch, Launch, Layout, Plan, Sequence
from graphcache.errors import ConfigError
from graphcache.key import GraphKey

lengths = st.lists(st.integers(1, 10_000), min_size=1)


@given(lengths)
def test_a_batch_counts_its_new_tokens(lengths):
    assert Batch.of(lengths).tokens == sum(lengths)
    assert Batch(tuple(Sequence(n, cached=7) for n in lengths)).tokens == sum(lengths)


@given(lengths)
def test_equal_batches_are_one_key_of_a_mapping(lengths):
    assert {Batch.of(lengths): 1}[Batch.of(iter(lengths))] == 1


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"batch: \(\) is not allowed; allowed: at least one sequence"):
        Batch(())


@pytest.mark.parametrize("new", [0, -3])
def test_a_sequence_without_a_new_token_is_refused(new):
    with pytest.raises(ConfigError, match=f"new tokens of a sequence: {new} is not allowed"):
        Batch.of([5, new])


def test_less_than_nothing_cached_is_refused():
    with pytest.raises(ConfigError, match="cached tokens of a sequence: -1 is not allowed"):
        Batch((Sequence(1, -1),))


def test_a_launch_is_packed_unless_it_says_otherwise():
    launch = Launch(GraphKey(1, 128), (0, 1))
    assert launch.layout is Layout.PACKED
    assert Plan((launch,)) == Plan((Launch(GraphKey(1, 128), (0, 1), Layout.PACKED),))
