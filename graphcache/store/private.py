"""Directories and files that only their owner can write, and where a store is by default."""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from graphcache.errors import StoreError, StoreFullError

log = logging.getLogger("graphcache")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Turn the operating system's errors into this package's, saying what was being done.

    Raises:
        StoreFullError: the disk or a quota is full.
        StoreError: anything else.
    """
    try:
        yield
    except OSError as error:
        kind = StoreFullError if error.errno in _FULL else StoreError
        raise kind(f"{doing}: {error.strerror or error}") from error


def make_private(path: Path, mode: int = 0o700) -> None:
    """Create a directory and its missing parents, for their owner alone."""
    if not path.parent.is_dir():
        make_private(path.parent, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not path.is_dir():
            raise StoreError(f"store: {str(path)!r} is a file, not a directory") from None


def distrusted(status: os.stat_result) -> str | None:
    """Say why a file could be another user's doing, or None where it can't be.

    Root is trusted: root needs no store to run code here.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & _OTHERS_WRITE:
        return f"its mode {stat.S_IMODE(status.st_mode):04o} lets group or others write it"
    return None


def check_trusted(path: Path) -> None:
    """Refuse a directory in which others could place code.

    Raises:
        StoreError: saying why, and what to do.
    """
    why = distrusted(path.stat())
    if why:
        raise StoreError(
            f"the store {str(path)!r} is not used: {why}. A compiled graph is code: seal the store with a "
            "key, make it your own with mode 0700, or set `shared: true` to trust everyone who can write it"
        )


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the store is by default: a directory that is this user's own.

    ``$XDG_CACHE_HOME/graphcache``, else ``~/.cache/graphcache``.  Where neither can be made (a container
    that runs as a user id it doesn't know, a home that can't be written) it is among the temporary files:
    ``graphcache-UID`` if that is this user's alone, else a fresh directory that nobody could have made.
    """
    for base in _cache_homes(environ):
        path = base / "graphcache"
        try:
            make_private(path)
        except (OSError, StoreError):
            continue
        if os.access(path, os.W_OK) and distrusted(path.stat()) is None:
            return path
    path = _temporary_home()
    log.warning("no cache directory of this user can be written; the store is %s, while that lasts", path)
    return path


def _temporary_home() -> Path:
    path = Path(tempfile.gettempdir()) / f"graphcache-{os.geteuid()}"
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = path.lstat()  # not what a link leads to: others can make links here
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return path
    return Path(tempfile.mkdtemp(prefix="graphcache-"))


def _cache_homes(environ: Mapping[str, str]) -> Iterator[Path]:
    named = environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        yield Path(named)
    home = environ.get("HOME", "")
    if Path(home).is_absolute() and home != "/":
        yield Path(home) / ".cache"
