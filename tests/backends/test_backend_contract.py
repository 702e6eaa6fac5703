"""What every backend must hold."""

from __future__ import annotations

import pytest
import torch
from tiny_model import CAUSAL, CUSTOM, TinyProgram, same

from graphcache.backends.protocol import Artifact, Backend, EvictUnit
from graphcache.errors import LoadError
from graphcache.fingerprint import facts
from graphcache.key import GraphKey


def run_both(backend: Backend, program: TinyProgram, key: GraphKey) -> bool:
    graph = backend.load(key, backend.compile(key))
    ours, theirs = program.inputs(key, seed=3), program.inputs(key, seed=3)
    return same(graph(*ours), program.model(*theirs))


def test_outputs_equal_the_module_s(backend: Backend, program: TinyProgram) -> None:
    assert run_both(backend, program, CAUSAL)
    assert run_both(backend, program, CUSTOM)


def test_a_mask_that_differs_is_seen(backend: Backend, program: TinyProgram) -> None:
    graph = backend.load(CUSTOM, backend.compile(CUSTOM))
    inputs = program.inputs(CUSTOM)
    outputs = {name: tensor.clone() for name, tensor in graph(*inputs).items()}
    inputs[-1][:, 0] = False
    inputs[-1][0, 0] = True
    assert not same(graph(*inputs), outputs)


def test_a_cache_is_changed_in_place(backend: Backend, program: TinyProgram) -> None:
    graph = backend.load(CAUSAL, backend.compile(CAUSAL))
    ours, theirs = program.inputs(CAUSAL), program.inputs(CAUSAL)
    where = ours[1].data_ptr()
    graph(*ours)
    program.model(*theirs)
    assert ours[1].data_ptr() == where
    assert torch.allclose(ours[1], theirs[1], atol=1e-5)
    assert ours[1].abs().sum() > 0


def test_a_dynamic_size_needs_no_other_graph(backend: Backend, program: TinyProgram) -> None:
    graph = backend.load(CAUSAL, backend.compile(CAUSAL))
    for slots in (40, 1024):
        inputs = program.inputs(CAUSAL, slots=slots)
        assert same(graph(*inputs), program.model(*program.inputs(CAUSAL, slots=slots)))


def test_weights_changed_in_place_are_used(backend: Backend, program: TinyProgram) -> None:
    graph = backend.load(CAUSAL, backend.compile(CAUSAL))
    for weight in program.model.parameters():
        weight.mul_(0.5).add_(0.1)
    assert same(graph(*program.inputs(CAUSAL)), program.model(*program.inputs(CAUSAL)))


def test_a_graph_let_go_can_be_loaded_again(backend: Backend, program: TinyProgram) -> None:
    artifact = backend.compile(CAUSAL)
    backend.load(CAUSAL, artifact).close()
    graph = backend.load(CAUSAL, artifact)
    assert same(graph(*program.inputs(CAUSAL)), program.model(*program.inputs(CAUSAL)))


def test_artifacts_are_bytes_exactly_where_they_persist(backend: Backend) -> None:
    artifact = backend.compile(CAUSAL)
    assert (artifact.payload is not None) is backend.persists
    assert (artifact.live is None) is backend.persists


def test_what_is_declared_is_of_the_protocol(backend: Backend) -> None:
    assert backend.name in ("eager", "callable", "inductor")
    assert isinstance(backend.evict_unit, EvictUnit)
    assert backend.load(CAUSAL, backend.compile(CAUSAL)).nbytes >= 0


def test_the_fingerprint_is_stable_and_has_labels_of_its_own(backend: Backend) -> None:
    assert backend.fingerprint() == backend.fingerprint()
    assert dict(facts(backend.fingerprint()))["backend"] == backend.name


def test_an_artifact_of_another_kind_is_refused(backend: Backend) -> None:
    with pytest.raises(LoadError, match=r"prefill/causal/1x32"):
        backend.load(CAUSAL, Artifact())
