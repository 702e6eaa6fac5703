"""The command line: each command parses, makes one call of the library, and prints."""

from __future__ import annotations

import sys

from graphcache.errors import ConfigError, GraphCacheError


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exits with 0, 1 where a check failed or a store or file can't be used, or 2 for a
    command or value that makes no sense.
    """
    from graphcache.cli.app import app

    try:
        app(arguments, prog_name="graphcache")
    except GraphCacheError as error:
        print(f"graphcache: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
