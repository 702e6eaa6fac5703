"""The model that is measured: two layers in Qwen3's shape, and its attention alone, under every form of mask.

A graph's form follows from its key: ``causal`` mode takes no mask; ``custom`` mode takes the ids of
segments, from which the graph makes its own, or by its flag a ``dense`` one that was made outside, or ids and
the tables of blocks with which FlexAttention skips the others (``flex``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention, silu

from graphcache.errors import ConfigError
from graphcache.fingerprint import digest
from graphcache.key import GraphKey, MaskMode

BLOCK = 128
"""Tokens of a side of FlexAttention's blocks."""

MODEL, ATTENTION = "prefill", "attention"
"""The kinds of graphs: the whole model, from token ids to hidden states; attention alone, from q, k and v."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The model's sizes; the defaults are those of Qwen3-0.6B, with two layers and heads of 64."""

    hidden: int = 1024
    layers: int = 2
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 64
    vocabulary: int = 4096
    max_tokens: int = 16384


def visible(segments: Tensor, positions: Tensor) -> Tensor:
    """Return which keys each query may look at, bool ``[rows, 1, seq_len, seq_len]``."""
    same = segments[:, :, None] == segments[:, None, :]
    before = positions[:, :, None] >= positions[:, None, :]
    return (same & before)[:, None]


def dense_mask(segments: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask ``[rows, 1, seq_len, seq_len]`` that a runner makes outside the graph."""
    hidden = torch.full((), float("-inf"), dtype=dtype)
    return torch.where(visible(segments, positions), torch.zeros((), dtype=dtype), hidden)


def block_tables(segments: Tensor) -> tuple[Tensor, ...]:
    """Return FlexAttention's tables for segments that lie one behind the other, ``[1, seq_len]``.

    They are ``kv_num_blocks``, ``kv_indices`` and the same of the blocks that need no mask, all int32.
    """
    first, last = segments[0, ::BLOCK], segments[0, BLOCK - 1 :: BLOCK]
    index = torch.arange(len(first))
    earlier = index[:, None] > index[None, :]
    touched = (earlier | torch.eye(len(first), dtype=torch.bool)) & (first[:, None] <= last[None, :])
    full = earlier & (first[None, :] == last[:, None])
    return (*_table(touched & ~full), *_table(full))


def _table(blocks: Tensor) -> tuple[Tensor, Tensor]:
    indices = torch.argsort(blocks.int(), dim=1, descending=True, stable=True)
    return blocks.sum(1, dtype=torch.int32)[None, None], indices.int()[None, None]


def form_of(key: GraphKey) -> str:
    """Return a key's form of mask: causal, dense, ids or flex."""
    return "causal" if key.mode is MaskMode.CAUSAL else key.flags[0] if key.flags else "ids"


def _how(form: str, positions: Tensor, visibility: tuple[Tensor, ...]) -> Any:
    """Return what attention takes: None, a mask, or FlexAttention's block mask."""
    if form == "ids":
        return visible(visibility[0], positions)
    if form != "flex":
        return visibility[0] if visibility else None
    segments, *tables = visibility
    of = segments[0]

    def same_and_before(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (of[query] == of[key]) & (query >= key)

    return BlockMask.from_kv_blocks(*tables, BLOCK_SIZE=BLOCK, mask_mod=same_and_before)


def _attend(q: Tensor, k: Tensor, v: Tensor, how: Any) -> Tensor:
    if isinstance(how, BlockMask):
        return flex_attention(q, k, v, block_mask=how, enable_gqa=True)
    return scaled_dot_product_attention(q, k, v, attn_mask=how, is_causal=how is None, enable_gqa=True)


class AttentionAlone(nn.Module):
    """Attention over ``[rows, heads, seq_len, head_dim]``."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, *visibility: Tensor) -> Tensor:
        """Return what each query sees, of ``q``'s shape."""
        return _attend(q, k, v, _how(self.form, positions, visibility))


class _Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        inner, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.attention_norm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        self.q = nn.Linear(sizes.hidden, inner, bias=False)
        self.k = nn.Linear(sizes.hidden, kv, bias=False)
        self.v = nn.Linear(sizes.hidden, kv, bias=False)
        self.out = nn.Linear(inner, sizes.hidden, bias=False)
        self.q_norm = nn.RMSNorm(sizes.head_dim, eps=1e-6)
        self.k_norm = nn.RMSNorm(sizes.head_dim, eps=1e-6)
        self.mlp_norm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        self.gate = nn.Linear(sizes.hidden, 3 * sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.hidden, 3 * sizes.hidden, bias=False)
        self.down = nn.Linear(3 * sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: Tensor, turn: Tensor, how: Any) -> Tensor:
        shape = (*x.shape[:2], -1, self.sizes.head_dim)
        normal = self.attention_norm(x)
        q = _rotate(self.q_norm(self.q(normal).view(shape)).transpose(1, 2), turn)
        k = _rotate(self.k_norm(self.k(normal).view(shape)).transpose(1, 2), turn)
        v = self.v(normal).view(shape).transpose(1, 2)
        x = x + self.out(_attend(q, k, v, how).transpose(1, 2).reshape(*x.shape[:2], -1))
        normal = self.mlp_norm(x)
        return x + self.down(silu(self.gate(normal)) * self.up(normal))


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each head's pairs by their token's angles, whose cosines and sines are ``turn``'s halves."""
    cosine, sine = turn[:, None].chunk(2, dim=-1)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


class Qwen3(nn.Module):
    """The decoder, from token ids to hidden states; random weights, bfloat16."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        rates = 1e6 ** (-torch.arange(0, sizes.head_dim, 2) / sizes.head_dim)
        angles = torch.arange(sizes.max_tokens)[:, None] * rates
        self.register_buffer("turns", torch.cat((angles.cos(), angles.sin()), dim=1))

    def forward(self, ids: Tensor, positions: Tensor, how: Any) -> Tensor:
        """Return hidden states ``[rows, seq_len, hidden]``."""
        x, turn = self.embedding(ids), self.turns[positions]
        for layer in self.layers:
            x = layer(x, turn, how)
        return self.norm(x)


class WholeModel(nn.Module):
    """The decoder under one form of mask."""

    def __init__(self, model: Qwen3, form: str) -> None:
        super().__init__()
        self.model = model
        self.form = form

    def forward(self, ids: Tensor, positions: Tensor, *visibility: Tensor) -> Tensor:
        """Return hidden states ``[rows, seq_len, hidden]``."""
        return self.model(ids, positions, _how(self.form, positions, visibility))


class SampleProgram:
    """The model, and its attention alone, as backends see them."""

    dtype = torch.bfloat16

    def __init__(self, sizes: Sizes | None = None, seed: int = 0) -> None:
        self.sizes = sizes or Sizes()
        torch.manual_seed(seed)
        self.model = Qwen3(self.sizes).to(self.dtype).eval().requires_grad_(False)

    def module(self, key: GraphKey) -> nn.Module:
        """Return the module of a key's kind and form; all share the weights.

        Raises:
            ConfigError: a kind that there is not.
        """
        if key.kind == MODEL:
            return WholeModel(self.model, form_of(key)).eval()
        if key.kind == ATTENTION:
            return AttentionAlone(form_of(key)).eval()
        raise ConfigError.of("kind", key.kind, f"{MODEL}, {ATTENTION}")

    def inputs(self, key: GraphKey) -> tuple[Tensor, ...]:
        """Return inputs of one sequence a row."""
        return (*self.tokens(key), *self.visibility(key))

    def tokens(self, key: GraphKey, sequences: int = 1) -> tuple[Tensor, ...]:
        """Return what a graph computes on, and the positions, for equal sequences in each row."""
        shape = (key.rows, key.seq_len)
        positions = (torch.arange(key.seq_len) % (key.seq_len // sequences)).expand(shape).contiguous()
        if key.kind == MODEL:
            return torch.randint(self.sizes.vocabulary, shape), positions
        heads = (self.sizes.heads, self.sizes.kv_heads, self.sizes.kv_heads)
        made = [torch.randn(key.rows, n, key.seq_len, self.sizes.head_dim, dtype=self.dtype) for n in heads]
        return (*made, positions)

    def visibility(self, key: GraphKey, sequences: int = 1) -> tuple[Tensor, ...]:
        """Make what tells a graph which token may look at which: a runner's work at each step."""
        form = form_of(key)
        if form == "causal":
            return ()
        at = torch.arange(key.seq_len).expand(key.rows, key.seq_len)
        segments = at // (key.seq_len // sequences)
        if form == "dense":
            return (dense_mask(segments, at, self.dtype),)
        return (segments, *block_tables(segments)) if form == "flex" else (segments,)

    def dynamic_shapes(self, key: GraphKey) -> None:
        """Return None: every size is the key's."""

    def facts(self) -> list[tuple[str, str]]:
        """Return the model's sizes and dtype, and the digest of this file."""
        return [
            ("model.sizes", str(asdict(self.sizes))),
            ("model.dtype", str(self.dtype)),
            ("model.source", digest(Path(__file__).read_text())),
        ]
