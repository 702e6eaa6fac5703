"""The doctor tells whether torch-xla's executables outlive their process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphcache.doctor import Finding, Level, diagnose


@pytest.mark.parametrize(("persists", "level"), [(True, Level.OK), (False, Level.WARNING)])
def test_what_was_tried_is_told(tmp_path: Path, persists: bool, level: Level) -> None:
    store = tmp_path / "store"
    (store / "xla").mkdir(mode=0o700, parents=True)
    found = {"torch_xla 2.9.0 on TT": {"persists": persists, "reason": "it was tried"}}
    (store / "xla" / "persistence.json").write_text(json.dumps(found))
    detail = f"torch_xla 2.9.0 on TT: persists: {str(persists).lower()}; it was tried"
    assert Finding("torch-xla", level, detail) in diagnose(store)


def test_nothing_is_said_where_nothing_was_tried(tmp_path: Path) -> None:
    assert "torch-xla" not in {finding.check for finding in diagnose(tmp_path)}
