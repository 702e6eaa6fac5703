"""What each worker's cache counts, in one small file per worker, for the front end to read and add up.

The cache lives in the workers, whoever asks lives in the front end; with files neither waits.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphcache.cache import GraphCache
from graphcache.journal import Journal

PERIOD_SECONDS = 2.0
MAX_BYTES = 16 * 2**20


def make_directory() -> Path:
    """Make this server's directory of snapshots; it is gone when this process is."""
    directory = Path(tempfile.mkdtemp(prefix="graphcache-stats-"))
    atexit.register(_remove, directory, os.getpid())
    return directory


def publish(
    cache: GraphCache, directory: Path, rank: int, also: Callable[[dict[str, Any]], None] | None = None
) -> None:
    """Write a cache's counters into a worker's file: now, from time to time, and when the cache is closed.

    A worker that is started anew writes a file of its own: what the one before it counted still counts.
    ``also`` is given each snapshot too.
    """
    path = directory / f"{rank}-{os.getpid()}.json"

    def write() -> None:
        snapshot = cache.snapshot()
        del snapshot["events"]
        with suppress(FileNotFoundError):  # the front end has ended before its workers: nobody will read
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(snapshot))
            fresh.replace(path)
        if also is not None:
            also(snapshot)

    journal = Journal([write], cache.stats, period_seconds=PERIOD_SECONDS)
    journal.write()
    cache.at_close(journal.close)


def read(directory: Path) -> list[dict[str, Any]]:
    """Return the last snapshot of each worker; a file that can't be read yet is left out."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            if path.stat().st_size <= MAX_BYTES:
                found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return [snapshot for snapshot in found if isinstance(snapshot, dict) and "keys" in snapshot]


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child leaves it to its parent
        shutil.rmtree(directory, ignore_errors=True)
