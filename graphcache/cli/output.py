"""How results are printed: as JSON for programs, as tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
StoreOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="The store's directory; by default $GRAPHCACHE_STORE, else the user's cache directory.",
    ),
]

PIPE_COLUMNS = 200


def example(*lines: str) -> str:
    """Return the text that ends a command's help: commands that work as they stand."""
    return "\n\n".join(("Example:" if len(lines) == 1 else "Examples:", *lines))


def print_json(value: Any) -> None:
    """Print plain JSON values, indented."""
    print(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> None:
    """Print a table; columns whose name begins with ``#`` hold numbers, and lose that sign.

    The first column is never cut; where the output is no terminal, none is.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
    table.caption_justify = "left"
    table.title, table.caption = title, note or None
    for index, column in enumerate(columns):
        number = column.startswith("#")
        table.add_column(
            column.removeprefix("#"),
            justify="right" if number else "left",
            no_wrap=index == 0 or (number and " " not in column),
        )
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    Console(width=width, markup=False, highlight=False, emoji=False).print(table)


def print_fields(title: str, fields: Iterable[tuple[str, object]]) -> None:
    """Print a value a line, whole, so that it can be copied."""
    rows = list(fields)
    width = max(len(name) for name, _ in rows)
    print(title)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def seconds(value: float) -> str:
    """Return seconds to a precision that people read: ``0.0034``, ``1.25``, ``731``."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def share(value: float | None) -> str:
    """Return a share in percent, or a dash where there is none."""
    return "-" if value is None else f"{value:.1%}"


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show on a terminal, while it lasts, what is being done and how much of how much of it."""
    from rich.console import Console
    from rich.progress import Progress

    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def counted_bars() -> Progress:
    """Return bars that count what is done, on stderr, and stay: one for each task."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))
