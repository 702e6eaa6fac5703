"""What the tests of processes wait for."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something other processes do has come about; fail if it does not."""
    for _ in range(int(seconds * 100)):
        if condition():
            return
        select.select([], [], [], 0.01)
    raise AssertionError("it never came about")


def gone(pid: int) -> bool:
    """Say whether a process has ended; a zombie that nobody has waited for has."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
