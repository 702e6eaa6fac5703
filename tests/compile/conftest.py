from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from compile_processes import until

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _tasks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE)


@pytest.fixture
def pids_in(tmp_path: Path) -> Callable[[Path], list[int]]:
    """Wait for a file of process ids that a worker writes."""

    def pids(path: Path) -> list[int]:
        until(path.exists)
        told: list[int] = json.loads(path.read_text())
        return told

    return pids
