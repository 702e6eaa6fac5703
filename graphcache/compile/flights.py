"""Graphs that are under way in the background: what each waits for, and which one is next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, NamedTuple

from graphcache.backends.protocol import Artifact, Job
from graphcache.compile.protocol import Urgency
from graphcache.key import GraphKey

RECHECK_SECONDS = 0.25


class Made(NamedTuple):
    """An artifact, where it came from, what that took, and what it would have taken to compile it."""

    artifact: Artifact
    source: Literal["load", "compile"]
    seconds: float
    compile_seconds: float


class Stage(Enum):
    """What a flight waits for."""

    STORE = auto()
    """Somebody to look into the store."""
    TRACE = auto()
    """The runner's thread, to trace the live model."""
    WORKER = auto()
    """A compile worker, and its time to come."""
    FLYING = auto()
    """Nothing: somebody is at it."""
    LANDED = auto()
    """The runner's thread, to load what was made."""


@dataclass(slots=True, eq=False)
class Flight:
    """One key's way from the first request to the artifact, or the error, in ``landed``."""

    key: GraphKey
    order: int
    urgency: Urgency
    stage: Stage = Stage.STORE
    job: Job | None = None
    attempts: int = 0
    not_before: float = 0.0
    landed: Future[Made] = field(default_factory=Future)


class Flights:
    """The flights of one supplier, at most one per key; any thread may ask, and wait.

    Of those that wait for the same thing the most urgent is next, then the most valuable, then the oldest.
    """

    def __init__(self, value: Callable[[GraphKey], float], clock: Callable[[], float]) -> None:
        self._value = value
        self._clock = clock
        self._flights: dict[GraphKey, Flight] = {}
        self._changed = threading.Condition()
        self._count = 0
        self.closed = False

    def __contains__(self, key: object) -> bool:
        return key in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    def ask(self, key: GraphKey, urgency: Urgency) -> Flight:
        """Return the key's flight, begun now or before; it becomes as urgent as the most urgent request."""
        with self._changed:
            flight = self._flights.get(key)
            if flight is None:
                self._count += 1
                flight = self._flights[key] = Flight(key, self._count, urgency)
            if urgency < flight.urgency:
                flight.urgency, flight.not_before = urgency, 0.0
            self._changed.notify_all()
            return flight

    def move(self, flight: Flight, stage: Stage) -> None:
        """Have a flight wait for something else."""
        with self._changed:
            flight.stage = stage
            self._changed.notify_all()

    def take(self, stage: Stage) -> Flight | None:
        """Return the next flight that waits for this, ``FLYING`` from now on; None where there is none."""
        with self._changed:
            return self._next(stage)

    def claim(self, flight: Flight, stage: Stage) -> bool:
        """Take this very flight if it waits for this; say whether it did."""
        with self._changed:
            waits = flight.stage is stage
            if waits:
                flight.stage = Stage.FLYING
            return waits

    def wait(self, stage: Stage) -> Flight | None:
        """Wait for the next flight that waits for this, ``FLYING`` from now on; None once all is closed."""
        with self._changed:
            while not self.closed:
                flight = self._next(stage)
                if flight:
                    return flight
                delayed = any(flight.stage is stage for flight in self._flights.values())
                self._changed.wait(RECHECK_SECONDS if delayed else None)
            return None

    def remove(self, flight: Flight) -> bool:
        """Forget a flight; say whether it was still there: whoever removes it loads what it made."""
        with self._changed:
            return self._flights.pop(flight.key, None) is not None

    def close(self) -> list[Flight]:
        """Let all who wait go, and return the flights that were under way."""
        with self._changed:
            self.closed = True
            left = list(self._flights.values())
            self._flights.clear()
            self._changed.notify_all()
            return left

    def _next(self, stage: Stage) -> Flight | None:
        now = self._clock()
        due = [f for f in self._flights.values() if f.stage is stage and f.not_before <= now]
        if not due:
            return None
        first = min(due, key=lambda flight: (flight.urgency, -self._value(flight.key), flight.order))
        first.stage = Stage.FLYING
        return first
