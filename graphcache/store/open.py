"""Opening the store that a configuration describes."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from graphcache.store.disk import DiskStore
from graphcache.store.lock import CompileLocks, locks_directory
from graphcache.store.private import default_path
from graphcache.store.protocol import Store
from graphcache.store.readonly import ReadOnlyStore
from graphcache.store.sealed import SealedStore, read_key_files

log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """A store as configured: ``store`` to get from and put into, ``disk`` for what lies below the seal."""

    store: Store
    disk: DiskStore | ReadOnlyStore
    locks: CompileLocks

    def close(self) -> None:
        """Flush and close what is open."""
        self.disk.close()


def open_store(
    path: str | os.PathLike[str] | None = None,
    *,
    max_bytes: int | None = None,
    read_only: bool = False,
    shared: bool = False,
    key_files: Sequence[str | os.PathLike[str]] = (),
) -> Opened:
    """Open a disk store; ``path`` is by default `default_path`'s.

    With ``key_files`` (the first seals, all are accepted) every entry must bear a seal, and then others
    may own or write the directory.  ``shared`` allows that without a seal.

    Raises:
        ConfigError: a bound or key that makes no sense.
        StoreError: the store can't be used, saying why.
    """
    keys = read_key_files(key_files) if key_files else None
    where = default_path() if path is None else path
    shared = shared or keys is not None
    disk: DiskStore | ReadOnlyStore
    if read_only:
        disk = ReadOnlyStore(where, shared=shared)
    else:
        disk = DiskStore(where, max_bytes=max_bytes, shared=shared)
    store = SealedStore(disk, keys) if keys else disk
    locks = CompileLocks(None if read_only else _locks_directory(disk.path), shared=shared)
    locks.sweep()
    return Opened(store, disk, locks)


def _locks_directory(path: Path) -> Path | None:
    directory = locks_directory(path)
    if directory is None:
        log.warning(
            "the store %s is on a network file system, and there is no $XDG_RUNTIME_DIR to keep locks in: "
            "processes of this host that miss the same graph at once will each compile it",
            path,
        )
    return directory
