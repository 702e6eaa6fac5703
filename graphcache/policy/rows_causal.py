"""One row for each sequence: never a mask, and as few launches as padding allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import TypeAlias

from graphcache.batch import Batch, Launch, Layout, Plan
from graphcache.costs import Costs, CostTable, PaddedWork
from graphcache.errors import ConfigError
from graphcache.eviction.protocol import Eviction
from graphcache.key import GraphKey, MaskMode
from graphcache.policy.modes import row_mode
from graphcache.policy.protocol import Ladders, State, View
from graphcache.policy.static import Static, prefill

MAX_PADDING = 0.5
MEMO_ENTRIES = 65536

Weight: TypeAlias = tuple[float, float]
"""What is least in the best cut, and what decides between equal ones."""


class RowsCausal(Static):
    """Runs sequences in rows of their own, padded at the right; cuts a batch where padding would cost more.

    With a table of costs, a profile or one that was learned, the launches are those of the fewest run
    seconds.  Without, they are the fewest in which none computes more than ``max_padding`` times as many
    tokens again as its sequences would, each in a launch of its own.

    Raises:
        ConfigError: ``max_padding`` is negative.
    """

    modes = (MaskMode.CAUSAL,)

    def __init__(
        self,
        ladders: Ladders,
        eviction: Eviction | None = None,
        *,
        max_padding: float = MAX_PADDING,
        encoder_only: bool = False,
    ) -> None:
        super().__init__(ladders, eviction, encoder_only=encoder_only)
        if max_padding < 0:
            raise ConfigError.of("max_padding", max_padding, "a share of 0 or more")
        self.max_padding = max_padding
        self._cuts: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._costs: Costs | None = None

    def plan(self, batch: Batch, view: View, state: State) -> Plan:
        """Return the launches, those of the longest sequences first.

        Raises:
            LadderError: a sequence exceeds the ladder.
        """
        bucket = self.ladders.prefill.bucket
        sizes = [bucket(sequence.new) for sequence in batch.sequences]
        order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
        cut = self._cut(tuple(sizes[index] for index in order), view.costs)
        groups = (tuple(order[start:end]) for start, end in pairwise(cut))
        return Plan(tuple(self._launch(batch, group, sizes[group[0]]) for group in groups))

    def warm_keys(self) -> Iterable[GraphKey]:
        """List the graphs that a step can need, those of one row first, of equal rows the longest first.

        A step is taken to hold no more new tokens than the ladder's top, as vLLM's do: many rows of the
        longest sizes would be mostly padding, and are left out.
        """
        return [
            prefill(seq_len, mode, rows)
            for rows in self.ladders.rows
            for seq_len in self._lengths(rows)
            for mode in self.modes
        ]

    def _lengths(self, rows: int) -> Iterator[int]:
        sizes = self.ladders.prefill.sizes
        most = (1 + self.max_padding) * self.ladders.prefill.top
        for below, seq_len in reversed(tuple(pairwise((0, *sizes)))):
            if rows == self.ladders.rows.sizes[0] or rows * below < most:
                yield seq_len

    def _launch(self, batch: Batch, sequences: tuple[int, ...], seq_len: int) -> Launch:
        rows = self.ladders.rows.bucket(len(sequences))
        mode = row_mode(self.encoder_only, (batch.sequences[index].new for index in sequences), seq_len)
        return Launch(prefill(seq_len, mode, rows), sequences, Layout.ROWS)

    def _cut(self, sizes: tuple[int, ...], costs: Costs) -> tuple[int, ...]:
        """Return where a batch is cut, its buckets given from the longest down, with both ends."""
        if costs is not self._costs or len(self._cuts) >= MEMO_ENTRIES:
            self._costs, self._cuts = costs, {}
        cut = self._cuts.get(sizes)
        if cut is None:
            cut = self._cuts[sizes] = self._best_cut(sizes, costs)
        return cut

    def _best_cut(self, sizes: tuple[int, ...], costs: Costs) -> tuple[int, ...]:
        """Find the best cut by dynamic programming over how many of the longest are served.

        Launches of neighbours by length are enough: where more and longer rows never cost less, one that
        skips a sequence only makes another launch longer.
        """
        sums = (0, *accumulate(sizes))
        best: list[tuple[Weight, int]] = [((0.0, 0.0), 0)]
        for end in range(1, len(sizes) + 1):
            ways = []
            for start in range(max(0, end - self.ladders.rows.top), end):
                weight = self._weight(end - start, sizes[start], sums[end] - sums[start], costs)
                if weight is not None:
                    (first, second), _ = best[start]
                    ways.append(((first + weight[0], second + weight[1]), start))
            best.append(min(ways))
        cut = [len(sizes)]
        while cut[-1]:
            cut.append(best[cut[-1]][1])
        return tuple(reversed(cut))

    def _weight(self, sequences: int, longest: int, alone: int, costs: Costs) -> Weight | None:
        """Return what a launch counts for; None where it would be padded too much.

        ``longest`` is its longest bucket in tokens, ``alone`` the sum of its sequences' own.
        """
        key = prefill(longest, self.modes[0], self.ladders.rows.bucket(sequences))
        if _known(costs):
            return costs.run_seconds(key), 1.0
        most = (1 + self.max_padding) * self.ladders.rows.sizes[0] * alone
        return (1.0, float(key.tokens)) if sequences == 1 or key.tokens <= most else None


def _known(costs: Costs) -> bool:
    """Say whether costs are more than a guess."""
    return bool(costs.measured) if isinstance(costs, CostTable) else not isinstance(costs, PaddedWork)
