"""What the tests on torch-xla share; each of their files says why it is skipped where that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("PJRT_DEVICE", "CPU")
ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # torch 2.9, torch-xla and what they import warn of each other.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def _grad_off() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


@pytest.fixture
def in_child() -> Callable[..., str]:
    """Run code in a process of its own, whose torch-xla has compiled nothing; return what it printed."""

    def run(code: str, *arguments: str, **variables: str) -> str:
        paths = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": paths, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run
