"""What to configure for a trace: policies, evictions, ladders and budgets tried, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
import yaml

from graphcache.costs import Costs
from graphcache.errors import BudgetError
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.learned_ladder import Histogram, learn_ladder
from graphcache.names import EVICTIONS, POLICIES
from graphcache.optimum import Bound, bound
from graphcache.picture import new_figure, save_figure
from graphcache.policy.adaptive import Adaptive
from graphcache.policy.protocol import Budget, Policy
from graphcache.simulate import Candidate, Progress, Run, Scenario, check_bytes, drive, format_budget
from graphcache.trace.steps import Steps

SPLITTING = ("packed", "split")
ENOUGH = 0.01
"""A smaller budget is advised if its best choice costs at most this share more than that of any other."""


class Choice(NamedTuple):
    """One way to configure the cache: names, as a configuration has them; ``layouts`` are `Adaptive`'s."""

    policy: str
    eviction: str
    ladder: str
    layouts: tuple[str, ...] = ()

    def __str__(self) -> str:
        split = ", split" if "split" in self.layouts else ""
        order = f" + {self.eviction}" if self.eviction else ""
        return f"{self.policy}{split}{order}"


@dataclass(frozen=True, eq=False)
class Trial:
    """One choice, what it did, and its regret against the best packed schedule on its own ladder."""

    choice: Choice
    run: Run
    regret: float

    @property
    def packs(self) -> bool:
        """Whether every step ran as one row: what the optimum does too."""
        return not self.run.splits and all(key.rows == 1 for keys in self.run.served for key in keys)

    @property
    def graphs(self) -> int:
        """The most graphs that were resident at once."""
        return max(graphs for _, graphs, _ in self.run.resident)

    @property
    def nbytes(self) -> int:
        """The most bytes that were resident at once."""
        return max(nbytes for _, _, nbytes in self.run.resident)

    @property
    def p99_seconds(self) -> float:
        """What 99 steps in a hundred stay below, waiting and all."""
        return float(np.quantile(self.run.step_seconds, 0.99))


@dataclass(frozen=True, eq=False)
class Advice:
    """All trials, the cheapest first, and the best one of the budget that is advised with one more graph.

    ``optima`` are by ladder and budget; ``payback`` says, per size, the seconds that a graph without a mask
    would have saved over the trace, less its compile.
    """

    steps: Steps
    budgets: Sequence[Budget]
    ladders: Mapping[str, Ladder]
    optima: Mapping[tuple[str, Budget], Bound]
    trials: Sequence[Trial]
    one_more: Trial | None
    payback: Mapping[int, float]

    @property
    def best(self) -> Trial:
        """The cheapest trial of the smallest budget that is about as good as any."""
        return _advised(self.budgets, self.trials)

    @property
    def budget(self) -> Budget:
        """The budget that is advised."""
        return self.best.run.budget

    def at(self, budget: Budget) -> list[Trial]:
        """Return the trials of one budget, the cheapest first."""
        return [trial for trial in self.trials if trial.run.budget == budget]

    def of(self, policy: str) -> Trial | None:
        """Return a policy's cheapest trial at the budget that is advised; None if it does not fit."""
        return next((trial for trial in self.at(self.budget) if trial.choice.policy == policy), None)

    def text(self) -> str:
        """Say in plain words what to choose, and why."""
        return " ".join((*self._choice(), *self._modes(), *self._budget()))

    def _choice(self) -> Iterator[str]:
        best, packed = self.best, next((t for t in self.at(self.budget) if t.packs), None)
        yield f"Take {best.choice} on the {best.choice.ladder} ladder with a budget of"
        yield f"{format_budget(self.budget)}: {best.run.cost_seconds:.0f} s"
        yield f"for {len(self.steps)} steps, {best.run.stall_seconds.sum():.0f} s of it waiting for compiles."
        if packed is not None and best is not packed:
            yield (
                f"It does not pack the sequences of a step into one row; if your runner must, take"
                f" {packed.choice} on the {packed.choice.ladder} ladder, at {packed.run.cost_seconds:.0f} s."
            )
        yield f"No policy that packs each step can cost less than {self.floor:.0f} s here."

    @property
    def floor(self) -> float:
        """What no policy that packs each step can go below at the budget that is advised."""
        return min(found.lower_bound for (_, budget), found in self.optima.items() if budget == self.budget)

    def _modes(self) -> Iterator[str]:
        pays = sorted(size for size, seconds in self.payback.items() if seconds > 0)
        single = self.steps.single_share
        if not pays:
            yield (
                f"{single:.0%} of the steps hold one sequence: no graph without a mask would have paid for"
                " its compile, so one graph a length is enough."
            )
            return
        if pays == [size for size in sorted(self.payback) if size >= pays[0]]:
            where = f"from {pays[0]} tokens on" if len(pays) > 1 else f"at {pays[0]} tokens"
        else:
            where = f"at {', '.join(map(str, pays))} tokens"
        yield f"{single:.0%} of the steps hold one sequence: a second graph, without a mask, pays {where}."

    def _budget(self) -> Iterator[str]:
        if len(self.budgets) > 1:
            told = (f"{format_budget(budget)}: {self._least(budget)}" for budget in self.budgets)
            yield f"The best choice costs, by budget, {', '.join(told)}."
        yield self._dual()
        if self.one_more is not None:
            gain = self.best.run.cost_seconds - self.one_more.run.cost_seconds
            verb = f"save {gain:.0f} s" if gain > 0 else "save nothing"
            yield f"One more graph would {verb} ({gain / self.best.run.cost_seconds:.1%})."

    def _least(self, budget: Budget) -> str:
        trials = self.at(budget)
        return f"{trials[0].run.cost_seconds:.0f} s" if trials else "nothing fits"

    def _dual(self) -> str:
        dual = self.of("dynamic-dual")
        if dual is None:
            return "dynamic-dual does not fit this budget."
        over = dual.run.cost_seconds / self.best.run.cost_seconds - 1
        return (
            f"dynamic-dual costs {dual.run.cost_seconds:.0f} s at this budget, {over:.0%} more than the best,"
            f" with {dual.run.counters.compiles} compiles."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        more = self.one_more
        return {
            "trace": self.steps.name,
            "steps": len(self.steps),
            "single_share": self.steps.single_share,
            "budgets": [budget._asdict() for budget in self.budgets],
            "budget": self.budget._asdict(),
            "ladders": {name: list(ladder) for name, ladder in self.ladders.items()},
            "optimum": [
                {
                    "ladder": name,
                    "budget": budget._asdict(),
                    "cost_seconds": found.cost.seconds,
                    "lower_bound": found.lower_bound,
                    "exact": found.exact,
                }
                for (name, budget), found in self.optima.items()
            ],
            "trials": [_figures(trial) for trial in self.trials],
            "one_more_graph": None if more is None else _figures(more),
            "payback_seconds": {str(size): seconds for size, seconds in self.payback.items()},
            "advice": self.text(),
        }

    def to_yaml(self, profile: str | None = None) -> str:
        """Return the configuration of the best trial, with the advice as its comment."""
        choice = self.best.choice
        policy: Any = choice.policy
        if choice.layouts:
            policy = {"name": policy, "options": {"layouts": list(choice.layouts)}}
        config: dict[str, Any] = {"policy": policy}
        config["ladder"] = {"kind": "explicit", "sizes": list(self.ladders[choice.ladder])}
        budget = {name: value for name, value in self.budget._asdict().items() if value is not None}
        config |= {"budget": budget} if budget else {}
        config |= {"eviction": choice.eviction} if choice.eviction else {}
        config |= {"profile": profile} if profile else {}
        config |= {"on_miss": "compile", "store": {"max_bytes": "20GiB"}, "backend": "inductor"}
        comment = "".join(f"# {line}\n" for line in wrap(self.text(), 98))
        return comment + yaml.safe_dump(config, sort_keys=False, default_flow_style=None)


def advise(
    steps: Steps,
    ladder: Ladder,
    costs: Costs,
    budgets: Sequence[Budget],
    *,
    multiple: int = 128,
    progress: Progress = lambda what, done, total: None,
) -> Advice:
    """Try every policy, eviction and ladder on a trace at every budget.

    Beside the given ladder a learned one of as many sizes is tried, learned from the trace's first half.  A
    choice that comes to a batch whose graphs a budget can't hold is no trial.

    Raises:
        ConfigError: no steps, one longer than the ladder, or a budget of bytes that `check_bytes` refuses.
        BudgetError: no choice fits any budget.
    """
    ladders = {"given": ladder, "learned": _learned(steps, ladder, costs, multiple)}
    scenarios = {name: Scenario(steps, sizes, costs) for name, sizes in ladders.items()}
    for scenario in scenarios.values():
        check_bytes(scenario, budgets)
    choices = [(choice, budget) for budget in budgets for name in ladders for choice in _choices(name)]
    trials: list[Trial] = []
    optima: dict[tuple[str, Budget], Bound] = {}
    for index, (choice, budget) in enumerate(choices):
        progress(f"{choice} at {format_budget(budget)}", index, len(choices) + 1)
        with suppress(BudgetError):
            trials.append(_try(scenarios[choice.ladder], choice, budget, optima))
    if not trials:
        raise BudgetError(f"no policy fits {' or '.join(map(format_budget, budgets))} on this trace")
    trials.sort(key=lambda trial: trial.run.cost_seconds)
    more, best = None, _advised(budgets, trials)
    if best.run.budget.graphs is not None:
        larger = Budget(best.run.budget.graphs + 1, best.run.budget.bytes)
        progress(f"{best.choice} at {format_budget(larger)}", len(choices), len(choices) + 1)
        more = _try(scenarios[best.choice.ladder], best.choice, larger, dict(optima))
    return Advice(steps, list(budgets), ladders, optima, trials, more, _payback(steps, ladder, costs))


def _advised(budgets: Sequence[Budget], trials: Sequence[Trial]) -> Trial:
    """Return the cheapest trial of the smallest budget that is `ENOUGH`; trials come cheapest first."""
    enough = (1 + ENOUGH) * trials[0].run.cost_seconds
    able = [trial for trial in trials if trial.run.cost_seconds <= enough]
    smallest = min((trial.run.budget for trial in able), key=_size)
    return next(trial for trial in able if trial.run.budget == smallest)


def _size(budget: Budget) -> tuple[float, float]:
    graphs, nbytes = (float("inf") if bound is None else bound for bound in budget)
    return graphs, nbytes


def _choices(ladder: str) -> Iterator[Choice]:
    for policy in POLICIES:
        if Candidate(policy).takes_eviction:
            yield from (Choice(policy, eviction, ladder) for eviction in EVICTIONS)
        else:
            yield Choice(policy, "", ladder)
    yield Choice("adaptive", "", ladder, SPLITTING)


def _build(choice: Choice, scenario: Scenario) -> Policy:
    if choice.layouts:
        return Adaptive(scenario.ladders, layouts=choice.layouts)
    return Candidate(choice.policy, choice.eviction or "lru").build(scenario)


def _try(
    scenario: Scenario, choice: Choice, budget: Budget, optima: dict[tuple[str, Budget], Bound]
) -> Trial:
    floor = optima.get((choice.ladder, budget))
    if floor is None:
        floor = optima[choice.ladder, budget] = bound(scenario.problem(budget))
    run = drive(scenario, _build(choice, scenario), budget, name=str(choice))
    return Trial(choice, run, run.cost_seconds / floor.cost.seconds - 1)


def _learned(steps: Steps, ladder: Ladder, costs: Costs, multiple: int) -> Ladder:
    """Learn as many sizes as the ladder has, with its top, from the first half of the steps."""
    half = max(1, len(steps) // 2)
    top = -(-ladder.top // multiple) * multiple
    counted = Histogram.of(
        steps.tokens[:half].tolist(),
        (steps.sequences[:half] == 1).tolist(),
        costs,
        multiple=multiple,
        top=top,
    )
    return learn_ladder(counted, len(ladder))


def _payback(steps: Steps, ladder: Ladder, costs: Costs) -> dict[int, float]:
    """Return per size what its graph without a mask saves lone sequences over the trace, less its compile."""
    lone = steps.tokens[steps.sequences == 1].tolist()
    saved = dict.fromkeys(ladder, 0.0)
    for tokens in lone:
        size = ladder.bucket(tokens)
        saved[size] += _seconds(costs, size, MaskMode.CUSTOM) - _seconds(costs, size, MaskMode.CAUSAL)
    return {size: seconds - costs.compile_seconds(GraphKey(1, size)) for size, seconds in saved.items()}


def _seconds(costs: Costs, size: int, mode: MaskMode) -> float:
    return costs.run_seconds(GraphKey(1, size, mode=mode))


def _figures(trial: Trial) -> dict[str, Any]:
    run = trial.run
    return {
        "choice": trial.choice._asdict(),
        "budget": run.budget._asdict(),
        "packs": trial.packs,
        "cost_seconds": run.cost_seconds,
        "stall_seconds": float(run.stall_seconds.sum()),
        "p99_step_seconds": trial.p99_seconds,
        "compiles": run.counters.compiles,
        "graphs": trial.graphs,
        "bytes": trial.nbytes,
        "regret": trial.regret,
    }


def plot(advice: Advice, path: Path) -> None:
    """Draw what each choice costs at the budget that is advised, running and waiting, and the floor below.

    Raises:
        ConfigError: matplotlib is not installed, or a path that can't be written.
    """
    figure = new_figure(9, 7)
    axes = figure.add_subplot()
    trials = advice.at(advice.budget)
    names = [f"{trial.choice} ({trial.choice.ladder})" for trial in trials]
    running = [float(trial.run.run_seconds.sum()) for trial in trials]
    waiting = [float(trial.run.stall_seconds.sum()) for trial in trials]
    axes.barh(names, running, label="running")
    axes.barh(names, waiting, left=running, label="waiting for compiles")
    axes.axvline(advice.floor, color="black", linestyle="--", label="packed optimum")
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds at a budget of {format_budget(advice.budget)}")
    axes.set_title(advice.steps.name)
    axes.legend(frameon=False)
    save_figure(figure, path)
