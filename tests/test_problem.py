from __future__ import annotations

import numpy as np
import pytest

from graphcache.costs import PaddedWork
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.policy.protocol import Budget
from graphcache.problem import BatchType, Problem, Schedule, cost

KEYS = [GraphKey(1, n, mode=mode) for mode in (MaskMode.CUSTOM, MaskMode.CAUSAL) for n in (128, 256)]
TYPES = [BatchType(n, single) for n in (128, 256) for single in (False, True)]


def problem(
    graphs: int | None = 2, nbytes: int | None = None, batches: tuple[int, ...] = (1, 0, 3)
) -> Problem:
    return Problem.of(KEYS, TYPES, PaddedWork(), Budget(graphs, nbytes), batches)


def test_a_key_serves_exactly_the_types_it_dominates() -> None:
    finite = np.isfinite(problem().run_seconds)
    assert finite.tolist() == [
        [True, True, False, False],
        [True, True, True, True],
        [False, True, False, False],
        [False, True, False, True],
    ]


def test_cost_adds_runs_and_compiles() -> None:
    p = problem()
    paid = cost(p, Schedule([2, 1, 1], {0: (2,), 1: (1,)}))
    assert paid.compiles == 2
    assert paid.stall_seconds == 120.0
    assert paid.run_seconds == pytest.approx(
        p.run_seconds[1, 2] + p.run_seconds[0, 1] + p.run_seconds[3, 1], rel=1e-12
    )
    assert paid.seconds == paid.run_seconds + paid.stall_seconds


def test_dropped_leave_before_compiled_enter() -> None:
    paid = cost(problem(graphs=1), Schedule([2, 1, 1], {0: (2,), 1: (1,)}, {1: (2,)}))
    assert paid.compiles == 2


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule([2, 1]), "schedule"),
        (Schedule([2, 1, 1], {0: (2,)}), "served at batch 1"),
        (Schedule([2, 2, 2], {0: (2,)}), "served at batch 1"),
        (Schedule([1, 1, 1], {0: (0, 1, 2)}), "resident at batch 0"),
        (Schedule([1, 1, 1], {0: (1,), 1: (1,)}), "compiled at batch 1"),
        (Schedule([1, 1, 1], {0: (1,)}, {1: (0,)}), "dropped at batch 1"),
    ],
)
def test_an_infeasible_schedule_is_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cost(problem(), schedule)


def test_bytes_bound_what_is_resident() -> None:
    p = Problem(
        tuple(KEYS),
        tuple(TYPES),
        problem().run_seconds,
        np.ones(4),
        np.array([10, 20, 10, 20]),
        Budget(None, 25),
        np.array([0]),
    )
    assert p.admits([1])
    assert not p.admits([0, 1])
    with pytest.raises(ConfigError, match="resident"):
        cost(p, Schedule([1], {0: (0, 1)}))


def test_a_batch_that_nothing_serves_is_refused() -> None:
    with pytest.raises(ConfigError, match="serves"):
        Problem.of(KEYS[:1], TYPES, PaddedWork(), Budget(4), [2])
    with pytest.raises(ConfigError, match="indices below 4"):
        problem(batches=(4,))


def test_a_schedule_is_a_row_a_batch() -> None:
    schedule = Schedule([2, 1, 1], {0: (2,), 1: (1,)}, {1: (2,)})
    assert schedule.to_json() == [[2, [2], []], [1, [1], [2]], [1, [], []]]
