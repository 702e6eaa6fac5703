"""What a cache is built of where several ranks must decide alike."""

from __future__ import annotations

import pytest

from graphcache.config.ranks import agreed_learner, agreed_manifest
from graphcache.costs import CostLearner, PaddedWork
from graphcache.key import GraphKey

KEY = GraphKey(1, 32)


class Ranks:
    """Two ranks of which the first one talks first."""

    size = 2

    def __init__(self, rank, first=None):
        self.rank = rank
        self.first = first
        self.told = []

    def exchange(self, told):
        self.told.append(told)
        return [told, told] if self.rank == 0 else [self.first.told[len(self.told) - 1], told]


@pytest.fixture
def ranks():
    first = Ranks(0)
    return first, Ranks(1, first)


def test_all_ranks_start_from_the_manifest_of_the_first(ranks):
    mine = {"keys": {str(KEY): {"uses": 3.0}}, "state": None}
    told = [
        agreed_manifest(manifest, group) for manifest, group in zip((mine, {"keys": {}}), ranks, strict=True)
    ]
    assert told == [mine, mine]


def test_all_ranks_learn_what_the_first_one_measured(ranks):
    learners = [CostLearner(PaddedWork()) for _ in ranks]
    agreed = [agreed_learner(*pair, PaddedWork()) for pair in zip(learners, ranks, strict=True)]
    for learner, seconds in zip(agreed, (1.0, 9.0), strict=True):
        learner.supplied(KEY, "compile", 5.0, 10)
        for _ in range(5):
            learner.observe(KEY, seconds)
    tables = [learner.snapshot() for learner in agreed]
    assert [table.run_seconds(KEY) for table in tables] == [1.0, 1.0]
    assert [table.compile_seconds(GraphKey(1, 64)) for table in tables] == [5.0, 5.0]
    assert [learner.snapshot() for learner in agreed] == tables, "an equal table is the same one again"
