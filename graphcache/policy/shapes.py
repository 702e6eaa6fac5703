"""The ways to lay out a batch: for each, the graphs that its launches ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphcache.batch import Batch, Layout
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
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
    launch a sequence, causal.  ``rows``: one row a sequence, causal, in one launch.  What is not plainly
    causal (an encoder-only model) is packed with a mask.

    Raises:
        ConfigError: a layout that is not known, or none.
    """

    ladders: Ladders
    layouts: Sequence[str] = ("packed",)

    def __post_init__(self) -> None:
        for layout in self.layouts or [""]:
            if layout not in LAYOUTS:
                raise ConfigError.of("layouts", layout, ", ".join(LAYOUTS))

    def keys(self) -> list[GraphKey]:
        """List the graphs that a batch can ask for, by length, those with a mask first."""
        modes = (MaskMode.CUSTOM, MaskMode.CAUSAL)
        keys = [GraphKey(1, seq_len, mode=mode) for seq_len in self.ladders.prefill for mode in modes]
        if "rows" in self.layouts:
            sizes = [rows for rows in self.ladders.rows if rows > 1]
            keys += [GraphKey(rows, seq_len) for rows in sizes for seq_len in self.ladders.prefill]
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
        plain = not batch.encoder_only
        if sum(lengths) <= top and ("packed" in self.layouts or not plain or len(lengths) == 1):
            yield self._packed(batch)
        if plain and len(lengths) > 1 and max(lengths) <= top:
            if "split" in self.layouts:
                yield tuple(self._alone(length, index) for index, length in enumerate(lengths))
            if "rows" in self.layouts and len(lengths) <= self.ladders.rows.top:
                rows, seq_len = (
                    self.ladders.rows.bucket(len(lengths)),
                    self.ladders.prefill.bucket(max(lengths)),
                )
                yield (Ask(GraphKey(rows, seq_len), tuple(range(len(lengths))), Layout.ROWS),)

    def _packed(self, batch: Batch) -> tuple[Ask, ...]:
        lone = len(batch.sequences) == 1 and not batch.encoder_only
        mode = MaskMode.CAUSAL if lone else MaskMode.CUSTOM
        seq_len = self.ladders.prefill.bucket(batch.tokens)
        return (Ask(GraphKey(1, seq_len, mode=mode), tuple(range(len(batch.sequences)))),)

    def _alone(self, length: int, index: int) -> Ask:
        return Ask(GraphKey(1, self.ladders.prefill.bucket(length)), (index,))
