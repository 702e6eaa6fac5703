"""Processes that are killed, stopped or in each other's way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from graphcache.errors import CorruptError
from graphcache.store.files import STEPS
from graphcache.torture import child, entries
from graphcache.torture.outcome import Broke, Plan, expect
from graphcache.torture.planted import open_store

_PAYLOAD_BYTES = 2_500_000
_OLD_VERSION = 1
_COMPETITORS = 8
_HANG_SECONDS = 1.5
_TRIES = 4


def killed_at_each_step(root: Path, plan: Plan) -> str:
    """Kill a writer at each step of a write, of a new entry and of one that replaces another."""
    points = [(step, 1) for step in STEPS] + [("payload", 2), ("payload", 3)]
    deaths = [
        (f"{step}-{times}-{old}", step, times, old) for step, times in points for old in (None, _OLD_VERSION)
    ]
    for name, _, _, old in deaths:
        if old is not None:
            with open_store("sound", root / name) as store:
                entries.put(store, 0, old, _PAYLOAD_BYTES)
    told = {"store": plan.store, "deaths": [death[:3] for death in deaths]}
    status, ends = child.run("write_and_die", root, {**told, "version": 2, "nbytes": _PAYLOAD_BYTES})
    expect(status == 0, f"the writers could not be started: {ends}")
    for (name, step, _, old), end in zip(deaths, ends, strict=True):
        expect(end == -signal.SIGKILL, f"the writer was to die at {step!r}, and ended with {end}")
        _expect_survived(root / name, plan, step, old)
    return f"{len(points)} steps, for a new entry and one that is replaced"


def _expect_survived(root: Path, plan: Plan, step: str, old: int | None) -> None:
    with open_store(plan.store, root) as store:
        try:
            version = entries.check(store, 0)
        except CorruptError as error:
            raise Broke(f"killed at {step!r}: {error}") from error
        expected = 2 if step in ("renamed", "listed") else old
        expect(version == expected, f"killed at {step!r}: version {version} is served, not {expected}")
        _expect_clean(root, step)
        entries.put(store, 0, 3)
        expect(entries.check(store, 0) == 3, f"killed at {step!r}: the entry can't be replaced")


def killed_at_random(root: Path, plan: Plan) -> str:
    """Kill writers at random while they write and read the same entries, and start new ones."""
    told = {
        "store": plan.store,
        "kills": plan.kills,
        "writers": plan.writers,
        "keys": plan.keys,
        "seed": plan.seed,
    }
    status, ends = child.run("herd", root, told)
    expect(status == 0, f"the herd ended with {status}: {ends}")
    for code, meaning in (
        (child.WRONG_BYTES, "were served wrong bytes"),
        (child.NO_START, "could not start"),
        (child.FAILED, "failed"),
    ):
        expect(str(code) not in ends, f"{ends.get(str(code))} writers {meaning}")
    with open_store(plan.store, root) as store:
        _expect_clean(root, "random")
        served = 0
        for number in range(plan.keys):
            served += entries.check(store, number) is not None
            entries.put(store, number, 3)
            expect(entries.check(store, number) == 3, f"entry {number} can't be replaced")
    expect(served > 0, "no writer ever wrote anything")
    return f"{plan.kills} kills, {plan.writers} writers, {plan.keys} entries: {served} whole, none damaged"


def _expect_clean(root: Path, step: str) -> None:
    left = os.listdir(root / "temporary")
    expect(not left, f"killed at {step!r}: {len(left)} temporary files outlive the sweep")


def one_compile(root: Path, plan: Plan) -> str:
    """Let processes ask for one entry at the same moment."""
    root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(_started("compete", root, {"locks": plan.locks})) for _ in range(_COMPETITORS)
        ]
        for process in processes:
            _answer(process)
        for process in processes:
            assert process.stdin
            process.stdin.close()
        ends = [process.wait() for process in processes]
    compiles = len((root / "compiles").read_text().splitlines())
    expect(not any(ends), f"processes ended with {ends}")
    expect(compiles == 1, f"{_COMPETITORS} processes compiled one graph {compiles} times")
    return f"{_COMPETITORS} processes, one compile"


def holder_dies(root: Path, plan: Plan) -> str:
    """Kill the process that compiles while another waits; a busy host gets several tries."""
    told = {"locks": plan.locks, "hang_seconds": 2 * _HANG_SECONDS}
    took_seconds = min(_until_short(partial(_take_over, root, told)))
    expect(took_seconds <= 1, f"the next took over after {took_seconds:.2f} s")
    return f"the next took over after {took_seconds:.2f} s"


def _until_short(take_over: Callable[[], float]) -> Iterator[float]:
    for _ in range(_TRIES):
        seconds = take_over()
        yield seconds
        if seconds <= 1:
            return


def _take_over(root: Path, told: dict[str, Any]) -> float:
    """Return how many seconds after its holder's death a lock was another's."""
    with _started("hold", root, told) as holder:
        expect(_answer(holder)["holds"], "a free lock was not given")
        with _started("hold", root, told) as waiter:
            _wait_until_waiting(waiter)
            holder.kill()
            killed_at = time.monotonic()
            said = _answer(waiter)
    expect(said["holds"], f"the next did not get the lock: {said['reason']}")
    return float(said["at"]) - killed_at


def holder_hangs(root: Path, plan: Plan) -> str:
    """Stop the process that compiles while another waits."""
    told = {"locks": plan.locks, "hang_seconds": _HANG_SECONDS}
    with _started("hold", root, told) as holder:
        expect(_answer(holder)["holds"], "a free lock was not given")
        holder.send_signal(signal.SIGSTOP)
        with _started("hold", root, told) as waiter:
            said = _answer(waiter)
        expect(said["reason"] == "holder_hangs", f"the next was told {said['reason']!r}")
    return f"the next compiled privately after {_HANG_SECONDS} s without a heartbeat"


def group_half_written(root: Path, plan: Plan) -> str:
    """Kill the writer of a group between its members."""
    members = 4
    for die_after in range(1, members):
        below = root / str(die_after)
        status, said = child.run("stage", below, {"members": members, "die_after": die_after})
        expect(status == -signal.SIGKILL, f"the writer ended with {status}: {said}")
        with open_store(plan.store, below) as store:
            served = [number for number in range(members) if entries.check(store, number) is not None]
            expect(not served, f"{served} of a group of {members} are served without the others")
    child.run("stage", root / "whole", {"members": members, "die_after": members})
    with open_store(plan.store, root / "whole") as store:
        whole = [number for number in range(members) if entries.check(store, number) is not None]
        expect(len(whole) == members, f"only {whole} of a group that is whole are served")
    return f"none of {members} members before the last"


@contextmanager
def _started(task: str, root: Path, arguments: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    line = child.command(task, root, arguments)
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout
    return json.loads(process.stdout.readline())


def _wait_until_waiting(process: subprocess.Popen[str]) -> None:
    """Wait until a process has looked at the lock: it then has imported all that it needs."""
    time.sleep(1.0)
    expect(process.poll() is None, "the process that was to wait is gone")
