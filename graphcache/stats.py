"""Counters that only add up, the reasons of faults, and the last events."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from graphcache.key import GraphKey

logger = logging.getLogger("graphcache")


@dataclass(slots=True)
class KeyCounters:
    """What happened to one key; every field adds up over steps, ranks and runs.

    ``hits`` to ``stalls`` count where the key was wanted; ``runs``, ``run_seconds`` and ``saved_seconds``
    where its graph was what ran.
    """

    hits: int = 0
    loads: int = 0
    compiles: int = 0
    fallbacks: int = 0
    upgrades: int = 0
    stalls: int = 0
    evictions: int = 0
    runs: int = 0
    load_seconds: float = 0.0
    compile_seconds: float = 0.0
    stall_seconds: float = 0.0
    run_seconds: float = 0.0
    saved_seconds: float = 0.0

    def add(self, other: KeyCounters) -> None:
        """Add another key's, rank's or run's counters to these."""
        for field in fields(KeyCounters):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Event(NamedTuple):
    """One thing worth telling: the step it happened at, what, to which graph, and why."""

    step: int
    kind: str
    key: str
    reason: str = ""
    seconds: float = 0.0


class Stats:
    """Counts per key, faults by reason, and the last events.

    ``strict`` raises each fault instead of surviving it; the tests run strict.
    """

    EVENTS_KEPT = 1000

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.steps = 0
        self.keys: dict[GraphKey, KeyCounters] = {}
        self.errors: Counter[str] = Counter()
        self.events: deque[Event] = deque(maxlen=self.EVENTS_KEPT)

    def of(self, key: GraphKey) -> KeyCounters:
        """Return the live counters of one key."""
        counters = self.keys.get(key)
        if counters is None:
            counters = self.keys[key] = KeyCounters()
        return counters

    def event(self, kind: str, key: GraphKey, reason: str = "", seconds: float = 0.0) -> None:
        """Keep one event among the last ones."""
        self.events.append(Event(self.steps, kind, str(key), reason, seconds))

    def fault(self, reason: str, error: BaseException) -> None:
        """Count a fault of the cache by its reason, and log the first of each; raise it where strict."""
        if self.strict:
            raise error
        self.errors[reason] += 1
        if self.errors[reason] == 1:
            logger.warning("%s: %s (counted from now on, not logged again)", reason, error)

    def total(self) -> KeyCounters:
        """Return the sum over all keys."""
        total = KeyCounters()
        for counters in tuple(self.keys.values()):
            total.add(counters)
        return total

    def snapshot(self) -> dict[str, Any]:
        """Return everything as plain JSON values: ``steps``, ``total``, ``keys``, ``errors``, ``events``."""
        return {
            "steps": self.steps,
            "total": asdict(self.total()),
            "keys": {str(key): asdict(counters) for key, counters in tuple(self.keys.items())},
            "errors": dict(self.errors),
            "events": [event._asdict() for event in tuple(self.events)],
        }


def merge(snapshots: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up snapshots of several ranks or runs; events are not kept, for their steps do not compare."""
    keys: dict[str, KeyCounters] = {}
    errors: Counter[str] = Counter()
    for snapshot in snapshots:
        errors.update(snapshot["errors"])
        for key, counters in snapshot["keys"].items():
            keys.setdefault(key, KeyCounters()).add(KeyCounters(**counters))
    total = KeyCounters()
    for counters in keys.values():
        total.add(counters)
    return {
        "steps": sum(snapshot["steps"] for snapshot in snapshots),
        "total": asdict(total),
        "keys": {key: asdict(counters) for key, counters in keys.items()},
        "errors": dict(errors),
    }
