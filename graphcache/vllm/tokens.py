"""Where the tokens of a launch lie in its graph's inputs, which may look at which, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from graphcache.batch import Layout
from graphcache.key import GraphKey


class Span(NamedTuple):
    """One sequence of a launch: ``length`` tokens, at ``source`` in the batch, ``target`` in the graph."""

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
        yield Span(starts[sequence], target, length)
        target += length


def fill(inputs: tuple[torch.Tensor, ...], batch: tuple[torch.Tensor, ...], cut: Sequence[Span]) -> None:
    """Copy a launch's token ids and positions in, and number its segments where the graph takes them."""
    for padded, tokens in zip(inputs, batch, strict=False):
        flat = padded.view(-1)
        for source, target, length in cut:
            flat[target : target + length] = tokens[source : source + length]
    for segments in inputs[len(batch) :]:
        flat = segments.view(-1)
        for number, (_, target, length) in enumerate(cut):
            flat[target : target + length] = number


def collect(hidden: torch.Tensor, output: torch.Tensor, cut: Sequence[Span]) -> None:
    """Copy a graph's hidden states ``[rows, seq_len, hidden]`` back to the batch's ``[tokens, hidden]``."""
    flat = output.view(-1, output.shape[-1])
    for source, target, length in cut:
        hidden[source : source + length] = flat[target : target + length]


def visible(segments: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return which keys each query may look at: its own segment's, up to its own position.

    ``segments`` and ``positions`` are ``[rows, seq_len]``; the result is bool,
    ``[rows, 1, seq_len, seq_len]``.  Padding is a segment like any other, so that no row of the mask is
    empty.
    """
    same = segments[:, :, None] == segments[:, None, :]
    before = positions[:, :, None] >= positions[:, None, :]
    return (same & before)[:, None]
