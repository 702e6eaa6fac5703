"""What the adaptive policy decided in earlier processes, from the store."""

from __future__ import annotations

import json

import pytest

from graphcache.cli import main
from graphcache.decisions import decisions
from graphcache.fingerprint import digest
from graphcache.ladder import Ladder
from graphcache.policy.adaptive import Adaptive, Decision
from graphcache.policy.protocol import Ladders
from graphcache.store.disk import DiskStore
from graphcache.store.protocol import Record

SHORT, LONG = "prefill/causal/1x128", "prefill/custom/1x1024"


@pytest.fixture
def store(tmp_path):
    policy = Adaptive(Ladders(Ladder([128, 1024])))
    state = policy.start()
    state.log.append(Decision(0, LONG, (), "nothing that was resident could serve the batch"))
    state.log.append(Decision(9, SHORT, (LONG,), "by all demand it saves 40.0 s, of which 30.0 s were due"))
    with DiskStore(tmp_path / "store") as disk:
        for namespace in ("1f00", "2f00"):
            record = Record.of(namespace, SHORT, b"x", seconds=1.0, created=0.0, facts=[("backend", "eager")])
            disk.put(digest(namespace, SHORT), record, b"x")
        disk.ledger.save_manifest("1f00", "adaptive", {"keys": {}, "state": policy.save(state)})
    return tmp_path / "store"


def test_decisions_are_told_in_their_order(store):
    with DiskStore(store) as disk:
        found = decisions(disk)
        assert [(d.namespace, d.launch, d.key, d.left) for d in found] == [
            ("1f00", 0, LONG, ()),
            ("1f00", 9, SHORT, (LONG,)),
        ]
        assert decisions(disk, [SHORT]) == found[1:]
        assert decisions(disk, [LONG]) == found
        assert decisions(disk, namespace="2f") == []


def test_the_command_prints_them(store, capsys):
    with pytest.raises(SystemExit):
        main(["explain", "--decision", "--store", str(store), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told[1]["reason"] == "by all demand it saves 40.0 s, of which 30.0 s were due"
    with pytest.raises(SystemExit):
        main(["explain", "--decision", SHORT, "--store", str(store)])
    assert "40.0 s" in " ".join(capsys.readouterr().out.split())
