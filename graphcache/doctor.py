"""A store's state of health, and its surroundings': owner, mount, locks, space, clock, versions."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from graphcache._version import CODEGEN_VERSION, __version__
from graphcache.backends.xla_probe import recorded
from graphcache.errors import StoreError
from graphcache.store.files import EntryFiles
from graphcache.store.format import FORMAT_VERSION, NewerFormatError
from graphcache.store.lock import CompileLocks, locks_directory
from graphcache.store.mounts import mount_of
from graphcache.store.private import distrusted

LOW_SPACE_BYTES = 1 << 30
CLOCK_SKEW_SECONDS = 60.0
TORCH_XLA = "xla"
"""Where in a store's directory the ``xla`` backend is best told to keep what is its own."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


class Finding(NamedTuple):
    """What one check found."""

    check: str
    level: Level
    detail: str


def diagnose(path: Path, now: Callable[[], float] = time.time) -> list[Finding]:
    """Check a store's directory, whole or broken; nothing is changed but for a file that comes and goes."""
    if not path.is_dir():
        there = "is not a directory" if path.exists() else "does not exist yet"
        level = Level.FAULT if path.exists() else Level.WARNING
        return [Finding("directory", level, f"{path} {there}"), *_versions()]
    findings: list[Finding] = []
    for check in (
        _owner,
        _ancestors,
        _format,
        _mount,
        _space,
        _index,
        _entries,
        _leftovers,
        _compiling,
        _torch_xla,
    ):
        try:
            findings.extend(check(path))
        except (OSError, StoreError, sqlite3.Error) as error:
            findings.append(Finding(check.__name__.strip("_"), Level.FAULT, str(error)))
    return [*findings, *_probe(path, now), *_versions()]


def worst(findings: list[Finding]) -> Level:
    """Return the worst level of all findings."""
    levels = [finding.level for finding in findings]
    return max(levels, key=list(Level).index, default=Level.OK)


def _owner(path: Path) -> Iterator[Finding]:
    why = distrusted(path.stat())
    if why:
        yield Finding("owner", Level.FAULT, f"{why}; a compiled graph is code: use a seal, or mode 0700")
        return
    loose = [p for p in path.iterdir() if distrusted(p.lstat())]
    level = Level.FAULT if loose else Level.OK
    yield Finding(
        "owner", level, f"others can write {loose[0]}" if loose else f"user {path.stat().st_uid} alone"
    )


def _ancestors(path: Path) -> Iterator[Finding]:
    for parent in path.resolve().parents:
        status = parent.stat()
        sticky = status.st_mode & stat.S_ISVTX
        if distrusted(status) and not sticky:
            yield Finding(
                "path", Level.WARNING, f"others can replace the store: {parent}: {distrusted(status)}"
            )
            return
    yield Finding("path", Level.OK, "nobody else can replace the store")


def _format(path: Path) -> Iterator[Finding]:
    try:
        EntryFiles(path, shared=True).check()
    except NewerFormatError as error:
        yield Finding("format", Level.FAULT, str(error))
    else:
        yield Finding("format", Level.OK, f"format {FORMAT_VERSION}")


def _mount(path: Path) -> Iterator[Finding]:
    mount = mount_of(path)
    flags = os.statvfs(path).f_flag
    where = f"{mount.kind} at {mount.point}"
    if flags & os.ST_RDONLY:
        yield Finding("mount", Level.WARNING, f"{where}, read-only: set `read_only: true`")
    elif mount.network:
        yield Finding("mount", Level.WARNING, f"{where}, a network: locks are kept on this host, if at all")
    else:
        yield Finding("mount", Level.OK, where)
    if flags & os.ST_NOEXEC:
        yield Finding("noexec", Level.WARNING, "libraries can't be loaded from here, only kept")


def _space(path: Path) -> Iterator[Finding]:
    usage = shutil.disk_usage(path)
    level = Level.WARNING if usage.free < LOW_SPACE_BYTES else Level.OK
    yield Finding("space", level, f"{usage.free / 2**30:.1f} GiB free of {usage.total / 2**30:.1f} GiB")


def _index(path: Path) -> Iterator[Finding]:
    database = path / "index" / "cache.db"
    if not database.exists():
        yield Finding("index", Level.OK, "none yet; it is made when needed")
        return
    connection = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=2)
    try:
        ((said, *_),) = connection.execute("PRAGMA quick_check(1)").fetchall()
        level, detail = (Level.OK, "whole") if said == "ok" else (Level.WARNING, str(said))
    except sqlite3.DatabaseError as error:
        level, detail = Level.WARNING, str(error)
    finally:
        connection.close()
    made_anew = "" if level is Level.OK else "; it is made anew at its next use"
    yield Finding("index", level, detail + made_anew)


def _entries(path: Path) -> Iterator[Finding]:
    files = EntryFiles(path, shared=True, read_only=True)
    count, nbytes, bad, newer = 0, 0, 0, 0
    for item in files.listed():
        count, nbytes = count + 1, nbytes + item.nbytes
        try:
            files.read_record(item.digest)
        except NewerFormatError:
            newer += 1
        except StoreError:
            bad += 1
    detail = f"{count} entries, {nbytes / 2**20:.1f} MiB, {bad} bad, {newer} of a newer version"
    yield Finding("entries", Level.WARNING if bad else Level.OK, detail)


def _leftovers(path: Path) -> Iterator[Finding]:
    aside = len(_names(path / "quarantine"))
    detail = f"{len(_names(path / 'temporary'))} being written, {aside} bad ones kept aside"
    yield Finding("leftovers", Level.WARNING if aside else Level.OK, detail)


def _compiling(path: Path) -> Iterator[Finding]:
    locks = CompileLocks(locks_directory(path))
    owners = {name: locks.owner(name) for name in _names(locks.directory)}
    held = [f"{name[:12]} by process {owner.pid} of {owner.host}" for name, owner in owners.items() if owner]
    yield Finding("compiling", Level.OK, ", ".join(held) or "nothing")


def _torch_xla(path: Path) -> Iterator[Finding]:
    """Tell whether executables outlive their process, where the ``xla`` backend's ``cache_dir`` is here."""
    for where, found in recorded(path / TORCH_XLA).items():
        level = Level.OK if found.persists else Level.WARNING
        yield Finding("torch-xla", level, f"{where}: persists: {str(found.persists).lower()}; {found.reason}")


def _probe(path: Path, now: Callable[[], float]) -> Iterator[Finding]:
    """Write a file, lock it twice, and compare the file system's clock with this host's."""
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".doctor-") as file:
            skew_seconds = abs(os.fstat(file.fileno()).st_mtime - now())
            excluded = _excludes(Path(file.name))
    except OSError as error:
        yield Finding("writing", Level.WARNING, f"{error.strerror}: the store can only be read")
        return
    yield Finding("writing", Level.OK, "works")
    level = Level.OK if skew_seconds < CLOCK_SKEW_SECONDS else Level.WARNING
    yield Finding("clock", level, f"{skew_seconds:.1f} s between this host and the file system")
    level = Level.OK if excluded else Level.WARNING
    yield Finding("locks", level, "work" if excluded else "do not exclude: each process compiles for itself")


def _excludes(path: Path) -> bool:
    with open(path) as first, open(path) as second, suppress(OSError):
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _versions() -> Iterator[Finding]:
    said = [f"graphcache {__version__} (codegen {CODEGEN_VERSION})", f"Python {platform.python_version()}"]
    said += [f"SQLite {sqlite3.sqlite_version}", *_installed("torch", "vllm")]
    yield Finding("versions", Level.OK, ", ".join(said))
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    level = Level.OK if compiler else Level.WARNING
    yield Finding("compiler", level, compiler or "no C++ compiler: stored graphs load, none can be compiled")
    index = ", ".join(_installed("diskcache-community")) or "missing"
    yield Finding("index library", Level.OK, f"{index}, text only: CVE-2025-69872 (pickle) does not apply")


def _installed(*distributions: str) -> list[str]:
    found = []
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return found


def _names(directory: Path | None) -> list[str]:
    with suppress(OSError):
        return os.listdir(directory) if directory else []
    return []
