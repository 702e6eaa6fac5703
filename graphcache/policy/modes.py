"""The mask modes of a launch that has one sequence a row: they follow from the model's attention."""

from __future__ import annotations

from collections.abc import Iterable

from graphcache.key import MaskMode


def row_modes(encoder_only: bool) -> tuple[MaskMode, ...]:
    """List them, the one first that covers the others."""
    return (MaskMode.PADDED, MaskMode.BIDIRECTIONAL) if encoder_only else (MaskMode.CAUSAL,)


def row_mode(encoder_only: bool, lengths: Iterable[int], seq_len: int) -> MaskMode:
    """Return the one of a launch: ``bidirectional`` only where no sequence is shorter than its row."""
    full = all(length == seq_len for length in lengths)
    return row_modes(encoder_only)[-1 if full else 0]
