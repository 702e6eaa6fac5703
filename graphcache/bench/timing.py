"""How things are timed: side by side, so that what slows the machine for a while slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

Name = TypeVar("Name")
Work: TypeAlias = Callable[[], object]
Progress: TypeAlias = Callable[[str, int, int], None]
"""Is told what is being measured, how many of those are done, and how many there are."""


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def timed(work: Work) -> float:
    """Return the seconds that one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(works: Mapping[Name, Work], repeats: int) -> dict[Name, list[float]]:
    """Return the seconds of each call: every round calls each work once, in an order that turns."""
    seconds: dict[Name, list[float]] = {name: [] for name in works}
    names = list(works)
    for turn in range(repeats):
        start = turn % len(names) if names else 0
        for name in (*names[start:], *names[:start]):
            seconds[name].append(timed(works[name]))
    return seconds


def medians(works: Mapping[Name, Work], repeats: int) -> dict[Name, float]:
    """Return the median seconds of each work, measured side by side."""
    return {name: statistics.median(seconds) for name, seconds in interleaved(works, repeats).items()}


def least(works: Mapping[Name, Work], repeats: int) -> dict[Name, float]:
    """Return the least seconds of each work, measured side by side: those in which nothing disturbed it."""
    return {name: min(seconds) for name, seconds in interleaved(works, repeats).items()}
