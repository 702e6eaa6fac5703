"""``graphcache contract``: the rules that every backend keeps, tried on one."""

from __future__ import annotations

from typing import Annotated

import typer

from graphcache.cli.output import AsJson, example, print_json, print_table

Target = Annotated[
    str,
    typer.Argument(
        metavar="BACKEND",
        help="module:Attribute of a class or function that returns the backend when it is called without"
        " arguments.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="A graph to compile for the rules; may be repeated."),
]


def commands(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("contract", epilog=example("graphcache contract my_package:MyBackend"))(contract)


def contract(backend: Target, key: Keys = None, as_json: AsJson = False) -> None:
    """Try the rules that every backend keeps on one: exit 0 if it keeps them, else 1.

    Two graphs of 32 tokens are compiled unless others are named, the first of them again for some rules.
    """
    from graphcache.contract import KEYS, Verdict, check, subject
    from graphcache.key import GraphKey

    keys = [GraphKey.parse(text) for text in key] if key else KEYS
    results = list(check(subject(backend, keys)))
    if as_json:
        print_json([result._asdict() for result in results])
    else:
        print_table(backend, ["rule", "verdict", "detail"], results)
    if any(result.verdict is Verdict.FAIL for result in results):
        raise typer.Exit(1)
