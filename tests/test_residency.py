from __future__ import annotations

import pytest

from graphcache.backends.protocol import EvictUnit, Graph
from graphcache.errors import BudgetError, ConfigError, TooLargeError
from graphcache.key import GraphKey
from graphcache.policy.protocol import Budget
from graphcache.residency import Residency

A, B, C = (GraphKey(1, size) for size in (16, 32, 64))


def oldest(candidates):
    return candidates[0]


class Closing:
    """Graphs that note when they are closed."""

    def __init__(self):
        self.closed = []

    def graph(self, key, nbytes=1, generation=0):
        return Graph(lambda: key, nbytes, generation, close=lambda: self.closed.append(key))


@pytest.fixture
def closing():
    return Closing()


@pytest.mark.parametrize("budget", [Budget(graphs=0), Budget(bytes=0), Budget(graphs=-1)])
def test_a_budget_of_nothing_is_refused(budget):
    with pytest.raises(ConfigError, match=r"budget\.(graphs|bytes): (0|-1) is not allowed"):
        Residency(budget)


def test_no_budget_is_no_bound(closing):
    residency = Residency(Budget())
    for size in range(1, 100):
        assert residency.insert(GraphKey(1, size), closing.graph(size, 10**9), choose=oldest) == []


def test_readers_keep_the_mapping_they_took(closing):
    residency = Residency(Budget(graphs=1))
    residency.insert(A, closing.graph(A), choose=oldest)
    taken = residency.graphs
    assert residency.insert(B, closing.graph(B), choose=oldest) == [A]
    assert list(taken) == [A]
    assert list(residency.graphs) == [B]
    assert closing.closed == [A]


def test_bytes_are_freed_one_graph_at_a_time(closing):
    residency = Residency(Budget(bytes=10))
    residency.insert(A, closing.graph(A, 4), choose=oldest)
    residency.insert(B, closing.graph(B, 4), choose=oldest)
    assert residency.insert(C, closing.graph(C, 5), choose=oldest) == [A]
    assert residency.nbytes == 9


def test_nothing_is_evicted_for_what_can_never_fit(closing):
    residency = Residency(Budget(bytes=10))
    residency.insert(A, closing.graph(A, 4), choose=oldest)
    residency.insert(B, closing.graph(B, 4), choose=oldest)
    with pytest.raises(TooLargeError, match=r"holds 11 bytes, more than the whole budget\.bytes of 10"):
        residency.insert(C, closing.graph(C, 11), choose=oldest)
    with pytest.raises(BudgetError, match="4 can be freed") as raised:
        residency.insert(C, closing.graph(C, 7), pinned={A}, choose=oldest)
    assert not isinstance(raised.value, TooLargeError)
    assert closing.closed == []


def test_a_pinned_graph_stays(closing):
    residency = Residency(Budget(graphs=2))
    residency.insert(A, closing.graph(A), choose=oldest)
    residency.insert(B, closing.graph(B), choose=oldest)
    assert residency.insert(C, closing.graph(C), pinned={A}, choose=oldest) == [B]
    assert residency.refusal(B, 0, {A}) is None
    assert "pinned" in str(residency.refusal(B, 0, {A, C}))
    with pytest.raises(BudgetError, match="all 2 graphs of the budget are pinned"):
        residency.insert(B, closing.graph(B), pinned={A, C}, choose=oldest)


def test_a_generation_leaves_whole_or_stays_whole(closing):
    residency = Residency(Budget(graphs=3), EvictUnit.GENERATION)
    residency.insert(A, closing.graph(A, generation=1), choose=oldest)
    residency.insert(B, closing.graph(B, generation=1), choose=oldest)
    residency.insert(C, closing.graph(C, generation=2), choose=oldest)
    assert residency.candidates({B}) == [C]
    assert residency.insert(GraphKey(1, 128), closing.graph("d"), choose=oldest) == [A, B]
    assert closing.closed == [A, B]


def test_what_the_device_keeps_counts_against_the_bytes(closing):
    residency = Residency(Budget(graphs=1, bytes=10), EvictUnit.NEVER)
    residency.insert(A, closing.graph(A, 4), choose=oldest)
    residency.insert(B, closing.graph(B, 4), choose=oldest)
    assert (residency.nbytes, residency.retained_bytes) == (4, 4)
    with pytest.raises(TooLargeError, match="4 retained by the device, and 0 can be freed"):
        residency.insert(C, closing.graph(C, 4), choose=oldest)
    residency.insert(A, closing.graph(A, 4), choose=oldest)
    assert (residency.nbytes, residency.retained, list(residency.graphs)) == (4, {B: 4}, [A])
