"""``graphcache advise`` and ``graphcache ladder``: what to configure for a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from graphcache.cli.output import AsJson, example, print_json, print_table, progress_bar, seconds
from graphcache.cli.simulate import (
    CompileSeconds,
    Limit,
    Load,
    MaxSeqs,
    MaxTokens,
    Plot,
    Profile,
    Seed,
    Sizes,
    TraceName,
    split,
)

if TYPE_CHECKING:
    from graphcache.advise import Advice
    from graphcache.ladder import Ladder
    from graphcache.trace import Steps

AdvisedBudgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budget", metavar="BUDGETS", help="Graphs, bytes or both: 4,8,2GiB,8/2GiB; 4,8,16 by default."
    ),
]
Multiple = Annotated[int, typer.Option(min=1, help="The hardware's multiple that sizes are rounded to.")]
Write = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the configuration of the best choice as YAML.")
]
Graphs = Annotated[int, typer.Option(min=1, help="Graphs that the ladder may have in all.")]
Modes = Annotated[
    Literal["pair", "both", "custom", "causal"],
    typer.Option(
        help="pair: graphs with and without a mask have sizes of their own; both: they share them;"
        " custom, causal: one graph a size."
    ),
]
Half = Annotated[bool, typer.Option("--hold-out", help="Learn from the first half, measure on the second.")]


def commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    lines = ("graphcache advise azure-conv --limit 2000 --load 0.3 --budget 4,6,8",)
    app.command("advise", epilog=example(*lines))(advise)
    lines = ("graphcache ladder azure-conv --limit 2000 --load 0.3 --graphs 8 --modes both",)
    app.command("ladder", epilog=example(*lines))(ladder)


def advise(
    trace: TraceName,
    budget: AdvisedBudgets = None,
    profile: Profile = "tenstorrent-qwen3-embedding-4b",
    compile_seconds: CompileSeconds = None,
    sizes: Sizes = "128:16384",
    multiple: Multiple = 128,
    load: Load = None,
    max_num_seqs: MaxSeqs = 8,
    max_num_batched_tokens: MaxTokens = 16384,
    limit: Limit = None,
    seed: Seed = 0,
    write: Write = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Say what to configure for a trace: every policy, eviction and ladder tried at every budget."""
    from graphcache import advise as library
    from graphcache import simulate

    costs = simulate.load_costs(profile, compile_seconds)
    given = simulate.parse_ladder(sizes)
    steps = _steps(
        trace, profile, compile_seconds, given, load, max_num_seqs, max_num_batched_tokens, limit, seed
    )
    budgets = simulate.parse_budgets(split(budget) or ["4", "8", "16"])
    with progress_bar() as progress:
        advice = library.advise(steps, given, costs, budgets, multiple=multiple, progress=progress)
    if write is not None:
        simulate.write_text(advice.to_yaml(profile), write)
    if plot is not None:
        library.plot(advice, plot)
    print_json(advice.to_json()) if as_json else _print(advice)


def ladder(
    trace: TraceName,
    graphs: Graphs = 8,
    modes: Modes = "pair",
    profile: Profile = "tenstorrent-qwen3-embedding-4b",
    sizes: Sizes = "128:16384",
    multiple: Multiple = 128,
    load: Load = None,
    max_num_seqs: MaxSeqs = 8,
    max_num_batched_tokens: MaxTokens = 16384,
    limit: Limit = None,
    seed: Seed = 0,
    hold_out: Half = False,
    as_json: AsJson = False,
) -> None:
    """Learn the sizes that cost the fewest run seconds for so many graphs, and compare them with others."""
    from graphcache import simulate

    given = simulate.parse_ladder(sizes)
    steps = _steps(trace, profile, None, given, load, max_num_seqs, max_num_batched_tokens, limit, seed)
    rows = _ladders(steps, given, profile, graphs, modes, multiple, hold_out)
    if as_json:
        print_json(
            [{"ladder": name, "sizes": list(found), "run_seconds": cost} for name, found, cost in rows]
        )
        return
    best = rows[0][2]
    cells = [(name, seconds(cost), f"{cost / best - 1:+.1%}", _sizes(found)) for name, found, cost in rows]
    print_table(f"{steps.name}: {graphs} graphs", ["ladder", "#run s", "#over", "sizes"], cells)
    if hold_out:
        print("Learned from the first half of the steps, and measured on the second.")


def _steps(
    trace: str,
    profile: str,
    compile_seconds: float | None,
    given: Ladder,
    load: float | None,
    max_num_seqs: int,
    max_tokens: int,
    limit: int | None,
    seed: int,
) -> Steps:
    from graphcache import simulate

    costs = simulate.load_costs(profile, compile_seconds)
    requests = simulate.load_requests(trace, limit=limit, seed=seed)
    limits = simulate.Limits(max_num_seqs, max_tokens)
    return simulate.load_steps(requests, given, costs, limits=limits, load=load)


def _ladders(
    steps: Steps, given: Ladder, profile: str, graphs: int, modes: str, multiple: int, hold_out: bool
) -> list[tuple[str, list[int], float]]:
    from graphcache import simulate
    from graphcache.learned_ladder import learned_rows

    return learned_rows(
        steps.tokens.tolist(),
        (steps.sequences == 1).tolist(),
        simulate.load_costs(profile),
        graphs,
        modes=modes,
        multiple=multiple,
        top=given.top,
        hold_out=hold_out,
    )


def _sizes(sizes: list[int]) -> str:
    return " ".join(map(str, sizes))


def _print(advice: Advice) -> None:
    from graphcache.simulate import format_budget

    rows = [
        (
            str(trial.choice),
            trial.choice.ladder,
            format_budget(trial.run.budget),
            seconds(trial.run.cost_seconds),
            f"{trial.regret:+.1%}",
            seconds(float(trial.run.stall_seconds.sum())),
            seconds(trial.p99_seconds),
            str(trial.run.counters.compiles),
            str(trial.graphs),
            str(trial.nbytes),
        )
        for trial in advice.trials
    ]
    columns = ["policy", "ladder", "#budget", "#cost s", "#regret", "#stall s", "#p99 s", "#compiles"]
    print_table(f"{advice.steps.name}: {len(advice.steps)} steps", [*columns, "#graphs", "#bytes"], rows)
    print(f"learned ladder: {_sizes(list(advice.ladders['learned']))}")
    print()
    print(advice.text())
