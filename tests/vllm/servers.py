"""Servers of vLLM with the plugin, started as a user starts them, and ended as an operator ends them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from install import name_after

START_SECONDS = 300
STOP_SECONDS = 60
SMALL = ("--dtype", "float32", "--max-model-len", "64", "--max-num-batched-tokens", "64")
SMALL += ("--max-num-seqs", "4", "--kv-cache-memory-bytes", str(64 * 2**20))


class Server(NamedTuple):
    """A server that answers: its URL, and what it says."""

    url: str
    log: Path

    def ask(self, path: str, **body: object) -> str:
        """Return what the server answers, as text; a body makes it a POST."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def metrics(self, name: str) -> list[float]:
        """Return the values of one metric, a series each."""
        lines = self.ask("/metrics").splitlines()
        return [float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name]

    def wait_for(self, name: str, at_least: float) -> float:
        """Return the sum of one metric as soon as it is that much: workers tell what they count in turns."""
        end = time.monotonic() + STOP_SECONDS
        while (total := sum(self.metrics(name))) < at_least:
            assert time.monotonic() < end, f"{name} is {total}\n{self.ask('/metrics')}"
            time.sleep(0.25)
        return total


@contextmanager
def serving(
    folder: Path,
    model: Path,
    policy: str,
    *options: str,
    variables: Mapping[str, str] = {},
    end: signal.Signals = signal.SIGTERM,
) -> Iterator[Server]:
    """Run ``vllm serve`` while the context is open; see that nothing is left of it once ``end`` was sent."""
    (folder / "policy.yaml").write_text(policy)
    temporary, log = folder / "tmp", folder / "log"
    temporary.mkdir()
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), *options]
    command += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "GRAPHCACHE_PLATFORM": "cpu",
        "GRAPHCACHE_POLICY": str(folder / "policy.yaml"),
        "GRAPHCACHE_STORE": str(folder / "store"),
        "VLLM_PLUGINS": "graphcache",
        "TMPDIR": str(temporary),
        **variables,
    }
    with log.open("w") as out:
        process = subprocess.Popen(command, env=apart(folder) | environment, stdout=out, stderr=out)
    family = [psutil.Process(process.pid)]
    try:
        server = Server(f"http://127.0.0.1:{port}", log)
        wait_until_it_answers(server, process)
        yield server
        family += family[0].children(recursive=True)
        shared = shared_memory(family)
        process.send_signal(end)
        assert process.wait(STOP_SECONDS) == 0, log.read_text()[-6000:]
        _, alive = psutil.wait_procs(family, timeout=STOP_SECONDS)
        assert not alive, f"the server has ended, and left {alive}"
        assert [path for path in shared if os.path.exists(path)] == []
        assert [path.name for path in temporary.iterdir() if not left_by_vllm(path)] == []
    finally:
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def apart(folder: Path) -> dict[str, str]:
    """Return an environment away from the user's settings and caches, in which ``vllm`` starts."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GRAPHCACHE_", "VLLM_", "PYTEST_"))}
    name_after(folder / "site")
    return {
        **kept,
        "PYTHONPATH": str(folder / "site"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CONFIG_ROOT": str(folder / "config"),
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def wait_until_it_answers(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, "the server ended while it started\n" + server.log.read_text()[-6000:]
        try:
            server.ask("/health")
        except OSError:
            time.sleep(0.25)
        else:
            return
    raise AssertionError(f"no server after {START_SECONDS} s\n" + server.log.read_text()[-6000:])


def shared_memory(family: list[psutil.Process]) -> set[str]:
    """Return the files in shared memory that these processes have open or mapped."""
    maps = {region.path for member in family for region in member.memory_maps()}
    return {path for path in maps if path.startswith("/dev/shm/") and os.path.exists(path)}


def left_by_vllm(path: Path) -> bool:
    """Say whether stock vLLM leaves such a file in the temporary directory too."""
    return path.is_socket() or path.name.startswith("vllm_dist_")
