"""``graphcache du``, ``verify``, ``gc``, ``explain``, ``doctor``, ``export``, ``import`` and ``torture``."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcache.cli.output import AsJson, StoreOption, example, print_json, print_table, seconds

if TYPE_CHECKING:
    from graphcache.explain import Explanation
    from graphcache.store.disk import DiskStore

KeyFiles = Annotated[
    list[Path] | None,
    typer.Option("--key-file", metavar="FILE", help="A key of the seal; the first seals, all are accepted."),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="HEX", help="Only this namespace, by its first letters.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would leave.")]


def commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("du", epilog=example("graphcache du"))(du)
    app.command("verify", epilog=example("graphcache verify --deep"))(verify)
    app.command("gc", epilog=example("graphcache gc --max-bytes 10GiB --dry-run"))(gc)
    app.command(
        "explain",
        epilog=example("graphcache explain prefill/causal/1x512", "graphcache explain --last-misses"),
    )(explain)
    app.command("doctor", epilog=example("graphcache doctor"))(doctor)
    app.command("export", epilog=example("graphcache export graphs.bundle --key-file seal.key"))(export)
    app.command("import", epilog=example("graphcache import graphs.bundle --key-file seal.key"))(import_)
    app.command("seal-key", epilog=example("graphcache seal-key seal.key"))(seal_key)
    app.command("torture", epilog=example("graphcache torture /tmp/torture --kills 100"))(torture)


def du(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Show what each namespace of a store takes, and what it stands for."""
    from dataclasses import asdict

    from graphcache.bytesize import format_bytes
    from graphcache.listing import open_existing
    from graphcache.store.upkeep import overhead, usage

    with closing(open_existing(store)) as opened:
        used = usage(opened.disk)
    beside = overhead(opened.disk.path)._asdict()
    if as_json:
        print_json({"namespaces": {name: asdict(row) for name, row in used.items()}, **beside})
        return
    rows = [
        (name[:12], row.backend, row.entries, format_bytes(row.nbytes), seconds(row.seconds))
        for name, row in used.items()
    ]
    note = ", ".join(
        f"{name.removesuffix('_bytes')} {format_bytes(nbytes)}" for name, nbytes in beside.items()
    )
    columns = ["namespace", "backend", "#entries", "#size", "#compile s"]
    print_table(str(opened.disk.path), columns, rows, note)


def verify(
    deep: Annotated[bool, typer.Option("--deep", help="Read every payload, not only headers.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put bad entries aside; their next use replaces them.")
    ] = False,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Check the entries of a store: exit 0 if all are good, else 1."""
    from graphcache.listing import open_existing
    from graphcache.store.files import EntryFiles
    from graphcache.store.upkeep import repair as repair_store
    from graphcache.store.upkeep import verify as verify_files

    with closing(open_existing(store)) as opened:
        path = opened.disk.path
        if repair:
            problems = repair_store(_writable(opened.disk), deep=deep)
        else:
            problems = list(verify_files(EntryFiles(path, shared=True, read_only=True), deep=deep))
    if as_json:
        print_json([problem._asdict() for problem in problems])
    else:
        rows = [(problem.digest[:12], problem.reason) for problem in problems]
        print_table(str(path), ["entry", "problem"], rows, "no problem" if not rows else "")
    if any(problem.bad for problem in problems):
        raise typer.Exit(1)


def gc(
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Until all payloads fit, such as 10GiB.")
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(metavar="DAYS", help="What was compiled longer ago than this.")
    ] = None,
    namespace: NamespaceOption = None,
    dry_run: DryRun = False,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove the graphs that are worth least: compile seconds, times uses, per byte."""
    import time
    from dataclasses import asdict

    from graphcache.bytesize import format_bytes, parse_bytes
    from graphcache.listing import open_existing
    from graphcache.store.upkeep import gc as collect

    with closing(open_existing(store)) as opened:
        removed = collect(
            _writable(opened.disk),
            max_bytes=None if max_bytes is None else parse_bytes(max_bytes, "max-bytes"),
            older_than_seconds=None if older_than is None else older_than * 86400,
            namespace=namespace,
            now=time.time(),
            dry_run=dry_run,
        )
    if as_json:
        print_json([{"digest": c.digest, "uses": c.uses, **asdict(c.record)} for c in removed])
        return
    rows = [
        (c.record.key, c.digest[:12], format_bytes(c.record.payload_bytes), seconds(c.record.seconds), c.uses)
        for c in removed
    ]
    total = seconds(sum(c.record.seconds for c in removed))
    note = f"{len(rows)} graphs {'would leave' if dry_run else 'left'}, {total} s of compiling"
    print_table(str(opened.disk.path), ["key", "digest", "#size", "#compile s", "#uses"], rows, note)


def explain(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY | A B]", help="A key; or two entries' digests, or two files of `show --json`."
        ),
    ] = None,
    last_misses: Annotated[
        bool, typer.Option("--last-misses", help="The graphs that had to be compiled last.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="How many last misses.")] = 5,
    decision: Annotated[
        bool, typer.Option("--decision", help="What the adaptive policy loaded and let go last, and why.")
    ] = False,
    namespace: NamespaceOption = None,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Show why a graph was not in the store: the nearest one that is, and which facts differ."""
    from dataclasses import asdict

    from graphcache.explain import explain_all
    from graphcache.listing import open_existing

    if decision:
        _print_decisions(store, what or [], namespace, as_json)
        return
    with closing(open_existing(store)) as opened:
        explanations = explain_all(list(opened.disk.scan()), what or [], count * last_misses, namespace)
    if as_json:
        print_json([asdict(explanation) for explanation in explanations])
        return
    for explanation in explanations:
        _print_explanation(explanation)


def _print_decisions(store: Path | None, keys: list[str], namespace: str | None, as_json: bool) -> None:
    from graphcache.decisions import decisions
    from graphcache.listing import open_existing

    with closing(open_existing(store)) as opened:
        found = decisions(opened.disk, keys, namespace)
    if as_json:
        print_json([decided._asdict() for decided in found])
        return
    rows = [(d.namespace[:12], d.launch, d.key, " ".join(d.left) or "-", d.reason) for d in found]
    print_table(str(opened.disk.path), ["namespace", "#launch", "loaded", "let go", "reason"], rows)


def _print_explanation(explanation: Explanation) -> None:
    title = f"{explanation.key} of {explanation.namespace[:12]}"
    if explanation.nearest is None:
        print(f"{title}: nothing was stored")
        return
    rows = [(d.label, d.wanted or "-", d.stored or "-", d.verdict) for d in explanation.differences]
    nearest = f"nearest: {explanation.nearest_key} ({explanation.nearest[:12]})"
    print_table(
        title, ["fact", "wanted", "stored", "verdict"], rows, nearest if rows else f"{nearest}: the same"
    )


def doctor(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Check a store and its surroundings: exit 0 if it can be used, 1 if not."""
    from graphcache.doctor import Level, diagnose, worst
    from graphcache.listing import chosen_store

    path = chosen_store(store)
    findings = diagnose(path)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table(str(path), ["check", "level", "detail"], findings)
    if worst(findings) is Level.FAULT:
        raise typer.Exit(1)


def export(
    bundle: Annotated[Path, typer.Argument(metavar="FILE", help="The bundle to write; - for stdout.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Only this graph; may be repeated.")
    ] = None,
    namespace: NamespaceOption = None,
    key_file: KeyFiles = None,
    store: StoreOption = None,
) -> None:
    """Write graphs of a store into one file, sealed if a key file is given."""
    from contextlib import nullcontext

    from graphcache.bytesize import format_bytes
    from graphcache.listing import open_existing
    from graphcache.store.bundle import export_bundle, new_bundle_file, selection
    from graphcache.store.sealed import read_key_files

    keys = read_key_files(key_file) if key_file else None
    out = nullcontext(sys.stdout.buffer) if str(bundle) == "-" else new_bundle_file(bundle)
    with closing(open_existing(store)) as opened, out as file:
        carried = export_bundle(opened.disk, file, select=selection(key or (), namespace), keys=keys)
    size = format_bytes(carried.nbytes)
    print(f"{carried.entries} graphs, {size}, {carried.left_out} left out", file=sys.stderr)


def import_(
    bundle: Annotated[Path, typer.Argument(metavar="FILE", help="The bundle to read; - for stdin.")],
    key_file: KeyFiles = None,
    unsealed: Annotated[
        bool, typer.Option("--unsealed", help="Take a bundle without a seal: its maker can run code here.")
    ] = False,
    max_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Refuse more than this.")] = "64GiB",
    store: StoreOption = None,
) -> None:
    """Put a bundle's graphs into a store; each one is verified, and must be sealed with a given key."""
    from contextlib import nullcontext

    from graphcache.bytesize import format_bytes, parse_bytes
    from graphcache.errors import ConfigError
    from graphcache.listing import chosen_store
    from graphcache.store.bundle import import_bundle, open_bundle_file
    from graphcache.store.open import open_store
    from graphcache.store.sealed import read_key_files

    if not key_file and not unsealed:
        raise ConfigError.of("--key-file", None, "a key file, or --unsealed if you trust the bundle's maker")
    keys = read_key_files(key_file) if key_file else None
    source = nullcontext(sys.stdin.buffer) if str(bundle) == "-" else open_bundle_file(bundle)
    with source as file, closing(open_store(chosen_store(store), key_files=key_file or ())) as opened:
        carried = import_bundle(file, opened.store, keys=keys, max_bytes=parse_bytes(max_bytes, "max-bytes"))
    print(f"{carried.entries} graphs, {format_bytes(carried.nbytes)}", file=sys.stderr)


def seal_key(path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]) -> None:
    """Write a new key to seal a store with, for its owner alone."""
    from graphcache.store.sealed import write_key_file

    write_key_file(path)
    print(f"wrote {path}: hand it to those who may fill the store, and keep it outside the store")


def torture(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to do it; a new directory below.")],
    kills: Annotated[int, typer.Option(min=1, help="Random kills of writers.")] = 100,
    writers: Annotated[int, typer.Option(min=1, help="Writers at once.")] = 8,
    keys: Annotated[int, typer.Option(min=1, help="Graphs that they write.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the random kills and places.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Break a fresh store in DIR in every way we know: exit 0 if it held, else 1."""
    from graphcache.torture.outcome import BROKE, Plan
    from graphcache.torture.run import run_all

    outcomes = run_all(directory, Plan(kills=kills, writers=writers, keys=keys, seed=seed))
    if as_json:
        print_json([outcome._asdict() for outcome in outcomes])
    else:
        rows = [(outcome.fault, outcome.verdict, outcome.detail) for outcome in outcomes]
        print_table(f"torture of a store in {directory}", ["fault", "verdict", "detail"], rows)
    if any(outcome.verdict == BROKE for outcome in outcomes):
        raise typer.Exit(1)


def _writable(disk: object) -> DiskStore:
    from graphcache.errors import StoreError
    from graphcache.store.disk import DiskStore

    if not isinstance(disk, DiskStore):
        raise StoreError("this store can only be read")
    return disk
