from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compile_processes import gone, until

from graphcache.backends.protocol import Job
from graphcache.compile.process import Limits, WorkerProcess, memory_bytes, scrubbed
from graphcache.errors import WorkerError

Pids = Callable[[Path], list[int]]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def worker(scratch: Path) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(scratch, Limits(nice=3))
    yield worker
    worker.end()


def test_one_process_does_job_after_job(worker: WorkerProcess) -> None:
    assert worker.pid is None
    assert worker.run(Job("worker_tasks:echo", b"first")) == b"first"
    pid = worker.pid
    assert worker.run(Job("worker_tasks:echo", b"x" * 3_000_000, {"n": 1})) == b"x" * 3_000_000
    assert worker.pid == pid


def test_what_a_compiler_prints_does_not_get_among_the_results(worker: WorkerProcess) -> None:
    assert worker.run(Job("worker_tasks:loud", b"first")) == b"first"
    assert worker.run(Job("worker_tasks:loud", b"second")) == b"second"


def test_what_the_compiler_says_is_told_and_the_worker_lives(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerError, match="ValueError: no such operator in 3 bytes") as caught:
        worker.run(Job("worker_tasks:refuse", b"abc"))
    assert caught.value.reason == "compile"
    pid = worker.pid
    assert worker.run(Job("worker_tasks:echo", b"on")) == b"on"
    assert worker.pid == pid


@pytest.mark.parametrize("task", ["worker_tasks:gone", "no_such_module:f"])
def test_a_task_that_is_not_there_is_a_failed_compile(worker: WorkerProcess, task: str) -> None:
    with pytest.raises(WorkerError) as caught:
        worker.run(Job(task, b""))
    assert caught.value.reason == "compile"


def test_a_worker_that_dies_costs_one_job_and_says_how(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerError, match=r"SIGKILL.*last words") as caught:
        worker.run(Job("worker_tasks:die", b""))
    assert caught.value.reason == "crashed"
    assert worker.run(Job("worker_tasks:echo", b"on")) == b"on"


def test_a_worker_killed_between_jobs_is_started_again(worker: WorkerProcess) -> None:
    worker.run(Job("worker_tasks:echo", b""))
    pid = worker.pid or 0
    os.kill(pid, signal.SIGKILL)
    until(lambda: worker.pid is None)
    assert worker.run(Job("worker_tasks:echo", b"on")) == b"on"


def test_a_worker_that_hangs_is_ended_with_all_that_it_started(
    scratch: Path, tmp_path: Path, pids_in: Pids
) -> None:
    worker = WorkerProcess(scratch, Limits(seconds=2.0))
    with pytest.raises(WorkerError, match="2 s") as caught:
        worker.run(Job("worker_tasks:hang", b"", {"pids": str(tmp_path / "pids"), "ignore": True}))
    assert caught.value.reason == "hung"
    pids = pids_in(tmp_path / "pids")
    until(lambda: all(gone(pid) for pid in pids))


def test_a_worker_whose_children_take_too_much_memory_is_ended(scratch: Path, tmp_path: Path) -> None:
    worker = WorkerProcess(scratch, Limits(bytes=150 << 20))
    with pytest.raises(WorkerError, match=str(150 << 20)) as caught:
        worker.run(Job("worker_tasks:eat", b"", {"pids": str(tmp_path / "pids")}))
    assert caught.value.reason == "memory"


def test_a_job_can_be_ended_by_another_thread_at_once(
    worker: WorkerProcess, tmp_path: Path, pids_in: Pids
) -> None:
    errors: list[WorkerError] = []

    def run() -> None:
        try:
            worker.run(Job("worker_tasks:hang", b"", {"pids": str(tmp_path / "pids")}))
        except WorkerError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    pids = pids_in(tmp_path / "pids")
    worker.end()
    thread.join()
    until(lambda: all(gone(pid) for pid in pids))
    assert [error.reason for error in errors] == ["crashed"]
    with pytest.raises(WorkerError, match="was ended"):
        worker.run(Job("worker_tasks:echo", b""))


def test_an_interpreter_that_does_not_start_is_told(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(WorkerError, match="/no/such/python") as caught:
        worker.run(Job("worker_tasks:echo", b""))
    assert caught.value.reason == "start"


def test_a_worker_inherits_neither_threads_nor_preloads_nor_options(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "VLLM_PLUGINS": "x", "KEPT": "y"}
    for name, value in changing.items():
        monkeypatch.setenv(name, value)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        worker = WorkerProcess(scratch, Limits(nice=3))
        told = json.loads(worker.run(Job("worker_tasks:tell", b"")))
    finally:
        os.sched_setaffinity(0, before)
        worker.end()
    assert changing.keys() & told["environment"].keys() == {"KEPT"}
    assert told["environment"]["TMPDIR"] == str(scratch)
    assert told["nice"] == os.nice(0) + 3
    assert told["processors"] == len(before)
    assert told["group"]
    assert told["session"] == os.getsid(0)
    assert not told["idle"]
    assert not {"torch", "vllm", "pickle"} & set(told["modules"])


def test_an_idle_worker_and_its_children_give_way_to_all_others(scratch: Path) -> None:
    worker = WorkerProcess(scratch, Limits())
    try:
        told = json.loads(worker.run(Job("worker_tasks:tell", b"")))
    finally:
        worker.end()
    assert told["idle"]
    assert told["child idle"]
    assert told["nice"] == 19


def test_preloads_are_scrubbed() -> None:
    assert scrubbed({"LD_PRELOAD": "x", "LD_LIBRARY_PATH": "y", "PATH": "z"}).keys() == {
        "LD_LIBRARY_PATH",
        "PATH",
    }


def test_memory_is_counted() -> None:
    assert memory_bytes(os.getpid()) > 1 << 20
    assert memory_bytes(1 << 30) == 0


PARENT = """
import sys
from pathlib import Path
from graphcache.backends.protocol import Job
from graphcache.compile.process import Limits, WorkerProcess

scratch, pids = Path(sys.argv[1]), sys.argv[2]
WorkerProcess(scratch, Limits()).run(Job("worker_tasks:hang", b"", {"pids": pids}))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_nothing_outlives_a_server_that_dies(
    how: signal.Signals, scratch: Path, tmp_path: Path, pids_in: Pids
) -> None:
    command = [sys.executable, "-c", PARENT, str(scratch), str(tmp_path / "pids")]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    pids = pids_in(tmp_path / "pids")
    server.send_signal(how)
    server.wait()
    until(lambda: all(gone(pid) for pid in pids))
    until(lambda: not scratch.exists())
