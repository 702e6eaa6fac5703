"""The tree of commands.

Every module of commands is imported here, so none imports more than typer until a command runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from graphcache import __version__
from graphcache.cli import advise, bench, contract, entries, policy, run, simulate, stats, store, warm

app = typer.Typer(
    name="graphcache",
    help="Look at, fill and tune the cache of compiled graphs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"graphcache {__version__}")
        raise typer.Exit


@app.callback()
def graphcache(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Look at, fill and tune the cache of compiled graphs."""


for part in (run, warm, stats, entries, policy, simulate, advise, store, bench, contract):
    part.commands(app)
