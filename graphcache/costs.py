"""What graphs cost: run, load and compile seconds, and bytes."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import exp, inf, log, log2
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

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

    Linear layers cost by the token, attention by the token pair; a mask makes attention dearer, and each
    launch costs a little by itself.  Only the order that follows from it is meant, never the seconds.
    """

    __slots__ = ("_bytes", "_compile", "_load")

    SECONDS_PER_LAUNCH = 5e-3
    SECONDS_PER_TOKEN = 1e-4
    PAIRS_PER_TOKEN = 4096.0
    MASK_FACTOR = 2.0

    def __init__(self, *, load_seconds: float = 0.01, compile_seconds: float = 60.0, nbytes: int = 0) -> None:
        self._load = load_seconds
        self._compile = compile_seconds
        self._bytes = nbytes

    def run_seconds(self, key: GraphKey) -> float:
        """Return nominal seconds that grow with rows, lengths and the mask."""
        bare = key.mode in (MaskMode.CAUSAL, MaskMode.BIDIRECTIONAL)
        factor = 1.0 if bare else self.MASK_FACTOR
        attention = (key.seq_len + key.kv_len) / self.PAIRS_PER_TOKEN * factor
        return self.SECONDS_PER_LAUNCH + key.tokens * self.SECONDS_PER_TOKEN * (1.0 + attention)

    def load_seconds(self, key: GraphKey) -> float:
        """Return the one nominal value, 0.01 s unless given."""
        return self._load

    def compile_seconds(self, key: GraphKey) -> float:
        """Return the one nominal value, 60 s unless given."""
        return self._compile

    def nbytes(self, key: GraphKey) -> int:
        """Return the one nominal value, 0 unless given: unknown until a graph is loaded."""
        return self._bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one graph; ``None`` where nothing was."""

    run_seconds: float | None = None
    load_seconds: float | None = None
    compile_seconds: float | None = None
    nbytes: int | None = None


Guess: TypeAlias = Callable[[GraphKey], float]


class CostTable:
    """A frozen snapshot of costs: what was measured, and what follows from it for the other graphs.

    Between two measured lengths of otherwise equal keys, a value is interpolated in log-log.  Any other
    is that of the nearest measured key of the same kind, scaled as ``nominal`` scales between the two;
    with none, it is ``nominal``'s own.  ``shaped`` interpolates the ratio to ``nominal`` instead of the
    value, where ``nominal`` knows more of the curve than the measured points do.
    """

    __slots__ = ("_bytes", "_compile", "_load", "_run", "measured", "name", "nominal", "version")

    def __init__(
        self,
        measured: Mapping[GraphKey, Measured],
        *,
        nominal: Costs | None = None,
        shaped: bool = False,
        name: str = "",
        version: int = 0,
    ) -> None:
        self.measured = dict(measured)
        self.nominal: Costs = nominal or PaddedWork()
        self.name = name
        self.version = version
        self._run, self._load, self._compile, self._bytes = (
            _Values(self.measured, field.name, getattr(self.nominal, field.name), shaped)
            for field in fields(Measured)
        )

    def __repr__(self) -> str:
        return f"CostTable({self.name!r}, version={self.version}, keys={len(self.measured)})"

    def run_seconds(self, key: GraphKey) -> float:
        """Return the seconds of one warm run of this graph, whatever part of it is padding."""
        return self._run(key)

    def load_seconds(self, key: GraphKey) -> float:
        """Return the seconds to load this graph from a store."""
        return self._load(key)

    def compile_seconds(self, key: GraphKey) -> float:
        """Return the seconds to compile this graph."""
        return self._compile(key)

    def nbytes(self, key: GraphKey) -> int:
        """Return the bytes that this graph holds while it is resident."""
        return round(self._bytes(key))

    def with_compile_seconds(self, seconds: float) -> CostTable:
        """Return the same table, but with one and the same compile time for every graph."""
        measured = {key: replace(m, compile_seconds=float(seconds)) for key, m in self.measured.items()}
        nominal = _FixedCompile(self.nominal, float(seconds))
        return CostTable(measured, nominal=nominal, name=self.name, version=self.version)


class _FixedCompile:
    """Another table's costs, with one compile time for every graph."""

    __slots__ = ("_seconds", "load_seconds", "nbytes", "run_seconds")

    def __init__(self, costs: Costs, seconds: float) -> None:
        self.run_seconds = costs.run_seconds
        self.load_seconds = costs.load_seconds
        self.nbytes = costs.nbytes
        self._seconds = seconds

    def compile_seconds(self, key: GraphKey) -> float:
        """Return the one value."""
        return self._seconds


class _Values:
    """One of the four quantities: measured per key, derived for the others, each derived once."""

    __slots__ = ("_curves", "_known", "_measured", "_nominal", "_shape")

    def __init__(
        self, measured: Mapping[GraphKey, Measured], quantity: str, nominal: Guess, shaped: bool
    ) -> None:
        value = attrgetter(quantity)
        self._measured: dict[GraphKey, float] = {
            k: value(m) for k, m in measured.items() if value(m) is not None
        }
        self._known = dict(self._measured)
        self._nominal = nominal
        self._shape: Guess = nominal if shaped else (lambda key: 1.0)
        self._curves: dict[GraphKey, list[int]] = {}
        for key in sorted(self._measured):
            self._curves.setdefault(replace(key, seq_len=1), []).append(key.seq_len)

    def __call__(self, key: GraphKey) -> float:
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = self._derive(key)
        return value

    def _derive(self, key: GraphKey) -> float:
        lengths = self._curves.get(replace(key, seq_len=1), [])
        right = bisect(lengths, key.seq_len)
        if 0 < right < len(lengths):
            return self._between(key, lengths[right - 1], lengths[right])
        alike = [other for other in self._measured if other.kind == key.kind]
        if not alike:
            return self._nominal(key)
        nearest = min(alike, key=lambda other: (*_distance(key, other), other))
        own, its = self._nominal(key), self._nominal(nearest)
        return self._measured[nearest] * (own / its if its > 0 else 1.0)

    def _between(self, key: GraphKey, low: int, high: int) -> float:
        ends = [replace(key, seq_len=length) for length in (low, high)]
        left, right = (self._measured[end] / self._shape(end) for end in ends)
        share = log(key.seq_len / low) / log(high / low)
        if left <= 0 or right <= 0:
            ratio = left + share * (right - left)
        else:
            ratio = exp(log(left) + share * log(right / left))
        return ratio * self._shape(key)


def _distance(key: GraphKey, other: GraphKey) -> tuple[bool, bool, float]:
    """Order measured keys by how much they say of ``key``: same mode and flags first, then the sizes."""
    octaves = (
        abs(log2(other.rows / key.rows))
        + abs(log2(other.seq_len / key.seq_len))
        + abs(log2((other.kv_len + 1) / (key.kv_len + 1)))
    )
    return other.mode is not key.mode, other.flags != key.flags, octaves


class CostLearner:
    """Learns costs from what is seen live, and hands out frozen tables of it.

    Each value is the median of the last ``window``, so that an outlier moves nothing, and stands only
    once there are ``least`` of them.  The first run after a graph was loaded is cold and never counts.
    What was not seen yet follows ``prior``'s shape at the speed that was seen.  A median within
    ``tolerance`` of the last table's leaves it alone: decisions are not made anew for noise.
    """

    __slots__ = ("_cold", "_latest", "_supplied", "_warm", "least", "tolerance", "window")

    def __init__(
        self, prior: Costs | None = None, *, window: int = 64, least: int = 3, tolerance: float = 0.05
    ) -> None:
        self.window = window
        self.least = least
        self.tolerance = tolerance
        self._warm: dict[GraphKey, deque[float]] = {}
        self._cold: dict[GraphKey, deque[float]] = {}
        self._supplied: dict[tuple[GraphKey, str], deque[float]] = {}
        self._latest = CostTable({}, nominal=prior, shaped=True, name="learned")

    def observe(self, key: GraphKey, seconds: float) -> None:
        """Take note of one run of a resident graph."""
        runs = self._warm.get(key)
        if runs is None:
            self._warm[key] = self._cold.pop(key) if key in self._cold else deque(maxlen=self.window)
        else:
            runs.append(seconds)

    def supplied(self, key: GraphKey, source: str, seconds: float, nbytes: int = 0) -> None:
        """Take note that a graph was made ready, by a ``load`` or a ``compile``, and what it holds.

        Its next run is cold.
        """
        for quantity, value in ((f"{source}_seconds", seconds), ("nbytes", float(nbytes))):
            self._supplied.setdefault((key, quantity), deque(maxlen=self.window)).append(value)
        runs = self._warm.pop(key, None)
        if runs is not None:
            self._cold[key] = runs

    def snapshot(self) -> CostTable:
        """Return a table of what has been learned; the last one again, the very object, if that stands."""
        seen: dict[GraphKey, dict[str, float]] = {}
        for key, runs in (*self._warm.items(), *self._cold.items()):
            values = _usable(runs)
            if len(values) >= self.least:
                seen.setdefault(key, {})["run_seconds"] = _median(values)
        for (key, quantity), raw in self._supplied.items():
            values = _usable(raw)
            if values:
                seen.setdefault(key, {})[quantity] = _median(values)
        last = self._latest
        measured = {key: self._settle(last.measured.get(key), values) for key, values in seen.items()}
        if measured != last.measured:
            self._latest = CostTable(
                measured, nominal=last.nominal, shaped=True, name=last.name, version=last.version + 1
            )
        return self._latest

    def _settle(self, last: Measured | None, values: Mapping[str, float]) -> Measured:
        """Keep the last table's values where the new ones are about the same."""
        settled: dict[str, Any] = {}
        for quantity, value in values.items():
            old = getattr(last, quantity, None)
            keep = old is not None and abs(value - old) <= self.tolerance * old
            settled[quantity] = old if keep else value
        return Measured(**settled)


def _usable(values: deque[float]) -> list[float]:
    """Return what can be a cost, in order: clocks that stood still or jumped back are left out."""
    return sorted(value for value in values if 0 < value < inf)


def _median(ordered: list[float]) -> float:
    return ordered[len(ordered) // 2]
