"""What graphs cost: run, load and compile seconds, and bytes."""

from __future__ import annotations

from typing import Protocol

from graphcache.key import GraphKey, MaskMode


class Costs(Protocol):
    """A frozen table of costs: equal questions get equal answers for as long as it exists."""

    def run_seconds(self, key: GraphKey) -> float:
        """Return the seconds of one warm run of this graph, whatever part of it is padding."""
        ...

    def load_seconds(self, key: GraphKey) -> float:
        """Return the seconds to load this graph from a store."""
        ...

    def compile_seconds(self, key: GraphKey) -> float:
        """Return the seconds to compile this graph."""
        ...

    def nbytes(self, key: GraphKey) -> int:
        """Return the bytes that this graph holds while it is resident."""
        ...


class PaddedWork:
    """Costs where nothing was measured: the padded work, counted in tokens at a nominal speed.

    Linear layers cost by the token, attention by the token pair; a mask makes attention dearer.  Only the
    order that follows from it is meant, never the seconds.
    """

    __slots__ = ()

    SECONDS_PER_TOKEN = 1e-4
    PAIRS_PER_TOKEN = 4096.0
    MASK_FACTOR = 2.0

    def run_seconds(self, key: GraphKey) -> float:
        """Return nominal seconds that grow with rows, lengths and the mask."""
        factor = self.MASK_FACTOR if key.mode in (MaskMode.CUSTOM, MaskMode.PREFIX) else 1.0
        attention = (key.seq_len + key.kv_len) / self.PAIRS_PER_TOKEN * factor
        return key.tokens * self.SECONDS_PER_TOKEN * (1.0 + attention)

    def load_seconds(self, key: GraphKey) -> float:
        """Return a nominal 0.01 s."""
        return 0.01

    def compile_seconds(self, key: GraphKey) -> float:
        """Return a nominal 60 s."""
        return 60.0

    def nbytes(self, key: GraphKey) -> int:
        """Return 0: unknown until a graph is loaded."""
        return 0
