"""``graphcache advise`` and ``graphcache ladder``."""

import json

import pytest

from graphcache.config.build import check_config


def test_advice_is_printed_and_its_configuration_written(run, tmp_path):
    path = tmp_path / "advised.yaml"
    ran = run("advise", "vtc-arena", "--limit", 150, "--load", 0.3, "--budget", 4, "--write", path)
    assert ran.code == 0
    assert "Take " in ran.out
    assert "One more graph would" in ran.out
    check_config(path)


def test_advice_as_json(run):
    arguments = ("vtc-arena", "--limit", 150, "--load", 0.3, "--budget", "4,8", "--json")
    told = json.loads(run("advise", *arguments).out)
    assert [budget["graphs"] for budget in told["budgets"]] == [4, 8]
    assert told["budget"] in told["budgets"]
    assert told["trials"] == sorted(told["trials"], key=lambda trial: trial["cost_seconds"])


def test_a_configuration_that_can_t_be_written_is_told(run, tmp_path):
    arguments = ("vtc-arena", "--limit", 50, "--load", 0.3, "--budget", 4)
    ran = run("advise", *arguments, "--write", tmp_path / "no" / "such" / "folder.yaml")
    assert ran.code == 2
    assert "folder.yaml: can't be written: No such file or directory" in ran.err


@pytest.mark.parametrize("modes", ["pair", "both", "custom", "causal"])
def test_a_learned_ladder_beats_the_others(run, modes):
    arguments = ("azure-conv", "--limit", 300, "--load", 0.3, "--graphs", 6, "--modes", modes, "--json")
    rows = json.loads(run("ladder", *arguments).out)
    costs = {row["ladder"]: row["run_seconds"] for row in rows}
    assert costs["learned"] <= min(costs[name] for name in ("pow2", "linear", "percentile", "exponential"))
    if modes == "pair":
        sizes = {row["ladder"]: row["sizes"] for row in rows}
        assert costs["masked"] == costs["bare"] <= costs["learned"]
        assert len(sizes["masked"]) + len(sizes["bare"]) <= 6


def test_a_ladder_can_be_measured_on_what_it_was_not_learned_from(run):
    ran = run("ladder", "azure-conv", "--limit", 300, "--load", 0.3, "--graphs", 4, "--hold-out")
    assert "measured on the second" in ran.out


def test_too_few_graphs_are_refused(run):
    assert run("ladder", "azure-conv", "--limit", 50, "--load", 0.3, "--graphs", 1).code == 2
