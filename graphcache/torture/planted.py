"""Stores with a defence taken out, which the checks must catch: else they could not fail at all."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from graphcache.store.disk import DiskStore
from graphcache.store.files import STEPS, EntryFiles, no_step
from graphcache.store.format import encode_header, read_header
from graphcache.store.lock import CompileLocks, Turn
from graphcache.store.mounts import check_executable
from graphcache.store.private import default_path
from graphcache.store.protocol import Record, Stored


class UnverifiedFiles(EntryFiles):
    """Serves what it finds."""

    def read(self, digest: str) -> Stored | None:
        """Return an entry without comparing its payload with its record."""
        with self._open(digest) as file:
            return Stored(read_header(file), file.read()) if file else None


class StayingFiles(EntryFiles):
    """Leaves a bad entry in its place."""

    def _put_aside(self, path: Path, status: os.stat_result) -> None:
        pass


class InPlaceFiles(EntryFiles):
    """Writes over an entry instead of beside it."""

    def _write_file(self, path: Path, *parts: bytes) -> None:
        with open(path, "wb") as file:
            self._on_step(STEPS[0])
            for part in parts:
                file.write(part[: len(part) // 2])
                file.flush()
                self._on_step("payload")
                file.write(part[len(part) // 2 :])
        for step in STEPS[3:]:
            self._on_step(step)


class UnsweptFiles(EntryFiles):
    """Leaves what dead writers left."""

    def sweep(self) -> int:
        """Remove nothing."""
        return 0


class UngroupedFiles(EntryFiles):
    """Takes every member of a group for present."""

    def complete(self, record: Record) -> bool:
        """Return True."""
        return True


class RawFiles(EntryFiles):
    """Lets the operating system's errors through."""

    def write(self, digest: str, record: Record, payload: bytes) -> None:
        """Write an entry, and answer no error."""
        self._write_file(self._path(digest), encode_header(record), payload)


class UnpreparedFiles(RawFiles):
    """Never asks whether the place can be written."""

    def prepare(self) -> None:
        """Make the directories, if they are not there."""
        for name in ("", "entries", "temporary"):
            (self.root / name).mkdir(parents=True, exist_ok=True)


class Host(NamedTuple):
    """What a store asks of the host: whether libraries load from a place, and where it may be."""

    check_executable: Callable[[Path], None]
    default_path: Callable[[Mapping[str, str]], Path]


def _anywhere(environ: Mapping[str, str]) -> Path:
    path = Path(tempfile.gettempdir()) / "graphcache"
    path.mkdir(exist_ok=True)
    return path


class StaleLocks(CompileLocks):
    """Locks that are there for as long as their file is: longer than their holder."""

    @contextmanager
    def turn(self, digest: str) -> Iterator[Turn]:
        """Wait until the file is gone."""
        path = (self.directory or Path()) / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(40):
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                yield Turn(holds=True, waited=False)
                path.unlink()
                return
            time.sleep(0.05)
        yield Turn(holds=False, waited=True, reason="stale")


def _no_locks(directory: Path, **_: float) -> CompileLocks:
    return CompileLocks(None)


def _deaf_locks(directory: Path, hang_seconds: float = 30.0) -> CompileLocks:
    return CompileLocks(directory, hang_seconds=1e9, patience_seconds=hang_seconds)


STORES: dict[str, type[EntryFiles]] = {
    "sound": EntryFiles,
    "unverified": UnverifiedFiles,
    "staying": StayingFiles,
    "in_place": InPlaceFiles,
    "unswept": UnsweptFiles,
    "ungrouped": UngroupedFiles,
    "raw": RawFiles,
    "unprepared": UnpreparedFiles,
}
"""The kinds of store that can be broken, by name."""

LOCKS: dict[str, Callable[..., CompileLocks]] = {
    "sound": CompileLocks,
    "stale": StaleLocks,
    "none": _no_locks,
    "deaf": _deaf_locks,
}
"""The kinds of locks that can be broken, by name."""


HOSTS = {
    "sound": Host(check_executable, default_path),
    "careless": Host(lambda path: None, _anywhere),
}
"""The kinds of answers that a store can be given about its host, by name."""


def open_store(
    kind: str, root: Path, *, max_bytes: int | None = None, on_step: Callable[[str], None] = no_step
) -> DiskStore:
    """Open a store of one kind."""
    return DiskStore(root, max_bytes=max_bytes, on_step=on_step, files=STORES[kind])
