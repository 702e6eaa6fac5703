"""``graphcache ls``, ``show`` and ``clear``: what a store holds."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from graphcache.cli.output import AsJson, StoreOption, example, print_fields, print_json, print_table, seconds

EntryArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="A key, or the first letters of a digest or namespace.")
]
OnlyArgument = Annotated[
    str | None, typer.Argument(metavar="[KEY]", help="Only this key, or entries of this digest or namespace.")
]


def commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("ls", epilog=example("graphcache ls", "graphcache ls prefill/causal/1x512 --json"))(ls)
    app.command("show", epilog=example("graphcache show prefill/causal/1x512"))(show)
    app.command("clear", epilog=example("graphcache clear", "graphcache clear 3f9a --yes"))(clear)


def ls(key: OnlyArgument = None, store: StoreOption = None, as_json: AsJson = False) -> None:
    """List the compiled graphs of a store."""
    from graphcache.bytesize import format_bytes
    from graphcache.listing import entries, matching, open_existing

    with closing(open_existing(store)) as opened:
        found = entries(opened)
    chosen = matching(found, key) if key else found
    if as_json:
        print_json([entry.fields() for entry in chosen])
        return
    rows = [
        (
            entry.record.key,
            entry.record.namespace[:12],
            entry.digest[:12],
            format_bytes(entry.record.payload_bytes),
            seconds(entry.record.seconds),
            "-" if entry.uses is None else entry.uses,
        )
        for entry in chosen
    ]
    nbytes = sum(entry.record.payload_bytes for entry in chosen)
    worth = sum(entry.record.seconds for entry in chosen)
    note = f"{len(chosen)} graphs, {format_bytes(nbytes)}, {seconds(worth)} s of compiling"
    print_table(
        str(opened.disk.path), ["key", "namespace", "digest", "#size", "#compile s", "#uses"], rows, note
    )


def show(key: EntryArgument, store: StoreOption = None, as_json: AsJson = False) -> None:
    """Show all that is known of a stored graph, with the facts of its namespace."""
    from graphcache.listing import entries, matching, open_existing

    with closing(open_existing(store)) as opened:
        chosen = [entry.fields() for entry in matching(entries(opened), key)]
    if as_json:
        print_json(chosen)
        return
    for fields in chosen:
        print_fields(fields["key"], _rows(fields))


def clear(
    key: OnlyArgument = None,
    store: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove compiled graphs from a store; servers that run now keep what they have loaded."""
    from graphcache.listing import entries, matching, open_existing, remove

    with closing(open_existing(store)) as opened:
        found = entries(opened)
        chosen = matching(found, key) if key else found
        worth = seconds(sum(entry.record.seconds for entry in chosen))
        question = f"Remove {len(chosen)} graphs ({worth} s of compiling) from {opened.disk.path}?"
        if chosen and not yes:
            typer.confirm(question, abort=True)
        print(f"removed {remove(opened, chosen)} graphs")


def _rows(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    from datetime import UTC, datetime

    from graphcache.bytesize import format_bytes

    created = datetime.fromtimestamp(fields["created"], UTC)
    return [
        ("digest", fields["digest"]),
        ("namespace", fields["namespace"]),
        *((f"  {label}", value) for label, value in fields["facts"]),
        ("created", f"{created:%Y-%m-%d %H:%M:%S} UTC"),
        ("compiled in", f"{seconds(fields['seconds'])} s"),
        ("size", format_bytes(fields["payload_bytes"])),
        ("sha256", fields["payload_digest"]),
        ("sealed", "yes" if fields["seal"] else "no"),
        ("uses", "-" if fields["uses"] is None else fields["uses"]),
    ]
