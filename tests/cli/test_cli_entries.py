"""``graphcache ls``, ``show`` and ``clear``."""

import hashlib
import io
import json

import pytest

from graphcache.fingerprint import entry_digest
from graphcache.key import GraphKey
from graphcache.store.disk import DiskStore
from graphcache.store.protocol import Record

KEYS = ("prefill/causal/1x128", "prefill/custom/1x512", "decode/prefix/8x1+2048[greedy]")
NAMESPACE, OTHER = "a" * 64, "b" * 64


def keep(store, key, namespace, payload=b"x" * 2048):
    digest = entry_digest(namespace, GraphKey.parse(key))
    sha256 = hashlib.sha256(payload).hexdigest()
    facts = (("codegen", "1"), ("torch", "2.13.0"))
    store.put(digest, Record(namespace, key, len(payload), sha256, 12.5, 0.0, facts), payload)
    return digest


@pytest.fixture
def digests(tmp_path):
    """Fill the store with three keys in one namespace, and the first in another one as well."""
    with DiskStore(tmp_path / "store") as store:
        digests = [keep(store, key, NAMESPACE) for key in KEYS]
        return [*digests, keep(store, KEYS[0], OTHER)]


@pytest.mark.usefixtures("digests")
def test_ls_tells_every_graph_and_what_they_are_worth(run):
    ran = run("ls")
    assert ran.code == 0
    assert all(key in ran.out for key in KEYS)
    assert "4 graphs, 8.0 KiB, 50.00 s of compiling" in ran.out


@pytest.mark.usefixtures("digests")
def test_ls_as_json(run):
    found = json.loads(run("ls", "--json").out)
    assert [(entry["key"], entry["namespace"]) for entry in found] == [
        (KEYS[2], NAMESPACE),
        (KEYS[0], NAMESPACE),
        (KEYS[0], OTHER),
        (KEYS[1], NAMESPACE),
    ]
    assert found[0]["facts"] == [["codegen", "1"], ["torch", "2.13.0"]]


@pytest.mark.parametrize(("text", "count"), [(KEYS[0], 2), ("b" * 8, 1), ("a" * 8, 3)])
def test_ls_of_a_key_or_a_namespace(run, digests, text, count):
    assert len(json.loads(run("ls", text, "--json").out)) == count


def test_show_tells_all_that_is_known(run, digests):
    ran = run("show", digests[1][:10])
    assert ran.code == 0
    assert ran.out.startswith("prefill/custom/1x512\n")
    values = dict(line.split(maxsplit=1) for line in ran.out.splitlines()[1:])
    assert values["digest"] == digests[1]
    assert values["namespace"] == NAMESPACE
    assert values["torch"] == "2.13.0"
    assert values["created"] == "1970-01-01 00:00:00 UTC"
    assert values["size"] == "2.0 KiB"
    assert values["sealed"] == "no"


@pytest.mark.usefixtures("digests")
def test_show_tells_a_key_in_all_its_namespaces(run):
    assert [e["namespace"] for e in json.loads(run("show", KEYS[0], "--json").out)] == [NAMESPACE, OTHER]


@pytest.mark.usefixtures("digests")
@pytest.mark.parametrize("command", ["ls", "show", "clear"])
def test_what_is_not_there_is_told(run, command):
    ran = run(command, "prefill/causal/1x999")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("graphcache: entry: 'prefill/causal/1x999' is not allowed; allowed: a key, ")


@pytest.mark.usefixtures("digests")
def test_clear_removes_what_was_asked_for(run):
    assert run("clear", KEYS[0], "--yes").out == "removed 2 graphs\n"
    assert [entry["key"] for entry in json.loads(run("ls", "--json").out)] == [KEYS[2], KEYS[1]]
    assert run("clear", "--yes").out == "removed 2 graphs\n"
    assert json.loads(run("ls", "--json").out) == []
    assert run("clear").out == "removed 0 graphs\n"


@pytest.mark.usefixtures("digests")
def test_clear_asks_first_and_takes_no_for_an_answer(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    ran = run("clear")
    assert ran.code == 1
    assert "Remove 4 graphs (50.00 s of compiling) from " in ran.out
    assert len(json.loads(run("ls", "--json").out)) == 4


@pytest.mark.usefixtures("digests")
def test_a_store_that_others_may_write_can_be_looked_at(run, tmp_path):
    (tmp_path / "store").chmod(0o777)
    assert [entry["uses"] for entry in json.loads(run("ls", "--json").out)] == [0, 0, 0, 0]


@pytest.mark.parametrize("command", ["ls", "stats", "clear"])
def test_a_store_that_is_not_there(run, command, tmp_path):
    ran = run(command)
    assert ran == (1, "", f"graphcache: '{tmp_path}/store': no such store\n")


@pytest.mark.parametrize("command", ["ls", "stats", "clear"])
def test_a_store_that_is_a_file(run, command, tmp_path):
    (tmp_path / "store").write_text("")
    ran = run(command)
    assert (ran.code, ran.out) == (1, "")
    assert str(tmp_path / "store") in ran.err
    assert "Traceback" not in ran.err
