from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from test_exact import explicit, problems

from graphcache.optimum import bound
from graphcache.optimum.exact import exact_schedule
from graphcache.optimum.relaxed import best_found, lower_bound
from graphcache.policy.protocol import Budget
from graphcache.problem import cost


@given(problems(max_keys=6, max_batches=30))
@settings(max_examples=60)
def test_the_optimum_lies_between_the_bounds(problem):
    optimum = cost(problem, exact_schedule(problem)).seconds
    upper = cost(problem, best_found(problem)).seconds
    assert upper >= optimum - 1e-6
    for iterations in (1, 40):
        assert lower_bound(problem, upper, iterations) <= optimum + 1e-6


def steady(seed: int, keys: int, graphs: int):
    rng = np.random.default_rng(seed)
    run = [[k + 1.0 if k >= t else np.inf for k in range(keys)] for t in range(keys)]
    batches = np.minimum(rng.geometric(0.2, size=600) - 1, keys - 1).tolist()
    return explicit(run, [20.0] * keys, [1] * keys, Budget(graphs), batches)


def test_the_bounds_are_close_on_steady_traffic():
    problem = steady(1, 10, 4)
    optimum = cost(problem, exact_schedule(problem)).seconds
    assert lower_bound(problem, optimum) >= 0.9 * optimum
    assert cost(problem, best_found(problem)).seconds == pytest.approx(optimum)


def test_many_keys_are_bounded_on_both_sides_and_few_are_solved():
    few, many = bound(steady(2, 8, 3)), bound(steady(2, 24, 6))
    assert few.exact
    assert few.lower_bound == few.cost.seconds
    assert not many.exact
    assert 0.7 * many.cost.seconds <= many.lower_bound <= many.cost.seconds


def test_the_same_problem_by_both_ways():
    problem = steady(3, 9, 4)
    exact, sandwich = bound(problem), bound(problem, max_keys=2)
    assert sandwich.lower_bound <= exact.cost.seconds <= sandwich.cost.seconds
