"""Faults of what a store stands on: full, read-only and ``noexec`` mounts, quotas, permissions, users."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from graphcache.errors import StoreError, StoreFullError
from graphcache.store.files import STEPS
from graphcache.store.readonly import ReadOnlyStore
from graphcache.torture import child, entries
from graphcache.torture.outcome import Broke, Check, Plan, Skipped, expect
from graphcache.torture.planted import Host, open_store

_NAMESPACES = ("unshare", "--map-root-user", "--mount")
_NOBODY = 65534
_STRANGER = 54321


def full_at_each_step(root: Path, plan: Plan) -> str:
    """Let each step of a write up to the rename find the disk full."""
    broken: list[str] = []

    def fail(step: str) -> None:
        if step in broken:
            raise OSError(28, "No space left on device")

    with open_store(plan.store, root, on_step=fail) as store:
        entries.put(store, 0, 1)
        for step in STEPS[:5]:
            broken[:] = [step]
            with suppress(StoreFullError):
                entries.put(store, 0, 2)
                expect(False, f"full at {step!r}, and nothing is said")
            expect(entries.check(store, 0) == 1, f"full at {step!r}: the old entry is gone")
            expect(not os.listdir(root / "temporary"), f"full at {step!r}: a temporary file stays")
    return f"{len(STEPS[:5])} steps: StoreFullError, the old entry stays, no file is left"


def _full(point: Path, store_kind: str, host: Host) -> str:
    with open_store(store_kind, point / "store") as store:
        entries.put(store, 0)
        kept = 1
        with suppress(StoreFullError):
            for kept in range(1, 1000):
                entries.put(store, kept, nbytes=50_000)
            raise Broke("a full disk takes 50 MB")
        for number in range(kept):
            expect(entries.check(store, number) is not None, f"entry {number} is gone from a full disk")
        expect(entries.check(store, kept) is None, "an entry that did not fit is served")
        expect(not os.listdir(point / "store" / "temporary"), "a temporary file stays on a full disk")
        store.delete(entries.name(1))
        store.delete(entries.name(2))
        entries.put(store, 1, nbytes=40_000)
        expect(entries.check(store, 1) is not None, "nothing can be written when there is room again")
    return f"StoreFullError after {kept} entries, all served; writes again when there is room"


def _read_only(point: Path, store_kind: str, host: Host) -> str:
    with open_store(store_kind, point / "store") as store:
        entries.put(store, 0)
    subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)
    with suppress(StoreError):
        entries.put(open_store(store_kind, point / "store"), 1)
        raise Broke("a read-only mount was written")
    expect(entries.check(ReadOnlyStore(point / "store"), 0) == 0, "a read-only mount can't be read")
    return "StoreError on writing; `read_only` reads"


def _noexec(point: Path, store_kind: str, host: Host) -> str:
    with open_store(store_kind, point / "store") as store:
        entries.put(store, 0)
        expect(entries.check(store, 0) == 0, "a noexec mount does not even keep bytes")
    with suppress(StoreError):
        host.check_executable(point / "store")
        raise Broke("a noexec mount was taken for one that libraries load from")
    return "keeps bytes; loading from it is refused, naming `noexec`"


def _quota(root: Path, store_kind: str, host: Host) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open_store(store_kind, root) as store:
        entries.put(store, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        with suppress(StoreFullError):
            entries.put(store, 0, 1, nbytes=300_000)
            raise Broke("a quota was passed, and nothing is said")
        expect(entries.check(store, 0) == 0, "over the quota, the old entry is gone")
        expect(not os.listdir(root / "temporary"), "over the quota, a temporary file stays")
        entries.put(store, 1)
        expect(entries.check(store, 1) == 0, "what is within the quota can't be written")
    return "StoreFullError, the old entry stays (a limit on the size of files)"


def _permission_lost(root: Path, store_kind: str, host: Host) -> str:
    root.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(root, _NOBODY, _NOBODY)
        os.chdir(root)
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        root = Path()
    with open_store(store_kind, root / "store") as store:
        entries.put(store, 0)
        (root / "store" / "entries").chmod(0)
        with suppress(StoreError):
            entries.check(store, 0)
            raise Broke("reading without permission, and nothing is said")
        with suppress(StoreError):
            entries.put(store, 1)
            raise Broke("writing without permission, and nothing is said")
        (root / "store" / "entries").chmod(0o700)
        expect(entries.check(store, 0) == 0, "the entry is gone when permission is back")
    return "StoreError; all is there when permission is back"


def _unknown_user(root: Path, store_kind: str, host: Host) -> str:
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o1777)
    os.chdir(root)
    tempfile.tempdir = os.curdir  # not the real one: what is made there is removed with the rest
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_STRANGER)
        os.setuid(_STRANGER)
    path = host.default_path({"HOME": "/"})
    expect(path.parent == Path(), f"the store of nobody is at {path}")
    expect(path.stat().st_mode & 0o077 == 0, "the store of nobody is everybody's")
    with open_store(store_kind, path) as store:
        entries.put(store, 0)
        expect(entries.check(store, 0) == 0, "the store of nobody keeps nothing")
    return f"user {os.geteuid()} without a home: a private directory of its own"


IN_MOUNT: dict[str, Callable[[Path, str, Host], str]] = {
    "full": _full,
    "read_only": _read_only,
    "noexec": _noexec,
}
CONFINED: dict[str, Callable[[Path, str, Host], str]] = {
    "quota": _quota,
    "permission_lost": _permission_lost,
    "unknown_user": _unknown_user,
}


def in_mount(name: str, options: str) -> Check:
    """Return the check that is made in a mount of its own, in a user namespace."""

    def check(root: Path, plan: Plan) -> str:
        if not _can_mount():
            raise Skipped("this host gives no user namespace to mount in")
        told = {"check": name, "options": options, "store": plan.store, "host": plan.host}
        return _said(*child.run("mounted", root, told, _NAMESPACES))

    return check


def confined(name: str) -> Check:
    """Return the check that is made in a process of its own, which confines itself."""

    def check(root: Path, plan: Plan) -> str:
        told = {"check": name, "store": plan.store, "host": plan.host}
        return _said(*child.run("confined", root, told))

    return check


def _said(status: int, said: object) -> str:
    expect(status == 0, str(said))
    return str(said)


@cache
def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_NAMESPACES, "true"], capture_output=True).returncode == 0
