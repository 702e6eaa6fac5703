"""What the compile workers of the tests are asked to do; imported in the workers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path


def echo(data: bytes, **arguments: object) -> bytes:
    return data


def loud(data: bytes) -> bytes:
    print("to standard output")
    os.write(1, b"to descriptor 1")
    return data


def refuse(data: bytes) -> bytes:
    raise ValueError(f"no such operator in {len(data)} bytes")


def die(data: bytes) -> bytes:
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return data


def die_once(data: bytes, *, marker: str) -> bytes:
    """Die in the first process that does this, and not in the next."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return data
    return die(data)


def hang(data: bytes, *, pids: str, ignore: bool = False) -> bytes:
    """Start a child, tell both process ids, and never return."""
    if ignore:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    partial = Path(pids).with_suffix(".partial")
    partial.write_text(json.dumps([os.getpid(), child.pid]))
    partial.rename(pids)
    signal.pause()
    return data


def eat(data: bytes, *, pids: str) -> bytes:
    """Hold much memory, in a child, and never return."""
    code = "import signal; held = bytearray(b'x') * (200 << 20); signal.pause()"
    subprocess.run([sys.executable, "-c", code], check=True)
    return data


def _idle_in_a_child() -> bool:
    code = "import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE)"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"True\n"


def tell(data: bytes) -> bytes:
    told = {
        "environment": dict(os.environ),
        "nice": os.nice(0),
        "idle": os.sched_getscheduler(0) == os.SCHED_IDLE,
        "processors": len(os.sched_getaffinity(0)),
        "group": os.getpgid(0) == os.getpid(),
        "session": os.getsid(0),
        "child idle": _idle_in_a_child(),
        "modules": sorted(sys.modules),
    }
    return json.dumps(told).encode()


def meet(data: bytes, *, place: str, others: int) -> bytes:
    """Return once so many processes do this at the same time."""
    Path(place, str(os.getpid())).touch()
    while len(list(Path(place).iterdir())) < others:
        select.select([], [], [], 0.01)
    return data
