from pathlib import Path

import pytest

from graphcache.bench import store
from graphcache.bench.store import CONTENDERS, measure


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_is_measured_and_reads_back_what_it_wrote(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PAYLOAD_BYTES", 40_000)
    rows = list(measure(tmp_path, sizes=(3, 20), contenders=[name]))
    assert [(row.store, row.entries, row.fsync) for row in rows] == [
        (name, 3, True),
        (name, 20, True),
        (name, 3, False),
        (name, 20, False),
    ]
    assert all(min(row[3:]) > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []


def test_what_reads_back_wrongly_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAYLOAD_BYTES", 4_000)
    monkeypatch.setattr(store.BareFiles, "get", lambda self, number: b"")
    with pytest.raises(AssertionError, match="reads back as something else"):
        list(measure(tmp_path, sizes=(3,), contenders=["bare files"]))


def test_holes_are_entries_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAYLOAD_BYTES", 40_000)
    for name, contender in CONTENDERS.items():
        filled = contender(tmp_path / name, False)
        filled.fill(0)
        assert filled.get(0) == bytes(40_000), name
        assert filled.scan() == 1
