"""The code of the how-to runs on the example, and prints what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is not installed; `make test-xla` runs these tests")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "embed-in-a-runner.md"
FENCE = re.compile(r"^```(python|text)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_runs_from_top_to_bottom_and_prints_what_it_says(in_child: Callable[..., str]) -> None:
    blocks = FENCE.findall(PAGE.read_text())
    code, said = ("".join(text for kind, text in blocks if kind == each) for each in ("python", "text"))
    assert in_child(code) == said
