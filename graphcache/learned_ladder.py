"""Ladders learned from traffic: the sizes that cost the fewest run seconds for so many graphs.

A batch of ``n`` tokens runs on the smallest size that holds it, so a ladder cuts the sorted lengths into
intervals, and each interval costs its top's seconds times the batches in it.  The best cuts follow by
dynamic programming over the candidate sizes, exactly, whatever the cost table looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphcache.costs import Costs
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder

Modes: TypeAlias = Literal["custom", "causal", "both"]
Amounts: TypeAlias = NDArray[np.float64]

UNSEEN = 1e-9
"""Batches that are counted at the top, so that a ladder holds the longest even if none was seen."""

NEVER = 1e30
"""Seconds of a graph that is not there: more than any sum, and finite, so that nothing times it is 0."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """How many batches there are of each candidate size: with several sequences, and with one.

    Those run in the first and in the last of ``modes``, as ``costs`` say.
    """

    sizes: tuple[int, ...]
    several: Amounts
    single: Amounts
    costs: Costs
    modes: tuple[MaskMode, ...]

    @classmethod
    def of(
        cls,
        tokens: Iterable[int],
        lone: Iterable[bool],
        costs: Costs,
        *,
        multiple: int = 128,
        top: int | None = None,
        modes: Modes = "both",
    ) -> Histogram:
        """Count batches by their tokens, rounded up to the hardware's ``multiple``.

        With ``modes`` custom or causal all batches run with that mode; with both, those of a single
        sequence run without a mask.  ``top`` is the longest batch that must find a graph; by default the
        longest there is.

        Raises:
            ConfigError: no batch, a multiple below 1, or a top below the longest batch or no multiple.
        """
        lengths, alone = np.fromiter(tokens, dtype=np.int64), np.fromiter(lone, dtype=np.bool_)
        if not len(lengths) or multiple < 1:
            raise ConfigError.of("batches and multiple", (len(lengths), multiple), "at least 1 of each")
        padded = -(-lengths // multiple) * multiple
        longest = int(padded.max())
        top = longest if top is None else top
        if top < longest or top % multiple:
            raise ConfigError.of("top", top, f"a multiple of {multiple}, at least {longest}")
        sizes = np.unique(np.append(padded, top))
        where = np.searchsorted(sizes, padded)
        several = np.bincount(where[~alone], minlength=len(sizes)).astype(np.float64)
        single = np.bincount(where[alone], minlength=len(sizes)).astype(np.float64)
        several[-1] += UNSEEN
        return cls(tuple(sizes.tolist()), several, single, costs, MODES[modes])

    @cached_property
    def several_seconds(self) -> Amounts:
        """Return what a batch of several takes on the graph of its very size."""
        return self._on(self.sizes, self.modes[0])

    @cached_property
    def single_seconds(self) -> Amounts:
        """Return what a batch of one takes on the graph of its very size."""
        return self._on(self.sizes, self.modes[-1])

    @property
    def batches(self) -> float:
        """How many batches there are."""
        return float(self.several.sum() + self.single.sum())

    def seconds(self, ladder: Iterable[int]) -> float:
        """Return what all batches take on a ladder whose sizes are there for both kinds of batches.

        Raises:
            ConfigError: a batch is longer than the ladder.
        """
        return self.seconds_on(ladder, ladder)

    def seconds_on(self, masked: Iterable[int], bare: Iterable[int]) -> float:
        """Return what all batches take on graphs with a mask of these sizes, and without one of those.

        A batch of a single sequence runs on whichever is faster.

        Raises:
            ConfigError: a batch is longer than what could serve it.
        """
        several = self._serving(masked, self.modes[0])
        single = np.minimum(several, self._serving(bare, self.modes[-1]))
        total = float(self.several @ several + self.single @ single)
        if total >= NEVER * UNSEEN / 2:
            raise ConfigError.of("ladder", tuple(masked), f"a top of at least {self.sizes[-1]}")
        return total

    def _serving(self, ladder: Iterable[int], mode: MaskMode) -> Amounts:
        """Return per size what its batches take on the smallest graph that holds them."""
        tops = sorted(ladder)
        return np.append(self._on(tops, mode), NEVER)[np.searchsorted(tops, self.sizes)]

    def _on(self, sizes: Iterable[int], mode: MaskMode) -> Amounts:
        return np.array([self.costs.run_seconds(GraphKey(1, size, mode=mode)) for size in sizes])


MODES: dict[Modes, tuple[MaskMode, ...]] = {
    "custom": (MaskMode.CUSTOM,),
    "causal": (MaskMode.CAUSAL,),
    "both": (MaskMode.CUSTOM, MaskMode.CAUSAL),
}


def learn_ladder(histogram: Histogram, sizes: int) -> Ladder:
    """Return the ladder of at most ``sizes`` sizes that costs least, for a policy that shares it.

    Raises:
        ConfigError: ``sizes`` below 1.
    """
    if sizes < 1:
        raise ConfigError.of("graphs", sizes, "at least 1")
    count = len(histogram.sizes)
    several = np.concatenate([[0.0], np.cumsum(histogram.several)])
    single = np.concatenate([[0.0], np.cumsum(histogram.single)])
    # interval[i, j]: batches of sizes i to j - 1, all on size j - 1
    interval = np.full((count + 1, count + 1), np.inf)
    for j in range(1, count + 1):
        top = j - 1
        interval[:j, j] = (several[j] - several[:j]) * histogram.several_seconds[top]
        interval[:j, j] += (single[j] - single[:j]) * histogram.single_seconds[top]
    least = np.full(count + 1, np.inf)
    least[0] = 0.0
    cuts, totals = [], []
    for _ in range(min(sizes, count)):
        through = least[:, None] + interval
        cuts.append(through.argmin(axis=0))
        least = through.min(axis=0)
        totals.append(float(least[count]))
    used = totals.index(min(totals)) + 1  # where a longer graph is faster, fewer sizes can be better
    tops, end = [], count
    for cut in reversed(cuts[:used]):
        tops.append(histogram.sizes[end - 1])
        end = int(cut[end])
    return Ladder(reversed(tops))


class Pair(NamedTuple):
    """Graph sizes with a mask and without one, and what all batches take on them, in seconds."""

    masked: tuple[int, ...]
    bare: tuple[int, ...]
    seconds: float


def learn_pair(histogram: Histogram, graphs: int) -> Pair:
    """Return the sizes with a mask, and those without, that cost least for so many graphs in all.

    From the longest size down, what matters is only the smallest graph of each kind so far: a table over
    such pairs and the graphs used, in which each size changes one row and one column.

    Raises:
        ConfigError: ``graphs`` below 1.
    """
    if graphs < 1:
        raise ConfigError.of("graphs", graphs, "at least 1")
    count = len(histogram.sizes)
    masked = np.append(histogram.several_seconds, NEVER)
    bare = np.append(histogram.single_seconds, NEVER)
    single = np.minimum(masked[:, None], bare[None, :])
    values = np.full((graphs + 1, count + 1, count + 1), np.inf)
    values[0, count, count] = 0.0
    trail = _Trail([], [], [])
    for size in range(count - 1, -1, -1):
        trail.place(values, size)
        paid = histogram.several[size] * masked[:, None] + histogram.single[size] * single
        values[:, size:, size:] += paid[size:, size:]
    used, m, c = np.unravel_index(int(values.argmin()), values.shape)
    masked_at, bare_at = trail.back(int(used), int(m), int(c), count)
    chosen = [tuple(sorted(histogram.sizes[i] for i in part)) for part in (masked_at, bare_at)]
    return Pair(chosen[0], chosen[1], histogram.seconds_on(chosen[0], chosen[1]))


@dataclass(frozen=True, eq=False)
class _Trail:
    """Where each change of the table came from: per size, longest first."""

    rows: list[NDArray[np.int64]]
    columns: list[NDArray[np.int64]]
    both: list[NDArray[np.int64]]

    def place(self, values: Amounts, size: int) -> None:
        """Offer graphs of one size: with a mask (a new row), without one (a new column), or both."""
        flat = values.reshape(len(values), -1)
        self.rows.append(values.argmin(axis=1))
        self.columns.append(values.argmin(axis=2))
        self.both.append(flat.argmin(axis=1))
        row, column, corner = values.min(axis=1), values.min(axis=2), flat.min(axis=1)
        values[1:, size, :] = row[:-1]
        values[1:, :, size] = column[:-1]
        values[:, size, size] = np.inf
        values[2:, size, size] = corner[:-2]

    def back(self, used: int, m: int, c: int, count: int) -> tuple[list[int], list[int]]:
        """Return the positions of the graphs with a mask, and without, that led to a pair."""
        masked, bare = [], []
        while used:
            step = count - 1 - min(m, c)
            if m == c:
                masked.append(m)
                bare.append(c)
                m, c = divmod(int(self.both[step][used - 2]), count + 1)
                used -= 2
            elif m < c:
                masked.append(m)
                m, used = int(self.rows[step][used - 1, c]), used - 1
            else:
                bare.append(c)
                c, used = int(self.columns[step][used - 1, m]), used - 1
        return masked, bare


# -- ladders that are not learned, for comparison at an equal number of sizes ---------------------------


def halving(top: int, sizes: int, multiple: int) -> Ladder:
    """Return powers of two times ``top``: halves of it, rounded up to the multiple."""
    return _rounded([top / 2**i for i in range(sizes)], multiple)


def equal_steps(top: int, sizes: int, multiple: int) -> Ladder:
    """Return equal steps up to ``top``."""
    return _rounded([top * (i + 1) / sizes for i in range(sizes)], multiple)


def geometric(low: int, top: int, sizes: int, multiple: int) -> Ladder:
    """Return equal ratios from ``low`` to ``top``: the exponential ladder of vLLM's Gaudi plugin."""
    if sizes == 1:
        return Ladder([top])
    return _rounded([low * (top / low) ** (i / (sizes - 1)) for i in range(sizes)], multiple)


def percentiles(histogram: Histogram, sizes: int) -> Ladder:
    """Return sizes such that each holds an equal share of the batches; the last is the top."""
    shares = np.cumsum(histogram.several + histogram.single) / histogram.batches
    index = np.searchsorted(shares, (np.arange(sizes) + 1) / sizes - 1e-12)
    chosen = {histogram.sizes[min(i, len(shares) - 1)] for i in index.tolist()}
    return Ladder(sorted({*chosen, histogram.sizes[-1]})[-sizes:])


def _rounded(sizes: Sequence[float], multiple: int) -> Ladder:
    return Ladder(sorted({max(1, int(-(-round(size, 6) // multiple))) * multiple for size in sizes}))


def compare(train: Histogram, test: Histogram, sizes: int, multiple: int) -> list[tuple[str, Ladder, float]]:
    """Return the learned ladder and the others of as many sizes, with what ``test`` takes on each."""
    top = train.sizes[-1]
    ladders = {
        "learned": learn_ladder(train, sizes),
        "pow2": halving(top, sizes, multiple),
        "linear": equal_steps(top, sizes, multiple),
        "percentile": percentiles(train, sizes),
        "exponential": geometric(train.sizes[0], top, sizes, multiple),
    }
    return [(name, ladder, test.seconds(ladder)) for name, ladder in ladders.items()]


def learned_rows(
    tokens: Sequence[int],
    lone: Sequence[bool],
    costs: Costs,
    graphs: int,
    *,
    modes: str = "pair",
    multiple: int = 128,
    top: int | None = None,
    hold_out: bool = False,
) -> list[tuple[str, list[int], float]]:
    """Return ladders of so many graphs in all with what the batches take on them, the learned ones first.

    ``pair`` has sizes of their own for graphs with a mask and without, named ``masked`` and ``bare`` in
    rows of their own; ``both`` shares sizes between the two.  With ``hold_out`` they are learned from the
    first half, and measured on the second.

    Raises:
        ConfigError: fewer graphs than one size takes, or what `Histogram.of` refuses.
    """
    half = len(tokens) // 2 if hold_out else 0
    each = 1 if modes in ("custom", "causal") else 2
    if graphs < each:
        raise ConfigError.of("graphs", graphs, f"at least {each} for modes {modes}")
    kinds: Modes = "both" if modes == "pair" else modes  # type: ignore[assignment]
    end = half or len(tokens)
    top = -(-(top or max(tokens)) // multiple) * multiple
    sizes = min(graphs // each, top // multiple)
    train = Histogram.of(tokens[:end], lone[:end], costs, multiple=multiple, top=top, modes=kinds)
    test = Histogram.of(tokens[half:], lone[half:], costs, multiple=multiple, top=top, modes=kinds)
    rows = [(name, list(ladder), cost) for name, ladder, cost in compare(train, test, sizes, multiple)]
    if modes == "pair":
        pair = learn_pair(train, graphs)
        cost = test.seconds_on(pair.masked, pair.bare)
        rows[:0] = [("masked", list(pair.masked), cost), ("bare", list(pair.bare), cost)]
    return rows
