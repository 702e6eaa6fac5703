"""The endpoint, on a server without an engine."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from graphcache.key import GraphKey
from graphcache.stats import KeyCounters, Stats
from graphcache.vllm.endpoint import StatsEndpoint


def counted(hits, compiles):
    stats = Stats()
    stats.steps = hits + compiles
    stats.keys[GraphKey(1, 16)] = KeyCounters(hits=hits, compiles=compiles, stalls=compiles)
    return stats.snapshot()


class Engine:
    """The front end's way to its engines, each of which has workers."""

    def __init__(self, *engines):
        self.engines = engines
        self.engine_core = self

    async def call_utility_all_async(self, *call):
        assert call == ("collective_rpc", "graphcache_stats")
        if isinstance(self.engines[0], Exception):
            raise self.engines[0]
        return self.engines


@pytest.fixture
def ask():
    def client(engine):
        app = FastAPI()
        StatsEndpoint().attach_router(app)
        app.state.graphcache_engine = engine
        return TestClient(app).get("/graphcache/stats")

    return client


def test_the_endpoint_adds_up_the_workers_of_all_engines(ask):
    answer = ask(Engine([counted(1, 1), counted(0, 1)], [counted(3, 0)])).json()
    assert answer["total"]["compiles"] == 2
    assert answer["hit_ratio"] == pytest.approx(4 / 6)
    assert [rank["steps"] for rank in answer["ranks"]] == [2, 1, 3]


@pytest.mark.parametrize(
    ("engine", "words"), [(None, "no engine"), (Engine(AttributeError("x")), "no graph cache")]
)
def test_the_endpoint_says_why_it_has_no_answer(ask, engine, words):
    answer = ask(engine)
    assert answer.status_code == 503
    assert words in answer.json()["detail"]
