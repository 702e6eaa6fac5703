"""What to compile when nothing that is resident can serve: a guess at what will come, and a set for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphcache.eviction.demand import LONG, Amounts, Demand
from graphcache.key import GraphKey
from graphcache.policy.worth import Market

LEAST_LAUNCHES = 20.0
"""Launches to come that are counted with at least; else as many as there have been."""

CANDIDATES = 16
MOVES = 12


def expect(demand: Demand, asking: int) -> Amounts:
    """Return the launches to come per asked graph, when ``asking`` is what came last.

    Traffic is expected to go on as it was; one launch's worth of doubt goes to similar lengths, in
    proportion to how similar they are.  At the first launch that is all there is.
    """
    counts = demand.counts(LONG)
    counts[asking] += 1.0
    total = float(counts.sum())
    doubt = 1.0 / (1.0 + total)
    spread = counts @ _similarity(demand.keys)
    return (counts * (1.0 - doubt) + spread * doubt) * (max(total, LEAST_LAUNCHES) / total)


def _similarity(keys: Sequence[GraphKey]) -> Amounts:
    """Return how a launch of one asked graph spreads over all: by the ratio of lengths, in every mode."""
    lengths = np.array([key.seq_len for key in keys], dtype=np.float64)
    ratio = np.minimum(lengths[:, None], lengths) / np.maximum(lengths[:, None], lengths)
    kinds = [(key.rows, key.kv_len, key.kind, key.flags) for key in keys]
    ratio *= np.array([[one == other for other in kinds] for one in kinds], dtype=bool)
    similarity: Amounts = ratio / ratio.sum(axis=1, keepdims=True)
    return similarity


def choose(market: Market, amounts: Amounts, held: Sequence[int], asking: int) -> int | None:
    """Return the graph to compile for a launch that nothing held serves; None if none can be.

    Each graph that serves it is tried as a start: the best set that grows from there, at what is expected
    to come, tells what it is worth.  So a large graph that many will use can win over the exact one.
    """
    able = np.flatnonzero(np.isfinite(market.run[asking])).tolist()
    able = [graph for graph in able if market.fits([graph])]
    if len(able) > CANDIDATES:
        worth = market.price - market.gains(amounts, held)
        able = sorted(able, key=lambda graph: float(worth[graph]))[:CANDIDATES]
    return min(able, key=lambda graph: _start(market, amounts, held, graph), default=None)


def _start(market: Market, amounts: Amounts, held: Sequence[int], graph: int) -> float:
    """Return what it costs to begin with one graph, and to go on from there."""
    leaving = market.room(graph, held, amounts, (), None) or ()
    kept = [*(g for g in held if g not in leaving), graph]
    _, seconds = plan_set(market, amounts, kept)
    return float(market.price[graph]) + seconds


def plan_set(market: Market, amounts: Amounts, held: Sequence[int]) -> tuple[list[int], float]:
    """Return the set worth going to from what is held, and its cost with the compiles on the way.

    A local search: graphs are added, dropped and exchanged one at a time as long as that pays.
    """
    price = market.price.copy()
    price[list(held)] = 0.0
    target, least = list(held), market.seconds(amounts, held)
    for _ in range(MOVES):
        better = _best_change(market, amounts, target, price, least)
        if better is None:
            break
        target, least = better
    return target, least


def _best_change(
    market: Market, amounts: Amounts, target: list[int], price: Amounts, least: float
) -> tuple[list[int], float] | None:
    """Return the best set that one graph in, one out, or both lead to; None if none costs less."""
    found = None
    least -= 1e-9
    for gone in (None, *target):
        kept = [g for g in target if g != gone]
        spent = float(price[kept].sum())
        base = np.minimum(market.serving(kept), market.missing)
        if gone is not None and spent + amounts @ base < least:
            found, least = kept, float(spent + amounts @ base)
        after = amounts @ np.minimum(base[:, None], market.run) + price + spent
        after[target] = np.inf
        graph = int(np.argmin(after))
        if after[graph] < least and market.fits([*kept, graph]):
            found, least = [*kept, graph], float(after[graph])
    return None if found is None else (found, least)
