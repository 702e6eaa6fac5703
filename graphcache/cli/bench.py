"""``graphcache bench``: what things cost on this machine, side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from graphcache.cli.output import AsJson, StoreOption, example, print_json, print_table
from graphcache.cli.store import bench_store

if TYPE_CHECKING:
    from graphcache.bench.timing import Progress

Lengths: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TOKENS", help="Which lengths, separated by commas; 128 to 16384.")
]
Scope: TypeAlias = Annotated[
    str, typer.Option(metavar="SCOPES", help="attention (to 16384 tokens), model (to 4096), or both.")
]
Repeats: TypeAlias = Annotated[int, typer.Option(min=1, help="Times that each is measured.")]
Seconds: TypeAlias = Annotated[float, typer.Option(help="Skip what runs longer than this.")]
Memory: TypeAlias = Annotated[str, typer.Option(metavar="BYTES", help="Skip masks that take more than this.")]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the seconds: .png, .svg or .pdf.")
]
SaveProfile: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the model's costs, for policies and `graphcache simulate`."),
]


def commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    bench = typer.Typer(help="Measure, side by side, what things cost on this machine.", no_args_is_help=True)
    app.add_typer(bench, name="bench")
    bench.command("masks", epilog=example(*_MASKS))(masks)
    bench.command("dispatch", epilog=example("graphcache bench dispatch --json"))(dispatch)
    bench.command("store", epilog=example("graphcache bench store --largest 1000"))(bench_store)


_MASKS = (
    "graphcache bench masks",
    "graphcache bench masks --scope attention --lengths 1024,4096 --plot masks.png",
    "graphcache bench masks --scope model --save-profile here.yaml",
)


def masks(
    lengths: Lengths = None,
    scope: Scope = "attention,model",
    repeats: Repeats = 5,
    seconds: Seconds = 60.0,
    memory: Memory = "4GiB",
    store: StoreOption = None,
    plot: Plot = None,
    save_profile: SaveProfile = None,
    as_json: AsJson = False,
) -> None:
    """Compare masks and layouts: attention and a small model, for one sequence and for several.

    Graphs are compiled once and kept in the store, so that the second time is quick.
    """
    from graphcache.bench import mask_table
    from graphcache.bench.graphs import sample_graphs
    from graphcache.bench.masks import Limits, MaskBench
    from graphcache.bytesize import parse_bytes
    from graphcache.profiles import save_profile as save

    limits = Limits(seconds, parse_bytes(memory, "memory"))
    with sample_graphs(store) as graphs, _progress() as progress:
        bench = MaskBench(graphs, repeats=repeats, limits=limits)
        rows = list(bench.measure(_numbers(lengths), scope.split(","), progress))
    if save_profile is not None:
        save(bench.profile(rows), save_profile, graphs.described)
    if plot is not None:
        mask_table.plot(rows, plot)
    print(graphs.described, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print_json({"rows": [row._asdict() for row in rows]})
        return
    for each in dict.fromkeys(row.scope for row in rows):
        of_scope = [row for row in rows if row.scope == each]
        print_table(f"{each}: one sequence", *mask_table.lone_table(of_scope), _PUBLISHED)
        print_table(f"{each}: equal sequences", *mask_table.batch_table(of_scope))
    for what, why in bench.notes.items():
        print(f"{what}: {why}")


_PUBLISHED = "published: a custom mask against none, Qwen3-Embedding-4B on Tenstorrent"


def dispatch(repeats: Repeats = 400, as_json: AsJson = False) -> None:
    """Compare the ways to find a batch's graph, in microseconds a batch."""
    from graphcache.bench.dispatch import measure

    with redirect_stdout(sys.stderr):
        found = measure(repeats)
    if as_json:
        print_json(found)
        return
    told = [(name.removesuffix("_us").replace("_", " "), value) for name, value in found.items()]
    rows = [(name, "not installed" if value is None else f"{value:.2f}") for name, value in told]
    print_table("Microseconds to a batch's graph", ["", "#microseconds"], rows)


def _numbers(text: str | None) -> list[int] | None:
    from graphcache.errors import ConfigError

    try:
        return [int(part) for part in text.split(",")] if text else None
    except ValueError:
        raise ConfigError.of("lengths", text, "numbers of tokens, separated by commas") from None


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show on a terminal what is being measured; what others print meanwhile goes to stderr."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    with redirect_stdout(sys.stderr), Bar(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
