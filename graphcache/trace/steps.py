"""The steps of a server: the batches that it ran, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from graphcache.batch import Batch, Sequence
from graphcache.errors import ConfigError
from graphcache.trace.requests import Lengths, Times


@dataclass(frozen=True, eq=False)
class Steps:
    """Batches in order, kept in flat arrays.

    Step ``i`` starts at ``started_seconds[i]`` and holds the sequences ``ends[i - 1]`` to ``ends[i]`` of
    ``new`` and ``cached``, their tokens.  ``busy_share`` is the share of
    the time in which the server ran; ``left_out`` counts the sequences that no step could hold.

    Raises:
        ConfigError: arrays that do not fit each other, an empty step, or a sequence without a new token.
    """

    name: str
    started_seconds: Times
    ends: Lengths
    new: Lengths
    cached: Lengths
    busy_share: float | None = None
    left_out: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        total = int(self.ends[-1]) if len(self.ends) else 0
        if len(self.started_seconds) != len(self) or {len(self.new), len(self.cached)} != {total}:
            raise ConfigError.of("steps", (len(self), len(self.new), len(self.cached)), "arrays that fit")
        if len(self) and (np.diff(self.ends, prepend=0) < 1).any():
            raise ConfigError.of("steps", "an empty step", "steps of at least one sequence")
        if total and (self.new.min() < 1 or self.cached.min() < 0):
            raise ConfigError.of("new or cached", "a negative count", "at least 1 new and 0 cached tokens")

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def tokens(self) -> Lengths:
        """New tokens per step."""
        return np.add.reduceat(self.new, self._starts) if len(self) else self.new

    @property
    def sequences(self) -> Lengths:
        """Sequences per step."""
        return np.diff(self.ends, prepend=0)

    @property
    def single_share(self) -> float:
        """The share of steps that hold one sequence."""
        return float((self.sequences == 1).mean()) if len(self) else 0.0

    @property
    def _starts(self) -> Lengths:
        return np.concatenate(([0], self.ends[:-1]))

    def batches(self) -> Iterator[Batch]:
        """Yield each step's batch."""
        new, cached = self.new.tolist(), self.cached.tolist()
        start = 0
        for end in self.ends.tolist():
            yield Batch(tuple(map(Sequence, new[start:end], cached[start:end])))
            start = end

    def first(self, sequences: int) -> Steps:
        """Return the first steps, those that hold at most so many sequences together."""
        return self._between(0, int(np.searchsorted(self.ends, sequences, side="right")))

    def split(self, share: float) -> tuple[Steps, Steps]:
        """Return the first ``share`` of the steps, and the others, at their times."""
        at = round(share * len(self))
        return self._between(0, at), self._between(at, len(self))

    def _between(self, first: int, last: int) -> Steps:
        before = int(self.ends[first - 1]) if first else 0
        ends = self.ends[first:last] - before
        held = slice(before, before + (int(ends[-1]) if len(ends) else 0))
        return replace(
            self,
            started_seconds=self.started_seconds[first:last],
            ends=ends,
            new=self.new[held],
            cached=self.cached[held],
        )

    def shorter_than(self, max_tokens: int) -> Steps:
        """Leave out the steps above ``max_tokens`` in all, and count their sequences."""
        kept = self.tokens <= max_tokens
        if kept.all():
            return self
        sequences = self.sequences
        held = np.repeat(kept, sequences)
        return replace(
            self,
            started_seconds=self.started_seconds[kept],
            ends=np.cumsum(sequences[kept]),
            new=self.new[held],
            cached=self.cached[held],
            left_out=self.left_out + int(sequences[~kept].sum()),
        )
