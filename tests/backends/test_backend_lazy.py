from __future__ import annotations

import pytest

from graphcache.backends.lazy import CallableBackend
from graphcache.backends.protocol import EvictUnit
from graphcache.errors import ConfigError
from graphcache.key import GraphKey

KEY = GraphKey(rows=1, seq_len=8)


def test_a_graph_is_made_once_and_dropped_once() -> None:
    made: list[GraphKey] = []
    dropped: list[GraphKey] = []
    backend = CallableBackend(lambda key: made.append(key) or len, nbytes=lambda key: 7, drop=dropped.append)
    graph = backend.load(KEY, backend.compile(KEY))
    assert (graph([1, 2]), graph.nbytes, made, dropped) == (2, 7, [KEY], [])
    graph.close()
    assert dropped == [KEY]


def test_nothing_is_freed_where_nothing_drops() -> None:
    assert CallableBackend(lambda key: len).evict_unit is EvictUnit.NEVER
    assert CallableBackend(lambda key: len, drop=print, evict_unit="generation").evict_unit == "generation"
    with pytest.raises(ConfigError, match="evict_unit"):
        CallableBackend(lambda key: len, evict_unit="entry")


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="make"):
        CallableBackend("model")  # type: ignore[arg-type]


def test_its_facts_are_those_given() -> None:
    assert CallableBackend(lambda key: len, facts=[("arch", "n300")]).fingerprint()[1:] == [("arch", "n300")]


def test_what_the_maker_says_is_raised() -> None:
    def make(key: GraphKey) -> object:
        raise RuntimeError("out of device memory")

    with pytest.raises(RuntimeError, match="device memory"):
        CallableBackend(make).compile(KEY)  # type: ignore[arg-type]
