"""Many processes do everything at once to one store that is not there at first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphcache.store.disk import DiskStore
from graphcache.store.upkeep import verify

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("processes", "rounds"),
    [(6, 25), pytest.param(8, 400, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_nothing_gets_in_another_s_way(tmp_path: Path, processes: int, rounds: int) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"}
    root = tmp_path / "store"
    racing = [
        subprocess.Popen(
            [sys.executable, HERE / "store_racer.py", root, str(seed), str(rounds)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(processes)
    ]
    said = [racer.communicate()[1] for racer in racing]
    assert [racer.returncode for racer in racing] == [0] * processes, "\n".join(said)
    with DiskStore(root, fsync=False) as store:
        assert list(verify(store.files, deep=True)) == []
    assert list((root / "temporary").iterdir()) == []
