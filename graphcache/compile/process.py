"""One compile worker, as the server sees it: a process that is asked, waited for, bounded and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from graphcache.backends.protocol import Job
from graphcache.compile.wire import Message, read, write
from graphcache.errors import WorkerError

CHECK_SECONDS = 0.2
START_SECONDS = 120.0
_SHOWN_BYTES = 2000

SCRUBBED = (
    "LD_PRELOAD",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "OPENBLAS_",
    "ATEN_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "AOT_INDUCTOR_",
    "AOTINDUCTOR_",
    "VLLM_",
    "PYTEST_",
    "TMPDIR",
)
"""Beginnings of the names of variables that a worker does not inherit: they would change what it compiles."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one worker may take: seconds a job, bytes of memory (its children's too), niceness added.

    ``idle`` in place of a niceness lets it run only where a processor has nothing else to do.
    """

    seconds: float | None = 900.0
    bytes: int | None = None
    nice: int | Literal["idle"] = "idle"


class WorkerProcess:
    """A worker that is started with the first job, and started again after it was ended.

    ``scratch`` is a private directory: the worker's temporary files, and what it says, go there.  One thread
    calls `run`; any thread may call `end`.
    """

    def __init__(self, scratch: Path, limits: Limits, environment: Mapping[str, str] | None = None) -> None:
        self._scratch = scratch
        self._limits = limits
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The running process, or None."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    def run(self, job: Job) -> bytes:
        """Do one job, and wait for it.

        Raises:
            WorkerError: the worker could not start (``start``), died (``crashed``), took too long
                (``hung``) or too much (``memory``), and has been ended; or its compiler failed (``compile``).
        """
        process = self._started()
        header = {"task": job.task, "arguments": job.arguments, "limit_seconds": self._limits.seconds}
        answer = self._answer(process, Message(header, job.data), self._limits.seconds)
        if "error" in answer.header:
            raise WorkerError(str(answer.header["error"]), "compile")
        return answer.data

    def end(self, *, for_good: bool = True) -> None:
        """Kill the worker and everything that it started, and wait until they are gone."""
        with self._lock:
            self._ended = self._ended or for_good
            process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise WorkerError("the compile worker was ended", "crashed")
            if self._process and self._process.poll() is None:
                return self._process
        self.end(for_good=False)
        try:
            process = self._spawn()
        except OSError as error:
            raise WorkerError(f"a compile worker can't be started: {error}", "start") from error
        with self._lock:
            self._process = process
            ended = self._ended
        if ended:
            self.end()
            raise WorkerError("the compile worker was ended", "crashed")
        self._answer(process, None, START_SECONDS)
        return process

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "graphcache.compile.worker", "--nice", str(self._limits.nice)]
        with open(self._log, "wb") as log:
            return subprocess.Popen(
                [*command, "--scratch", str(self._scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**scrubbed(self._environment or os.environ), "TMPDIR": str(self._scratch)},
                cwd=self._scratch,
                # A group of its own, to be ended whole, but in the server's session: where the kernel groups
                # tasks by session (autogroup), niceness counts within one session only.
                process_group=0,
            )

    def _answer(
        self, process: subprocess.Popen[bytes], question: Message | None, seconds: float | None
    ) -> Message:
        """Send a question and wait for its answer within the limits, or end the worker."""
        exchange = _Exchange(process, question)
        deadline = None if seconds is None else time.monotonic() + seconds
        while not exchange.done.wait(CHECK_SECONDS):
            if deadline is not None and time.monotonic() > deadline:
                raise self._given_up("hung", f"was ended after {seconds:g} s")
            used = memory_bytes(process.pid) if self._limits.bytes else 0
            if self._limits.bytes and used > self._limits.bytes:
                raise self._given_up("memory", f"was ended at {used} bytes, over {self._limits.bytes}")
        if exchange.answer is None:
            raise self._given_up("crashed", f"died ({exchange.error or _death(process)})")
        return exchange.answer

    def _given_up(self, reason: str, what: str) -> WorkerError:
        self.end(for_good=False)
        said = self._log.read_bytes()[-_SHOWN_BYTES:].decode(errors="replace") if self._log.exists() else ""
        return WorkerError(f"a compile worker {what}{': ' + said.strip() if said else ''}", reason)

    @property
    def _log(self) -> Path:
        return self._scratch / f"worker-{id(self):x}.log"


class _Exchange:
    """One question and its answer, in a thread of its own: a pipe can't be waited for with a limit."""

    def __init__(self, process: subprocess.Popen[bytes], question: Message | None) -> None:
        self.done = threading.Event()
        self.answer: Message | None = None
        self.error: Exception | None = None
        pipes = cast("tuple[BinaryIO, BinaryIO]", (process.stdin, process.stdout))
        threading.Thread(target=self._talk, args=(*pipes, question), daemon=True).start()

    def _talk(self, jobs: BinaryIO, results: BinaryIO, question: Message | None) -> None:
        try:
            if question is not None:
                write(jobs, question)
            self.answer = read(results)
        except (OSError, EOFError, ValueError) as error:
            self.error = error
        finally:
            self.done.set()


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a worker inherits: those that say nothing of threads, preloads or options."""
    return {name: value for name, value in environment.items() if not name.startswith(SCRUBBED)}


def memory_bytes(pid: int) -> int:
    """Return the memory that a process and its descendants hold, in bytes; 0 where nothing tells."""
    total = 0
    waiting = [pid]
    while waiting:
        process = Path("/proc") / str(waiting.pop())
        try:
            total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, ValueError, IndexError):
            continue
    return total


def _death(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
