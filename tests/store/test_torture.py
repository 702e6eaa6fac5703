"""Every fault is done for real, and every check is seen to break when the defence is taken out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphcache.errors import StoreError
from graphcache.store import disk, files, format, index, ledger, mounts, private
from graphcache.torture import outcome, run
from graphcache.torture.outcome import BROKE, HELD, SKIPPED, Plan

SMALL = Plan(kills=12, writers=4, keys=8, places=6)
Patch = Callable[[pytest.MonkeyPatch], None]


def replaced(target: Any, name: str, value: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(target, name, value)


def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that answers for no fault of its own."""
    monkeypatch.setattr(index.Index, "_try", lambda self, work, otherwise: work(self._open()))
    monkeypatch.setattr(index, "BUSY_TIMEOUT_SECONDS", 0.01)


def _only_indexed(self: disk.DiskStore, row: str, items: list[files.Listed]) -> Any:
    known = self._index.get(row) or {}
    return ((digest, format.from_json(said[2])) for digest, said in known.items())


def _read_or_fail(self: files.EntryFiles, digest: str) -> Any:
    with open(self._path(digest), "rb") as file:
        return format.read_entry(file, digest)


UNDEFENDED: dict[str, Patch] = {
    "home on a network": replaced(mounts.Mount, "network", False),
    "directory deleted in use": replaced(
        files.EntryFiles, "prepare", lambda self: self.root.mkdir(exist_ok=True)
    ),
    "file vanished": replaced(files.EntryFiles, "read", _read_or_fail),
    "index deleted": replaced(disk.DiskStore, "_scan_shard", _only_indexed),
    "index cut or garbled": _forgetful,
    "index busy": _forgetful,
    "blob cut": replaced(format, "read_payload", lambda file, record: file.read(record.payload_bytes)),
    "bit flipped": replaced(format, "read_payload", lambda file, record: file.read(record.payload_bytes)),
    "blob of another key": replaced(format, "check_name", lambda record, digest: None),
    "symbolic link": replaced(os, "O_NOFOLLOW", 0),
    "others can write": replaced(files, "distrusted", lambda status: None),
    "clock backwards": replaced(disk.DiskStore, "uses", lambda self: {}),
    "two versions": replaced(format, "FORMAT_VERSION", 9),
    "failed compile": replaced(
        ledger.Ledger, "failure", lambda self, digest, *_: self.failures().get(digest)
    ),
    "disk full, at each step": replaced(private, "_FULL", ()),
}
"""For the faults that are done in this process, the defence that is taken out."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BUSY_TIMEOUT_SECONDS", 0.01)


@pytest.mark.parametrize("fault", run.CHECKS)
def test_a_store_holds(fault: str, tmp_path: Path, quick: None) -> None:
    done = run.run_check(fault, tmp_path / "store", SMALL)
    if done.verdict == SKIPPED:
        pytest.skip(done.detail)
    assert done == (fault, HELD, done.detail)
    assert done.detail


@pytest.mark.parametrize("defence", run.PLANTED)
def test_a_planted_fault_is_caught(defence: str, tmp_path: Path) -> None:
    done = run.run_planted(defence, tmp_path / "store", SMALL)
    if done.verdict == SKIPPED:
        pytest.skip(done.detail)
    assert done.verdict == HELD
    assert done.detail.startswith("caught: ")


@pytest.mark.parametrize("fault", UNDEFENDED)
def test_a_check_breaks_without_the_defence(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    UNDEFENDED[fault](monkeypatch)
    done = run.run_check(fault, tmp_path / "store", SMALL)
    monkeypatch.undo()
    assert done.verdict == BROKE, done.detail


def test_every_check_can_fail() -> None:
    assert run.CHECKS.keys() == UNDEFENDED.keys() | {fault for fault, _ in run.PLANTED.values()}


@pytest.mark.slow
def test_a_thousand_random_kills(tmp_path: Path) -> None:
    plan = Plan(kills=1000, writers=8, keys=200, seed=7)
    done = run.run_check("killed at random", tmp_path / "store", plan)
    assert done.verdict == HELD, done.detail


@pytest.mark.slow
def test_an_index_cut_at_many_places(tmp_path: Path) -> None:
    done = run.run_check("index cut or garbled", tmp_path / "store", Plan(places=400, seed=3))
    assert done.verdict == HELD, done.detail


def test_a_planted_fault_that_is_not_caught_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.PLANTED, "nothing", ("blob cut", {}))
    assert run.run_planted("nothing", tmp_path / "store", SMALL).verdict == BROKE


def test_everything_is_done_below_the_directory_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(root: Path, plan: Plan) -> str:
        assert root.is_relative_to(tmp_path / "given")
        root.mkdir()
        (root / "left behind").touch()
        return "seen"

    def skip(root: Path, plan: Plan) -> str:
        raise outcome.Skipped("not here")

    monkeypatch.setattr(run, "CHECKS", {"a": look, "b": skip})
    monkeypatch.setattr(run, "PLANTED", {})
    assert run.run_all(tmp_path / "given", SMALL) == [("a", HELD, "seen"), ("b", SKIPPED, "not here")]
    assert list((tmp_path / "given").iterdir()) == []


def test_the_page_on_trust_tells_of_every_fault() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "trust.md"
    told = re.findall(r"^\| ([^|]+) \| held \|", page.read_text(), re.MULTILINE)
    assert told == [*run.CHECKS, *(f"planted: {defence}" for defence in run.PLANTED)]


def test_a_directory_that_can_not_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't be used"):
        run.run_all(tmp_path / "file", SMALL)
