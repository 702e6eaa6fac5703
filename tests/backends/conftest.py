from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tiny_model import CAUSAL, CUSTOM, TinyProgram

from graphcache.backends.eager import EagerBackend
from graphcache.backends.inductor import InductorBackend
from graphcache.backends.lazy import CallableBackend
from graphcache.backends.protocol import Artifact, Backend
from graphcache.key import GraphKey


@pytest.fixture
def program() -> TinyProgram:
    return TinyProgram()


@pytest.fixture(scope="session")
def compiled() -> dict[GraphKey, bytes]:
    """Both keys' payloads, compiled one after the other in this process, beside other weights."""
    backend = InductorBackend(TinyProgram(seed=1))
    return {key: backend.compile(key).payload or b"" for key in (CAUSAL, CUSTOM)}


@pytest.fixture
def inductor(program: TinyProgram, compiled: dict[GraphKey, bytes], tmp_path: Path) -> InductorBackend:
    """A backend whose two graphs are already compiled."""
    backend = InductorBackend(program, unpack_dir=tmp_path)
    backend.compile = lambda key: Artifact(payload=compiled[key])  # type: ignore[method-assign]
    return backend


@pytest.fixture(params=["eager", "callable", "inductor"])
def backend(request: pytest.FixtureRequest, program: TinyProgram) -> Backend:
    if request.param == "inductor":
        return request.getfixturevalue("inductor")
    if request.param == "eager":
        return EagerBackend(program)
    return CallableBackend(_run_once(program), drop=lambda key: None)


def _run_once(program: TinyProgram) -> Callable[[GraphKey], Callable[..., object]]:
    def make(key: GraphKey) -> Callable[..., object]:
        module = program.module(key)
        module(*program.inputs(key))
        return module

    return make


@pytest.fixture(autouse=True)
def _grad_off() -> Iterator[None]:
    with torch.no_grad():
        yield
