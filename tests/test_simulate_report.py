import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.costs import CostTable, PaddedWork
from graphcache.errors import ConfigError, UnknownNameError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.names import POLICIES
from graphcache.policy.protocol import Budget
from graphcache.simulate import Candidate, Scenario, candidates, emit, load_costs, load_steps, simulate
from graphcache.trace import Limits, generate

LADDER = Ladder((128, 1024, 8192))
COSTS = load_costs("tenstorrent-qwen3-embedding-4b", 20.0)
PACKING = [Candidate("static-mask"), Candidate("dynamic-dual")]


def scenario(name="azure-conv", requests=300, *, load=0.5, **options):
    steps = load_steps(generate(name, requests, seed=11), LADDER, COSTS, load=load)
    return Scenario(steps, LADDER, COSTS, **options)


def add_up(document, result):
    """Add a schedule up from the emitted file alone, and hold it to the rules."""
    keys, seconds = document["keys"], document["run_seconds"]
    resident, run, compiles, paid = set(), 0.0, 0, 0.0
    for kind, (served, compiled, dropped) in zip(document["batches"], result["schedule"], strict=True):
        assert resident.issuperset(dropped)
        resident.difference_update(dropped)
        assert resident.isdisjoint(compiled)
        resident.update(compiled)
        assert len(resident) <= (document["budget"]["graphs"] or len(keys))
        assert sum(keys[key]["bytes"] for key in resident) <= (document["budget"]["bytes"] or float("inf"))
        for key, launched in served if isinstance(served, list) else [[served, kind]]:
            assert key in resident
            assert keys[key]["rows"] >= document["types"][launched]["rows"]
            run += seconds[launched][key]  # None, where the key can't serve: adding it fails
        compiles += len(compiled)
        paid += sum(keys[key]["compile_seconds"] for key in compiled)
    return run, compiles, paid


@pytest.mark.parametrize("name", ["azure-code", "azure-conv", "servegen-r1"])
@given(graphs=st.integers(1, 6), eviction=st.sampled_from(["lru", "lfu"]))
def test_emitted_schedules_add_up_to_the_emitted_costs(name, graphs, eviction):
    tried = [Candidate(candidate.policy, eviction) for candidate in PACKING]
    report = simulate(scenario(name, 60), tried, [Budget(graphs)])
    document = json.loads(json.dumps(emit(report), allow_nan=False))
    assert set(document["results"]) == {"optimum", "static-mask", "dynamic-dual"}
    for result in document["results"].values():
        run, compiles, paid = add_up(document, result)
        assert run == pytest.approx(result["run_seconds"])
        assert compiles == result["compiles"]
        assert paid == pytest.approx(result["stall_seconds"])
        assert result["cost_seconds"] == pytest.approx(run + paid)
        assert result["cost_seconds"] >= document["results"]["optimum"]["cost_seconds"] - 1e-6


def test_in_the_background_waiting_comes_on_top_of_what_is_charged():
    tried = candidates(["static-mask", "dynamic-dual"], on_miss="fallback")
    report = simulate(scenario(background=True, background_share=0.3), tried, [Budget(3)])
    document = emit(report)
    for result in document["results"].values():
        run, compiles, charged = add_up(document, result)
        assert compiles == result["compiles"]
        assert charged == pytest.approx(result["charged_seconds"])
        assert result["cost_seconds"] == pytest.approx(run + charged + result["stall_seconds"])
    assert document["results"]["optimum"]["exact"] is False
    assert document["compile"] == "background"


def test_what_is_emitted_is_what_was_asked_for():
    document = emit(simulate(scenario(), PACKING, [Budget(4)]))
    assert document["keys"][0] == {
        "rows": 1,
        "seq_len": 128,
        "mode": "custom",
        "compile_seconds": 20.0,
        "bytes": 0,
    }
    assert {(row["seq_len"], row["single"]) for row in document["types"]} <= {
        (seq_len, single) for seq_len in LADDER for single in (True, False)
    }
    for kind, row in zip(document["types"], document["run_seconds"], strict=True):
        for key, seconds in zip(document["keys"], row, strict=True):
            serves = key["seq_len"] >= kind["seq_len"] and (kind["single"] or key["mode"] == "custom")
            graph = GraphKey(1, key["seq_len"], mode=key["mode"])
            assert seconds == (COSTS.run_seconds(graph) if serves else None)
    assert len(document["batches"]) == document["steps"]
    assert document["budget"] == {"graphs": 4, "bytes": None}


@pytest.mark.parametrize("budget", [3, 8])
@pytest.mark.parametrize("source", ["azure-code", "vtc-arena"])
def test_the_cost_of_every_policy_can_be_added_up_again(source, budget, tmp_path):
    splitting = tmp_path / "splitting.yaml"
    splitting.write_text("policy: {name: adaptive, options: {layouts: [packed, split, rows]}}")
    tried = [*candidates(), Candidate(str(splitting))]
    document = json.loads(json.dumps(emit(simulate(scenario(source), tried, [Budget(budget)]))))
    assert document["results"].keys() == {"optimum", *POLICIES, "splitting"}
    for result in document["results"].values():
        run, compiles, paid = add_up(document, result)
        assert (run, paid) == pytest.approx((result["run_seconds"], result["stall_seconds"]))
        assert result["cost_seconds"] == pytest.approx(run + paid)
        assert compiles == result["compiles"]
    split = {
        policy
        for policy, result in document["results"].items()
        if any(isinstance(served, list) for served, _, _ in result["schedule"])
    }
    assert {"static-causal", "rows-causal"} <= split <= {"static-causal", "rows-causal", "splitting"}


def test_several_budgets_are_swept_and_can_not_be_emitted():
    budgets = [Budget(2), Budget(4), Budget()]
    report = simulate(scenario(), PACKING, budgets)
    assert [(run.budget, run.policy) for run in report.runs] == [
        (budget, policy) for budget in budgets for policy in ("static-mask", "dynamic-dual")
    ]
    assert list(report.optima) == budgets
    with pytest.raises(ConfigError, match=r"budgets: .*2.*4.*all"):
        emit(report)


def test_more_room_never_makes_the_optimum_dearer():
    report = simulate(scenario("azure-code"), [], [Budget(graphs) for graphs in range(1, 7)])
    costs = [solution.cost.seconds for solution in report.optima.values()]
    assert costs == sorted(costs, reverse=True)


def test_the_floors_are_in_every_report():
    report = simulate(scenario(), PACKING, [Budget(3)])
    told = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert told["unbounded"]["compiles"] == len({key for keys in report.unbounded.served for key in keys})
    assert told["unbounded"]["budget"] == {"graphs": None, "bytes": None}
    (optimum,) = told["optimum"]
    assert optimum["exact"] is True
    assert optimum["lower_bound_seconds"] == pytest.approx(optimum["cost_seconds"])
    for run in told["runs"]:
        assert run["regret"] == pytest.approx(run["cost_seconds"] / optimum["cost_seconds"] - 1)
        assert run["regret"] >= -1e-9


def test_figures_are_those_of_the_steps():
    report = simulate(scenario(), PACKING, [Budget(3)])
    run, told = report.runs[1], report.to_json()["runs"][1]
    steps = sorted(run.run_seconds + run.stall_seconds)
    assert told["max_step_seconds"] == steps[-1]
    assert told["p50_step_seconds"] == pytest.approx(steps[len(steps) // 2], rel=0.1)
    assert told["p50_step_seconds"] <= told["p99_step_seconds"] <= told["max_step_seconds"]
    assert told["hits"] + told["fallbacks"] + told["compiles"] == len(steps)
    assert told["evictions"] == sum(len(change.dropped) for change in run.changes)
    assert told["cost_seconds"] == pytest.approx(sum(steps))


def test_with_a_history_policies_start_from_what_they_saved():
    """Adaptive knows from the first half what is worth a compile; fixed rules have nothing to learn."""
    before, after = scenario("azure-conv", 600).after(0.5)
    tried = candidates(["adaptive", "static-mask"])
    cold = simulate(after, tried, [Budget(3)])
    warm = simulate(after, tried, [Budget(3)], history=before)
    assert len(before.steps) + len(after.steps) == len(scenario("azure-conv", 600).steps)
    assert warm.runs[0].served != cold.runs[0].served
    assert warm.runs[0].cost_seconds <= cold.runs[0].cost_seconds
    assert warm.runs[1].served == cold.runs[1].served
    assert warm.optima[Budget(3)].cost == cold.optima[Budget(3)].cost


@pytest.mark.parametrize("share", [0, 1, -0.5, 2])
def test_a_history_that_is_no_share_is_refused(share):
    with pytest.raises(ConfigError, match="history"):
        scenario(requests=20).after(share)


def test_evictions_are_told_apart_where_there_are_several():
    tried = candidates(["static-mask", "dynamic-dual"], ["lru", "lfu"])
    report = simulate(scenario(requests=20), [*tried, Candidate("static-causal")], [Budget(2)])
    assert [run.policy for run in report.runs] == [
        "static-mask+lru",
        "static-mask+lfu",
        "dynamic-dual+lru",
        "dynamic-dual+lfu",
        "static-causal",
    ]


def test_all_policies_are_tried_by_default():
    assert {candidate.policy for candidate in candidates()} == set(POLICIES)
    assert {candidate.eviction for candidate in candidates()} == {"lru"}


def test_a_policy_that_takes_no_eviction_is_tried_once():
    tried = candidates(["adaptive", "static-mask"], ["lru", "lfu"])
    assert [(candidate.policy, candidate.eviction) for candidate in tried] == [
        ("adaptive", "lru"),
        ("static-mask", "lru"),
        ("static-mask", "lfu"),
    ]


def test_a_configuration_of_ones_own_is_tried_as_it_is(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "policy: {name: static-causal, options: {several: refuse}}\neviction: lfu\nbudget: {graphs: 1}\n"
    )
    tried = candidates([str(tmp_path / "mine.yaml"), "static-mask"], ["lru", "lfu"])
    assert len(tried) == 3
    policy = tried[0].build(scenario(requests=5))
    assert (policy.several, type(policy.eviction).__name__) == ("refuse", "Lfu")
    steps = load_steps(generate("azure-conv", 40), LADDER, COSTS, limits=Limits(1), load=0.5)
    report = simulate(Scenario(steps, LADDER, COSTS), tried, [Budget(3)])
    assert [run.policy for run in report.runs] == ["mine", "static-mask+lru", "static-mask+lfu"]


@pytest.mark.parametrize("background", [False, True])
def test_parts_are_told_what_they_ask_for(background):
    some = scenario(requests=5, background=background)
    assert Candidate("adaptive").build(some).background is background
    assert Candidate("static-mask", "saved-seconds").build(some).eviction.costs is COSTS


def test_unknown_names_show_the_known_ones():
    with pytest.raises(UnknownNameError, match="dynamic-dual"):
        candidates(["dynamic"])
    with pytest.raises(UnknownNameError, match="lfu"):
        simulate(scenario(requests=5), candidates(["static-mask"], ["fifo"]), [Budget(2)])


def test_a_file_that_is_called_as_a_policy_is_told_by_its_path(tmp_path):
    path = tmp_path / "static-mask.yaml"
    path.write_text("policy: static-causal")
    report = simulate(scenario(requests=20), [Candidate("static-mask"), Candidate(str(path))], [Budget(2)])
    assert [run.policy for run in report.runs] == ["static-mask", str(path)]


class LargeCausal(PaddedWork):
    """Causal graphs of 3 bytes, all others of 1."""

    def nbytes(self, key):
        return 3 if key.mode is MaskMode.CAUSAL else 1


def test_a_policy_that_does_not_fit_is_told_and_the_others_are_compared():
    steps = scenario().steps
    tried = candidates(["static-causal", "static-mask"])
    report = simulate(Scenario(steps, LADDER, LargeCausal()), tried, [Budget(4, 2), Budget(4, 6)])
    assert [(run.policy, run.budget.bytes) for run in report.runs] == [
        ("static-mask", 2),
        ("static-causal", 6),
        ("static-mask", 6),
    ]
    ((policy, budget, reason),) = report.unfit
    assert (policy, budget) == ("static-causal", Budget(4, 2))
    assert "3" in reason
    assert json.loads(json.dumps(report.to_json()))["unfit"] == [
        {"policy": "static-causal", "budget": {"graphs": 4, "bytes": 2}, "reason": reason}
    ]


def test_a_size_that_no_policy_can_keep_to_is_refused():
    large = CostTable({}, nominal=PaddedWork(nbytes=2048))
    with pytest.raises(ConfigError, match=r"budget: '1.0KiB' is not allowed; allowed: at least 2048B, for a"):
        simulate(Scenario(scenario().steps, LADDER, large), PACKING, [Budget(bytes=1024)])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("a/mine.yaml", "b/mine.yaml"), ("a/mine.yaml", "b/mine.yaml")),
        (("a/mine.yaml", "b/yours.yaml"), ("mine", "yours")),
        (("a/static-mask.yaml", "static-mask"), ("a/static-mask.yaml", "static-mask")),
    ],
)
def test_policies_are_told_apart_by_name(tmp_path, monkeypatch, given, told):
    monkeypatch.chdir(tmp_path)
    for path in map(Path, given):
        path.parent.mkdir(exist_ok=True)
        if path.suffix:
            path.write_text("policy: static-mask")
    report = simulate(scenario(requests=20), candidates(given), [Budget(2)])
    assert tuple(run.policy for run in report.runs) == told
