from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.costs import PaddedWork
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.learned_ladder import (
    Histogram,
    compare,
    equal_steps,
    geometric,
    halving,
    learn_ladder,
    learn_pair,
    learned_rows,
    percentiles,
)


class Odd(PaddedWork):
    """Costs that do not grow with the length everywhere: a dynamic program must not count on that."""

    def run_seconds(self, key: GraphKey) -> float:
        return super().run_seconds(key) * (1.5 if key.seq_len % 256 else 1.0)


BATCHES = st.lists(st.tuples(st.integers(1, 900), st.booleans()), min_size=1, max_size=40)
COSTS = st.sampled_from([PaddedWork(), Odd()])


def histogram(batches, costs=None, **options):
    tokens, lone = zip(*batches, strict=True)
    return Histogram.of(tokens, lone, costs or PaddedWork(), **options)


@given(BATCHES, COSTS, st.integers(1, 4))
def test_a_shared_ladder_is_the_best_of_all_of_its_size(batches, costs, sizes):
    counted = histogram(batches, costs)
    learned = learn_ladder(counted, sizes)
    assert len(learned) <= sizes
    every = (
        [*part, counted.sizes[-1]]
        for count in range(sizes)
        for part in combinations(counted.sizes[:-1], count)
    )
    # By intervals: a batch runs on the smallest size that holds it, even where a larger one is faster.
    assert interval_seconds(counted, learned) == pytest.approx(
        min(interval_seconds(counted, ladder) for ladder in every), rel=1e-9
    )


def interval_seconds(counted, ladder):
    ladder = Ladder(ladder)
    total = 0.0
    for size, several, single in zip(counted.sizes, counted.several, counted.single, strict=True):
        top = counted.sizes.index(ladder.bucket(size))
        total += several * counted.several_seconds[top] + single * counted.single_seconds[top]
    return total


@given(BATCHES, st.integers(1, 4))
def test_a_pair_is_the_best_of_all_with_as_many_graphs(batches, graphs):
    counted = histogram(batches)
    pair = learn_pair(counted, graphs)
    assert len(pair.masked) + len(pair.bare) <= graphs
    places = [(kind, size) for kind in (0, 1) for size in counted.sizes]
    best = np.inf
    for count in range(1, graphs + 1):
        for chosen in combinations(places, count):
            masked, bare = ([size for kind, size in chosen if kind == want] for want in (0, 1))
            if masked and masked[-1] == counted.sizes[-1]:
                best = min(best, counted.seconds_on(masked, bare))
    assert pair.seconds == pytest.approx(best, rel=1e-9)


@given(BATCHES, st.integers(1, 6), st.sampled_from([32, 128]))
def test_learned_sizes_are_multiples_that_hold_every_batch(batches, sizes, multiple):
    counted = histogram(batches, multiple=multiple, top=1024)
    for ladder in (learn_ladder(counted, sizes).sizes, learn_pair(counted, sizes).masked):
        assert all(size % multiple == 0 for size in ladder)
        assert ladder[-1] == 1024


@given(BATCHES, st.integers(1, 6))
def test_nothing_of_as_many_sizes_beats_what_was_learned_from_it(batches, sizes):
    counted = histogram(batches, top=1024)
    (_, _, learned), *others = compare(counted, counted, sizes, 128)
    for name, ladder, seconds in others:
        assert len(ladder) <= sizes, name
        assert learned <= seconds * (1 + 1e-9), name


@given(BATCHES)
def test_another_graph_never_costs(batches):
    counted = histogram(batches)
    costs = [learn_pair(counted, graphs).seconds for graphs in range(1, 6)]
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(costs))


def test_single_batches_decide_whether_bare_graphs_pay():
    alone = histogram([(512, True)] * 50 + [(100, True)] * 50)
    together = histogram([(512, False)] * 50 + [(100, False)] * 50)
    assert learn_pair(alone, 3).bare == (128, 512)
    assert learn_pair(together, 3).masked == (128, 512)
    assert learn_pair(together, 3).bare == ()


def test_one_mode_counts_all_batches_in_it():
    batches = [(100, True), (100, False)]
    custom = histogram(batches, modes="custom").seconds([128])
    causal = histogram(batches, modes="causal").seconds([128])
    run = [
        PaddedWork().run_seconds(GraphKey(1, 128, mode=mode)) for mode in (MaskMode.CUSTOM, MaskMode.CAUSAL)
    ]
    assert [custom, causal] == pytest.approx([2 * run[0], 2 * run[1]])


def test_the_other_ladders():
    assert halving(1024, 3, 128) == Ladder([256, 512, 1024])
    assert equal_steps(1024, 4, 128) == Ladder([256, 512, 768, 1024])
    assert geometric(128, 1024, 4, 128) == Ladder([128, 256, 512, 1024])
    assert geometric(128, 1024, 1, 128) == Ladder([1024])
    assert percentiles(histogram([(100, True)] * 3 + [(900, True)]), 2) == Ladder([128, 1024])


@given(st.integers(1, 64), st.integers(1, 400), st.sampled_from([32, 128]))
def test_every_ladder_has_multiples_up_to_its_top(blocks, sizes, multiple):
    top = blocks * multiple
    for ladder in (
        halving(top, sizes, multiple),
        equal_steps(top, sizes, multiple),
        geometric(multiple, top, sizes, multiple),
    ):
        assert all(size % multiple == 0 < size for size in ladder)
        assert ladder.top == top


def test_more_graphs_than_the_ladder_has_multiples_learn_all_of_them():
    rows = {
        name: sizes
        for name, sizes, _ in learned_rows([100, 300], [True, False], PaddedWork(), 9, modes="both", top=384)
    }
    assert rows["linear"] == [128, 256, 384]
    assert rows["learned"] == [128, 384]


@pytest.mark.parametrize(
    ("options", "message"), [({"multiple": 0}, "multiple"), ({"top": 64}, "top"), ({"top": 1000}, "top")]
)
def test_a_wrong_argument_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        histogram([(900, True)], **options)


def test_too_few_graphs_or_too_short_a_ladder_is_refused():
    counted = histogram([(900, True)])
    for learn in (learn_ladder, learn_pair):
        with pytest.raises(ConfigError, match="graphs"):
            learn(counted, 0)
    with pytest.raises(ConfigError, match="ladder"):
        counted.seconds([128])
