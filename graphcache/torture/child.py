"""What the other processes of a check do: ``python -m graphcache.torture.child TASK ARGUMENTS``."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from graphcache.errors import GraphCacheError
from graphcache.torture import entries, planted
from graphcache.torture.outcome import Broke
from graphcache.torture.planted import open_store

WRONG_BYTES, FAILED, NO_START = 66, 67, 68
"""How a writer ends that was not killed."""

Task: TypeAlias = Callable[[Path, dict[str, Any]], None]


def command(task: str, root: Path, arguments: dict[str, Any]) -> list[str]:
    """Return the command line of a child."""
    return [sys.executable, "-m", "graphcache.torture.child", task, str(root), json.dumps(arguments)]


def run(task: str, root: Path, arguments: dict[str, Any], prefix: Sequence[str] = ()) -> tuple[int, Any]:
    """Run a child to its end; return its exit status and the JSON that it printed, or its last words."""
    line = [*prefix, *command(task, root, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def write_and_die(root: Path, arguments: dict[str, Any]) -> None:
    """Write an entry into each of some stores, in a process each, and be killed at one of the steps."""
    ends = []
    for name, step, times in arguments["deaths"]:
        pid = os.fork()
        if pid == 0:
            os._exit(_die_at(root / name, step, times, arguments))
        _, status = os.waitpid(pid, 0)
        ends.append(os.waitstatus_to_exitcode(status))
    print(json.dumps(ends))


def _die_at(root: Path, at: str, times: int, arguments: dict[str, Any]) -> int:
    left: list[int] = []

    def die(step: str) -> None:
        if left and step == at:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        store = open_store(arguments["store"], root, on_step=die)
        left.append(times)  # from here on: opening a new store writes too
        entries.put(store, 0, arguments["version"], arguments["nbytes"])
    except Exception:
        return FAILED
    return 0


def herd(root: Path, arguments: dict[str, Any]) -> None:
    """Keep writers at work, kill one after the other, and put a new one in its place."""
    chance = random.Random(arguments["seed"])
    ends: Counter[int] = Counter()
    writers = [_fork_writer(root, arguments, chance) for _ in range(arguments["writers"])]
    for _ in range(arguments["kills"]):
        time.sleep(chance.uniform(0, 0.03))
        victim = writers.pop(chance.randrange(len(writers)))
        ends[_kill(victim)] += 1
        writers.append(_fork_writer(root, arguments, chance))
    for writer in writers:
        ends[_kill(writer)] += 1
    print(json.dumps({str(status): count for status, count in ends.items()}))


def _kill(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _fork_writer(root: Path, arguments: dict[str, Any], chance: random.Random) -> int:
    seed = chance.random()
    pid = os.fork()
    if pid == 0:
        os._exit(_write_for_ever(root, arguments, random.Random(seed)))
    return pid


def _write_for_ever(root: Path, arguments: dict[str, Any], chance: random.Random) -> int:
    try:
        store = open_store(arguments["store"], root)
    except Exception:
        return NO_START
    try:
        while True:
            number = chance.randrange(arguments["keys"])
            entries.check(store, number)
            entries.put(store, number, chance.randrange(1 << 30), chance.randrange(1, 200_000))
    except Broke:
        return WRONG_BYTES
    except Exception:
        return FAILED


def hold(root: Path, arguments: dict[str, Any]) -> None:
    """Take an entry's lock, say so, and hold it until the end of the input."""
    locks = planted.LOCKS[arguments["locks"]](root / "locks", hang_seconds=arguments["hang_seconds"])
    with locks.turn(entries.name(0)) as turn:
        print(json.dumps({"holds": turn.holds, "reason": turn.reason, "at": time.monotonic()}), flush=True)
        sys.stdin.read()


def compete(root: Path, arguments: dict[str, Any]) -> None:
    """Compile an entry unless it is there, as every process of a launch does, all at the same moment."""
    store = open_store("sound", root)
    locks = planted.LOCKS[arguments["locks"]](root / "locks")
    print(json.dumps("ready"), flush=True)
    sys.stdin.read()
    with locks.turn(entries.name(0)):
        if entries.check(store, 0) is None:
            with open(root / "compiles", "a") as log:
                log.write("compiled\n")
            time.sleep(0.5)
            entries.put(store, 0)
    if entries.check(store, 0) is None:
        raise Broke("what was compiled is missing")


def mounted(root: Path, arguments: dict[str, Any]) -> None:
    """Make a check in a mount of its own."""
    from graphcache.torture import surroundings

    point = root / "mount"
    point.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", arguments["options"], "none", str(point)], check=True)
    host = planted.HOSTS[arguments["host"]]
    print(json.dumps(surroundings.IN_MOUNT[arguments["check"]](point, arguments["store"], host)))


def confined(root: Path, arguments: dict[str, Any]) -> None:
    """Make a check in a process that is to be confined in some way."""
    from graphcache.torture import surroundings

    host = planted.HOSTS[arguments["host"]]
    print(json.dumps(surroundings.CONFINED[arguments["check"]](root, arguments["store"], host)))


def stage(root: Path, arguments: dict[str, Any]) -> None:
    """Put the members of a group one by one, and be killed after some of them."""
    group = tuple(entries.name(number) for number in range(arguments["members"]))
    store = open_store("sound", root)
    for number in range(arguments["members"]):
        if number == arguments["die_after"]:
            os.kill(os.getpid(), signal.SIGKILL)
        entries.put(store, number, group=group)


TASKS: dict[str, Task] = {
    task.__name__: task for task in (write_and_die, herd, hold, compete, mounted, confined, stage)
}


def main(arguments: Sequence[str]) -> None:
    """Do one task; say why it failed in one line."""
    task, root, said = arguments
    try:
        TASKS[task](Path(root), json.loads(said))
    except (Broke, GraphCacheError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
