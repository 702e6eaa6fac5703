"""Attention within the segments of packed rows, by FlexAttention: it skips blocks where nothing is visible.

FlexAttention can't be written down by ``torch.export.save``.  So a traced program holds an operator that
stands for it, and `expand` puts it in the operator's place, in the process that compiles.  Run as it is, the
operator gives the same by a whole mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 128
"""Tokens of a side of the blocks."""

LEAST_TOKENS = 512
"""From which length on blocks are skipped: below, a mask that is made in the graph is as fast or faster."""

_PADDING = torch.iinfo(torch.int32).max


@torch.library.custom_op("graphcache::flex_attention", mutates_args=())
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, segments: Tensor, causal: bool, scale: float
) -> Tensor:
    """Return what each query sees of its own segment, up to itself where ``causal``.

    ``query`` is ``[rows, heads, seq_len, size]``, and so are ``key`` and ``value``, with as many heads or
    fewer.  ``segments`` ``[rows, seq_len]`` are negative in padding, which sees itself alone; the tokens of a
    segment are in the order of their positions.
    """
    return _by_mask(query, key, value, segments, causal, scale).contiguous()


@flex_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, segments: Tensor, causal: bool, scale: float) -> Tensor:
    return query.new_empty(query.shape)


def expand(module: torch.fx.GraphModule) -> bool:
    """Put the attention itself in the place of every operator that stands for it; say whether there was one.

    What was expanded can be traced through dynamo only (``strict=True``).
    """
    stand_ins = [
        node for node in module.graph.nodes if node.target is torch.ops.graphcache.flex_attention.default
    ]
    for node in stand_ins:
        node.target = _attend
    module.recompile()
    return bool(stand_ins)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, segments: Tensor, causal: bool, scale: float
) -> Tensor:
    length = segments.shape[1]
    if length < LEAST_TOKENS or length % BLOCK:
        return _by_mask(query, key, value, segments, causal, scale)
    from torch.nn.attention import flex_attention as flex

    def visible(row: Tensor, _head: Tensor, looking: Tensor, seen: Tensor) -> Tensor:
        own = segments[row, looking]
        same = (own == segments[row, seen]) & ((own >= 0) | (looking == seen))
        return same & (looking >= seen) if causal else same

    blocks = flex.BlockMask.from_kv_blocks(
        *block_tables(segments, causal=causal), BLOCK_SIZE=BLOCK, mask_mod=visible
    )
    # Of a view, Inductor's template for CPUs reads wrong sizes or strides, and results are wrong.
    query, key, value = (tensor.contiguous() for tensor in (query, key, value))
    result: Tensor = flex.flex_attention(query, key, value, block_mask=blocks, scale=scale, enable_gqa=True)
    return result


def _by_mask(
    query: Tensor, key: Tensor, value: Tensor, segments: Tensor, causal: bool, scale: float
) -> Tensor:
    at = torch.arange(segments.shape[1])
    same = segments[:, :, None] == segments[:, None, :]
    seen = same & ((segments[:, :, None] >= 0) | (at[:, None] == at))
    if causal:
        seen = seen & (at[:, None] >= at)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=seen[:, None], scale=scale, enable_gqa=True
    )


def block_tables(segments: Tensor, *, causal: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which blocks of keys each block of queries looks at, for segments ``[rows, seq_len]``.

    They are, per row and block of queries, how many blocks of keys need a mask and the numbers of all blocks,
    those first; and the same of the blocks that are visible whole.  All are int32, ``[rows, 1, blocks]`` and
    ``[rows, 1, blocks, blocks]``.  No block that holds something visible is left out.
    """
    by_block = segments.unflatten(1, (-1, BLOCK))
    low, high = by_block.where(by_block >= 0, _PADDING).amin(2), by_block.amax(2)
    index = torch.arange(low.shape[1])
    earlier, own = index[:, None] > index, index[:, None] == index
    touched = own | ((low[:, :, None] <= high[:, None, :]) & (low[:, None, :] <= high[:, :, None]))
    uniform = (by_block.amin(2) == high) & (high >= 0)
    whole = uniform[:, :, None] & uniform[:, None, :] & (high[:, :, None] == high[:, None, :])
    if causal:
        touched, whole = touched & (earlier | own), whole & earlier
    return (*_table(touched & ~whole), *_table(whole))


def _table(blocks: Tensor) -> tuple[Tensor, Tensor]:
    indices = torch.argsort(blocks.int(), dim=2, descending=True, stable=True)
    return blocks.sum(2, dtype=torch.int32)[:, None], indices.int()[:, None]
