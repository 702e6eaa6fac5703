"""Costs over budgets, drawn; needs the extra ``plot``."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

from graphcache.picture import new_figure, save_figure
from graphcache.simulate.options import format_budget
from graphcache.simulate.report import Report
from graphcache.simulate.run import Run

PARTS = ("tokens", "padding", "mask", "stall", "charged")


def plot(report: Report, path: Path) -> None:
    """Draw each policy's cost over the budgets, or, of one budget, what it consists of.

    The suffix of ``path`` says which kind of picture it is: ``.png``, ``.svg``, ``.pdf``.

    Raises:
        ConfigError: matplotlib is not installed, no such kind of picture, or a path that can't be written.
    """
    figure = new_figure(9, 5)
    axes = figure.add_subplot()
    if len(report.optima) > 1:
        _lines(axes, report)
    else:
        _bars(axes, report)
    axes.set_title(f"{report.scenario.steps.name}: {len(report.scenario.steps)} steps")
    figure.legend(loc="outside right upper", frameon=False)
    save_figure(figure, path)


def _lines(axes: Any, report: Report) -> None:
    budgets = list(report.optima)
    labels = [format_budget(budget) for budget in budgets]
    for policy in dict.fromkeys(run.policy for run in report.runs):
        costs = {run.budget: run.cost_seconds for run in report.runs if run.policy == policy}
        axes.plot(labels, [costs.get(budget, nan) for budget in budgets], marker="o", label=policy)
    optimum = [report.optima[budget].cost.seconds for budget in budgets]
    axes.plot(labels, optimum, color="black", linestyle="--", label=_floor_name(report))
    axes.axhline(report.unbounded.cost_seconds, color="grey", linestyle=":", label="unbounded")
    axes.set_yscale("log")
    axes.set_xlabel("budget")
    axes.set_ylabel("seconds")


def _bars(axes: Any, report: Report) -> None:
    runs = [*report.runs, report.unbounded]
    names = [run.policy for run in runs]
    parts = [_parts(run) for run in runs]
    left = [0.0] * len(runs)
    for index, name in enumerate(PARTS):
        seconds = [part[index] for part in parts]
        axes.barh(names, seconds, left=left, label=name)
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    ((_, solution),) = report.optima.items()
    axes.axvline(solution.cost.seconds, color="black", linestyle="--", label=_floor_name(report))
    axes.invert_yaxis()
    axes.set_xlabel("seconds")


def _parts(run: Run) -> tuple[float, ...]:
    tokens = float(run.run_seconds.sum()) - run.padding_seconds - run.mask_seconds
    return tokens, run.padding_seconds, run.mask_seconds, float(run.stall_seconds.sum()), run.charged_seconds


def _floor_name(report: Report) -> str:
    floors = [report.floor(solution) for solution in report.optima.values()]
    if all(floor["exact"] for floor in floors):
        return "optimum"
    return "lower bound" if report.scenario.background else "best found"
