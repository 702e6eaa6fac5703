from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.optimum.exact import exact_schedule, merge_runs, useful_keys
from graphcache.policy.protocol import Budget
from graphcache.problem import BatchType, Problem, Schedule, cost


def explicit(
    run: list[list[float]],
    compile_seconds: list[float],
    nbytes: list[int],
    budget: Budget,
    batches: list[int],
) -> Problem:
    return Problem(
        tuple(GraphKey(1, i + 1, mode=MaskMode.CUSTOM) for i in range(len(compile_seconds))),
        tuple(BatchType(i + 1, False) for i in range(len(run))),
        np.array(run, dtype=np.float64),
        np.array(compile_seconds, dtype=np.float64),
        np.array(nbytes, dtype=np.int64),
        budget,
        np.array(batches, dtype=np.int64),
    )


@st.composite
def problems(draw: st.DrawFn, max_keys: int = 4, max_batches: int = 9) -> Problem:
    """Draw small problems in which the first key serves everything, so that each has a solution."""
    keys, types = draw(st.integers(1, max_keys)), draw(st.integers(1, 4))
    seconds = st.integers(1, 30).map(float)
    run = [
        [draw(seconds if k == 0 else seconds | st.just(float("inf"))) for k in range(keys)]
        for _ in range(types)
    ]
    nbytes = draw(st.lists(st.integers(1, 5), min_size=keys, max_size=keys))
    graphs = draw(st.none() | st.integers(1, keys))
    held = draw(st.none() | st.integers(nbytes[0], 12))
    batches = draw(st.lists(st.integers(0, types - 1), min_size=1, max_size=max_batches))
    compiles = draw(st.lists(st.integers(0, 40).map(float), min_size=keys, max_size=keys))
    return explicit(run, compiles, nbytes, Budget(graphs, held), batches)


def brute_force(problem: Problem) -> float:
    """Return the least cost, by an explicit walk from every set of keys to every other at each batch."""
    count = len(problem.keys)
    sets = [s for size in range(count + 1) for s in combinations(range(count), size) if problem.admits(s)]
    values = {(): 0.0}
    for batch in problem.batches.tolist():
        run = problem.run_seconds[batch]
        values = {
            now: min(
                value + sum(problem.compile_seconds[k] for k in now if k not in last)
                for last, value in values.items()
            )
            + min((run[k] for k in now), default=float("inf"))
            for now in sets
        }
    return min(values.values())


@given(problems())
def test_the_schedule_costs_what_brute_force_finds(problem: Problem) -> None:
    assert cost(problem, exact_schedule(problem)).seconds == pytest.approx(brute_force(problem), rel=1e-9)


def random_schedules(problem: Problem, seed: int) -> Iterator[Schedule]:
    rng = np.random.default_rng(seed)
    for _ in range(5):
        held: list[int] = []
        served, compiled, dropped = [], {}, {}
        for step, batch in enumerate(problem.batches.tolist()):
            able = [k for k in range(len(problem.keys)) if np.isfinite(problem.run_seconds[batch, k])]
            able = [k for k in able if problem.admits([k])]
            key = int(rng.choice(able))
            if key not in held:
                gone = []
                while not problem.admits([*held, key]):
                    gone.append(held.pop(int(rng.integers(len(held)))))
                held.append(key)
                compiled[step] = (key,)
                if gone:
                    dropped[step] = tuple(gone)
            served.append(key)
        yield Schedule(served, compiled, dropped)


@given(problems(max_keys=7, max_batches=40), st.integers(0, 1000))
def test_nothing_beats_the_optimum(problem: Problem, seed: int) -> None:
    least = cost(problem, exact_schedule(problem)).seconds
    for schedule in random_schedules(problem, seed):
        assert cost(problem, schedule).seconds >= least - 1e-6


@given(problems(max_keys=6, max_batches=30))
def test_a_larger_budget_never_costs_more(problem: Problem) -> None:
    graphs = problem.budget.graphs
    if graphs is not None:
        more = Problem(
            problem.keys,
            problem.types,
            problem.run_seconds,
            problem.compile_seconds,
            problem.nbytes,
            Budget(graphs + 1, problem.budget.bytes),
            problem.batches,
        )
        assert (
            cost(more, exact_schedule(more)).seconds <= cost(problem, exact_schedule(problem)).seconds + 1e-6
        )


def test_useless_keys_are_left_out() -> None:
    # The second is worse than the first; the third serves nothing; the fourth is the first's twin; the
    # fifth is dearer to run but cheaper to compile.
    inf = float("inf")
    problem = explicit([[1, 2, inf, 1, 3]], [10, 10, 10, 10, 5], [1, 1, 1, 1, 1], Budget(2), [0, 0, 0])
    assert useful_keys(problem).tolist() == [0, 4]


def test_runs_of_equal_batches_are_merged() -> None:
    problem = explicit([[1], [2]], [1], [1], Budget(1), [0, 0, 1, 0])
    runs = merge_runs(problem)
    assert (runs.types.tolist(), runs.starts.tolist(), runs.lengths.tolist()) == (
        [0, 1, 0],
        [0, 2, 3],
        [2, 1, 1],
    )


def test_a_compile_pays_exactly_when_it_saves_more() -> None:
    def bought(batches: int) -> int:
        # The exact graph saves 1 s a batch and takes 10 s to compile; the large one is needed once.
        problem = explicit([[2, 1], [2, np.inf]], [10, 10], [1, 1], Budget(2), [1] + [0] * batches)
        return cost(problem, exact_schedule(problem)).compiles

    assert [bought(n) for n in (9, 11)] == [1, 2]


def test_an_empty_stream_costs_nothing() -> None:
    problem = explicit([[1]], [1], [1], Budget(1), [])
    assert cost(problem, exact_schedule(problem)).seconds == 0


def test_too_many_keys_are_refused() -> None:
    n = 17
    run = [[1.0 if k == t else np.inf for k in range(n)] for t in range(n)]
    with pytest.raises(ConfigError, match="16"):
        exact_schedule(explicit(run, [1.0] * n, [1] * n, Budget(4), list(range(n))))
