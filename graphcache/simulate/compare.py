"""Policies through one scenario, one after the other, and the floors below them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graphcache.config import load_config
from graphcache.config.build import build_policy
from graphcache.errors import BudgetError, ConfigError
from graphcache.miss import OnMiss
from graphcache.names import EVICTIONS, POLICIES
from graphcache.optimum import bound
from graphcache.policy.protocol import Budget, Policy
from graphcache.simulate.options import format_budget
from graphcache.simulate.report import Report, Unfit
from graphcache.simulate.run import Run, drive
from graphcache.simulate.scenario import Scenario

Progress = Callable[[str, int, int], None]
"""Is told what is being done, and how much of how much of it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy to simulate, by its name and its eviction's, and what a miss does.

    ``policy`` can be a configuration's YAML file instead: then its policy, eviction and their options are
    taken, and nothing else of it.
    """

    policy: str
    eviction: str = "lru"
    on_miss: OnMiss = OnMiss.COMPILE

    @property
    def is_file(self) -> bool:
        """Whether ``policy`` is the path of a configuration."""
        return Path(self.policy).suffix in (".yaml", ".yml")

    @property
    def short_name(self) -> str:
        """The policy's name, or its file's without folder and suffix."""
        return Path(self.policy).stem if self.is_file else self.policy

    @property
    def takes_eviction(self) -> bool:
        """Whether ``eviction`` matters."""
        return not self.is_file and "eviction" in inspect.signature(POLICIES.find(self.policy)).parameters

    def build(self, scenario: Scenario) -> Policy:
        """Build the policy for a scenario's ladder.

        Raises:
            UnknownNameError: no table holds one of the names.
            ConfigError: a file that is no configuration.
        """
        if self.is_file:
            return build_policy(load_config(Path(self.policy)), scenario.ladders)
        fallback = self.on_miss is OnMiss.FALLBACK
        eviction = _made(EVICTIONS.find(self.eviction), costs=scenario.costs, fallback=fallback)
        policy: Policy = _made(
            POLICIES.find(self.policy),
            scenario.ladders,
            eviction,
            background=scenario.background,
            fallback=fallback,
        )
        return policy

    def run(
        self,
        scenario: Scenario,
        budget: Budget,
        name: str = "",
        progress: Callable[[int, int], None] = lambda done, total: None,
        saved_state: Any = None,
    ) -> Run:
        """Drive the policy through a scenario.

        Raises:
            ConfigError: it can't serve a batch.
            BudgetError: a graph that is needed does not fit.
        """
        total = len(scenario.steps)
        return drive(
            scenario,
            self.build(scenario),
            budget,
            name=name or self.policy,
            on_miss=self.on_miss,
            saved_state=saved_state,
            progress=lambda done: progress(done, total),
        )


def _made(make: Callable[..., Any], *arguments: Any, **offered: Any) -> Any:
    """Call with those of the offered options that are taken."""
    taken = inspect.signature(make).parameters
    return make(*arguments, **{name: value for name, value in offered.items() if name in taken})


def candidates(
    policies: Sequence[str] = (), evictions: Sequence[str] = (), on_miss: OnMiss | str = OnMiss.COMPILE
) -> list[Candidate]:
    """Pair policies with evictions, all policies and ``lru`` by default; one that takes none is there once.

    Raises:
        UnknownNameError: no table holds a policy's name.
    """
    paired: list[Candidate] = []
    evictions = evictions or ("lru",)
    for policy in policies or tuple(POLICIES):
        each = [Candidate(policy, name, OnMiss(on_miss)) for name in evictions]
        paired += each if each[0].takes_eviction else each[:1]
    return paired


def simulate(
    scenario: Scenario,
    candidates: Sequence[Candidate],
    budgets: Sequence[Budget],
    progress: Progress = lambda what, done, total: None,
    *,
    history: Scenario | None = None,
) -> Report:
    """Run every candidate at every budget, and find the floors.

    With a ``history``, each policy runs over that first, and starts with the state that it saved there,
    as a server does that is started again: it knows the traffic, and has no graph.

    Raises:
        ConfigError: a policy that can't serve a batch, or a budget of bytes that `check_bytes` refuses.
    """
    check_bytes(scenario, budgets)
    runs, unfit = [], []
    for budget in budgets:
        for candidate, label in _labelled(candidates):
            told = partial(progress, f"{label} at {format_budget(budget)}")
            try:
                saved = candidate.run(history, budget, label, told).saved_state if history else None
                runs.append(candidate.run(scenario, budget, label, told, saved))
            except BudgetError as error:
                unfit.append(Unfit(label, budget, str(error)))
    told = partial(progress, "unbounded")
    unbounded = Candidate("dynamic-dual").run(scenario, Budget(), "unbounded", told)
    optima = {}
    for index, budget in enumerate(budgets):
        progress(f"optimum at {format_budget(budget)}", index, len(budgets))
        optima[budget] = bound(scenario.problem(budget))
    return Report(scenario, unbounded, runs, optima, unfit)


def check_bytes(scenario: Scenario, budgets: Sequence[Budget]) -> None:
    """Refuse budgets of bytes where no graph is known to hold any, or that have no room for a needed one.

    Raises:
        ConfigError: the profile says of no graph how many bytes it holds, or a packed batch is served by
            larger graphs only.
    """
    problem = scenario.problem(Budget())
    serving = np.isfinite(problem.run_seconds[np.unique(problem.batches)])
    least = int(np.where(serving, problem.nbytes, problem.nbytes.max()).min(axis=1).max())
    for budget in budgets:
        if budget.bytes is None:
            continue
        if not problem.nbytes.any():
            allowed = "graphs only, for the profile says of no graph how many bytes it holds"
            raise ConfigError.of("budget", format_budget(budget), allowed)
        if budget.bytes < least:
            allowed = f"at least {least}B, for a batch of this trace needs a graph of that size"
            raise ConfigError.of("budget", format_budget(budget), allowed)


def _labelled(candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, str]]:
    """Name each candidate by its policy, and by its eviction too where that is needed to tell them apart.

    A file goes by its name without folder and suffix where no other policy is called that.
    """
    policies = [candidate.policy for candidate in candidates]
    short = {candidate.policy: candidate.short_name for candidate in candidates}
    for candidate in candidates:
        name = candidate.short_name
        if list(short.values()).count(name) > 1:
            name = candidate.policy
        alone = policies.count(candidate.policy) == 1
        yield candidate, name if alone else f"{name}+{candidate.eviction}"
