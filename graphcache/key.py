"""What a graph is compiled for, and which graphs can stand in for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from graphcache.errors import ConfigError


class MaskMode(StrEnum):
    """What a graph's attention takes for a mask."""

    CUSTOM = "custom"
    """A mask is an input: the causal term if the model has one, the segments, and which keys are real."""
    CAUSAL = "causal"
    """None: correct for one sequence per row, padded at its right end."""
    PREFIX = "prefix"
    """Causal, with cached tokens before the new ones: their count is an input."""
    BIDIRECTIONAL = "bidirectional"
    """None, in a model without a causal term: correct only where every row is full."""
    PADDED = "padded"
    """A vector of row lengths, in a model without a causal term: one sequence per row."""


@dataclass(frozen=True, slots=True)
class Cover:
    """One mode that another covers, and whether only at the same ``seq_len``."""

    mode: MaskMode
    same_seq_len: bool = False


COVERS: dict[MaskMode, tuple[Cover, ...]] = {
    MaskMode.CUSTOM: tuple(Cover(m) for m in MaskMode if m is not MaskMode.PREFIX),
    MaskMode.CAUSAL: (Cover(MaskMode.CAUSAL),),
    MaskMode.PREFIX: (Cover(MaskMode.PREFIX), Cover(MaskMode.CAUSAL)),
    MaskMode.PADDED: (Cover(MaskMode.PADDED), Cover(MaskMode.BIDIRECTIONAL)),
    MaskMode.BIDIRECTIONAL: (Cover(MaskMode.BIDIRECTIONAL, same_seq_len=True),),
}
"""Per mode, the modes whose batches it computes correctly.  Every mode is declared here, or nowhere."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_TEXT = re.compile(
    r"(?P<kind>[^/]+)/(?P<mode>[a-z]+)/(?P<rows>\d+)x(?P<seq_len>\d+)(\+(?P<kv_len>\d+))?(\[(?P<flags>[^\]]*)\])?"
)


@dataclass(frozen=True, slots=True, order=True)
class GraphKey:
    """One compiled graph's shape and mask mode; frozen, hashable, ordered.

    ``rows``, ``seq_len`` and ``kv_len`` are buckets, in rows and tokens; ``kv_len`` is 0 where the graph
    reads no cache.  ``kind`` says what the graph does (``prefill``, ``decode``, …), ``flags`` what else
    changes its code.  Text form: ``prefill/causal/1x512``, ``decode/prefix/8x1+2048[greedy]``.

    Raises:
        ConfigError: a size that is not positive, or a kind or flag that is not a lower-case word.
    """

    rows: int
    seq_len: int
    kv_len: int = 0
    mode: MaskMode = MaskMode.CAUSAL
    kind: str = "prefill"
    flags: tuple[str, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for facet, least in (("rows", 1), ("seq_len", 1), ("kv_len", 0)):
            size = getattr(self, facet)
            if not isinstance(size, int) or isinstance(size, bool) or size < least:
                raise ConfigError.of(facet, size, f"an integer of at least {least}")
        if self.mode.__class__ is not MaskMode:
            object.__setattr__(self, "mode", _mode(self.mode))
        for word in (self.kind, *self.flags):
            if not _NAME.fullmatch(word):
                raise ConfigError.of("kind or flag", word, "a word of a-z, 0-9, '_', '.', '-'")
        object.__setattr__(self, "flags", tuple(sorted(set(self.flags))))
        facets = (self.rows, self.seq_len, self.kv_len, self.mode, self.kind, self.flags)
        object.__setattr__(self, "_hash", hash(facets))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        kv = f"+{self.kv_len}" if self.kv_len else ""
        flags = f"[{','.join(self.flags)}]" if self.flags else ""
        return f"{self.kind}/{self.mode}/{self.rows}x{self.seq_len}{kv}{flags}"

    @property
    def tokens(self) -> int:
        """Tokens that one run computes, padding and all."""
        return self.rows * self.seq_len

    @classmethod
    def parse(cls, text: str) -> GraphKey:
        """Read a key's text form back.

        Raises:
            ConfigError: the text is not a key's.
        """
        match = _TEXT.fullmatch(text)
        if not match:
            raise ConfigError.of("key", text, "KIND/MODE/ROWSxSEQ_LEN, such as prefill/causal/1x512")
        return cls(
            rows=int(match["rows"]),
            seq_len=int(match["seq_len"]),
            kv_len=int(match["kv_len"] or 0),
            mode=_mode(match["mode"]),
            kind=match["kind"],
            flags=tuple(filter(None, (match["flags"] or "").split(","))),
        )


def _mode(text: str) -> MaskMode:
    try:
        return MaskMode(text)
    except ValueError:
        raise ConfigError.of("mode", text, ", ".join(MaskMode)) from None


@lru_cache(maxsize=65536)
def dominates(graph: GraphKey, key: GraphKey) -> bool:
    """Say whether ``graph`` serves, correctly, whatever asks for ``key``: a partial order.

    Same kind and flags, at least as large in rows, ``seq_len`` and ``kv_len``, and a mode that covers the
    key's mode (`COVERS`).  ``bidirectional`` needs the very same ``seq_len``: a longer one would attend
    to its own padding.
    """
    if graph.kind != key.kind or graph.flags != key.flags:
        return False
    if graph.rows < key.rows or graph.seq_len < key.seq_len or graph.kv_len < key.kv_len:
        return False
    for cover in COVERS[graph.mode]:
        if cover.mode is key.mode:
            return not cover.same_seq_len or graph.seq_len == key.seq_len
    return False
