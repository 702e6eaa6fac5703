"""``graphcache simulate``: policies, evictions and budgets tried on a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from graphcache.cli.output import AsJson, example, print_json, print_table, progress_bar, seconds, share

if TYPE_CHECKING:
    from graphcache.simulate import Report, Run

COSTS = ("#cost s", "#regret", "#run s", "#mask s", "#padding s", "#stall s", "#compiles")
COUNTS = ("#hits", "#fallbacks", "#resident", "#p50 s", "#p99 s", "#max s")
UNFIT = "does not fit"

TraceName: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="TRACE|NAME", help="A file of requests or recorded steps, or a made-up trace."),
]
Policies: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--policy", metavar="NAMES", help="Names or YAML files, separated by commas; all by default."
    ),
]
Evictions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--eviction", metavar="NAMES", help="What leaves first; lru by default."),
]
Budgets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--budget", metavar="BUDGETS", help="Graphs, bytes or both: 4,8,2GiB,8/2GiB,all; 8 by default."
    ),
]
Profile: TypeAlias = Annotated[str, typer.Option(metavar="NAME|FILE", help="What graphs cost.")]
CompileSeconds: TypeAlias = Annotated[
    float | None, typer.Option(min=0, help="One compile time for every graph, instead of the profile's.")
]
Sizes: TypeAlias = Annotated[
    str, typer.Option("--ladder", metavar="SIZES", help="LOW:HIGH, LOW:HIGH:STEP, or sizes.")
]
Load: TypeAlias = Annotated[
    float | None, typer.Option(help="Stretch the arrivals until the server is busy this share of the time.")
]
MaxSeqs: TypeAlias = Annotated[int, typer.Option(help="Sequences of a step.")]
MaxTokens: TypeAlias = Annotated[int, typer.Option(help="New tokens of a step.")]
Task: TypeAlias = Annotated[
    Literal["pooling", "generate"],
    typer.Option(help="Prompts only, or prompts first and then their decoding."),
]
Background: TypeAlias = Annotated[bool, typer.Option("--background", help="Compile beside the steps.")]
Share: TypeAlias = Annotated[
    float, typer.Option(help="The share of such a compile's seconds that is charged.")
]
Misses: TypeAlias = Annotated[
    Literal["compile", "fallback"] | None,
    typer.Option("--on-miss", help="By default compile, or fallback with --background."),
]
History: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Let policies learn from this first share of the steps; report the rest."
    ),
]
Limit: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="Only the first requests.")]
Seed: TypeAlias = Annotated[int, typer.Option(min=0, help="For made-up traces, and files without times.")]
Emit: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the problem and every schedule as JSON.")
]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the costs: .png, .svg or .pdf.")
]


def commands(app: typer.Typer) -> None:
    """Add the command to the command line."""
    lines = (
        "graphcache simulate azure-code --limit 2000 --load 0.3 --budget 4,8",
        "graphcache simulate azure-conv --limit 2000 --policy dynamic-dual --eviction lru,lfu --json",
    )
    app.command("simulate", epilog=example(*lines))(simulate)


def simulate(
    trace: TraceName,
    policy: Policies = None,
    eviction: Evictions = None,
    budget: Budgets = None,
    profile: Profile = "tenstorrent-qwen3-embedding-4b",
    compile_seconds: CompileSeconds = None,
    ladder: Sizes = "128:16384",
    load: Load = None,
    max_num_seqs: MaxSeqs = 8,
    max_num_batched_tokens: MaxTokens = 16384,
    task: Task = "pooling",
    background: Background = False,
    background_share: Share = 0.1,
    on_miss: Misses = None,
    history: History = None,
    limit: Limit = None,
    seed: Seed = 0,
    emit: Emit = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Try policies on a trace: what each costs at each budget, against the offline optimum."""
    from graphcache import simulate as library

    costs = library.load_costs(profile, compile_seconds)
    sizes = library.parse_ladder(ladder)
    requests = library.load_requests(trace, limit=limit, seed=seed)
    limits = library.Limits(max_num_seqs, max_num_batched_tokens)
    steps = library.load_steps(requests, sizes, costs, limits=limits, load=load, task=task)
    scenario = library.Scenario(steps, sizes, costs, background, background_share)
    before, scenario = scenario.after(history)
    tried = library.candidates(split(policy), split(eviction), on_miss or scenario.on_miss)
    budgets = library.parse_budgets(split(budget) or ["8"], one=emit is not None)
    with progress_bar() as progress:
        report = library.simulate(scenario, tried, budgets, progress, history=before)
    if emit is not None:
        library.write_json(library.emit(report), emit)
    if plot is not None:
        library.plot(report, plot)
    print_json(report.to_json()) if as_json else _print(report)


def split(values: list[str] | None) -> list[str]:
    """Return what was given, by repeating the option or with commas, each once."""
    parts = [part.strip() for value in values or () for part in value.split(",")]
    return list(dict.fromkeys(filter(None, parts)))


def _print(report: Report) -> None:
    from graphcache.simulate import describe, format_budget

    told = describe(report.scenario)
    busy = "" if told["busy_share"] is None else f", busy {share(told['busy_share'])} of the time"
    print(
        f"{told['trace']}: {told['requests']} requests ({told['left_out']} longer left out),"
        f" {told['steps']} steps, {share(told['single_share'])} of one sequence{busy}"
    )
    for note in told["notes"]:
        print(f"  {note}")
    for budget, solution in report.optima.items():
        runs = sorted((run for run in report.runs if run.budget == budget), key=lambda run: run.cost_seconds)
        rows = [(run.policy, *_cells(run, f"{report.regret(run):+.1%}")) for run in runs]
        rows += [_unfit(each.policy) for each in report.unfit if each.budget == budget]
        rows.append(("unbounded", *_cells(report.unbounded, "")))
        rows += _floors(report.floor(solution))
        print()
        print_table(f"Budget {format_budget(budget)}", ["policy", *COSTS, *COUNTS], rows)
    if len(report.optima) > 1:
        _print_regrets(report)
    for each in report.unfit:
        print(f"{each.policy} does not fit {format_budget(each.budget)}: {each.reason}")
    for name in dict.fromkeys(run.policy for run in report.runs if run.splits):
        print(f"{name} splits batches, which the optimum can't: it may cost less.")


def _cells(run: Run, regret: str) -> tuple[str, ...]:
    from graphcache.simulate import figures

    told = figures(run)
    fields = ("cost", "run", "mask", "padding", "stall", "p50_step", "p99_step", "max_step")
    cost, *parts, p50, p99, longest = (seconds(told[f"{field}_seconds"]) for field in fields)
    counts = (str(told[field]) for field in ("compiles", "hits", "fallbacks"))
    return (cost, regret, *parts, *counts, f"{run.mean_resident:.1f}", p50, p99, longest)


def _floors(told: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the optimum's row, or that of the best schedule found and that of the bound below it."""
    blank = [""] * len(COUNTS)
    cost, run, stall, low = (
        seconds(told[f"{name}_seconds"]) for name in ("cost", "run", "stall", "lower_bound")
    )
    found = (cost, "", run, "", "", stall, str(told["compiles"]), *blank)
    if told["exact"]:
        return [("optimum", *found)]
    bound = ("lower bound", low, *[""] * (len(COSTS) - 1), *blank)
    return [bound] if told["charged_seconds"] else [("best found", *found), bound]


def _unfit(policy: str) -> tuple[str, ...]:
    return (policy, UNFIT, *[""] * (len(COSTS) + len(COUNTS) - 1))


def _print_regrets(report: Report) -> None:
    from graphcache.simulate import format_budget

    regrets = {(run.policy, run.budget): f"{report.regret(run):+.1%}" for run in report.runs}
    policies = dict.fromkeys([*(policy for policy, _ in regrets), *(each.policy for each in report.unfit)])
    columns = ["policy", *(f"#{format_budget(budget)}" for budget in report.optima)]
    rows = [(name, *(regrets.get((name, budget), UNFIT) for budget in report.optima)) for name in policies]
    print()
    print_table("Regret by budget", columns, rows)
