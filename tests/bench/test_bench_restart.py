import json

import pytest
import torch
from fakes import FakeBackend

from graphcache.bench import graphs, restart
from graphcache.bench.concurrent import SMALL, graph_keys
from graphcache.bench.restart import measure
from graphcache.bench.sample import MODEL, SampleProgram
from graphcache.errors import GraphCacheError

KEYS = graph_keys(4, MODEL)
FIELDS = [
    "graphs",
    "ours_first_seconds",
    "ours_seconds",
    "torch_compile_first_seconds",
    "torch_compile_seconds",
    "vllm_seconds",
    "vllm_reason",
]


def test_our_graphs_are_ready_one_after_the_other(tmp_path, monkeypatch):
    backend = FakeBackend()
    monkeypatch.setattr(restart, "SampleGraphs", lambda program, opened: _Graphs(backend, opened))
    store = str(tmp_path / "store")
    program = SampleProgram(SMALL)
    for _ in ("cold", "warm"):
        ready = list(restart._ours(program, KEYS, store))
        assert len(ready) == 4
        assert ready == sorted(ready)
    assert set(backend.compiles.values()) == {1}
    assert sum(backend.loaded.values()) == 8


class _Graphs:
    def __init__(self, backend, opened):
        self._supplier = graphs.InlineSupplier(backend, opened.store)

    def __getitem__(self, key):
        return self._supplier.fetch(key).graph


def test_a_call_of_torch_compile_is_ready_less_what_a_call_takes(monkeypatch):
    taken = iter([5.0, 1.0, 3.0, 1.0, 1.5, 1.0, 9.0, 2.0])
    monkeypatch.setattr(restart, "timed", lambda work: next(taken))
    monkeypatch.setattr(torch, "compile", lambda module, dynamic: module)
    ready = list(restart._torch_compile(SampleProgram(SMALL), KEYS, ""))
    assert ready == [4.0, 6.0, 6.5, 13.5]


@pytest.fixture
def no_children(monkeypatch):
    """Answer for the processes; ``jobs`` are what they were given."""
    jobs = []

    def run_all(module, given, variables):
        jobs.append((module, *given))
        if module == "graphcache.vllm.measure":
            return [{"seconds": 7.0, "compiles": 0}]
        return [[0.5, float(len(jobs))]]

    monkeypatch.setattr(restart, "run_all", run_all)
    monkeypatch.setattr(restart, "find_spec", lambda name: name)
    return jobs


def test_everything_compiles_first_and_is_measured_in_a_fresh_process(no_children):
    assert measure(2) == {
        "graphs": 2,
        "ours_first_seconds": 0.5,
        "ours_seconds": 2.0,
        "torch_compile_first_seconds": 0.5,
        "torch_compile_seconds": 4.0,
        "vllm_seconds": 7.0,
        "vllm_reason": "",
    }
    assert [job[1].get("contender") for job in no_children] == ["ours"] * 2 + ["torch_compile"] * 2 + [
        None
    ] * 2


def test_why_vllm_is_not_measured_is_told(no_children, monkeypatch, run):
    found = measure(2, with_vllm=False)
    assert list(found) == FIELDS
    assert (found["vllm_seconds"], "was not asked" in found["vllm_reason"]) == (None, True)
    assert "was not asked" in run("bench", "restart", "--graphs", 2, "--no-with-vllm").out


@pytest.mark.parametrize(
    ("compiles", "seconds", "reason"),
    [(0, 7.0, ""), (1, 7.0, "it compiled again"), (None, None, "it ended with 1: no such model")],
)
def test_what_vllm_did_is_told(no_children, monkeypatch, compiles, seconds, reason):
    def run_all(module, given, variables):
        if compiles is None:
            raise GraphCacheError("it ended with 1: no such model")
        return [{"seconds": 7.0, "compiles": compiles}]

    monkeypatch.setattr(restart, "run_all", run_all)
    found = restart._vllm(restart.Path("/nowhere"))
    assert found["vllm_seconds"] == seconds
    assert reason in found["vllm_reason"]


def test_the_command_prints_a_table_or_json(no_children, run):
    assert "torch compile" in run("bench", "restart").out
    assert json.loads(run("bench", "restart", "--json").out)["graphs"] == 16


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_restart_of_real_processes(tmp_path):
    found = measure(2, small=True, with_vllm=False, directory=tmp_path)
    assert list(found) == FIELDS
    assert 0 < found["ours_first_seconds"] <= found["ours_seconds"]
    assert 0 < found["torch_compile_first_seconds"] <= found["torch_compile_seconds"]
