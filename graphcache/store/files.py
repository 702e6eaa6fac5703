"""The files of a disk store: one per entry, written whole or not at all.

::

    FORMAT             the format version of the store
    entries/DIGEST     one file per entry
    temporary/NAME     an entry being written, locked by its writer for as long as that lives
    quarantine/NAME    entries that were bad, the last few
    locks/DIGEST       who compiles what
    index/             what may be lost

A file is replaced by rename and removed by unlink, and never changed or cut: a process may have it mapped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from graphcache.errors import ConfigError, CorruptError, StoreError
from graphcache.store import format as entry_format
from graphcache.store.format import FORMAT_VERSION, NewerFormatError, is_digest
from graphcache.store.private import check_trusted, distrusted, make_private, store_errors
from graphcache.store.protocol import Record, Stored

STEPS = ("created", "header", "payload", "written", "synced", "renamed", "listed")
"""The steps of a write, in order; ``payload`` comes once for each chunk."""

QUARANTINE_KEEPS = 32
_CHUNK_BYTES = 1 << 20
_DIRECTORIES = ("entries", "temporary", "quarantine", "locks", "index")


class Listed(NamedTuple):
    """One entry's file, as the directory shows it."""

    digest: str
    nbytes: int
    mtime_ns: int


def no_step(step: str) -> None:
    """Do nothing at a step of a write."""


class EntryFiles:
    """Reads and writes the entry files below ``root``.

    ``fsync=False`` gives up surviving a power cut, not a killed process.  ``shared`` trusts every owner
    and mode, and leaves the modes of new files to the umask.  ``read_only`` leaves bad entries where they
    are.  ``on_step`` is called at each step of a
    write (`STEPS`), for tests to break it there.
    """

    def __init__(
        self,
        root: Path,
        *,
        fsync: bool = True,
        shared: bool = False,
        read_only: bool = False,
        on_step: Callable[[str], None] = no_step,
    ) -> None:
        self.root = root
        self._fsync = fsync
        self._shared = shared
        self._read_only = read_only
        self._on_step = on_step
        self._entries = root / "entries"

    def prepare(self) -> None:
        """Make the directories, and check that this version and this user may use them.

        Raises:
            StoreError: the path is a file, can't be written, is somebody else's, or a newer version's.
        """
        with store_errors(f"making the store {str(self.root)!r}"):
            make_private(self.root, 0o777 if self._shared else 0o700)
            self.check()
            for name in _DIRECTORIES:
                make_private(self.root / name, 0o777 if self._shared else 0o700)
            if not os.access(self._entries, os.W_OK):
                raise StoreError(
                    f"the store {str(self.root)!r} can't be written: set `read_only: true` to load from it"
                )
            if not (self.root / "FORMAT").exists():
                self._write_file(self.root / "FORMAT", f"{FORMAT_VERSION}\n".encode())

    def check(self) -> None:
        """Check that this version may read the store, and that its owner is to be trusted."""
        if not self.root.is_dir():
            what = "a file, not a directory" if self.root.exists() else "not there"
            raise StoreError(f"store: {str(self.root)!r} is {what}")
        if not self._shared:
            check_trusted(self.root)
        if (self.root / "FORMAT").is_file():
            with open(self.root / "FORMAT", "rb") as file:
                text = file.read(20).strip()
            if text.isdigit() and int(text) > FORMAT_VERSION:
                raise NewerFormatError.of(f"the store {str(self.root)!r}", int(text))

    def read(self, digest: str) -> Stored | None:
        """Return a verified entry, or None where there is no file.

        Raises:
            CorruptError: the file is bad; it has been put aside.
            StoreError: it can't be read.
        """
        with self._open(digest) as file:
            return entry_format.read_entry(file, digest) if file else None

    def read_record(self, digest: str) -> Record | None:
        """Return an entry's record without its payload, or None where there is no file."""
        with self._open(digest) as file:
            if not file:
                return None
            record = entry_format.read_header(file)
            entry_format.check_name(record, digest)
            if file.tell() + record.payload_bytes != os.fstat(file.fileno()).st_size:
                raise CorruptError(f"the file is not as long as its {record.payload_bytes} bytes of payload")
            return record

    def complete(self, record: Record) -> bool:
        """Say whether every entry of a record's group has a file."""
        return all(self._path(member).exists() for member in record.group)

    def peek(self, digest: str) -> Record | None:
        """Return the record of an entry whose group is complete, its payload unread; else None."""
        record = self.read_record(digest)
        return record if record and self.complete(record) else None

    def size(self, digest: str) -> int:
        """Return the bytes of an entry's file, 0 where there is none."""
        with suppress(OSError):
            return self._path(digest).lstat().st_size
        return 0

    def write(self, digest: str, record: Record, payload: bytes) -> None:
        """Keep an entry, whole or not at all.

        Raises:
            StoreFullError: no space.
            StoreError: the store can't be written.
        """
        header = entry_format.encode_header(record)
        with store_errors(f"writing an entry into {str(self.root)!r}"):
            try:
                self._write_file(self._path(digest), header, payload)
            except FileNotFoundError:  # somebody cleaned the directories away
                self.prepare()
                self._write_file(self._path(digest), header, payload)

    def remove(self, digest: str) -> int | None:
        """Unlink an entry; return the bytes that its file had, None where there was none."""
        path = self._path(digest)
        with store_errors(f"removing an entry from {str(self.root)!r}"):
            try:
                nbytes = path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                return None
        return nbytes

    def listed(self) -> Iterator[Listed]:
        """Yield every entry's file, in no order; what isn't an entry's file is passed over."""
        with (
            store_errors(f"listing {str(self._entries)!r}"),
            suppress(FileNotFoundError),
            os.scandir(self._entries) as found,
        ):
            for item in found:
                with suppress(FileNotFoundError):
                    status = item.stat(follow_symlinks=False)
                    if is_digest(item.name) and stat.S_ISREG(status.st_mode):
                        yield Listed(item.name, status.st_size, status.st_mtime_ns)

    def sweep(self) -> int:
        """Remove what dead writers left, and the oldest of the quarantine; return how many files."""
        swept = 0
        with suppress(OSError):
            for path in (self.root / "temporary").iterdir():
                swept += _unlink_if_unlocked(path)
            aside = sorted((self.root / "quarantine").iterdir(), key=lambda path: path.lstat().st_mtime_ns)
            for path in aside[:-QUARANTINE_KEEPS]:
                with suppress(OSError):
                    path.unlink()
                    swept += 1
        return swept

    def quarantined(self) -> int:
        """Return how many bad entries are kept aside."""
        with suppress(OSError):
            return len(os.listdir(self.root / "quarantine"))
        return 0

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise ConfigError.of("digest", digest, "a SHA-256 in lower-case hex")
        return self._entries / digest

    @contextmanager
    def _open(self, digest: str) -> Iterator[BinaryIO | None]:
        """Open an entry's file, or give None; put it aside if reading shows it to be bad."""
        path = self._path(digest)
        with store_errors(f"reading {str(path)!r}"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                yield None
                return
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                self._put_aside(path, os.lstat(path))
                raise CorruptError(f"entry {digest[:12]}: a symbolic link") from None
            status = os.fstat(descriptor)
            try:
                self._check_file(status, descriptor)
                with os.fdopen(descriptor, "rb") as file:
                    yield file
            except CorruptError as error:
                self._put_aside(path, status)
                raise CorruptError(f"entry {digest[:12]}: {error}") from None

    def _check_file(self, status: os.stat_result, descriptor: int) -> None:
        why = None if self._shared else distrusted(status)
        if not stat.S_ISREG(status.st_mode):
            why = "not a regular file"
        if why:
            os.close(descriptor)
            raise CorruptError(why)

    def _put_aside(self, path: Path, status: os.stat_result) -> None:
        """Move a bad entry into the quarantine, unless a good one has taken its place meanwhile."""
        if self._read_only:
            return
        with suppress(OSError):
            if os.lstat(path).st_ino == status.st_ino:
                os.replace(path, self.root / "quarantine" / f"{path.name}.{secrets.token_hex(4)}")

    def _write_file(self, path: Path, *parts: bytes) -> None:
        with self._temporary() as (descriptor, temporary):
            self._on_step("created")
            for number, part in enumerate(parts):
                for start in range(0, len(part), _CHUNK_BYTES):
                    self._on_step("payload" if number else "header")
                    _write_all(descriptor, memoryview(part)[start : start + _CHUNK_BYTES])
            self._on_step("written")
            if self._fsync:
                os.fsync(descriptor)
            self._on_step("synced")
            os.replace(temporary, path)
            self._on_step("renamed")
        if self._fsync:
            _sync_directory(path.parent)
        self._on_step("listed")

    @contextmanager
    def _temporary(self) -> Iterator[tuple[int, Path]]:
        """Make a locked file in the store; it is gone afterwards, unless it was renamed."""
        descriptor, path = self._create_locked()
        try:
            yield descriptor, path
        finally:
            os.close(descriptor)
            with suppress(OSError):
                path.unlink()

    def _create_locked(self) -> tuple[int, Path]:
        mode = 0o666 if self._shared else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            path = self.root / "temporary" / secrets.token_hex(16)
            descriptor = os.open(path, flags, mode)
            with suppress(OSError):  # a file system without locks: the sweep leaves such files alone
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor, path
            os.close(descriptor)  # another process swept it away before it was locked


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink_if_unlocked(path: Path) -> int:
    """Remove a file unless the process that wrote it lives and holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return 1
    except OSError:
        return 0
    finally:
        os.close(descriptor)
