"""Stored graphs that compute something else than the model are found by running them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from tiny_model import CAUSAL, CUSTOM, TinyProgram

from graphcache.backends.inductor import InductorBackend
from graphcache.backends.protocol import Artifact, EvictUnit, Graph
from graphcache.backends.verified import VerifiedBackend, same
from graphcache.compile.inline import InlineSupplier
from graphcache.errors import ConfigError, LoadError
from graphcache.key import GraphKey
from graphcache.stats import Stats
from graphcache.store.memory import MemoryStore


class Stored:
    """A backend whose stored graphs run the model, and then change what it computed or was given."""

    name = "stored"
    persists = True
    evict_unit = EvictUnit.ENTRY

    def __init__(self, program: TinyProgram, change: Any = None) -> None:
        self.program = program
        self.change = change or (lambda inputs, outputs: outputs)

    def fingerprint(self) -> list[tuple[str, str]]:
        return [("backend", self.name)]

    def compile(self, key: GraphKey) -> Artifact:
        return Artifact(payload=b"graph")

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        def run(*inputs: torch.Tensor) -> Any:
            return self.change(inputs, self.program.module(key)(*inputs))

        return Graph(run)


def wrong_value(inputs: Any, outputs: Any) -> Any:
    outputs["logits"].view(-1)[3] += 1.0
    return outputs


def lost_output(inputs: Any, outputs: Any) -> Any:
    return {"hidden": outputs["hidden"]}


def wrong_cache(inputs: Any, outputs: Any) -> Any:
    inputs[1].view(-1)[0] += 1.0
    return outputs


def not_a_number(inputs: Any, outputs: Any) -> Any:
    outputs["hidden"].view(-1)[0] = float("nan")
    return outputs


STORED = Artifact(payload=b"graph")


@pytest.mark.parametrize("change", [wrong_value, lost_output, wrong_cache, not_a_number])
def test_a_wrong_graph_is_refused_aloud(
    program: TinyProgram, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    backend = VerifiedBackend(Stored(program, change), program, share=1.0)
    with caplog.at_level(logging.ERROR), pytest.raises(LoadError, match="not what the model computes"):
        backend.load(CAUSAL, STORED)
    assert str(CAUSAL) in caplog.text


@pytest.mark.parametrize("key", [CAUSAL, CUSTOM])
def test_a_right_graph_is_served(program: TinyProgram, key: GraphKey) -> None:
    VerifiedBackend(Stored(program), program, share=1.0).load(key, STORED)


def test_rounding_is_no_difference(
    program: TinyProgram, compiled: dict[GraphKey, bytes], inductor: InductorBackend
) -> None:
    for key, payload in compiled.items():
        VerifiedBackend(inductor, program, share=1.0).load(key, Artifact(payload=payload))


def test_only_a_share_is_compared(program: TinyProgram) -> None:
    numbers = iter([0.5, 0.09, 0.1, 0.99])
    backend = VerifiedBackend(Stored(program, wrong_value), program, 0.1, lambda: next(numbers))
    refused = 0
    for _ in range(4):
        try:
            backend.load(CAUSAL, STORED)
        except LoadError:
            refused += 1
    assert refused == 1


def test_what_does_not_come_from_a_store_is_not_compared(program: TinyProgram) -> None:
    VerifiedBackend(Stored(program, wrong_value), program, 1.0).load(CAUSAL, Artifact(live=object()))


def test_nothing_live_is_changed(program: TinyProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    live = program.inputs(CAUSAL)
    before = [tensor.clone() for tensor in live]
    monkeypatch.setattr(program, "inputs", lambda key: live)
    VerifiedBackend(Stored(program), program, 1.0).load(CAUSAL, STORED)
    assert all(torch.equal(now, then) for now, then in zip(live, before, strict=True))


def test_a_wrong_entry_is_removed_counted_and_compiled_anew(program: TinyProgram) -> None:
    store, stats = MemoryStore(), Stats()
    InlineSupplier(Stored(program), store).fetch(CAUSAL)
    (digest,) = [digest for digest, _ in store.scan()]
    answers = iter([0.0, 1.0])
    backend = VerifiedBackend(Stored(program, wrong_value), program, 0.5, lambda: next(answers))
    supplied = InlineSupplier(backend, store, stats=stats).fetch(CAUSAL)
    assert supplied.source == "compile"
    assert stats.errors == {"load": 1}
    assert store.get(digest)


def test_it_is_the_backend_inside_in_all_else(program: TinyProgram) -> None:
    inner = Stored(program)
    backend = VerifiedBackend(inner, program, 0.5)
    assert (backend.name, backend.persists, backend.evict_unit) == ("stored", True, EvictUnit.ENTRY)
    assert backend.fingerprint() == inner.fingerprint()
    assert backend.compile(CAUSAL) == inner.compile(CAUSAL)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_that_is_none_is_refused(program: TinyProgram, share: float) -> None:
    with pytest.raises(ConfigError, match="verify_sample"):
        VerifiedBackend(Stored(program), program, share)


def test_tensors_are_compared_by_dtype() -> None:
    ones = torch.ones(4)
    assert same(ones, ones + 1e-5)
    assert not same(ones, ones + 1e-2)
    assert same(ones.bfloat16(), ones.bfloat16() + 2**-7)
    assert not same(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert not same(ones, torch.ones(5))
    assert not same(ones, ones.double())
    assert same(torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]))
    assert not same(torch.tensor([1e9]), torch.tensor([float("inf")]))
    assert same(torch.empty(0), torch.empty(0))
