"""One compile per entry and host: who compiles, who waits, and for how long.

A lock is an ``flock`` on a file, which the kernel lets go when its holder dies, whatever it dies of.  The
holder also raises a number in the file, and whoever waits watches it rise, by its own monotonic clock: a
holder that is stopped or stuck is waited for so long and no longer.  No system clock is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from graphcache.errors import ConfigError, StoreError
from graphcache.store.format import is_digest
from graphcache.store.mounts import Mount, mount_of
from graphcache.store.private import distrusted, make_private

BEAT_SECONDS = 1.0
POLL_SECONDS = 0.05


class Owner(NamedTuple):
    """Who holds a lock: a process of one boot of one host, and its heartbeats so far."""

    pid: int
    host: str
    boot: str
    beats: int


class Turn(NamedTuple):
    """How the wait for an entry ended.

    ``holds`` says whether this process is now the only one of this host to compile the entry; else it
    waited long enough, or there are no locks here, and it compiles privately.  ``waited`` says whether
    somebody else had the turn before, so that the entry is worth another look.
    """

    holds: bool
    waited: bool
    reason: str = ""


class CompileLocks:
    """The locks of one host's processes on the entries of a store.

    ``hang_seconds`` is how long a holder may be silent, ``patience_seconds`` how long a compile may take
    altogether before those who wait compile privately.  ``directory`` is `locks_directory`'s; with None
    nobody waits for anybody.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        hang_seconds: float = 30.0,
        patience_seconds: float = 1800.0,
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory = directory
        self._hang_seconds = hang_seconds
        self._patience_seconds = patience_seconds
        self._mode = 0o666 if shared else 0o600
        self._clock = clock
        self._sleep = sleep

    @contextmanager
    def turn(self, digest: str) -> Iterator[Turn]:
        """Wait for the turn to compile an entry, and hold it for as long as the block runs."""
        if not is_digest(digest):
            raise ConfigError.of("digest", digest, "a SHA-256 in lower-case hex")
        if self.directory is None:
            yield Turn(holds=False, waited=False, reason="no_locks")
            return
        path = self.directory / digest
        descriptor, outcome = self._wait(path)
        if descriptor is None:
            yield outcome
            return
        with _held(descriptor):
            yield outcome

    def owner(self, digest: str) -> Owner | None:
        """Return who holds an entry's lock now, or None; for people to read."""
        path = (self.directory or Path("/nonexistent")) / digest
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return None if _try_flock(descriptor) else _read_owner(descriptor)
        finally:
            os.close(descriptor)

    def sweep(self) -> int:
        """Remove the files of locks that nobody holds; return how many."""
        swept = 0
        for path in _files(self.directory):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if _try_flock(descriptor) and _is_at(descriptor, path):
                        path.unlink()
                        swept += 1
                finally:
                    os.close(descriptor)
        return swept

    def _wait(self, path: Path) -> tuple[int | None, Turn]:
        """Return the locked file's descriptor, or None and why the wait was given up."""
        started = seen_at = self._clock()
        seen: Owner | None = None
        waited = False
        while True:
            try:
                descriptor, owner = _attempt(path, self._mode)
            except (OSError, StoreError) as error:
                return None, Turn(False, waited, f"no_locks: {getattr(error, 'strerror', error)}")
            if descriptor is not None:
                return descriptor, Turn(True, waited)
            now, waited = self._clock(), True
            if owner != seen:
                seen, seen_at = owner, now
            if now - seen_at > self._hang_seconds:
                return None, Turn(False, waited, "holder_hangs")
            if now - started > self._patience_seconds:
                return None, Turn(False, waited, "holder_slow")
            self._sleep(POLL_SECONDS)


def locks_directory(
    store: Path, environ: Mapping[str, str] = os.environ, mount: Mount | None = None
) -> Path | None:
    """Return where this host's locks on a store are kept, or None where no lock would be one.

    In the store itself on a local disk.  On a network file system locks may reach further than this host,
    or nowhere: then below ``$XDG_RUNTIME_DIR``, which is this user's and this boot's, if there is one.
    ``mount`` is the store's, looked up where it is not given.
    """
    mount = mount or mount_of(store)
    if not mount.network:
        return store / "locks"
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    with suppress(OSError, StoreError):
        if runtime.is_absolute() and distrusted(runtime.stat()) is None:
            local = runtime / "graphcache" / hashlib.sha256(str(store.resolve()).encode()).hexdigest()[:16]
            make_private(local)
            return local
    return None


_held_descriptors: set[int] = set()


def _let_go_after_fork() -> None:
    """Close what a forked child inherited: it would keep the locks after its parent died."""
    for descriptor in _held_descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _held_descriptors.clear()


os.register_at_fork(after_in_child=_let_go_after_fork)


@contextmanager
def _held(descriptor: int) -> Iterator[None]:
    """Raise the heartbeat for as long as the block runs, then let the lock go."""
    over = threading.Event()
    beating = threading.Thread(target=_beat, args=(descriptor, over), name="graphcache-lock", daemon=True)
    _held_descriptors.add(descriptor)
    try:
        _sign(descriptor, beats=0)
        beating.start()
        yield
    finally:
        over.set()
        beating.join()
        if descriptor in _held_descriptors:  # else this is a forked child, which holds nothing
            _held_descriptors.discard(descriptor)
            os.close(descriptor)


def _beat(descriptor: int, over: threading.Event) -> None:
    beats = 1
    while not over.wait(BEAT_SECONDS):
        _sign(descriptor, beats)
        beats += 1


def _sign(descriptor: int, beats: int) -> None:
    owner = json.dumps([os.getpid(), socket.gethostname(), _boot_id(), beats]) + "\n"
    with suppress(OSError):  # a full disk: those who wait then see no heartbeat, and wait no longer
        os.pwrite(descriptor, owner.encode(), 0)


def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _attempt(path: Path, mode: int) -> tuple[int | None, Owner | None]:
    """Try once to take a lock: its descriptor, or who has it, or neither where its file was just swept."""
    make_private(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        if not _try_flock(descriptor):
            return None, _read_owner(descriptor)
        if _is_at(descriptor, path):
            return os.dup(descriptor), None
        return None, None
    finally:
        os.close(descriptor)


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Say whether a path still leads to an open file: a sweep may have removed it before it was locked."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def _read_owner(descriptor: int) -> Owner | None:
    with suppress(OSError, ValueError, TypeError, RecursionError):
        pid, host, boot, beats = json.loads(os.pread(descriptor, 1024, 0).split(b"\n")[0])
        return Owner(int(pid), str(host), str(boot), int(beats))
    return None


def _files(directory: Path | None) -> list[Path]:
    with suppress(OSError):
        return list(directory.iterdir()) if directory else []
    return []
