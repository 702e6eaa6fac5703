"""``graphcache warm``: fill a store with a model's graphs, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcache.cli.output import (
    AsJson,
    StoreOption,
    counted_bars,
    example,
    print_json,
    print_table,
    seconds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphcache.fill import Filled, Filling


def commands(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "warm",
        epilog=example(
            "graphcache warm ./my-model --policy dynamic-dual -- --runner pooling --max-model-len 2048",
            "graphcache warm ./my-model --policy my.yaml --store ./graphs --march x86-64-v3 --dry-run",
        ),
    )(warm)


def warm(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The directory of a model.")],
    serve_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- [ARGUMENTS]...", help="What `vllm serve` will be given, for that decides the graphs."
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="A shipped policy's name or a YAML file: the one that the server will have.")
    ] = "dynamic-dual",
    store: StoreOption = None,
    march: Annotated[
        str | None,
        typer.Option(help="Compile for another machine: an x86-64 level such as x86-64-v3, or native."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Graphs that are compiled at once.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compile nothing; tell what is missing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile every graph that a server can ask for into a store, in a build or before a rollout.

    No server runs and no device is needed; the model's weights are not read.  Exits with 1 if a graph is
    missing in the end.
    """
    from graphcache.config import load_config
    from graphcache.fill import Filling
    from graphcache.listing import chosen_store

    section = load_config(policy).store
    directory = chosen_store(store or (section.path if section else None))
    job = Filling(str(model), policy, str(directory), tuple(serve_arguments or ()), march, workers, dry_run)
    graphs = _fill(job)
    there = [graph for graph in graphs if graph.outcome in ("stored", "compiled")]
    if as_json:
        print_json({"store": str(directory), "graphs": [graph._asdict() for graph in graphs]})
    else:
        _print(directory, graphs, len(there))
    if len(there) < len(graphs):
        raise typer.Exit(1)


def _fill(job: Filling) -> list[Filled]:
    """Fill with a progress bar."""
    from graphcache.fill import fill

    with counted_bars() as progress:
        task = progress.add_task("building the model", total=None)

        def report(graph: Filled, done: int, total: int) -> None:
            progress.update(task, description=f"{graph.key}: {graph.outcome}", completed=done, total=total)

        return fill(job, report)


def _print(store: Path, graphs: Sequence[Filled], there: int) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            graph.key,
            graph.outcome,
            seconds(graph.seconds) if graph.seconds else "",
            graph.error.split("\n")[0],
        )
        for graph in graphs
    ]
    print_table("", ["graph", "outcome", "#seconds", "error"], rows)
    compiled = [graph for graph in graphs if graph.outcome == "compiled"]
    took = f"; {len(compiled)} compiled in {seconds(sum(g.seconds for g in compiled))} s" if compiled else ""
    print(f"{there} of {len(graphs)} graphs are in {store}{took}")
