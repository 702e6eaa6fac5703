"""What to compile when nothing that is resident can serve: a guess at what will come, and a set for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphcache.key import GraphKey
from graphcache.policy.demand import LONG, Amounts, Demand
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
    """Return what it costs to begin with one graph and to go on from there, one good move at a time."""
    leaving = market.room(graph, held, amounts, (), None) or ()
    kept = [*(g for g in held if g not in leaving), graph]
    spent = float(market.price[graph])
    for _ in range(MOVES):
        move = _best_move(market, amounts, kept)
        if move is None:
            break
        kept, price = move
        spent += price
    return spent + market.seconds(amounts, kept)


def _best_move(market: Market, amounts: Amounts, held: list[int]) -> tuple[list[int], float] | None:
    """Return the set after the most profitable addition or swap, and its price; None if none pays."""
    now = market.seconds(amounts, held)
    best, found = 1e-9, None
    for gone in (None, *held):
        kept = [g for g in held if g != gone]
        base = np.minimum(market.serving(kept), market.missing)
        after = amounts @ np.minimum(base[:, None], market.run)
        profit = now - after - market.price
        profit[held] = -np.inf
        for graph in np.argsort(-profit)[:1].tolist():
            if profit[graph] > best and market.fits([*kept, graph]):
                best, found = float(profit[graph]), ([*kept, graph], float(market.price[graph]))
    return found
