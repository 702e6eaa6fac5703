import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphcache.errors import ConfigError
from graphcache.fingerprint import digest
from graphcache.store import lock as lock_module
from graphcache.store.lock import CompileLocks, locks_directory
from graphcache.store.mounts import Mount
from graphcache.store.open import open_store

KEY = digest("key")
HOLDER = """
import sys, time, os
from pathlib import Path
from graphcache.store.lock import CompileLocks
with CompileLocks(Path(sys.argv[1])).turn(sys.argv[2]) as turn:
    print(turn.holds, flush=True)
    sys.stdin.read()
"""


class Clock:
    """A clock that only goes on when somebody sleeps; ``on_sleep`` does what happens meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locks(tmp_path: Path, clock: Clock) -> CompileLocks:
    limits = {"hang_seconds": 30.0, "patience_seconds": 100.0}
    return CompileLocks(tmp_path / "locks", **limits, clock=clock, sleep=clock.sleep)


@contextmanager
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "locks"), KEY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "True\n"
            yield process
        finally:
            process.kill()


def test_a_free_lock_is_taken_at_once(locks: CompileLocks, clock: Clock) -> None:
    with locks.turn(KEY) as turn:
        assert turn == (True, False, "")
        owner = locks.owner(KEY)
        assert owner
    assert clock.now == 0
    assert locks.owner(KEY) is None


def test_two_entries_do_not_wait_for_each_other(locks: CompileLocks) -> None:
    with locks.turn(KEY) as one, locks.turn(digest("other")) as two:
        assert one.holds
        assert two.holds


def test_the_next_takes_over_when_the_holder_dies(locks: CompileLocks, clock: Clock, tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        clock.on_sleep = lambda: (process.kill(), process.wait(), None)[2]
        with locks.turn(KEY) as turn:
            assert turn == (True, True, "")
    assert clock.now <= 1, "it took more than a second"


def test_a_silent_holder_is_waited_for_so_long_and_no_longer(
    locks: CompileLocks, clock: Clock, tmp_path: Path
) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        with locks.turn(KEY) as turn:
            assert turn == (False, True, "holder_hangs")
    assert 30 <= clock.now <= 31


def test_a_holder_that_beats_is_waited_for_until_patience_ends(locks: CompileLocks, clock: Clock) -> None:
    def beat() -> None:
        os.pwrite(beating, b'[1, "host", "boot", %d]\n' % int(clock.now * 100), 0)

    with locks.turn(KEY):
        beating = os.open(locks.directory / KEY, os.O_WRONLY)  # type: ignore[operator]
        clock.on_sleep = beat
        with locks.turn(KEY) as turn:
            assert turn == (False, True, "holder_slow")
        os.close(beating)
    assert 100 <= clock.now <= 101


def test_the_heart_beats(locks: CompileLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "BEAT_SECONDS", 0.001)
    with locks.turn(KEY):
        beaten = threading.Event()
        while not beaten.is_set():
            owner = locks.owner(KEY)
            if owner and owner.beats >= 3:
                beaten.set()
        assert owner
        assert owner.pid == os.getpid()
        assert owner.host
        assert owner.boot


def test_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    locks = CompileLocks(tmp_path / "locks")
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with locks.turn(KEY) as turn:
            assert turn.holds
            inside += 1
            most = max(most, inside)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_lock(locks: CompileLocks) -> None:
    reading, writing = os.pipe()
    with locks.turn(KEY):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        with locks.turn(KEY) as turn:
            assert turn.holds
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_the_lock_is_let_go_when_the_block_fails(locks: CompileLocks) -> None:
    with pytest.raises(RuntimeError), locks.turn(KEY):
        raise RuntimeError
    with locks.turn(KEY) as turn:
        assert turn.holds


def test_a_sweep_removes_what_nobody_holds(locks: CompileLocks) -> None:
    with locks.turn(KEY), locks.turn(digest("other")):
        assert locks.sweep() == 0
    assert locks.sweep() == 2
    assert locks.sweep() == 0


def test_a_file_swept_between_opening_and_locking_is_no_lock(
    locks: CompileLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks.directory.mkdir()  # type: ignore[union-attr]
    real, swept = fcntl.flock, []

    def sweep_first(descriptor: int, operation: int) -> None:
        if not swept:
            swept.append(True)
            (locks.directory / KEY).unlink()  # type: ignore[operator]
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    with locks.turn(KEY) as turn:
        assert turn.holds
        assert (locks.directory / KEY).exists()  # type: ignore[operator]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_without_working_locks_nobody_waits(
    locks: CompileLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", fail)
    with locks.turn(KEY) as turn:
        assert not turn.holds
        assert turn.reason == f"no_locks: {os.strerror(code)}"
    assert clock.now == 0


def test_a_file_in_place_of_the_directory_is_no_reason_to_fail(locks: CompileLocks, tmp_path: Path) -> None:
    (tmp_path / "locks").touch()
    with locks.turn(KEY) as turn:
        assert not turn.holds
        assert "is a file" in turn.reason
    assert locks.sweep() == 0


def test_without_a_directory_nobody_waits() -> None:
    with CompileLocks(None).turn(KEY) as turn:
        assert turn == (False, False, "no_locks")
    assert CompileLocks(None).sweep() == 0
    assert CompileLocks(None).owner(KEY) is None


def test_a_name_that_is_no_digest_is_refused(locks: CompileLocks) -> None:
    with pytest.raises(ConfigError), locks.turn("../x"):
        pass


def test_no_system_clock_is_read(locks: CompileLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> float:
        raise AssertionError("the system clock was read")

    monkeypatch.setattr("time.time", fail)
    with locks.turn(KEY) as turn:
        assert turn.holds


def on_nfs(path: Path) -> Mount:
    return Mount("/home", "nfs4", ("rw",))


def test_locks_of_a_local_store_are_in_it(tmp_path: Path) -> None:
    assert locks_directory(tmp_path) == tmp_path / "locks"


def test_locks_of_a_store_on_a_network_are_this_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock_module, "mount_of", on_nfs)
    runtime = tmp_path / "run"
    runtime.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    directory = locks_directory(tmp_path / "store", {"XDG_RUNTIME_DIR": str(runtime)})
    assert open_store(tmp_path / "store").locks.directory == directory
    assert directory
    assert directory.is_relative_to(runtime)
    assert not caplog.records


@pytest.mark.parametrize("runtime", ["", "relative", "writable by all", "missing"])
def test_without_a_runtime_directory_there_are_no_locks_that_lie(
    tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock_module, "mount_of", on_nfs)
    (tmp_path / "writable by all").mkdir()
    (tmp_path / "writable by all").chmod(0o777)
    named = str(tmp_path / runtime) if runtime in ("missing", "writable by all") else runtime
    assert locks_directory(tmp_path / "store", {"XDG_RUNTIME_DIR": named}) is None
    monkeypatch.setenv("XDG_RUNTIME_DIR", named)
    with caplog.at_level(logging.WARNING):
        assert open_store(tmp_path / "store").locks.directory is None
    assert "network" in caplog.text
