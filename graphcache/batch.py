"""What one step has to run, and how it is cut into launches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from graphcache.errors import ConfigError
from graphcache.key import GraphKey


class Layout(StrEnum):
    """How a launch's sequences lie in its graph's input."""

    PACKED = "packed"
    """All in one row, one behind the other."""
    ROWS = "rows"
    """One row each, padded at the right to the longest."""


class Sequence(NamedTuple):
    """One request's tokens in a step: ``new`` to run, after ``cached`` already in the KV cache."""

    new: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one step, in the runner's order.

    Raises:
        ConfigError: no sequence, or one without a new token.
    """

    sequences: tuple[Sequence, ...]

    def __post_init__(self) -> None:
        if not self.sequences:
            raise ConfigError.of("batch", self.sequences, "at least one sequence")
        for sequence in self.sequences:
            if sequence.new < 1:
                raise ConfigError.of("new tokens of a sequence", sequence.new, "an integer of at least 1")
            if sequence.cached < 0:
                raise ConfigError.of("cached tokens of a sequence", sequence.cached, "0 or more")

    @classmethod
    def of(cls, new: Iterable[int]) -> Batch:
        """Build a batch of sequences that have nothing cached, from their lengths in tokens."""
        return cls(tuple(Sequence(n) for n in new))

    @property
    def tokens(self) -> int:
        """New tokens of all sequences together."""
        return sum(sequence.new for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class Launch:
    """One graph run that a plan asks for: the graph it wants, and the sequences it carries.

    ``sequences`` are indices into ``Batch.sequences``, in the order in which they are laid out.
    """

    key: GraphKey
    sequences: tuple[int, ...]
    layout: Layout = Layout.PACKED


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches that serve one batch, in order; every sequence is in exactly one of them."""

    launches: tuple[Launch, ...]
