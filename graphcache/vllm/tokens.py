"""Where the tokens of a launch lie in its graph's inputs, which may look at which, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from graphcache.batch import Layout
from graphcache.key import GraphKey, MaskMode


class StepTokens(NamedTuple):
    """What vLLM schedules in one step, its sequences one behind the other.

    ``ids`` (int32), ``positions`` and ``slots`` (int64, where each token lies in the KV cache) are
    ``[tokens]``, ``blocks`` (int32, each sequence's blocks of the KV cache) is ``[sequences, width]``.
    ``types`` (int32) are ``[tokens]``, or None where every token is of type 0.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    blocks: torch.Tensor
    types: torch.Tensor | None = None


class Inputs(NamedTuple):
    """The inputs of one graph, ``[rows, seq_len]`` each; None where its kind or mode takes none.

    ``segments`` (int32) tell a packed row's sequences apart, unless a ``mask`` made of them does
    (`with_mask`); ``slots`` are written to the KV cache; ``blocks`` ``[rows, width]`` are read from it.
    ``lengths`` (int32) ``[rows]`` count the tokens of each row, ``types`` (int32) say which of two texts a
    token is of.  In padding, ids, positions and types are 0, the segment is -1, and slot and block are 0:
    vLLM keeps block 0 free of tokens.  A row without a sequence has length 1: no token may be left with
    nothing to look at.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    blocks: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    types: torch.Tensor | None = None

    @classmethod
    def padding(cls, key: GraphKey, block_size: int | None, *, typed: bool = False) -> Inputs:
        """Return inputs that hold nothing but padding; ``block_size`` is None without a KV cache.

        ``typed`` says that the model takes token types.
        """
        shape = (key.rows, key.seq_len)
        segments = torch.full(shape, -1, dtype=torch.int32) if key.mode is MaskMode.CUSTOM else None
        slots = torch.zeros(shape, dtype=torch.int64) if block_size else None
        blocks = None
        if block_size and key.mode is MaskMode.PREFIX:
            blocks = torch.zeros((key.rows, -(-key.kv_len // block_size)), dtype=torch.int32)
        ids, positions = torch.zeros(shape, dtype=torch.int32), torch.zeros(shape, dtype=torch.int64)
        lengths = torch.ones(key.rows, dtype=torch.int32) if key.mode is MaskMode.PADDED else None
        types = torch.zeros(shape, dtype=torch.int32) if typed else None
        return cls(ids, positions, segments, None, slots, blocks, lengths, types)

    def given(self) -> tuple[torch.Tensor, ...]:
        """Return those that the graph takes, in its order."""
        return tuple(tensor for tensor in self if tensor is not None)

    def with_mask(self, dtype: torch.dtype, *, causal: bool = True) -> Inputs:
        """Return these inputs with an additive mask ``[rows, 1, seq_len, seq_len]`` in place of segments."""
        if self.segments is None:
            return self
        seen = visible(self.segments, self.positions) if causal else together(self.segments)
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))
        return self._replace(segments=None, mask=mask)

    def fill(self, step: StepTokens, spans: Sequence[Span]) -> None:
        """Copy the sequences of a launch in."""
        for mine, theirs in (
            (self.ids, step.ids),
            (self.positions, step.positions),
            (self.slots, step.slots),
            (self.types, step.types),
        ):
            if mine is not None and theirs is not None:
                flat = mine.view(-1)
                for _, source, target, length in spans:
                    flat[target : target + length] = theirs[source : source + length]
        if self.segments is not None:
            flat = self.segments.view(-1)
            for number, (_, _, target, length) in enumerate(spans):
                flat[target : target + length] = number
        if self.lengths is not None:
            for _, _, target, length in spans:
                self.lengths[target // self.ids.shape[1]] = length
        if self.blocks is not None:
            width = min(self.blocks.shape[1], step.blocks.shape[1])
            for sequence, _, target, _ in spans:
                self.blocks[target // self.ids.shape[1], :width] = step.blocks[sequence, :width]


class Span(NamedTuple):
    """One sequence of a launch: ``length`` tokens, at ``source`` in the batch, ``target`` in the graph."""

    sequence: int
    source: int
    target: int
    length: int


def spans(key: GraphKey, sequences: Sequence[int], layout: Layout, starts: Sequence[int]) -> Iterator[Span]:
    """Yield where each sequence of a launch comes from and where it goes, counted in tokens.

    ``starts`` are the offsets of the batch's sequences in vLLM's own order, with the end of the last.
    """
    target = 0
    for row, sequence in enumerate(sequences):
        length = starts[sequence + 1] - starts[sequence]
        if layout is Layout.ROWS:
            target = row * key.seq_len
        yield Span(sequence, starts[sequence], target, length)
        target += length


def collect(hidden: torch.Tensor, output: torch.Tensor, cut: Sequence[Span]) -> None:
    """Copy a graph's hidden states ``[rows, seq_len, hidden]`` back to the batch's ``[tokens, hidden]``."""
    flat = output.view(-1, output.shape[-1])
    for _, source, target, length in cut:
        hidden[source : source + length] = flat[target : target + length]


def visible(segments: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return which tokens of its row each token may look at: its own segment's, up to its own position.

    ``segments`` and ``positions`` are ``[rows, seq_len]``; the result is bool,
    ``[rows, 1, seq_len, seq_len]``.  Padding is a segment like any other, so that no row of the mask is
    empty.
    """
    before = positions[:, :, None] >= positions[:, None, :]
    return together(segments) & before[:, None]


def together(segments: torch.Tensor) -> torch.Tensor:
    """Return which tokens of its row each token may look at without a causal term: its own segment's.

    The result is bool, ``[rows, 1, seq_len, seq_len]``.
    """
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def real(lengths: torch.Tensor, seq_len: int) -> torch.Tensor:
    """Return which tokens of its row every token may look at: the first ones, as many as ``lengths`` say.

    The result is bool, ``[rows, 1, 1, seq_len]``.
    """
    return (torch.arange(seq_len) < lengths[:, None])[:, None, None]


def visible_cached(positions: torch.Tensor, kv_len: int) -> torch.Tensor:
    """Return which of its sequence's first ``kv_len`` tokens each token may look at: those up to itself.

    The result is bool, ``[rows, 1, seq_len, kv_len]``.
    """
    return (torch.arange(kv_len) <= positions[:, :, None])[:, None]
