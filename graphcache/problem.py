"""The decision problem behind a trace: which graphs to keep while the batches pass, and what that costs.

A problem is what remains of a trace, a cost table and a budget once only decisions count: a stream of
batch types, and the seconds that each graph needs for each type.  `graphcache.optimum` solves it; the
simulator states its results in it, so that anyone can add them up again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphcache.costs import Costs
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode, dominates
from graphcache.policy.protocol import Budget

Seconds: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]


class BatchType(NamedTuple):
    """What distinguishes batches here: the bucket of their tokens, and whether they hold one sequence.

    A batch that a policy cuts has a type for each launch; one of ``rows`` holds a sequence in each.
    """

    seq_len: int
    single: bool
    rows: int = 1

    def run_seconds(self, key: GraphKey, costs: Costs) -> float:
        """Return what a graph takes for it, infinite where it can't serve: one sequence a row is causal."""
        mode = MaskMode.CAUSAL if self.single else MaskMode.CUSTOM
        serves = dominates(key, GraphKey(self.rows, self.seq_len, mode=mode))
        return float(costs.run_seconds(key)) if serves else float("inf")


class Cost(NamedTuple):
    """What a schedule costs: seconds that graphs ran, seconds that batches waited for compiles."""

    run_seconds: float
    stall_seconds: float
    compiles: int

    @property
    def seconds(self) -> float:
        """Both together: what policies are compared by."""
        return self.run_seconds + self.stall_seconds


@dataclass(frozen=True, eq=False)
class Problem:
    """A stream of batch types, the graphs that could serve them, and a budget.

    ``run_seconds`` is types x keys, infinite where the key can't serve the type; ``compile_seconds`` and
    ``nbytes`` are per key; ``batches`` holds indices into ``types``, in order.

    Raises:
        ConfigError: shapes that do not fit each other, a batch of no known type, or one no key serves.
    """

    keys: tuple[GraphKey, ...]
    types: tuple[BatchType, ...]
    run_seconds: Seconds
    compile_seconds: Seconds
    nbytes: Indices
    budget: Budget
    batches: Indices

    def __post_init__(self) -> None:
        shape = (len(self.types), len(self.keys))
        if self.run_seconds.shape != shape:
            raise ConfigError.of("run_seconds", self.run_seconds.shape, f"types x keys, {shape}")
        for name in ("compile_seconds", "nbytes"):
            if getattr(self, name).shape != shape[1:]:
                raise ConfigError.of(
                    name, getattr(self, name).shape, f"one for each of {len(self.keys)} keys"
                )
        if len(self.batches) and not 0 <= self.batches.min() <= self.batches.max() < len(self.types):
            raise ConfigError.of("batches", int(self.batches.max()), f"indices below {len(self.types)}")
        fits = self.run_seconds[:, self.fitting()]
        for index in np.unique(self.batches):
            if not np.isfinite(fits[index]).any():
                raise ConfigError.of(
                    "batches", self.types[index], "types that a key within the budget serves"
                )

    @classmethod
    def of(
        cls,
        keys: Iterable[GraphKey],
        types: Iterable[BatchType],
        costs: Costs,
        budget: Budget,
        batches: Iterable[int],
    ) -> Problem:
        """State the problem for packed batches: one row, and the graphs that dominate what they ask for.

        A batch of one sequence asks for a causal graph, one of several for a custom mask.
        """
        keys, types = tuple(keys), tuple(types)
        run = [[kind.run_seconds(key, costs) for key in keys] for kind in types]
        return cls(
            keys,
            types,
            np.array(run, dtype=np.float64).reshape(len(types), len(keys)),
            np.array([costs.compile_seconds(key) for key in keys], dtype=np.float64),
            np.array([costs.nbytes(key) for key in keys], dtype=np.int64),
            budget,
            np.fromiter(batches, dtype=np.int64),
        )

    def fitting(self) -> NDArray[np.bool_]:
        """Say of each key whether it fits into an otherwise empty budget."""
        graphs, nbytes = self.budget
        if graphs is not None and graphs < 1:
            return np.zeros(len(self.keys), dtype=bool)
        return self.nbytes <= nbytes if nbytes is not None else np.ones(len(self.keys), dtype=bool)

    def admits(self, resident: Iterable[int]) -> bool:
        """Say whether these keys fit into the budget together."""
        held = list(resident)
        graphs, nbytes = self.budget
        if graphs is not None and len(held) > graphs:
            return False
        return nbytes is None or int(self.nbytes[held].sum()) <= nbytes


@dataclass(frozen=True)
class Schedule:
    """What was done: per batch the key that served it, and the keys compiled and dropped before it.

    At each batch, dropped keys leave first, then compiled ones enter, then the batch is served.  All are
    indices into ``Problem.keys``; ``compiled`` and ``dropped`` are keyed by the batch's position.
    """

    served: Sequence[int]
    compiled: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    dropped: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def to_json(self) -> list[list[Any]]:
        """Return one ``[served, [compiled], [dropped]]`` a batch."""
        return [
            [int(key), list(self.compiled.get(step, ())), list(self.dropped.get(step, ()))]
            for step, key in enumerate(self.served)
        ]


def cost(problem: Problem, schedule: Schedule) -> Cost:
    """Add up a schedule from an empty start, holding it to the rules at every batch.

    Raises:
        ConfigError: it drops what is not resident, compiles what is, goes over the budget, serves a batch
            by a graph that is not resident or can't serve it, or has not one entry a batch.
    """
    if len(schedule.served) != len(problem.batches):
        raise ConfigError.of("schedule", len(schedule.served), f"{len(problem.batches)} batches")
    resident: set[int] = set()
    run = stall = 0.0
    compiles = 0
    for step, (key, batch) in enumerate(zip(schedule.served, problem.batches.tolist(), strict=True)):
        compiled = schedule.compiled.get(step, ())
        if compiled or step in schedule.dropped:
            _change(problem, resident, step, compiled, schedule.dropped.get(step, ()))
            stall += float(problem.compile_seconds[list(compiled)].sum())
            compiles += len(compiled)
        seconds = float(problem.run_seconds[batch, key])
        if key not in resident or not np.isfinite(seconds):
            raise ConfigError.of(f"served at batch {step}", key, f"a resident key that serves type {batch}")
        run += seconds
    return Cost(run, stall, compiles)


def _change(
    problem: Problem, resident: set[int], step: int, compiled: Iterable[int], dropped: Iterable[int]
) -> None:
    for key in dropped:
        if key not in resident:
            raise ConfigError.of(f"dropped at batch {step}", key, f"a resident key: {sorted(resident)}")
        resident.remove(key)
    for key in compiled:
        if key in resident:
            raise ConfigError.of(f"compiled at batch {step}", key, f"a key not in {sorted(resident)}")
        resident.add(key)
    if not problem.admits(resident):
        raise ConfigError.of(f"resident at batch {step}", sorted(resident), f"what fits {problem.budget}")
