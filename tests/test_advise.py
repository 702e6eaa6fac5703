"""The advice: what is tried, how it is ranked, and that its words and its configuration are true."""

from __future__ import annotations

from itertools import product

import pytest

from graphcache.advise import advise, plot
from graphcache.config.build import check_config
from graphcache.costs import PaddedWork
from graphcache.errors import ConfigError
from graphcache.key import MaskMode
from graphcache.names import EVICTIONS, POLICIES
from graphcache.policy.protocol import Budget
from graphcache.simulate import Limits, load_costs, load_requests, load_steps, parse_ladder

COSTS = load_costs("tenstorrent-qwen3-embedding-4b")
LADDER = parse_ladder("128:16384")


@pytest.fixture(scope="module")
def advice():
    steps = load_steps(
        load_requests("azure-conv", limit=300), LADDER, COSTS, limits=Limits(8, 16384), load=0.3
    )
    return advise(steps, LADDER, COSTS, [Budget(4), Budget(6), Budget(12)])


def test_the_cheapest_comes_first_and_no_packed_choice_beats_its_floor(advice):
    costs = [trial.run.cost_seconds for trial in advice.trials]
    assert costs == sorted(costs)
    for trial in advice.trials:
        budget = trial.run.budget
        if trial.packs:
            assert trial.run.cost_seconds >= advice.optima[trial.choice.ladder, budget].lower_bound - 1e-6
            assert trial.regret >= -1e-9
        assert trial.graphs <= budget.graphs
    packing = {trial.choice.policy for trial in advice.trials if trial.packs}
    assert packing == {"static-mask", "dynamic-dual", "adaptive"}


def test_every_policy_and_both_ladders_are_tried(advice):
    tried = {(t.choice.policy, t.choice.eviction, t.choice.ladder, t.run.budget) for t in advice.trials}
    ladders = ("given", "learned")
    ordered = set(product(set(POLICIES) - {"adaptive"}, EVICTIONS, ladders, advice.budgets))
    assert tried == ordered | set(product(["adaptive"], [""], ladders, advice.budgets))
    assert len(advice.ladders["learned"]) <= len(LADDER)
    assert advice.ladders["learned"].top == LADDER.top


def test_the_smallest_budget_that_is_about_as_good_as_any_is_advised(advice):
    least = advice.trials[0].run.cost_seconds
    for budget in advice.budgets:
        enough = advice.at(budget)[0].run.cost_seconds <= 1.01 * least
        assert enough == (budget.graphs >= advice.budget.graphs)
    assert advice.best is advice.at(advice.budget)[0]


def test_the_words_say_the_figures(advice):
    text = advice.text()
    assert str(advice.best.choice) in text
    assert f"{advice.best.run.cost_seconds:.0f} s" in text
    assert f"dynamic-dual costs {advice.of('dynamic-dual').run.cost_seconds:.0f} s at this budget" in text
    assert "One more graph would" in text
    told = (f"{b.graphs}: {advice.at(b)[0].run.cost_seconds:.0f} s" for b in advice.budgets)
    assert f"by budget, {', '.join(told)}." in text


def test_a_second_graph_pays_where_it_saves_more_than_its_compile(advice):
    lone = advice.steps.tokens[advice.steps.sequences == 1]
    for size, seconds in advice.payback.items():
        below = size // 2 if size > LADDER.sizes[0] else 0
        count = ((lone > below) & (lone <= size)).sum()
        saves = _run(size, "custom") - _run(size, "causal")
        assert seconds == pytest.approx(count * saves - 60.0)


def _run(size, mode):
    from graphcache.key import GraphKey, MaskMode

    return COSTS.run_seconds(GraphKey(1, size, mode=MaskMode(mode)))


def test_the_configuration_can_be_used(advice, tmp_path):
    path = tmp_path / "advised.yaml"
    path.write_text(advice.to_yaml("tenstorrent-qwen3-embedding-4b"))
    assert check_config(path).prefill == advice.ladders[advice.best.choice.ladder]


def test_plain_json_holds_all_of_it(advice):
    told = advice.to_json()
    assert len(told["trials"]) == len(advice.trials)
    assert told["trials"][0]["cost_seconds"] == advice.best.run.cost_seconds
    assert told["one_more_graph"]["budget"] == {"graphs": advice.budget.graphs + 1, "bytes": None}


def test_a_budget_of_bytes_needs_costs_that_know_of_bytes(advice):
    with pytest.raises(ConfigError, match=r"budget: '2\.0GiB' is not allowed; allowed: graphs only"):
        advise(advice.steps, LADDER, COSTS, [Budget(bytes=2 << 30)])


def test_it_is_drawn(advice, tmp_path):
    plot(advice, tmp_path / "advice.svg")
    assert "packed optimum" in (tmp_path / "advice.svg").read_text()
    with pytest.raises(ConfigError, match="can't be written"):
        plot(advice, tmp_path / "advice.unknown")


class LargeCausal(PaddedWork):
    """Causal graphs of 3 bytes, all others of 1."""

    def nbytes(self, key):
        return 3 if key.mode is MaskMode.CAUSAL else 1


def test_what_does_not_fit_is_no_choice():
    steps = load_steps(load_requests("azure-conv", limit=100), LADDER, COSTS, limits=Limits(8, 16384))
    small, large = Budget(bytes=2), Budget(bytes=9)
    advice = advise(steps, LADDER, LargeCausal(), [small, large])
    tried = {budget: {t.choice.policy for t in advice.at(budget)} for budget in advice.budgets}
    assert tried == {small: {"static-mask", "adaptive"}, large: set(POLICIES)}
    assert advice.of("static-mask").run.budget == advice.budget


def test_one_that_fits_nowhere_is_told_so():
    steps = load_steps(load_requests("azure-conv", limit=100), LADDER, COSTS, limits=Limits(8, 16384))
    advice = advise(steps, LADDER, LargeCausal(), [Budget(bytes=2)])
    assert advice.of("dynamic-dual") is None
    assert "dynamic-dual does not fit this budget." in advice.text()


def test_a_size_that_no_policy_can_keep_to_is_refused():
    steps = load_steps(load_requests("azure-conv", limit=20), LADDER, COSTS, limits=Limits(8, 16384))
    with pytest.raises(ConfigError, match="budget: '1B' is not allowed; allowed: at least 2B"):
        advise(steps, LADDER, PaddedWork(nbytes=2), [Budget(bytes=1)])
