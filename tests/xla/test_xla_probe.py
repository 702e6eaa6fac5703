"""What the probe of torch-xla's persistence concludes from what two processes did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is not installed; `make test-xla` runs these tests")

from graphcache.backends import xla_probe
from graphcache.backends.xla_probe import Persistence, persistence, probe, recorded

HIT = {"PersistentCacheHit": 1, "PersistentCacheDeserializeFailure": 0}
MISS = {"PersistentCacheHit": 0, "PersistentCacheDeserializeFailure": 0}
FAILURE = {"PersistentCacheHit": 0, "PersistentCacheDeserializeFailure": 1}


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Have the two processes count this, the first one writing a file or not."""

    def are(*counted: dict[str, int] | None, writes: bool = True) -> list[Path]:
        left, ran = list(counted), []

        def child(directory: Path) -> dict[str, int] | None:
            ran.append(directory)
            if writes:
                (directory / "executable").write_bytes(b"code")
            return left.pop(0)

        monkeypatch.setattr(xla_probe, "_child", child)
        return ran

    return are


@pytest.mark.parametrize(
    ("counted", "writes", "persists", "reason"),
    [
        ((MISS, HIT), True, True, "read by another"),
        ((MISS, FAILURE), True, False, "can't read back"),
        ((MISS, MISS), True, False, "can't read back"),
        ((MISS, MISS), False, False, "writes no executables"),
    ],
)
def test_a_file_that_was_written_is_no_proof(children, tmp_path, counted, writes, persists, reason) -> None:
    children(*counted, writes=writes)
    found = probe(tmp_path)
    assert found is not None
    assert found.persists is persists
    assert reason in found.reason
    assert list(tmp_path.iterdir()) == []


def test_what_was_found_is_recorded_and_not_tried_again(children, tmp_path) -> None:
    ran = children(MISS, HIT)
    assert persistence(tmp_path).persists
    assert persistence(tmp_path).persists
    assert len(ran) == 2


def test_where_the_device_can_t_be_opened_nothing_is_recorded(children, tmp_path) -> None:
    children(MISS, None, MISS, HIT)
    assert persistence(tmp_path) == (False, "no process could open the device to try it")
    assert recorded(tmp_path) == {}
    assert persistence(tmp_path).persists


@pytest.mark.parametrize("text", ["", "[]", "{", '{"here": 1}', '{"here": {}}', "\x00"])
def test_a_damaged_record_is_none(tmp_path, text) -> None:
    (tmp_path / "persistence.json").write_text(text)
    assert recorded(tmp_path) == {}


def test_a_record_keeps_what_other_devices_said(children, tmp_path) -> None:
    there = {"torch_xla 2.8.0 on TT": {"persists": False, "reason": "a stub"}}
    (tmp_path / "persistence.json").write_text(json.dumps(there))
    children(MISS, HIT)
    persistence(tmp_path)
    assert recorded(tmp_path)["torch_xla 2.8.0 on TT"] == Persistence(False, "a stub")
    assert len(recorded(tmp_path)) == 2
