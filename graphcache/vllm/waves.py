"""Which sequences of a step have to wait for others of it: those whose prefix the others only now write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from graphcache.errors import GraphCacheError


def waves(
    starts: Sequence[int],
    cached: Sequence[int],
    slots: NDArray[np.int64],
    blocks: NDArray[np.int32],
    block_size: int,
) -> list[list[int]]:
    """Return a batch's sequences in waves, each of which reads only what earlier ones, or it itself, wrote.

    vLLM lets a prompt hit on blocks as soon as they are scheduled, so a step may write a prefix for one
    sequence that another one reads; run as launches one after the other, the reader has to come later.

    Args:
        starts: the offsets of the sequences' new tokens, with the end of the last, ``sequences + 1``.
        cached: how many tokens each sequence has before its new ones.
        slots: where each new token lies in the KV cache, ``[tokens]``.
        blocks: each sequence's blocks of the KV cache, ``[sequences, width]``.
        block_size: tokens of a block.

    Raises:
        GraphCacheError: sequences wait for each other.
    """
    everyone = list(range(len(cached)))
    full = np.asarray(cached) // block_size
    if len(everyone) == 1 or not full.any():
        return [everyone]
    read = blocks[:, : full.max()]
    writer = np.full(max(int(read.max()), int(slots.max()) // block_size) + 1, -1)
    writer[slots[: starts[-1]] // block_size] = np.repeat(everyone, np.diff(starts))
    awaited = np.where(np.arange(read.shape[1]) < full[:, None], writer[read], -1)
    if awaited.max() < 0:
        return [everyone]
    return _in_order([set(row[row >= 0].tolist()) for row in awaited])


def _in_order(awaited: Sequence[set[int]]) -> list[list[int]]:
    """Return indices in waves: each as soon as all that it awaits have been in earlier ones."""
    found: list[list[int]] = []
    waiting = dict(enumerate(awaited))
    while waiting:
        ready = [index for index, others in waiting.items() if others.isdisjoint(waiting)]
        if not ready:
            raise GraphCacheError(f"sequences {', '.join(map(str, waiting))} of a step wait for each other")
        found.append(ready)
        for index in ready:
            del waiting[index]
    return found
