"""Where tokens lie in a graph, and which see which, against the plainest model of both."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from graphcache.batch import Layout  # noqa: E402
from graphcache.key import GraphKey, MaskMode  # noqa: E402
from graphcache.vllm.tokens import (  # noqa: E402
    Inputs,
    StepTokens,
    collect,
    real,
    spans,
    together,
    visible,
    visible_cached,
)

lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)
layouts = st.sampled_from(Layout)
BLOCK_SIZE = 4


def starts_of(lengths: list[int]) -> list[int]:
    return [sum(lengths[:index]) for index in range(len(lengths) + 1)]


def key_for(lengths: list[int], layout: Layout, spare: int) -> GraphKey:
    if layout is Layout.ROWS:
        return GraphKey(len(lengths) + spare, max(lengths) + spare, mode=MaskMode.CUSTOM)
    return GraphKey(1, sum(lengths) + spare, mode=MaskMode.CUSTOM)


def laid_out(lengths: list[int], layout: Layout, spare: int):
    key = key_for(lengths, layout, spare)
    starts = starts_of(lengths)
    cut = tuple(spans(key, range(len(lengths)), layout, starts))
    inputs = Inputs.padding(key, BLOCK_SIZE)
    inputs.ids.fill_(-7)
    tokens = torch.arange(starts[-1], dtype=torch.int32) + 100
    places = torch.cat([torch.arange(length) for length in lengths])
    blocks = torch.zeros(len(lengths), 3, dtype=torch.int32)
    inputs.fill(StepTokens(tokens, places, tokens.long() * 2, blocks), cut)
    return cut, tokens, inputs


@settings(deadline=None)
@given(lengths, layouts, st.integers(0, 3))
def test_what_goes_in_comes_back_in_order(lengths, layout, spare):
    cut, tokens, (ids, _, segments, _, slots, *_) = laid_out(lengths, layout, spare)
    assert sorted(slots[slots > 0].tolist()) == (tokens * 2).tolist()
    back = torch.empty(len(tokens), 1, dtype=torch.int32)
    collect(back, ids[..., None], cut)
    assert back[:, 0].tolist() == tokens.tolist()
    assert int((ids == -7).sum()) == ids.numel() - len(tokens) == int((segments == -1).sum())


@settings(deadline=None)
@given(lengths, layouts, st.integers(0, 3))
def test_a_token_sees_its_own_sequence_up_to_itself(lengths, layout, spare):
    _, _, inputs = laid_out(lengths, layout, spare)
    segments, positions = inputs.segments, inputs.positions
    mask = visible(segments, positions)
    rows, seq_len = segments.shape
    assert mask.shape == (rows, 1, seq_len, seq_len)
    tokens = range(seq_len)
    for row, (segment, position) in enumerate(zip(segments.tolist(), positions.tolist(), strict=True)):
        assert mask[row, 0].tolist() == [
            [segment[query] == segment[key] and position[key] <= position[query] for key in tokens]
            for query in tokens
        ]
    assert mask.any(dim=-1).all()
    dense = inputs.with_mask(torch.bfloat16)
    assert dense.segments is None
    assert dense.mask.dtype is torch.bfloat16
    assert torch.equal(dense.mask == 0, mask)
    assert torch.equal(dense.mask == float("-inf"), ~mask)


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=3, max_size=3), st.permutations(range(3)))
def test_a_launch_may_carry_some_sequences_in_any_order(lengths, order):
    chosen = order[:2]
    starts = starts_of(lengths)
    cut = list(spans(GraphKey(1, 32), chosen, Layout.PACKED, starts))
    assert [span.source for span in cut] == [starts[sequence] for sequence in chosen]
    assert [span.target for span in cut] == [0, lengths[chosen[0]]]


def test_rows_read_the_blocks_of_their_own_sequences():
    key = GraphKey(4, 1, 10, MaskMode.PREFIX, "decode")
    inputs = Inputs.padding(key, BLOCK_SIZE)
    assert inputs.blocks.shape == (4, 3)
    blocks = torch.tensor([[11, 12], [21, 22], [31, 32]], dtype=torch.int32)
    tokens = torch.arange(3, dtype=torch.int32)
    inputs.fill(
        StepTokens(tokens, tokens.long(), tokens.long(), blocks),
        tuple(spans(key, (2, 0), Layout.ROWS, [0, 1, 2, 3])),
    )
    assert inputs.blocks.tolist() == [[31, 32, 0], [11, 12, 0], [0, 0, 0], [0, 0, 0]]
    assert inputs.ids.tolist() == [[2], [0], [0], [0]]


def test_a_graph_takes_no_more_than_its_mode_needs():
    sizes = {
        (mode, block_size): len(Inputs.padding(GraphKey(1, 8, 8, mode), block_size).given())
        for mode in MaskMode
        for block_size in (None, BLOCK_SIZE)
    }
    assert sizes == {
        (MaskMode.CAUSAL, None): 2,
        (MaskMode.CAUSAL, BLOCK_SIZE): 3,
        (MaskMode.CUSTOM, None): 3,
        (MaskMode.CUSTOM, BLOCK_SIZE): 4,
        (MaskMode.PREFIX, None): 2,
        (MaskMode.PREFIX, BLOCK_SIZE): 4,
        (MaskMode.PADDED, None): 3,
        (MaskMode.PADDED, BLOCK_SIZE): 4,
        (MaskMode.BIDIRECTIONAL, None): 2,
        (MaskMode.BIDIRECTIONAL, BLOCK_SIZE): 3,
    }
    typed = Inputs.padding(GraphKey(1, 8), None, typed=True)
    assert [tensor.shape for tensor in typed.given()] == [(1, 8)] * 3


def test_without_a_causal_term_a_token_sees_all_of_its_own_sequence():
    mask = together(torch.tensor([[0, 0, 1, -1]], dtype=torch.int32))
    assert mask.int().tolist() == [[[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]]


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 3))
def test_row_lengths_tell_tokens_from_padding(lengths, spare):
    key = GraphKey(len(lengths) + spare, 6, mode=MaskMode.PADDED)
    starts = starts_of(lengths)
    tokens = torch.arange(starts[-1], dtype=torch.int32) + 100
    inputs = Inputs.padding(key, None, typed=True)
    step = StepTokens(tokens, tokens.long(), tokens.long(), tokens[:, None], tokens % 2)
    inputs.fill(step, tuple(spans(key, range(len(lengths)), Layout.ROWS, starts)))
    seen = real(inputs.lengths, key.seq_len)
    assert seen.shape == (key.rows, 1, 1, key.seq_len)
    assert inputs.ids[seen[:, 0, 0]][: len(tokens)].tolist() == tokens.tolist()
    assert seen.sum(dim=-1).flatten().tolist() == [*lengths, *[1] * spare]
    assert inputs.types[seen[:, 0, 0]][: len(tokens)].tolist() == (tokens % 2).tolist()


def test_without_types_every_token_is_of_the_first_text():
    key = GraphKey(1, 4, mode=MaskMode.BIDIRECTIONAL)
    inputs = Inputs.padding(key, None, typed=True)
    tokens = torch.arange(4, dtype=torch.int32)
    inputs.fill(StepTokens(tokens, tokens, tokens, tokens), [*spans(key, (0,), Layout.PACKED, [0, 4])])
    assert inputs.types.tolist() == [[0] * 4]


def test_a_token_sees_the_cache_up_to_itself():
    mask = visible_cached(torch.tensor([[2, 3], [0, 0]]), 5)
    assert mask.shape == (2, 1, 2, 5)
    assert mask.sum(dim=-1).flatten().tolist() == [3, 4, 1, 1]
    assert mask[0, 0, 0].tolist() == [True, True, True, False, False]
