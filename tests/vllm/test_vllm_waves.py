"""A sequence runs in a later wave than those whose blocks it reads, and in no later one than that."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.errors import GraphCacheError
from graphcache.vllm.waves import waves

BLOCK = 4


def _waves(sequences):
    """Cut sequences of new and cached tokens, and of the blocks that hold them."""
    width = max(len(blocks) for _, _, blocks in sequences)
    table = np.zeros((len(sequences), width), dtype=np.int32)
    slots = []
    for row, (new, cached, blocks) in enumerate(sequences):
        table[row, : len(blocks)] = blocks
        slots += [blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(cached, cached + new)]
    starts = list(accumulate((new for new, _, _ in sequences), initial=0))
    cached = [cached for _, cached, _ in sequences]
    return waves(starts, cached, np.array(slots, dtype=np.int64), table, BLOCK)


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ([(3, 0, [1])], [[0]]),
        ([(9, 0, [1, 2, 3]), (5, 0, [4, 5])], [[0, 1]]),
        ([(1, 6, [1, 2]), (1, 9, [3, 4, 5])], [[0, 1]]),
        ([(1, 4, [1, 3]), (6, 0, [1, 2])], [[1], [0]]),
        ([(5, 0, [1, 2]), (1, 4, [1, 3]), (2, 4, [1, 4])], [[0], [1, 2]]),
        ([(5, 4, [1, 2, 3]), (2, 8, [1, 2, 4]), (4, 0, [1])], [[2], [0], [1]]),
        ([(1, 3, [1]), (3, 4, [1, 2])], [[0], [1]]),
    ],
    ids=[
        "alone",
        "new prompts",
        "decode",
        "a reader before its writer",
        "two readers",
        "a chain",
        "a block that decode fills",
    ],
)
def test_readers_come_after_writers(sequences, expected):
    assert _waves(sequences) == expected


def test_sequences_that_wait_for_each_other_are_refused():
    with pytest.raises(GraphCacheError, match=re.escape("sequences 0, 1 of a step wait for each other")):
        _waves([(1, 4, [1, 2]), (1, 4, [2, 1])])


@st.composite
def _batches(draw):
    """Sequences in vLLM's way: each may start with full blocks of earlier ones; then in any order."""
    sequences, free = [], 1
    for _ in range(draw(st.integers(1, 7))):
        prefix = []
        if sequences and draw(st.booleans()):
            new, cached, blocks = draw(st.sampled_from(sequences))
            prefix = blocks[: draw(st.integers(0, (new + cached) // BLOCK))]
        new = draw(st.integers(1, 11))
        own = draw(st.integers(0, 3)) if not prefix else 0  # of an earlier step
        cached = len(prefix) * BLOCK + own
        count = -(-(cached + new) // BLOCK) - len(prefix)
        sequences.append((new, cached, prefix + list(range(free, free + count))))
        free += count
    return draw(st.permutations(sequences))


@given(_batches())
def test_every_sequence_runs_once_as_soon_as_what_it_reads_is_written(sequences):
    found = _waves(sequences)
    assert sorted(index for wave in found for index in wave) == list(range(len(sequences)))
    wave_of = {index: number for number, wave in enumerate(found) for index in wave}
    written = [set(blocks[cached // BLOCK :]) for _, cached, blocks in sequences]
    for reader, (_, cached, blocks) in enumerate(sequences):
        writers = [
            other
            for other in range(len(sequences))
            if other != reader and written[other].intersection(blocks[: cached // BLOCK])
        ]
        assert wave_of[reader] == max((wave_of[other] + 1 for other in writers), default=0)
    assert all(wave == sorted(wave) for wave in found)
    assert all(later for _, later in pairwise(found))
