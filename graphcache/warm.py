"""Making graphs resident before the first request comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from graphcache.compile.protocol import Supplied
from graphcache.errors import BudgetError, CompileError, LoadError
from graphcache.key import GraphKey, dominates
from graphcache.stats import Stats

logger = logging.getLogger("graphcache.warm")

Progress = Callable[[GraphKey, int, int], None]


class WarmOrder(StrEnum):
    """Which graphs are warmed first."""

    VALUE = "value"
    """The policy's first, which serves most; then those that ran longest in earlier processes."""
    LARGEST = "largest"
    SMALLEST = "smallest"
    LISTED = "listed"
    """As given, or as the policy lists them."""


def ordered(keys: Sequence[GraphKey], order: WarmOrder, value: Callable[[GraphKey], float]) -> list[GraphKey]:
    """Return the keys in an order; where it says nothing of two, they stay as they are."""
    match order:
        case WarmOrder.VALUE:
            return [*keys[:1], *sorted(keys[1:], key=value, reverse=True)]
        case WarmOrder.LARGEST:
            return sorted(keys, key=lambda key: key.tokens, reverse=True)
        case WarmOrder.SMALLEST:
            return sorted(keys, key=lambda key: key.tokens)
        case WarmOrder.LISTED:
            return list(keys)


@dataclass(slots=True)
class WarmReport:
    """What a warm-up did: each wanted key is in exactly one of the lists."""

    loaded: list[GraphKey] = field(default_factory=list)
    compiled: list[GraphKey] = field(default_factory=list)
    present: list[GraphKey] = field(default_factory=list)
    asked: list[GraphKey] = field(default_factory=list)
    """Another serves meanwhile; they come between two steps, once they are compiled."""
    left_out: list[GraphKey] = field(default_factory=list)
    """Over the budget, or after the deadline."""
    failed: list[GraphKey] = field(default_factory=list)
    seconds: float = 0.0


class Warmable(Protocol):
    """What a warm-up needs of the cache."""

    stats: Stats

    def bring(self, key: GraphKey) -> Supplied | None:
        """Make one graph resident, evicting nothing."""
        ...

    def ask(self, key: GraphKey) -> None:
        """Have one graph made beside the steps, evicting nothing."""
        ...


def undominated(keys: Collection[GraphKey]) -> set[GraphKey]:
    """Return the keys that no other one can stand in for: their graphs serve whatever all of them do."""
    return {key for key in keys if not any(k != key and dominates(k, key) for k in keys)}


def warm(
    cache: Warmable,
    keys: Sequence[GraphKey],
    clock: Callable[[], float],
    deadline_seconds: float | None,
    progress: Progress | None,
    waits_for: Collection[GraphKey],
) -> WarmReport:
    """Bring those of the keys that are waited for, and ask for the others, each in their order.

    A key that fails or does not fit does not keep the others out.
    """
    report = WarmReport()
    began = clock()
    for index, key in enumerate(sorted(keys, key=lambda key: key not in waits_for)):
        if deadline_seconds is not None and clock() - began >= deadline_seconds:
            report.left_out.append(key)
            continue
        if key in waits_for:
            (progress or _log)(key, index, len(keys))
        _list_for(cache, key, report, key in waits_for).append(key)
    report.seconds = clock() - began
    return report


def _log(key: GraphKey, index: int, count: int) -> None:
    logger.info("warming %s, %d of %d", key, index + 1, count)


def _list_for(cache: Warmable, key: GraphKey, report: WarmReport, waits: bool) -> list[GraphKey]:
    try:
        if not waits:
            cache.ask(key)
            return report.asked
        supplied = cache.bring(key)
    except BudgetError:
        return report.left_out
    except (CompileError, LoadError) as error:
        cache.stats.fault(type(error).__name__, error)
        return report.failed
    if supplied is None:
        return report.present
    return report.loaded if supplied.source == "load" else report.compiled
