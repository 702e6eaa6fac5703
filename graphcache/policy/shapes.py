"""The ways to lay out a batch: for each, the graphs that its launches ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphcache.batch import Batch, Layout
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.policy.modes import row_mode, row_modes
from graphcache.policy.protocol import Ladders

LAYOUTS = ("packed", "split", "rows")


class Ask(NamedTuple):
    """One launch before it is known which graph serves it: the exact graph, and the sequences."""

    key: GraphKey
    sequences: tuple[int, ...]
    layout: Layout = Layout.PACKED


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The ways to serve one batch; each is the launches of one layout."""

    ways: tuple[tuple[Ask, ...], ...]


@dataclass(frozen=True)
class Shaper:
    """Finds the ways to serve a batch that ``layouts`` allow.

    ``packed``: all sequences in one row, with a custom mask where there are several.  ``split``: one
    launch a sequence.  ``rows``: one row a sequence, in one launch.  Rows of one sequence are causal, or
    ``padded`` and ``bidirectional`` where the model is ``encoder_only``.

    Raises:
        ConfigError: a layout that is not known, or none.
    """

    ladders: Ladders
    layouts: Sequence[str] = ("packed",)
    encoder_only: bool = False

    def __post_init__(self) -> None:
        for layout in self.layouts or [""]:
            if layout not in LAYOUTS:
                raise ConfigError.of("layouts", layout, ", ".join(LAYOUTS))

    def keys(self) -> list[GraphKey]:
        """List the graphs that a batch can ask for, by length, those with a mask first."""
        alone = row_modes(self.encoder_only)
        modes = (MaskMode.CUSTOM, *alone)
        keys = [GraphKey(1, seq_len, mode=mode) for seq_len in self.ladders.prefill for mode in modes]
        if "rows" in self.layouts:
            sizes = [rows for rows in self.ladders.rows if rows > 1]
            keys += [
                GraphKey(rows, seq_len, mode=mode)
                for rows in sizes
                for seq_len in self.ladders.prefill
                for mode in alone
            ]
        return keys

    def shape(self, batch: Batch) -> Shape:
        """Return the ways to serve a batch.

        Raises:
            LadderError: no layout has a size for it.
        """
        ways = list(self._ways(batch))
        return Shape(tuple(ways) if ways else (self._packed(batch),))

    def _ways(self, batch: Batch) -> Iterable[tuple[Ask, ...]]:
        lengths = [sequence.new for sequence in batch.sequences]
        top = self.ladders.prefill.top
        if sum(lengths) <= top and ("packed" in self.layouts or len(lengths) == 1):
            yield self._packed(batch)
        if len(lengths) > 1 and max(lengths) <= top:
            if "split" in self.layouts:
                yield tuple(self._alone(length, index) for index, length in enumerate(lengths))
            if "rows" in self.layouts and len(lengths) <= self.ladders.rows.top:
                yield (self._by_row(lengths),)

    def _packed(self, batch: Batch) -> tuple[Ask, ...]:
        if len(batch.sequences) == 1:
            return (self._alone(batch.tokens, 0),)
        key = GraphKey(1, self.ladders.prefill.bucket(batch.tokens), mode=MaskMode.CUSTOM)
        return (Ask(key, tuple(range(len(batch.sequences)))),)

    def _alone(self, length: int, index: int) -> Ask:
        return Ask(self._key(1, [length]), (index,))

    def _by_row(self, lengths: Sequence[int]) -> Ask:
        rows = self.ladders.rows.bucket(len(lengths))
        return Ask(self._key(rows, lengths), tuple(range(len(lengths))), Layout.ROWS)

    def _key(self, rows: int, lengths: Sequence[int]) -> GraphKey:
        seq_len = self.ladders.prefill.bucket(max(lengths))
        return GraphKey(rows, seq_len, mode=row_mode(self.encoder_only, lengths, seq_len))
