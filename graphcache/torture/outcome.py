"""What a check is given, and what it says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

HELD, BROKE, SKIPPED = "held", "broke", "skipped"


class Broke(Exception):
    """A store did what no store may do."""


class Skipped(Exception):
    """A check that can't be made here, and why."""


class Outcome(NamedTuple):
    """What became of one fault: ``held``, ``broke`` or ``skipped``, and what was seen."""

    fault: str
    verdict: str
    detail: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is to be broken: random kills, writers at once, entries they write, places of damage.

    ``store``, ``locks`` and ``host`` name the kinds that are broken (`graphcache.torture.planted`), ``seed``
    fixes what is random.
    """

    kills: int = 100
    writers: int = 8
    keys: int = 50
    places: int = 24
    seed: int = 0
    store: str = "sound"
    locks: str = "sound"
    host: str = "sound"

    def random(self) -> random.Random:
        """Return the source of all that is random in one check."""
        return random.Random(self.seed)


Check: TypeAlias = Callable[[Path, Plan], str]
"""Breaks a store in an empty directory; returns what was seen, raises `Broke` or `Skipped`."""


def expect(held: bool, otherwise: str) -> None:
    """Go on if something holds.

    Raises:
        Broke: it does not.
    """
    if not held:
        raise Broke(otherwise)
