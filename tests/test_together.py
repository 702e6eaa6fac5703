"""Graphs that a store serves together, or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import FakeBackend

from graphcache.compile.inline import InlineSupplier
from graphcache.config import load_config
from graphcache.config.build import build_cache
from graphcache.fingerprint import entry_digest
from graphcache.key import GraphKey, MaskMode
from graphcache.store.disk import DiskStore
from graphcache.store.protocol import Record
from graphcache.together import ALONE, Together, alone, by_shape

CAUSAL, CUSTOM = (GraphKey(1, 64, mode=mode) for mode in (MaskMode.CAUSAL, MaskMode.CUSTOM))
LONGER = GraphKey(1, 128)


def test_keys_of_one_shape_are_a_group():
    together = by_shape([CAUSAL, CUSTOM, LONGER])
    assert set(together(CAUSAL)) == set(together(CUSTOM)) == {CAUSAL, CUSTOM}
    assert set(together(LONGER)) == {LONGER}
    assert set(together(GraphKey(2, 64))) == {GraphKey(2, 64)}
    assert alone(CAUSAL) == (CAUSAL,)


def test_a_key_by_itself_is_no_group():
    assert ALONE.digests("ns", CAUSAL) == ()
    assert len(Together(by_shape([CAUSAL, CUSTOM])).digests("ns", CAUSAL)) == 2
    ranks = Together(namespaces=("ns", "of rank 1"))
    assert ranks.digests("ns", CAUSAL) == ranks.digests("of rank 1", CAUSAL) != ()


class Alike:
    """A group whose other rank says what this one does, but for its namespace."""

    rank, size = 0, 2

    def exchange(self, told: bytes) -> list[bytes]:
        topic, value = json.loads(told)
        return [told, json.dumps([topic, "0" * 64 if topic == "namespace" else value]).encode()]


def test_the_ranks_of_a_launch_start_with_the_same_graphs(tmp_path):
    config = load_config(
        {
            "policy": "static-mask",
            "ladder": {"kind": "explicit", "sizes": [64]},
            "store": {"path": str(tmp_path), "together": "ranks"},
            "learn_costs": False,
        }
    )
    with build_cache(config, FakeBackend(), group=Alike()) as cache:
        cache.warm()
        supplier = InlineSupplier(FakeBackend(), DiskStore(tmp_path, fsync=False))
        mine, other = supplier.shelf.namespace, "0" * 64
        assert not supplier.stored(CUSTOM), "the other rank has not put its own yet"
        theirs = Record.of(
            other, CUSTOM, b"x", group=Together(namespaces=(mine, other)).digests(other, CUSTOM)
        )
        DiskStore(tmp_path, fsync=False).put(entry_digest(other, CUSTOM), theirs, b"x")
        assert supplier.stored(CUSTOM)


def cache_of(store: Path, together: str | None = "modes"):
    config = {
        "policy": "dynamic-dual",
        "ladder": {"kind": "explicit", "sizes": [64]},
        "store": {"path": str(store), "together": [together] if together else []},
        "strict": True,
    }
    return build_cache(load_config(config), FakeBackend())


def outcomes(store: Path, **options: str | None) -> tuple[list[GraphKey], list[GraphKey]]:
    with cache_of(store, **options) as cache:
        report = cache.warm()
        return report.loaded, report.compiled


@pytest.mark.parametrize(("together", "loaded"), [("modes", []), (None, [CUSTOM])])
def test_half_a_group_is_none(tmp_path, together, loaded):
    with cache_of(tmp_path, together) as cache:
        cache.warm([CUSTOM])
    assert outcomes(tmp_path, together=together) == (
        loaded,
        [key for key in (CUSTOM, CAUSAL) if key not in loaded],
    )
    assert outcomes(tmp_path, together=together) == ([CUSTOM, CAUSAL], [])


def test_a_member_that_is_damaged_makes_the_group_a_miss_until_it_is_replaced(tmp_path):
    outcomes(tmp_path)
    with cache_of(tmp_path) as cache:
        (tmp_path / "entries" / cache.supplier.shelf.digest(CAUSAL)).unlink()
        assert not cache.supplier.stored(CUSTOM)
    assert outcomes(tmp_path) == ([], [CUSTOM, CAUSAL])
    assert outcomes(tmp_path) == ([CUSTOM, CAUSAL], [])


def test_a_process_that_is_killed_between_two_members_leaves_none(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; sys.path[:0] = sys.argv[2:];"
        "from test_together import CUSTOM, cache_of\n"
        "cache_of(Path(sys.argv[1])).warm([CUSTOM]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    tests = Path(__file__).parent
    line = [sys.executable, "-c", code, str(tmp_path / "store"), str(tests), str(tests.parent)]
    assert subprocess.run(line, env={**os.environ}, check=False).returncode == -signal.SIGKILL
    assert outcomes(tmp_path / "store") == ([], [CUSTOM, CAUSAL])
