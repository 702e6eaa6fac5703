import fcntl
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphcache import doctor
from graphcache.doctor import Finding, Level, diagnose, worst
from graphcache.fingerprint import digest
from graphcache.store.disk import DiskStore
from graphcache.store.lock import CompileLocks
from graphcache.store.mounts import Mount
from graphcache.store.protocol import Record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with DiskStore(tmp_path / "store") as store:
        store.put(digest("ns", "key"), Record.of("ns", "key", b"payload"), b"payload")
        list(store.scan())
    return tmp_path / "store"


def of(findings: list[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def test_a_good_store_has_no_fault(root: Path) -> None:
    before = sorted(str(path) for path in root.rglob("*"))
    findings = diagnose(root)
    assert worst(findings) is not Level.FAULT
    assert of(findings, "entries").detail.startswith("1 entries, ")
    assert of(findings, "index").level is Level.OK
    assert of(findings, "locks").level is Level.OK
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_a_missing_store_is_no_fault_and_a_file_is(tmp_path: Path) -> None:
    assert worst(diagnose(tmp_path / "missing")) is Level.WARNING
    (tmp_path / "file").touch()
    assert worst(diagnose(tmp_path / "file")) is Level.FAULT


def test_an_empty_directory_is_no_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert worst(diagnose(tmp_path)) is not Level.FAULT


@pytest.mark.parametrize("which", ["", "entries", "index"])
def test_a_directory_that_others_can_write_is_a_fault(root: Path, which: str) -> None:
    (root / which).chmod(0o777)
    assert of(diagnose(root), "owner").level is Level.FAULT


def test_a_path_that_others_can_replace_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    DiskStore(tmp_path / "open" / "store").close()
    (tmp_path / "open").chmod(0o777)
    assert of(diagnose(tmp_path / "open" / "store"), "path").level is Level.WARNING
    (tmp_path / "open").chmod(0o1777)
    assert of(diagnose(tmp_path / "open" / "store"), "path").level is Level.OK


def test_damage_is_found(root: Path) -> None:
    (root / "entries" / digest("ns", "key")).write_bytes(b"garbage")
    (root / "entries" / digest("ns", "key")).chmod(0o600)
    (root / "index" / "cache.db").write_bytes(b"garbage" * 1000)
    (root / "quarantine" / "bad").touch()
    findings = diagnose(root)
    for check in ("entries", "index", "leftovers"):
        assert of(findings, check).level is Level.WARNING


def test_a_newer_store_is_a_fault(root: Path) -> None:
    (root / "FORMAT").write_text("7\n")
    assert of(diagnose(root), "format").level is Level.FAULT


def test_a_clock_that_is_off_is_a_warning(root: Path) -> None:
    assert of(diagnose(root, now=lambda: 0.0), "clock").level is Level.WARNING


def test_a_network_and_a_lack_of_space_are_warnings(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "mount_of", lambda path: Mount("/", "nfs4", ()))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1, total=2, used=1))
    findings = diagnose(root)
    assert of(findings, "mount").level is Level.WARNING
    assert of(findings, "space").level is Level.WARNING


def test_a_noexec_read_only_mount_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1, total=2, used=1))
    flags = SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda path: flags)
    findings = diagnose(root)
    assert "read-only" in of(findings, "mount").detail
    assert of(findings, "noexec").level is Level.WARNING


def test_locks_that_do_not_exclude_are_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
    assert of(diagnose(root), "locks").level is Level.WARNING


def test_a_store_in_use_can_be_looked_at(root: Path) -> None:
    holder = sqlite3.connect(root / "index" / "cache.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert worst(diagnose(root)) is not Level.FAULT
    holder.close()


def test_who_compiles_is_told(root: Path) -> None:
    assert of(diagnose(root), "compiling").detail == "nothing"
    with CompileLocks(root / "locks").turn(digest("ns", "other")):
        told = of(diagnose(root), "compiling").detail
    assert f"{digest('ns', 'other')[:12]} by process {os.getpid()}" in told


def test_a_missing_compiler_is_a_warning(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert of(diagnose(root), "compiler").level is Level.WARNING
