"""``graphcache stats``: what the cache did, from the counters that servers keep in the store."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from graphcache.cli.output import AsJson, StoreOption, example, print_json, print_table, seconds, share

COLUMNS = ("#hit", "#loads", "#compiles", "#fallbacks", "#saved s", "#stall s", "#run s")
KEYS_SHOWN = 20


def commands(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("stats", epilog=example("graphcache stats", "graphcache stats --json --run 4f1c09d2e6ab"))(
        stats
    )


def stats(
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only this run; ids are in --json.")] = None,
    store: StoreOption = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask a running server, such as http://localhost:8000.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show hits, seconds saved and seconds stalled, per policy and per key."""
    from graphcache.listing import open_existing
    from graphcache.runs import ask_server, choose, summarise

    if url:
        summary = ask_server(url)
    else:
        with closing(open_existing(store)) as opened:
            summary = summarise(choose(opened.disk.ledger.runs(), run))
    if as_json:
        print_json(summary)
        return
    total = summary["total"]
    policies = [
        (name, merged["steps"], *_cells(merged["total"])) for name, merged in summary["policies"].items()
    ]
    if len(policies) != 1:
        policies.append(("all", total["steps"], *_cells(total["total"])))
    note = "faults: " + (", ".join(f"{reason} {n}" for reason, n in total["errors"].items()) or "none")
    counted = "now" if url else f"{len(summary['runs'])} runs"
    print_table(f"Policies, {counted}", ["policy", "#steps", *COLUMNS], policies, note)
    keys = sorted(total["keys"].items(), key=lambda item: item[1]["run_seconds"], reverse=True)
    left_out = f"{len(keys) - KEYS_SHOWN} more in --json" if len(keys) > KEYS_SHOWN else ""
    rows = [(key, *_cells(counters)) for key, counters in keys[:KEYS_SHOWN]]
    print_table("Graphs", ["key", *COLUMNS], rows, left_out)


def _cells(counters: dict[str, Any]) -> tuple[str, ...]:
    from graphcache.runs import hit_ratio

    counts = (str(counters[field]) for field in ("loads", "compiles", "fallbacks"))
    times = (seconds(counters[f"{field}_seconds"]) for field in ("saved", "stall", "run"))
    return (share(hit_ratio(counters)), *counts, *times)
