"""A process of its own for one job: the job goes in as JSON, events come out, one JSON object a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from graphcache.errors import GraphCacheError

LOG_LINES = 30


def events(
    module: str, job: Mapping[str, Any], environment: Mapping[str, str], what: str
) -> Iterator[dict[str, Any]]:
    """Run a module, and yield what it tells until it ends; ``what`` is what an error calls it.

    Raises:
        GraphCacheError: it failed; the message ends with the last lines of its log.
    """
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=dict(environment),
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with child.stdin as stdin:
                json.dump(job, stdin)
            yield from map(json.loads, child.stdout)
            failed = child.wait() != 0
        finally:
            child.kill()
        if failed:
            raise GraphCacheError(f"{what} failed; the last of its log:\n{_tail(log)}")


def vllm_environment(policy: str, store: str, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a process of vLLM runs in: our platform, and nothing that the caller set for another.

    ``variables`` are the caller's, by default this process's own.
    """
    variables = os.environ if variables is None else variables
    kept = {name: value for name, value in variables.items() if not name.startswith(("GRAPHCACHE_", "VLLM_"))}
    threads = str(os.cpu_count() or 1)
    return {
        **kept,
        "GRAPHCACHE_PLATFORM": "cpu",
        "GRAPHCACHE_POLICY": policy,
        "GRAPHCACHE_STORE": store,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": variables.get("OMP_NUM_THREADS", threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }


def _tail(log: IO[str]) -> str:
    log.seek(0)
    return "".join(log.readlines()[-LOG_LINES:])
