"""A request trace: when requests arrive, and how long they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphcache.errors import ConfigError

Times: TypeAlias = NDArray[np.float64]
Lengths: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in the order of their arrival.

    ``arrived_seconds`` starts at 0; ``prompt_tokens`` are at least 1, ``output_tokens`` at least 0.
    ``notes`` tell what had to be assumed or left out when the trace was read.

    Raises:
        ConfigError: arrays of different lengths, arrivals that go back, or lengths out of range.
    """

    name: str
    arrived_seconds: Times
    prompt_tokens: Lengths
    output_tokens: Lengths
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = {len(self.arrived_seconds), len(self.prompt_tokens), len(self.output_tokens)}
        if len(sizes) != 1:
            raise ConfigError.of("trace", sorted(sizes), "arrays of one length")
        if len(self) and (np.diff(self.arrived_seconds, prepend=0.0) < 0).any():
            raise ConfigError.of("arrived_seconds", "a step back", "times of at least 0 that never decrease")
        for field, least in (("prompt_tokens", 1), ("output_tokens", 0)):
            if len(self) and getattr(self, field).min() < least:
                raise ConfigError.of(field, int(getattr(self, field).min()), f"at least {least}")

    def __len__(self) -> int:
        return len(self.arrived_seconds)

    @property
    def span_seconds(self) -> float:
        """The time between the first arrival and the last."""
        return float(self.arrived_seconds[-1] - self.arrived_seconds[0]) if len(self) else 0.0

    def first(self, count: int) -> Trace:
        """Return the first ``count`` requests."""
        return self.select(slice(count))

    def select(self, which: slice | NDArray[np.bool_]) -> Trace:
        """Return some of the requests, in their order and at their times."""
        return replace(
            self,
            arrived_seconds=self.arrived_seconds[which],
            prompt_tokens=self.prompt_tokens[which],
            output_tokens=self.output_tokens[which],
        )

    def capped(self, max_tokens: int) -> Trace:
        """Return the same requests with longer prompts cut off."""
        return replace(self, prompt_tokens=np.minimum(self.prompt_tokens, max_tokens))

    def stretched(self, factor: float) -> Trace:
        """Return the same requests with the times between them multiplied."""
        return replace(self, arrived_seconds=self.arrived_seconds * factor)

    @classmethod
    def of(
        cls, name: str, arrived: Times, prompt: Lengths, output: Lengths, notes: tuple[str, ...] = ()
    ) -> Trace:
        """Build a trace from rows in any order: sorted by arrival, from 0 on, without empty prompts."""
        kept = prompt >= 1
        if not kept.all():
            notes = (*notes, f"{int((~kept).sum())} requests without a prompt are left out")
        arrived, prompt, output = arrived[kept], prompt[kept], output[kept]
        order = np.argsort(arrived, kind="stable")
        arrived = arrived[order]
        start = arrived[0] if len(arrived) else 0.0
        return cls(name, arrived - start, prompt[order], np.maximum(output[order], 0), notes)
