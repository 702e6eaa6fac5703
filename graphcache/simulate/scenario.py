"""What all policies of a simulation have in common: the batches, the graphs, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graphcache.batch import Batch
from graphcache.costs import Costs
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.miss import OnMiss
from graphcache.policy.protocol import Budget, Ladders
from graphcache.problem import BatchType, Problem
from graphcache.trace.steps import Steps

MODES = (MaskMode.CUSTOM, MaskMode.CAUSAL)


@dataclass(frozen=True)
class Scenario:
    """A stream of steps on one machine.

    With ``background``, graphs that no step waits for compile beside the steps, and ``background_share``
    of each compile's seconds is charged for what it takes from them; in line, the waiting is the cost.

    Raises:
        ConfigError: no step, one longer than the ladder, or a share that is not between 0 and 1.
    """

    steps: Steps
    ladder: Ladder
    costs: Costs
    background: bool = False
    background_share: float = 0.1

    def __post_init__(self) -> None:
        if not len(self.steps):
            raise ConfigError(f"{self.steps.name}: no step is left to simulate; allowed: at least one")
        longest = int(self.steps.tokens.max())
        if longest > self.ladder.top:
            raise ConfigError.of("tokens of a step", longest, f"at most the ladder's top, {self.ladder.top}")
        if not 0 <= self.background_share <= 1:
            raise ConfigError.of("background_share", self.background_share, "a share between 0 and 1")

    @property
    def on_miss(self) -> OnMiss:
        """What a miss does unless told otherwise: nothing waits for what can compile beside the steps."""
        return OnMiss.FALLBACK if self.background else OnMiss.COMPILE

    @property
    def ladders(self) -> Ladders:
        """The ladder of tokens, and rows in powers of two up to the most sequences of a step."""
        return Ladders(self.ladder, rows=Ladder.pow2(1, int(self.steps.sequences.max())))

    @cached_property
    def batches(self) -> Sequence[Batch]:
        """Every step's batch; equal ones are the same object."""
        seen: dict[Batch, Batch] = {}
        return [seen.setdefault(batch, batch) for batch in self.steps.batches()]

    def after(self, share: float | None) -> tuple[Scenario | None, Scenario]:
        """Return the first ``share`` of the steps, to learn from, and the rest; all are the rest if None.

        Raises:
            ConfigError: a share that leaves no step on one of the two sides.
        """
        if share is None:
            return None, self
        if not 0 < share < 1:
            raise ConfigError.of("history", share, "a share between 0 and 1, both excluded")
        first, rest = self.steps.split(share)
        return replace(self, steps=first), replace(self, steps=rest)

    def charged_seconds(self, key: GraphKey) -> float:
        """Return what one compile of this graph costs, beside the waiting that is counted by itself."""
        return self.background_share * self.costs.compile_seconds(key) if self.background else 0.0

    def problem(self, budget: Budget) -> Problem:
        """State what remains to be decided: which graphs of both modes to keep, for packed batches.

        With compiles in the background, each is priced at its share, as if it were ready at once: what is
        optimal then bounds from below what any policy can reach.
        """
        sizes = np.array(self.ladder.sizes)
        buckets = sizes[np.searchsorted(sizes, self.steps.tokens)]
        rows = np.stack([buckets, self.steps.sequences == 1], axis=1)
        types, batches = np.unique(rows, axis=0, return_inverse=True)
        return Problem.of(
            (GraphKey(1, seq_len, mode=mode) for seq_len in self.ladder for mode in MODES),
            (BatchType(int(seq_len), bool(single)) for seq_len, single in types),
            _Charged(self) if self.background else self.costs,
            budget,
            batches.ravel().tolist(),
        )


class _Charged:
    """A scenario's costs, with compiles at what is charged for them."""

    def __init__(self, scenario: Scenario) -> None:
        self.run_seconds = scenario.costs.run_seconds
        self.load_seconds = scenario.costs.load_seconds
        self.nbytes = scenario.costs.nbytes
        self.compile_seconds = scenario.charged_seconds
