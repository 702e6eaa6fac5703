"""What to configure for a trace: policies, ladders and evictions tried at a budget, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
import yaml

from graphcache.costs import Costs
from graphcache.eviction.lfu import Lfu
from graphcache.eviction.lru import Lru
from graphcache.eviction.protocol import Eviction
from graphcache.eviction.saved_seconds import SavedSeconds
from graphcache.key import GraphKey, MaskMode
from graphcache.ladder import Ladder
from graphcache.learned_ladder import Histogram, learn_ladder
from graphcache.optimum import Bound, bound
from graphcache.picture import new_figure, save_figure
from graphcache.policy.adaptive import Adaptive
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders, Policy
from graphcache.policy.static_causal import StaticCausal
from graphcache.policy.static_mask import StaticMask
from graphcache.simulate import Progress, Run, Scenario, drive, format_budget
from graphcache.trace.steps import Steps

RULES = {"static-mask": StaticMask, "static-causal": StaticCausal, "dynamic-dual": DynamicDual}
ORDERS: dict[str, Callable[[], Eviction]] = {"lru": Lru, "lfu": Lfu}


class Choice(NamedTuple):
    """One way to configure the cache: names, as a configuration has them."""

    policy: str
    eviction: str
    ladder: str
    splits: bool = False

    def __str__(self) -> str:
        split = ", split" if self.splits and self.policy == "adaptive" else ""
        order = f" + {self.eviction}" if self.eviction else ""
        return f"{self.policy}{split}{order}"


@dataclass(frozen=True, eq=False)
class Trial:
    """One choice, what it did, and its regret against the best packed schedule on its own ladder."""

    choice: Choice
    run: Run
    regret: float

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
    """All trials at one budget, the cheapest first, and the best one with one more graph.

    ``payback`` says, per size, the seconds that a graph without a mask would have saved over the trace,
    less its compile.
    """

    steps: Steps
    budget: Budget
    ladders: Mapping[str, Ladder]
    optima: Mapping[str, Bound]
    trials: Sequence[Trial]
    one_more: Trial | None
    payback: Mapping[int, float]

    @property
    def best(self) -> Trial:
        """The cheapest trial."""
        return self.trials[0]

    def of(self, policy: str) -> Trial:
        """Return a policy's cheapest trial."""
        return next(trial for trial in self.trials if trial.choice.policy == policy)

    def text(self) -> str:
        """Say in plain words what to choose, and why."""
        return " ".join((*self._choice(), *self._modes(), *self._budget()))

    def _choice(self) -> Iterator[str]:
        best, packed = self.best, next(t for t in self.trials if not t.choice.splits)
        yield f"Take {best.choice} on the {best.choice.ladder} ladder: {best.run.cost_seconds:.0f} s"
        yield f"for {len(self.steps)} steps, {best.run.stall_seconds.sum():.0f} s of it waiting for compiles."
        if best is not packed:
            yield (
                f"It runs the sequences of a step one by one; if your runner can't, take {packed.choice} on"
                f" the {packed.choice.ladder} ladder, at {packed.run.cost_seconds:.0f} s."
            )
        yield f"No policy that packs each step can cost less than {self._floor():.0f} s here."

    def _floor(self) -> float:
        return min(bound.lower_bound for bound in self.optima.values())

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
        dual = self.of("dynamic-dual")
        over = dual.run.cost_seconds / self.best.run.cost_seconds - 1
        yield (
            f"dynamic-dual costs {dual.run.cost_seconds:.0f} s at this budget, {over:.0%} more than the best,"
            f" with {dual.run.counters.compiles} compiles."
        )
        if self.one_more is not None:
            gain = self.best.run.cost_seconds - self.one_more.run.cost_seconds
            verb = f"save {gain:.0f} s" if gain > 0 else "save nothing"
            yield f"One more graph would {verb} ({gain / self.best.run.cost_seconds:.1%})."

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        more = self.one_more
        return {
            "trace": self.steps.name,
            "steps": len(self.steps),
            "single_share": self.steps.single_share,
            "budget": self.budget._asdict(),
            "ladders": {name: list(ladder) for name, ladder in self.ladders.items()},
            "optimum": {
                name: {"cost_seconds": b.cost.seconds, "lower_bound": b.lower_bound, "exact": b.exact}
                for name, b in self.optima.items()
            },
            "trials": [_figures(trial) for trial in self.trials],
            "one_more_graph": None if more is None else _figures(more),
            "payback_seconds": {str(size): seconds for size, seconds in self.payback.items()},
            "advice": self.text(),
        }

    def to_yaml(self, profile: str | None = None) -> str:
        """Return the configuration of the best trial, with the advice as its comment."""
        choice = self.best.choice
        policy: Any = choice.policy
        if choice.splits and policy == "adaptive":
            policy = {"name": policy, "options": {"layouts": ["packed", "split"]}}
        config: dict[str, Any] = {"policy": policy}
        config["ladder"] = {"kind": "explicit", "sizes": list(self.ladders[choice.ladder])}
        budget = {name: value for name, value in self.budget._asdict().items() if value is not None}
        config |= {"budget": budget} if budget else {}
        config |= {"eviction": choice.eviction} if choice.eviction else {}
        config |= {"profile": profile} if profile else {}
        config |= {"on_miss": "compile", "store": {"max_bytes": "20GiB"}, "backend": "inductor"}
        comment = "".join(f"# {line}\n" for line in _wrapped(self.text()))
        return comment + yaml.safe_dump(config, sort_keys=False, default_flow_style=None)


def advise(
    steps: Steps,
    ladder: Ladder,
    costs: Costs,
    budget: Budget,
    *,
    multiple: int = 128,
    progress: Progress = lambda what, done, total: None,
) -> Advice:
    """Try every policy, eviction and ladder on a trace at one budget.

    Beside the given ladder a learned one of as many sizes is tried, learned from the trace's first half.

    Raises:
        ConfigError: no steps, or one longer than the ladder.
        BudgetError: a graph that is needed does not fit.
    """
    ladders = {"given": ladder, "learned": _learned(steps, ladder, costs, multiple)}
    scenarios = {name: Scenario(steps, sizes, costs) for name, sizes in ladders.items()}
    optima = {name: bound(scenario.problem(budget)) for name, scenario in scenarios.items()}
    choices = [choice for name in ladders for choice in _choices(name)]
    trials = []
    for index, choice in enumerate(choices):
        progress(str(choice), index, len(choices) + 1)
        trials.append(_try(scenarios[choice.ladder], choice, budget, optima[choice.ladder]))
    trials.sort(key=lambda trial: trial.run.cost_seconds)
    more = None
    if budget.graphs is not None:
        best = trials[0].choice
        larger = Budget(budget.graphs + 1, budget.bytes)
        progress(f"{best} at {format_budget(larger)}", len(choices), len(choices) + 1)
        scenario = scenarios[best.ladder]
        more = _try(scenario, best, larger, bound(scenario.problem(larger)))
    return Advice(steps, budget, ladders, optima, trials, more, _payback(steps, ladder, costs))


def _choices(ladder: str) -> Iterator[Choice]:
    for policy in ("static-mask", "static-causal", "dynamic-dual"):
        for eviction in ("lru", "lfu", "saved-seconds"):
            yield Choice(policy, eviction, ladder, policy == "static-causal")
    yield Choice("adaptive", "", ladder)
    yield Choice("adaptive", "", ladder, splits=True)


def _build(choice: Choice, scenario: Scenario) -> Policy:
    ladders = Ladders(scenario.ladder)
    if choice.policy == "adaptive":
        return Adaptive(ladders, layouts=("packed", "split") if choice.splits else ("packed",))
    costs = scenario.costs
    order: Eviction = SavedSeconds(costs) if choice.eviction == "saved-seconds" else ORDERS[choice.eviction]()
    policy: Policy = RULES[choice.policy](ladders, order)
    return policy


def _try(scenario: Scenario, choice: Choice, budget: Budget, floor: Bound) -> Trial:
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
        "cost_seconds": run.cost_seconds,
        "stall_seconds": float(run.stall_seconds.sum()),
        "p99_step_seconds": trial.p99_seconds,
        "compiles": run.counters.compiles,
        "graphs": trial.graphs,
        "bytes": trial.nbytes,
        "regret": trial.regret,
    }


def _wrapped(text: str, width: int = 98) -> list[str]:

    return wrap(text, width)


def plot(advice: Advice, path: Path) -> None:
    """Draw what each choice costs, running and waiting, and the floor below them.

    Raises:
        ConfigError: matplotlib is not installed, or a path that can't be written.
    """
    figure = new_figure(9, 7)
    axes = figure.add_subplot()
    names = [f"{trial.choice} ({trial.choice.ladder})" for trial in advice.trials]
    running = [float(trial.run.run_seconds.sum()) for trial in advice.trials]
    waiting = [float(trial.run.stall_seconds.sum()) for trial in advice.trials]
    axes.barh(names, running, label="running")
    axes.barh(names, waiting, left=running, label="waiting for compiles")
    floor = min(b.lower_bound for b in advice.optima.values())
    axes.axvline(floor, color="black", linestyle="--", label="packed optimum")
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds at a budget of {format_budget(advice.budget)}")
    axes.set_title(advice.steps.name)
    axes.legend(frameon=False)
    save_figure(figure, path)
