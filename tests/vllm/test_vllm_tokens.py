"""Where tokens lie in a graph, and which see which, against the plainest model of both."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from graphcache.batch import Layout  # noqa: E402
from graphcache.key import GraphKey, MaskMode  # noqa: E402
from graphcache.vllm.tokens import collect, fill, spans, visible  # noqa: E402

lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)
layouts = st.sampled_from(Layout)


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
    shape = (key.rows, key.seq_len)
    ids = torch.full(shape, -7, dtype=torch.int32)
    positions = torch.zeros(shape, dtype=torch.int64)
    segments = torch.full(shape, -1, dtype=torch.int32)
    tokens = torch.arange(starts[-1], dtype=torch.int32) + 100
    places = torch.cat([torch.arange(length) for length in lengths])
    fill((ids, positions, segments), (tokens, places), cut)
    return cut, tokens, ids, positions, segments


@settings(deadline=None)
@given(lengths, layouts, st.integers(0, 3))
def test_what_goes_in_comes_back_in_order(lengths, layout, spare):
    cut, tokens, ids, _, segments = laid_out(lengths, layout, spare)
    back = torch.empty(len(tokens), 1, dtype=torch.int32)
    collect(back, ids[..., None], cut)
    assert back[:, 0].tolist() == tokens.tolist()
    assert int((ids == -7).sum()) == ids.numel() - len(tokens) == int((segments == -1).sum())


@settings(deadline=None)
@given(lengths, layouts, st.integers(0, 3))
def test_a_token_sees_its_own_sequence_up_to_itself(lengths, layout, spare):
    _, _, _, positions, segments = laid_out(lengths, layout, spare)
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


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=3, max_size=3), st.permutations(range(3)))
def test_a_launch_may_carry_some_sequences_in_any_order(lengths, order):
    chosen = order[:2]
    starts = starts_of(lengths)
    cut = list(spans(GraphKey(1, 32), chosen, Layout.PACKED, starts))
    assert [span.source for span in cut] == [starts[sequence] for sequence in chosen]
    assert [span.target for span in cut] == [0, lengths[chosen[0]]]
