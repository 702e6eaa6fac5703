"""``graphcache bench``: what things cost on this machine, side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from graphcache.cli.output import (
    AsJson,
    StoreOption,
    example,
    print_json,
    print_table,
    progress_bar,
    seconds,
)

if TYPE_CHECKING:
    from graphcache.bench.timing import Progress

Found: TypeAlias = dict[str, Any]
"""What a benchmark found, as plain JSON values."""

Lengths: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TOKENS", help="Which lengths, separated by commas; 128 to 16384.")
]
Scope: TypeAlias = Annotated[
    str, typer.Option(metavar="SCOPES", help="attention (to 16384 tokens), model (to 4096), or both.")
]
Repeats: TypeAlias = Annotated[int, typer.Option(min=1, help="Times that each is measured.")]
RunSeconds: TypeAlias = Annotated[
    float, typer.Option("--max-seconds", min=0, help="Skip what runs longer than this.")
]
Memory: TypeAlias = Annotated[
    str, typer.Option("--max-memory", metavar="BYTES", help="Skip masks that take more than this.")
]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the seconds: .png, .svg or .pdf.")
]
SaveProfile: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the model's costs, for policies and `graphcache simulate`."),
]
Graphs: TypeAlias = Annotated[int, typer.Option(min=1, help="How many graphs.")]
Small: TypeAlias = Annotated[bool, typer.Option("--small", help="A toy model: quick, and says little.")]
Directory: TypeAlias = Annotated[
    Path | None, typer.Option("--keep", metavar="DIR", help="Keep all caches here for the next time.")
]
WithVllm: TypeAlias = Annotated[bool, typer.Option(help="Start vLLM's engine too.")]
Processes: TypeAlias = Annotated[int, typer.Option(min=1, help="How many processes.")]
ServeSeconds: TypeAlias = Annotated[
    float, typer.Option("--seconds", min=0.1, help="How long each way serves.")
]
Shapes: TypeAlias = Annotated[int, typer.Option(min=1, help="How many new shapes each way meets.")]
Entries: TypeAlias = Annotated[
    str, typer.Option(metavar="COUNTS", help="Numbers of entries, separated by commas.")
]


def commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    bench = typer.Typer(help="Measure, side by side, what things cost on this machine.", no_args_is_help=True)
    app.add_typer(bench, name="bench")
    for name, command, lines in (
        ("masks", masks, _MASKS),
        ("dispatch", dispatch, ("graphcache bench dispatch --json",)),
        ("restart", restart, ("graphcache bench restart", "graphcache bench restart --small --no-with-vllm")),
        ("concurrent", concurrent, ("graphcache bench concurrent --processes 4",)),
        ("stall", stall, ("graphcache bench stall --seconds 120",)),
        ("store", store_costs, ("graphcache bench store --entries 10,1000",)),
        ("all", everything, ("graphcache bench all",)),
    ):
        bench.command(name, epilog=example(*lines))(command)


_MASKS = (
    "graphcache bench masks",
    "graphcache bench masks --scope attention --lengths 1024,4096 --plot masks.png",
    "graphcache bench masks --scope model --save-profile here.yaml",
)


def masks(
    lengths: Lengths = None,
    scope: Scope = "attention,model",
    repeats: Repeats = 5,
    max_seconds: RunSeconds = 60.0,
    max_memory: Memory = "4GiB",
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

    limits = Limits(max_seconds, parse_bytes(max_memory, "max_memory"))
    wanted = _numbers("lengths", lengths) if lengths else None
    with sample_graphs(store) as graphs, _progress() as progress:
        bench = MaskBench(graphs, repeats=repeats, limits=limits)
        rows = list(bench.measure(wanted, scope.split(","), progress))
    if save_profile is not None:
        save(bench.profile(rows), save_profile, graphs.described)
    if plot is not None:
        mask_table.plot(rows, plot)
    print(graphs.described, file=sys.stderr if as_json else sys.stdout)
    for what, why in bench.notes.items():
        print(f"{what}: {why}", file=sys.stderr)
    if as_json:
        print_json({"rows": [row._asdict() for row in rows]})
        return
    for each in dict.fromkeys(row.scope for row in rows):
        of_scope = [row for row in rows if row.scope == each]
        print_table(f"{each}: one sequence", *mask_table.lone_table(of_scope), _PUBLISHED)
        print_table(f"{each}: equal sequences", *mask_table.batch_table(of_scope))


_PUBLISHED = "published: a custom mask against none, Qwen3-Embedding-4B on Tenstorrent"


def dispatch(repeats: Repeats = 400, as_json: AsJson = False) -> None:
    """Compare the ways to find a batch's graph, in microseconds a batch."""
    from graphcache.bench.dispatch import measure

    with redirect_stdout(sys.stderr):
        found = measure(repeats)
    _show(found, as_json, _print_dispatch)


def restart(
    graphs: Graphs = 16,
    small: Small = False,
    keep: Directory = None,
    with_vllm: WithVllm = True,
    as_json: AsJson = False,
) -> None:
    """Compare how long a fresh process takes until graphs that were compiled before are ready."""
    from graphcache.bench.restart import measure

    with _progress() as progress:
        found = measure(graphs, small=small, with_vllm=with_vllm, directory=keep, progress=progress)
    _show(found, as_json, _print_restart)


def concurrent(processes: Processes = 8, graphs: Graphs = 16, as_json: AsJson = False) -> None:
    """Count the compiles of processes that need the same graphs at once: exit 1 unless one each."""
    from graphcache.bench.concurrent import measure

    found = measure(processes, graphs)
    _show(found, as_json, _print_concurrent)
    raise typer.Exit(int(found["compiles"] != graphs))


def stall(seconds: ServeSeconds = 60.0, shapes: Shapes = 4, as_json: AsJson = False) -> None:
    """Compare what steps feel of compilation: in line, in a thread, in workers, and not at all."""
    from graphcache.bench.stall import measure

    with _progress() as progress:
        rows = [row._asdict() for row in measure(seconds, shapes, progress=progress)]
    _show({"rows": rows}, as_json, _print_stall)


def store_costs(entries: Entries = "10,1000,10000", as_json: AsJson = False) -> None:
    """Compare stores: put, get, gets at once, and a listing, as the number of entries grows."""
    from graphcache.bench.store import measure

    rows = [row._asdict() for row in measure(sizes=_numbers("entries", entries))]
    _show({"rows": rows}, as_json, _print_store)


def everything(store: StoreOption = None) -> None:
    """Run all benchmarks, one after the other."""
    dispatch()
    store_costs()
    restart()
    stall()
    masks(store=store)
    concurrent()


def _show(found: Found, as_json: bool, table: Callable[[Found], None]) -> None:
    if as_json:
        print_json(found)
    else:
        table(found)


def _print_dispatch(found: Found) -> None:
    told = [(name.removesuffix("_us").replace("_", " "), value) for name, value in found.items()]
    rows = [(name, "not installed" if value is None else f"{value:.2f}") for name, value in told]
    print_table("To a batch's graph", ["way", "#microseconds"], rows)


def _print_restart(found: Found) -> None:
    rows = []
    for name in ("ours", "torch_compile", "vllm"):
        first, last = (found.get(f"{name}_{which}seconds") for which in ("first_", ""))
        rows.append(
            (name.replace("_", " "), *("-" if value is None else seconds(value) for value in (first, last)))
        )
    print_table("A fresh process", ["way", "#first graph s", f"#all {found['graphs']} s"], rows)
    print(f"vllm: {found['vllm_reason'] or 'its one graph, with a dynamic length and no choice of mask'}")


def _print_concurrent(found: Found) -> None:
    print(
        f"{found['processes']} processes, {found['graphs']} graphs:"
        f" {found['compiles']} compiles, {found['loads']} loads"
    )
    for reason, count in found["faults"].items():
        print(f"  {reason}: {count}")


def _print_stall(found: Found) -> None:
    columns = ["compiles", "#steps", "#p50 ms", "#p99 ms", "#max ms", "#stalls", "#upgrades"]
    rows = []
    for row in found["rows"]:
        times = (f"{1e3 * row[f'{which}_seconds']:.1f}" for which in ("p50", "p99", "max"))
        rows.append((row["compile"], row["steps"], *times, row["stalls"], row["upgrades"]))
    print_table("Steps", columns, rows)


def _print_store(found: Found) -> None:
    columns = ["store", "#entries", "fsync", "#put ms", "#get ms", "#gets/s", "#scan s"]
    rows = [
        (
            row["store"],
            row["entries"],
            "yes" if row["fsync"] else "no",
            f"{row['put_ms']:.2f}",
            f"{row['get_ms']:.2f}",
            f"{row['gets_per_second']:.0f}",
            seconds(row["scan_seconds"]),
        )
        for row in found["rows"]
    ]
    print_table("Stores, entries of 2 MB", columns, rows)


def _numbers(field: str, text: str) -> list[int]:
    from graphcache.errors import ConfigError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError.of(field, text, "whole numbers, separated by commas") from None


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show on a terminal what is being measured; what others print meanwhile goes to stderr."""
    with redirect_stdout(sys.stderr), progress_bar() as progress:
        yield progress
