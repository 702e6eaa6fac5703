"""What the tests against real vLLM share: engines in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
if collect_ignore_glob:
    print("tests/vllm: skipped, vLLM is not installed; `python tests/vllm/install.py` installs it")

Script = Callable[..., str]


@pytest.fixture(scope="session")
def vllm_script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Run a script of this folder in a process of its own, away from the user's settings and caches."""
    home = tmp_path_factory.mktemp("home")

    def run(script: str, *arguments: str | Path, variables: Mapping[str, str] = {}) -> str:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GRAPHCACHE_", "VLLM_", "PYTEST_"))
        }
        environment |= {
            "OMP_NUM_THREADS": "1",  # two spinning threads on a busy machine wait for each other
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CONFIG_ROOT": str(home / "config"),
            "VLLM_CACHE_ROOT": str(home / "cache"),
            "HF_HUB_OFFLINE": "1",
            **variables,
        }
        done = subprocess.run(
            [sys.executable, HERE / script, *arguments],
            env=environment,
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def run_batches(
    vllm_script: Script, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """Run a job of `batches.py`; return embeddings and statistics by run."""

    def run(job: dict[str, Any], **variables: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        folder = tmp_path_factory.mktemp("batches")
        (folder / "job.json").write_text(json.dumps(job))
        vllm_script("batches.py", folder / "job.json", folder / "out.npz", variables=variables)
        with np.load(folder / "out.npz") as out:
            arrays = dict(out)
        return arrays, json.loads(str(arrays.pop("stats")))

    return run


@pytest.fixture(scope="session")
def run_generation(
    vllm_script: Script, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, dict[str, Any]]]:
    """Run a job of `generate.py`; return what came of each run."""

    def run(job: dict[str, Any], **variables: str) -> dict[str, dict[str, Any]]:
        folder = tmp_path_factory.mktemp("generation")
        (folder / "job.json").write_text(json.dumps(job))
        vllm_script("generate.py", folder / "job.json", folder / "out.json", variables=variables)
        return dict(json.loads((folder / "out.json").read_text()))

    return run
