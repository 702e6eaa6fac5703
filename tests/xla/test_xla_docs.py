"""The code of the how-to runs on the example, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is not installed; `make test-xla` runs these tests")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "embed-in-a-runner.md"
FENCE = re.compile(r"^```(python|text)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_runs_from_top_to_bottom_and_prints_what_it_says() -> None:
    namespace: dict[str, object] = {}
    printed = io.StringIO()
    for language, text in FENCE.findall(PAGE.read_text()):
        if language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(text, f"{PAGE.name}: {text[:40]!r}", "exec"), namespace)
        else:
            assert printed.getvalue() == text
            printed = io.StringIO()
    assert printed.getvalue() == ""
