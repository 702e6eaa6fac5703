"""What one step can need at once, against a budget."""

from __future__ import annotations

import pytest

from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.errors import ConfigError
from graphcache.key import MaskMode
from graphcache.ladder import Ladder
from graphcache.needs import check_bytes, check_graphs, families
from graphcache.policy.adaptive import Adaptive
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.generation import Generation
from graphcache.policy.protocol import Budget, Ladders
from graphcache.policy.rows_causal import RowsCausal
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask
from tests.fakes import FakeBackend

LADDERS = Ladders(Ladder.pow2(16, 64), Ladder.pow2(1, 2), Ladder.pow2(32, 64))
POLICIES = [StaticMask, StaticCausal, DynamicDual, RowsCausal, Adaptive]


def needed(policy, max_num_seqs, generates):
    prompts = policy(LADDERS)
    rule = Generation(prompts, LADDERS) if generates else prompts
    return [str(family) for family in families(rule, max_num_seqs, generates=generates)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_that_does_not_generate_needs_one_graph(policy):
    assert len(needed(policy, 8, generates=False)) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_that_generates_needs_one_of_each_kind_that_a_step_can_hold(policy):
    assert [len(needed(policy, most, generates=True)) for most in (1, 2, 3, 8)] == [1, 2, 3, 3]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_encoder_needs_one_graph_though_full_rows_have_another_mode(policy):
    rule = policy(Ladders(Ladder.pow2(1, 64), Ladder.pow2(1, 2)), encoder_only=True)
    for most in (1, 8):
        (family,) = families(rule, most, generates=False)
        assert family.mode in (MaskMode.CUSTOM, MaskMode.PADDED)


def test_the_kinds_are_named():
    assert needed(StaticMask, 8, generates=True) == ["decode/prefix", "prefill/custom", "prefill/prefix"]


def test_a_budget_of_graphs_for_less_than_a_step_is_an_error():
    kinds = families(Generation(StaticMask(LADDERS), LADDERS), 8, generates=True)
    for graphs in (None, 3, 4):
        check_graphs(kinds, graphs, "max_num_seqs 8")
    with pytest.raises(ConfigError) as raised:
        check_graphs(kinds, 2, "max_num_seqs 8")
    assert str(raised.value) == (
        "budget.graphs 2 is too small for max_num_seqs 8: one step can need 3 graphs at once"
        " (decode/prefix, prefill/custom, prefill/prefix); set budget.graphs to 3 or more"
    )


def check_warm(nbytes, budget):
    policy = Generation(StaticMask(LADDERS), LADDERS)
    backend = FakeBackend(nbytes=lambda key: nbytes)
    with GraphCache(policy, InlineSupplier(backend), budget=Budget(bytes=budget)) as cache:
        cache.warm()
        check_bytes(families(policy, 8, generates=True), cache.view, "max_num_seqs 8")


@pytest.mark.parametrize("budget", [None, 3072])
def test_room_for_one_graph_of_each_kind_is_enough(budget):
    check_warm(1024, budget)


def test_a_budget_of_bytes_for_less_than_a_step_is_an_error_once_sizes_are_known():
    with pytest.raises(
        ConfigError, match=r"budget.bytes 2\.\d KiB is too small .* 3 graphs .* hold 3.0 KiB; raise"
    ):
        check_warm(1024, 2900)
