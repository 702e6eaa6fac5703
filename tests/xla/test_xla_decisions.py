"""The same policies decide the same on torch-xla as anywhere."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is not installed; `make test-xla` runs these tests")

from decisions import COMBINATIONS, Remembering, decisions, expected
from small_program import SmallProgram

from graphcache.backends.xla import XlaBackend, compiles


@pytest.fixture(scope="module", params=["openxla", None], ids=str)
def remembering(request: pytest.FixtureRequest) -> Remembering:
    return Remembering(XlaBackend(SmallProgram(), compiler=request.param))


@pytest.mark.parametrize(("policy", "eviction"), COMBINATIONS)
def test_decisions_are_the_same(policy: str, eviction: str, remembering: Remembering) -> None:
    inputs = remembering.backend.inputs
    assert decisions(policy, eviction, remembering, inputs) == expected(policy, eviction)
    before = compiles()
    decisions(policy, eviction, remembering, inputs)
    assert compiles() == before, "a graph that runs again compiles nothing"
