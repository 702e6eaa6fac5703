"""The commands that look after a store: what they print, and how they end."""

import json
import os

import pytest

from graphcache.fingerprint import digest
from graphcache.store.disk import DiskStore
from graphcache.store.lock import CompileLocks
from graphcache.store.protocol import Record
from graphcache.torture import run as torture_run
from graphcache.torture.outcome import BROKE, HELD, Outcome

KEYS = [f"prefill/causal/1x{size}" for size in (128, 256, 512)]


@pytest.fixture
def store(tmp_path):
    with DiskStore(tmp_path / "store") as disk:
        for number, key in enumerate(KEYS):
            payload = b"x" * 1000 * (number + 1)
            facts = [("backend", "eager"), ("torch", f"2.{number}")]
            record = Record.of(
                f"{number}f00", key, payload, seconds=10.0 - number, created=number, facts=facts
            )
            disk.put(digest(record.namespace, key), record, payload)
    return tmp_path / "store"


def damage(store):
    path = next((store / "entries").iterdir())
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def test_du(store, run):
    said = json.loads(run("du", "--json").out)
    assert {name: row["nbytes"] for name, row in said["namespaces"].items()} == {
        "2f00": 3000,
        "1f00": 2000,
        "0f00": 1000,
    }
    assert "2f00" in run("du").out


def test_verify(store, run):
    assert run("verify", "--deep").code == 0
    damage(store)
    assert run("verify").code == 0, "only --deep reads payloads"
    code, out, _ = run("verify", "--deep", "--json")
    assert code == 1
    assert len(json.loads(out)) == 1
    assert len(list((store / "entries").iterdir())) == 3
    assert run("verify", "--deep", "--repair").code == 1
    assert run("verify", "--deep").code == 0
    assert len(list((store / "entries").iterdir())) == 2


def test_gc(store, run):
    code, out, _ = run("gc", "--max-bytes", "3000", "--dry-run", "--json")
    assert code == 0
    assert [row["key"] for row in json.loads(out)] == [KEYS[2]]
    assert len(list((store / "entries").iterdir())) == 3
    assert "8.00 s of compiling" in run("gc", "--max-bytes", "3000").out
    assert len(list((store / "entries").iterdir())) == 2
    assert "1 graphs left" in run("gc", "--namespace", "0f").out
    assert "1 graphs left" in run("gc", "--older-than", "1").out
    assert run("gc").code == 2
    assert run("gc", "--max-bytes", "much").code == 2


def test_explain(store, run):
    (said,) = json.loads(run("explain", KEYS[0], "--json").out)
    assert said["nearest_key"] == KEYS[2]
    assert "torch" in run("explain", "--last-misses").out
    names = [digest(f"{number}f00", key)[:12] for number, key in enumerate(KEYS)]
    out = run("explain", names[0], names[1]).out
    assert "2.0" in out
    assert "2.1" in out
    assert run("explain", "nonsense").code == 2
    assert run("explain").code == 2


def test_explain_two_hosts(store, run, tmp_path):
    for name, torch in (("one", "2.13"), ("two", "2.14")):
        facts = [["backend", "inductor"], ["torch", torch]]
        (tmp_path / name).write_text(json.dumps([{"key": KEYS[0], "facts": facts}]))
    (said,) = json.loads(run("explain", tmp_path / "one", tmp_path / "two", "--json").out)
    assert [d["label"] for d in said["differences"]] == ["torch"]
    (tmp_path / "two").write_text("[1]")
    assert run("explain", tmp_path / "one", tmp_path / "two").code == 2


def test_doctor(store, run):
    assert run("doctor").code == 0
    store.chmod(0o777)
    code, out, _ = run("doctor", "--json")
    assert code == 1
    assert {finding["check"]: finding["level"] for finding in json.loads(out)}["owner"] == "fault"


def test_export_and_import(store, run, tmp_path):
    key, bundle, other = tmp_path / "key", tmp_path / "bundle", tmp_path / "other"
    assert run("seal-key", key).code == 0
    assert run("export", bundle, "--key-file", key, "--key", KEYS[0], "--key", KEYS[1]).code == 0
    code, _, err = run("import", bundle, "--store", other)
    assert code == 2
    assert "--unsealed" in err
    assert run("import", bundle, "--store", other, "--key-file", key).code == 0
    assert len(list((other / "entries").iterdir())) == 2
    bundle.write_bytes(bundle.read_bytes()[:-1])
    assert run("import", bundle, "--store", other, "--key-file", key).code == 1
    assert run("import", bundle, "--store", other, "--unsealed", "--max-bytes", "10").code == 1
    assert run("export", tmp_path / "missing" / "bundle").code == 1


def test_every_command_works_on_a_broken_store(store, run, tmp_path):
    damage(store)
    (store / "index" / "cache.db").write_bytes(b"garbage" * 1000)
    os.truncate(store / "entries" / digest("0f00", KEYS[0]), 20)
    for line in (["du"], ["verify"], ["gc", "--max-bytes", "1GiB"], ["explain", "--last-misses"], ["doctor"]):
        assert run(*line).code in (0, 1), line
    assert run("export", tmp_path / "bundle").code == 0
    (store / "FORMAT").write_text("9\n")
    for line in (["du"], ["verify"], ["gc", "--max-bytes", "1GiB"], ["doctor"]):
        code, out, err = run(*line)
        assert code == 1
        assert "upgrade" in out + err


def test_every_command_works_on_a_store_in_use(store, run, tmp_path):
    with DiskStore(store) as server, CompileLocks(store / "locks").turn(digest("0f00", KEYS[0])):
        server.get(digest("0f00", KEYS[0]))
        for line in (
            ["du"],
            ["verify", "--deep", "--repair"],
            ["explain", "--last-misses"],
            ["doctor"],
            ["export", tmp_path / "bundle"],
            ["import", tmp_path / "bundle", "--unsealed"],
            ["gc", "--max-bytes", "3000"],
        ):
            assert run(*line).code == 0, line
        assert server.get(digest("0f00", KEYS[0]))
        assert server.get(digest("2f00", KEYS[2])) is None
        assert not server.faults


def test_a_bundle_goes_into_the_store_that_the_environment_names(store, run, tmp_path, monkeypatch):
    assert run("export", tmp_path / "bundle", "--store", store).code == 0
    monkeypatch.setenv("GRAPHCACHE_STORE", str(tmp_path / "other"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert run("import", tmp_path / "bundle", "--unsealed").code == 0
    with DiskStore(tmp_path / "other") as other:
        assert len(list(other.scan())) == len(KEYS)
    assert not (tmp_path / "home").exists()


def test_torture(run, tmp_path, monkeypatch):
    monkeypatch.setattr(torture_run, "CHECKS", {"fault": lambda root, plan: f"{plan.kills} kills"})
    monkeypatch.setattr(torture_run, "PLANTED", {})
    code, out, _ = run("torture", tmp_path / "there", "--kills", "7", "--json")
    assert code == 0
    assert json.loads(out) == [Outcome("fault", HELD, "7 kills")._asdict()]
    monkeypatch.setattr(torture_run, "run_check", lambda *_: Outcome("fault", BROKE, "wrong"))
    assert run("torture", tmp_path / "there").code == 1
