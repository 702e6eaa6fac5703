"""A compile worker: ``python -m graphcache.compile.worker``, a process that does jobs, one after the other.

It reads jobs from its standard input and writes results to its standard output, as `graphcache.compile.wire`
says.  When its input ends, because the server closed it or is gone, the worker and all that it started are
gone at once, whatever they are at; so is the scratch directory that it was given.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO

from graphcache.compile.wire import Message, read, write

PARENT_CHECK_MILLISECONDS = 1000
LAST_RESORT_SECONDS = 10.0
"""How long after a job's limit the process ends by itself, should nobody have ended it."""

IDLE = "idle"
LOWEST = 19
"""The greatest niceness there is."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Do jobs until the input ends."""
    options = _options(arguments)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What a compiler prints must not get among the results.
    _give_way(options.nice)
    _use_all_processors()
    threading.Thread(target=_end_with, args=(os.getppid(), options.scratch), daemon=True).start()
    write(results, Message({"ready": os.getpid()}))
    serve(sys.stdin.buffer, results)


def serve(jobs: BinaryIO, results: BinaryIO) -> None:
    """Read jobs and write their results, until there are no more."""
    while (message := read(jobs)) is not None:
        limit = message.header.get("limit_seconds")
        if limit is not None:
            faulthandler.dump_traceback_later(limit + LAST_RESORT_SECONDS, exit=True)
        write(results, _done(message))
        faulthandler.cancel_dump_traceback_later()


def _done(message: Message) -> Message:
    began = time.monotonic()
    try:
        task = _task(message.header["task"])
        payload = task(message.data, **message.header["arguments"])
    except MemoryError:
        raise
    except Exception as error:
        detail = "".join(traceback.format_exception(error))[-4000:]
        return Message({"error": f"{type(error).__name__}: {error}", "detail": detail})
    return Message({"seconds": time.monotonic() - began}, payload)


def _task(name: str) -> Callable[..., bytes]:
    module, _, function = name.partition(":")
    task: Any = getattr(import_module(module), function)
    return task  # type: ignore[no-any-return]


def _end_with(parent: int, scratch: str | None) -> None:
    """Wait until the input is hung up, or the parent is another; then end this process's whole group.

    A signal on the parent's death (``PR_SET_PDEATHSIG``) would end this process alone, and leave its
    compiler behind.
    """
    hung_up = select.poll()
    hung_up.register(0, select.POLLHUP)
    while os.getppid() == parent:
        if any(
            event & (select.POLLHUP | select.POLLERR) for _, event in hung_up.poll(PARENT_CHECK_MILLISECONDS)
        ):
            break
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _give_way(nice: str) -> None:
    """Run at this niceness, or only where a processor has nothing else to do.

    To the scheduler, a processor with a task of the class ``SCHED_IDLE`` is free, as it is not with a nice
    one: a thread of the server that wakes up goes there at once, not behind another of its own.
    """
    if nice != IDLE:
        os.nice(int(nice))
        return
    os.nice(LOWEST)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _use_all_processors() -> None:
    """Undo what the server bound its threads to: this process has no part in that."""
    if hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        except OSError:
            return


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="graphcache.compile.worker", description=__doc__)
    parser.add_argument("--nice", default="0", help=f"added to the niceness of the server, or {IDLE}")
    parser.add_argument("--scratch", help="a directory that is removed when the server is gone")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
