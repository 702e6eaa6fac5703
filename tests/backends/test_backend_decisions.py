"""The same policies decide the same with every backend behind the cache."""

from __future__ import annotations

import pytest
from decisions import COMBINATIONS, Remembering, decisions, expected
from tiny_model import TinyProgram

from graphcache.backends.dynamo import DynamoBackend
from graphcache.backends.eager import EagerBackend
from graphcache.backends.inductor import InductorBackend

pytestmark = pytest.mark.timeout(1800)

MAKERS = {
    "eager": EagerBackend,
    "inductor": InductorBackend,
    "dynamo": lambda program: DynamoBackend(program, compiler="eager"),
}


@pytest.fixture(scope="module", params=["eager", "dynamo", pytest.param("inductor", marks=pytest.mark.slow)])
def remembering(request: pytest.FixtureRequest) -> Remembering:
    return Remembering(MAKERS[request.param](TinyProgram()))


@pytest.mark.parametrize(("policy", "eviction"), COMBINATIONS)
def test_decisions_are_the_same(policy: str, eviction: str, remembering: Remembering) -> None:
    program = remembering.backend.program
    trace = decisions(policy, eviction, remembering, program.inputs)
    assert trace == expected(policy, eviction)
    assert len({graphs for graphs in trace if not graphs or hasattr(graphs[0], "mode")}) > 1


def test_policies_differ() -> None:
    assert expected("static-mask", "lru") != expected("static-causal", "lru")
