"""The table of faults, and how all of them are done in turn."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphcache.errors import StoreError
from graphcache.torture import damage, kills, surroundings
from graphcache.torture.outcome import BROKE, HELD, SKIPPED, Broke, Check, Outcome, Plan, Skipped

CHECKS: dict[str, Check] = {
    "killed at each step of a write": kills.killed_at_each_step,
    "killed at random": kills.killed_at_random,
    "many processes, one key": kills.one_compile,
    "compiling process dies": kills.holder_dies,
    "compiling process hangs": kills.holder_hangs,
    "group half written": kills.group_half_written,
    "disk full, mount": surroundings.in_mount("full", "size=700k"),
    "disk full, at each step": surroundings.full_at_each_step,
    "quota": surroundings.confined("quota"),
    "read-only mount": surroundings.in_mount("read_only", "size=10m"),
    "noexec mount": surroundings.in_mount("noexec", "size=10m,noexec"),
    "permission lost": surroundings.confined("permission_lost"),
    "unknown user": surroundings.confined("unknown_user"),
    "home on a network": damage.network_home,
    "directory deleted in use": damage.directory_deleted,
    "file vanished": damage.file_vanished,
    "index deleted": damage.index_deleted,
    "index cut or garbled": damage.index_cut,
    "index busy": damage.index_busy,
    "blob cut": damage.blob_cut,
    "bit flipped": damage.bit_flipped,
    "blob of another key": damage.blob_of_another_key,
    "symbolic link": damage.symbolic_link,
    "others can write": damage.another_owner,
    "clock backwards": damage.clock_backwards,
    "two versions": damage.newer_version,
    "failed compile": damage.failure_remembered,
}

PLANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "no verification": ("bit flipped", {"store": "unverified"}),
    "bad entries stay": ("blob cut", {"store": "staying"}),
    "written in place": ("killed at each step of a write", {"store": "in_place"}),
    "written in place, at random": ("killed at random", {"store": "in_place"}),
    "no sweep": ("killed at each step of a write", {"store": "unswept"}),
    "groups not looked at": ("group half written", {"store": "ungrouped"}),
    "errors not answered": ("disk full, at each step", {"store": "raw"}),
    "errors not answered, mount": ("disk full, mount", {"store": "raw"}),
    "errors not answered, quota": ("quota", {"store": "raw"}),
    "errors not answered, permission": ("permission lost", {"store": "raw"}),
    "place not looked at": ("read-only mount", {"store": "unprepared"}),
    "mount not looked at": ("noexec mount", {"host": "careless"}),
    "user not looked at": ("unknown user", {"host": "careless"}),
    "no lock": ("many processes, one key", {"locks": "none"}),
    "a lock that outlives": ("compiling process dies", {"locks": "stale"}),
    "no heartbeat": ("compiling process hangs", {"locks": "deaf"}),
}
"""Defences that are taken out to see that a check can fail: which check, and what takes its place."""


def run_all(directory: Path, plan: Plan) -> list[Outcome]:
    """Do everything, in a fresh directory below the given one, which is removed afterwards.

    Raises:
        StoreError: the directory can't be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix="graphcache-torture-", dir=directory))
    except OSError as error:
        raise StoreError(f"torture: {str(directory)!r} can't be used: {error.strerror}") from error
    try:
        return list(_outcomes(root, plan))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run_check(fault: str, root: Path, plan: Plan) -> Outcome:
    """Do one fault in a directory, which may be missing; the checks are `CHECKS`."""
    try:
        return Outcome(fault, HELD, CHECKS[fault](root, plan))
    except Skipped as why:
        return Outcome(fault, SKIPPED, str(why))
    except Broke as why:
        return Outcome(fault, BROKE, str(why))
    except Exception as error:  # whatever a store lets through is what a server would have met
        return Outcome(fault, BROKE, f"{type(error).__name__}: {error}")


def run_planted(defence: str, root: Path, plan: Plan) -> Outcome:
    """See that a check breaks without one of the defences; the defences are `PLANTED`."""
    fault, kinds = PLANTED[defence]
    outcome = run_check(fault, root, replace(plan, **kinds))
    if outcome.verdict == SKIPPED:
        return Outcome(f"planted: {defence}", SKIPPED, outcome.detail)
    caught = outcome.verdict == BROKE
    detail = f"caught: {outcome.detail}" if caught else f"not caught by {fault!r}"
    return Outcome(f"planted: {defence}", HELD if caught else BROKE, detail)


def _outcomes(root: Path, plan: Plan) -> Iterator[Outcome]:
    for number, fault in enumerate(CHECKS):
        yield run_check(fault, root / f"check-{number}", plan)
    for number, defence in enumerate(PLANTED):
        yield run_planted(defence, root / f"planted-{number}", plan)
