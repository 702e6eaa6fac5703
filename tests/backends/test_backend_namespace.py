"""Namespaces that are neither too narrow nor too wide: what must miss the store, and what must hit it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import CAUSAL, TinyProgram

import graphcache
from graphcache import _version, fingerprint
from graphcache.backends import inductor, target
from graphcache.backends.inductor import InductorBackend
from graphcache.backends.protocol import Artifact
from graphcache.compile.inline import Shelf
from graphcache.stats import Stats
from graphcache.store.disk import DiskStore

Change = Callable[[pytest.MonkeyPatch], Any]


class ToldProgram(TinyProgram):
    """A program whose facts are told to it."""

    def __init__(self, facts: dict[str, str], seed: int = 0) -> None:
        super().__init__(seed)
        self.told = facts

    def facts(self) -> list[tuple[str, str]]:
        return list(self.told.items())


MODEL = {
    "model.config": "a",
    "model.source": "b",
    "model.dtype": "bf16",
    "model.task": "embed",
    "tensor_parallel": "0/1",
}


def shelf(store: DiskStore, facts: dict[str, str] | None = None, seed: int = 0, **options: Any) -> Shelf:
    settings = {"threads": 2, "march": "x86-64-v3", "isa": "avx2", "compiler": "g++ 12", **options}
    program = ToldProgram(MODEL if facts is None else facts, seed)
    return Shelf(store, InductorBackend(program, **settings), Stats(strict=True))


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    disk = DiskStore(tmp_path / "store", fsync=False)
    shelf(disk).put(CAUSAL, Artifact(payload=b"compiled"), seconds=1.0)
    return disk


def test_the_same_facts_hit(store: DiskStore) -> None:
    assert shelf(store).get(CAUSAL)


@pytest.mark.parametrize("label", MODEL)
def test_another_fact_of_the_model_misses(store: DiskStore, label: str) -> None:
    assert shelf(store, {**MODEL, label: "another"}).get(CAUSAL) is None
    assert shelf(store, {name: value for name, value in MODEL.items() if name != label}).get(CAUSAL) is None


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 3},
        {"threads": None},
        {"march": "x86-64-v2"},
        {"isa": "avx512"},
        {"compiler": "g++ 13"},
        {"strict": True},
        {"options": {"cpp.simdlen": 256}},
    ],
    ids=str,
)
def test_another_option_that_changes_code_misses(store: DiskStore, options: dict[str, Any]) -> None:
    assert shelf(store, **options).get(CAUSAL) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(torch, "__version__", "2.99.0"),
        lambda patch: patch.setattr(fingerprint, "CODEGEN_VERSION", _version.CODEGEN_VERSION + 1),
        lambda patch: patch.setattr(platform, "machine", lambda: "aarch64"),
        lambda patch: patch.setattr(InductorBackend, "name", "another"),
    ],
    ids=["torch", "codegen", "machine", "backend"],
)
def test_another_version_or_machine_misses(
    store: DiskStore, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    assert shelf(store).get(CAUSAL) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(_version, "__version__", "0.1.99"),
        lambda patch: patch.setattr(graphcache, "__version__", "0.1.99"),
        lambda patch: patch.setattr("socket.gethostname", lambda: "another"),
        lambda patch: patch.setattr(platform, "node", lambda: "another"),
        lambda patch: patch.setattr(os, "getpid", lambda: 1),
        lambda patch: patch.setenv("CUDA_VISIBLE_DEVICES", "3"),
        lambda patch: patch.setenv("HOME", "/elsewhere"),
        lambda patch: patch.setenv("OMP_NUM_THREADS", "7"),
        lambda patch: patch.chdir("/"),
        lambda patch: patch.setattr(os, "cpu_count", lambda: 128),
        lambda patch: patch.setattr(target.os, "sched_getaffinity", lambda pid: {0}),
        lambda patch: patch.setattr(inductor.tempfile, "gettempdir", lambda: "/var/tmp"),
    ],
    ids=[
        "our patch version",
        "our patch version, as imported",
        "host name",
        "node",
        "process id",
        "device index",
        "home",
        "threads of the process",
        "directory",
        "processors",
        "affinity",
        "temporary files",
    ],
)
def test_what_does_not_change_code_hits(
    store: DiskStore, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    assert shelf(store).get(CAUSAL)


def test_other_weights_and_paths_hit(store: DiskStore, tmp_path: Path) -> None:
    assert shelf(store, seed=5).get(CAUSAL)
    assert shelf(store, unpack_dir=tmp_path).get(CAUSAL)


def test_the_number_of_cache_slots_hits(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows from free memory: the graph takes it as a dynamic dimension."""
    inputs = TinyProgram.inputs
    monkeypatch.setattr(TinyProgram, "inputs", lambda self, key: inputs(self, key, slots=777))
    assert shelf(store).get(CAUSAL)
