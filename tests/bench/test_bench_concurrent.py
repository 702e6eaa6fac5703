import json

import pytest

from graphcache.bench import concurrent
from graphcache.bench.children import run_all
from graphcache.bench.concurrent import graph_keys, measure
from graphcache.errors import GraphCacheError


def test_the_graphs_are_lengths_in_two_modes():
    assert list(map(str, graph_keys(5, "attention"))) == [
        "attention/causal/1x16",
        "attention/custom/1x16",
        "attention/causal/1x32",
        "attention/custom/1x32",
        "attention/causal/1x64",
    ]
    assert len(set(graph_keys(16, "prefill"))) == 16


def test_processes_compile_each_graph_once_between_them():
    counted = {"compiles": 1, "loads": 1, "faults": {}}
    assert measure(processes=2, graphs=1) == {"processes": 2, "graphs": 1, **counted}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_eight_processes_compile_sixteen_graphs_once_between_them():
    counted = {"compiles": 16, "loads": 112, "faults": {}}
    assert measure() == {"processes": 8, "graphs": 16, **counted}


@pytest.mark.parametrize(("compiles", "code"), [(16, 0), (17, 1)])
def test_more_compiles_than_graphs_are_a_failed_check(run, monkeypatch, compiles, code):
    found = {"processes": 8, "graphs": 16, "compiles": compiles, "loads": 128 - compiles, "faults": {}}
    monkeypatch.setattr(concurrent, "measure", lambda processes, graphs: found)
    ran = run("bench", "concurrent", "--json")
    assert (ran.code, json.loads(ran.out)) == (code, found)
    assert f"{compiles} compiles" in run("bench", "concurrent").out


def test_a_child_s_last_words_are_told():
    with pytest.raises(GraphCacheError, match=r"test_no_such_module ended with 1: .*No module named"):
        run_all("test_no_such_module", [{}], {})


def test_children_see_the_variables_and_their_jobs(tmp_path):
    (tmp_path / "echo_job.py").write_text(
        "import json, os, sys\nprint('noise')\nprint(json.dumps([sys.argv[1], os.environ['WORD']]))\n"
    )
    told = run_all("echo_job", [{"n": 1}, {"n": 2}], {"WORD": "a b", "PYTHONPATH": str(tmp_path)})
    assert told == [['{"n": 1}', "a b"], ['{"n": 2}', "a b"]]
