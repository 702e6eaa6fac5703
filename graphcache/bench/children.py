"""Processes that a benchmark starts, and what they tell it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

from graphcache.errors import GraphCacheError

_LAST_WORDS = 2000


def run_all(module: str, jobs: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> list[Any]:
    """Run a module in one process a job, all at once, each with its job as JSON; return what each printed.

    Raises:
        GraphCacheError: one failed; with its last words.
    """
    with ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in jobs]
        started = [_start(module, job, variables, file) for job, file in zip(jobs, said, strict=True)]
        stack.callback(_end, started)
        told = [process.communicate()[0] for process in started]
        for process, file in zip(started, said, strict=True):
            if process.returncode:
                file.seek(0)
                raise GraphCacheError(
                    f"{module} ended with {process.returncode}: {file.read()[-_LAST_WORDS:]}"
                )
    return [json.loads(text.splitlines()[-1]) for text in told]


def _start(
    module: str, job: Mapping[str, Any], variables: Mapping[str, str], said: IO[str]
) -> subprocess.Popen[str]:
    line = ["env", *(f"{name}={value}" for name, value in variables.items())]
    line += [sys.executable, "-m", module, json.dumps(job)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=said, text=True)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
