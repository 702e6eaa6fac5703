import builtins
import json

import pytest
from typer import Typer
from typer.testing import CliRunner

from graphcache.cli.simulate import commands
from graphcache.errors import ConfigError


@pytest.fixture
def run():
    app = Typer()
    commands(app)
    app.command("other")(lambda: None)

    def run(*arguments):
        result = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return run


SMALL = ("azure-code", "--limit", "60", "--load", "0.3", "--ladder", "128:16384")


def test_a_table_per_budget_has_every_policy_and_the_floors(run):
    output = run(*SMALL, "--budget", "2,4", "--policy", "static-mask", "--policy", "dynamic-dual")
    assert "60 requests (0 longer left out)" in output
    for title in ("Budget 2", "Budget 4", "Regret by budget"):
        assert title in output
    for name in ("static-mask", "dynamic-dual", "unbounded", "optimum"):
        assert output.count(name) >= 2, name


def test_json_is_the_reports(run):
    told = json.loads(run(*SMALL, "--policy", "static-mask", "--eviction", "lru,lfu", "--json"))
    assert [row["policy"] for row in told["runs"]] == ["static-mask+lru", "static-mask+lfu"]
    assert told["runs"][0]["budget"] == {"graphs": 8, "bytes": None}
    assert told["trace"] == "azure-code"
    assert told["optimum"][0]["exact"]


def test_a_file_of_schedules_and_a_plot_are_written(run, tmp_path):
    run(*SMALL, "--budget", "4", "--emit", str(tmp_path / "s.json"), "--plot", str(tmp_path / "p.png"))
    assert "optimum" in json.loads((tmp_path / "s.json").read_text())["results"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_is_drawn_over_the_budgets(run, tmp_path):
    run(*SMALL, "--budget", "2,4", "--plot", str(tmp_path / "p.svg"))
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_the_background_changes_what_is_waited_for(run):
    in_line, beside = (
        json.loads(run(*SMALL, "--budget", "4", "--policy", "dynamic-dual", "--json", *flags))
        for flags in ((), ("--background", "--background-share", "0.5"))
    )
    assert (in_line["compile"], beside["compile"]) == ("inline", "background")
    assert beside["runs"][0]["stall_seconds"] < in_line["runs"][0]["stall_seconds"]
    assert beside["runs"][0]["charged_seconds"] == pytest.approx(30 * beside["runs"][0]["compiles"])


def test_policies_can_learn_from_the_first_share(run):
    whole, rest = (
        json.loads(run(*SMALL, "--policy", "adaptive", "--json", *flags))
        for flags in ((), ("--history", "0.25"))
    )
    assert rest["steps"] == whole["steps"] - round(0.25 * whole["steps"])


def test_a_policy_that_splits_is_told(run):
    assert "static-causal splits batches" in run(*SMALL, "--policy", "static-causal", "--max-num-seqs", "4")


def test_compile_seconds_replace_the_profiles(run):
    told = json.loads(run(*SMALL, "--compile-seconds", "2", "--policy", "static-mask", "--json"))
    assert told["runs"][0]["stall_seconds"] == pytest.approx(2 * told["runs"][0]["compiles"])


def test_several_budgets_are_refused_before_the_work_where_schedules_are_emitted(run, tmp_path):
    with pytest.raises(ConfigError, match="2,4"):
        run(*SMALL, "--budget", "2,4", "--emit", str(tmp_path / "s.json"))
    assert not (tmp_path / "s.json").exists()


def test_a_plot_without_matplotlib_names_the_extra(run, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"vllm-graphcache\[plot\]"):
        run(*SMALL, "--policy", "static-mask", "--plot", str(tmp_path / "p.png"))


def test_a_picture_of_an_unknown_kind_is_told(run, tmp_path):
    with pytest.raises(ConfigError, match=r"p\.xyz can't be written"):
        run(*SMALL, "--policy", "static-mask", "--plot", str(tmp_path / "p.xyz"))


def test_a_file_that_can_not_be_written_is_told(run, tmp_path):
    with pytest.raises(ConfigError, match=r"s\.json: can't be written"):
        run(*SMALL, "--policy", "static-mask", "--emit", str(tmp_path / "none" / "s.json"))


def test_a_budget_of_bytes_needs_a_profile_that_knows_them(run):
    with pytest.raises(ConfigError, match=r"2\.0GiB.*how many bytes"):
        run(*SMALL, "--policy", "static-mask", "--budget", "2GiB")


@pytest.mark.parametrize("seed", ["-1", "x"])
def test_a_seed_is_zero_or_more(seed):
    app = Typer()
    commands(app)
    for command in ("simulate", "advise", "ladder"):
        result = CliRunner().invoke(app, [command, *SMALL, "--seed", seed])
        assert result.exit_code == 2, result.output
        assert "--seed" in result.output
