"""The facts of a vLLM model: each changes its namespace, and nothing else does."""

from __future__ import annotations

import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from graphcache.fingerprint import namespace_digest

CONFIG = {
    "hidden_size": 128,
    "rope_theta": 10000,
    "_name_or_path": "/models/a",
    "transformers_version": "5.16",
}


@pytest.fixture(scope="module")
def program() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, when it is imported
        from graphcache.vllm import program
    return program


class Layer(torch.nn.Module):
    pass


class OtherLayer(torch.nn.Linear):
    pass


def namespace(
    program: ModuleType,
    model: torch.nn.Module | None = None,
    config: dict[str, Any] | None = None,
    block_size: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    form: str = "ids",
    **said: Any,
) -> str:
    made = object.__new__(program.VllmProgram)
    model_config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hf_config": SimpleNamespace(to_dict=lambda: CONFIG if config is None else config),
        "dtype": torch.bfloat16,
        "runner_type": "pooling",
        "convert_type": "embed",
        "max_model_len": 512,
        **said,
    }
    made.model = model or Layer()
    made.form = form
    made.paged = SimpleNamespace(block_size=block_size) if block_size else None
    made.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(**model_config),
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=ranks),
    )
    return namespace_digest(tuple(made.facts()))


@pytest.mark.parametrize(
    "said",
    [
        {"config": {**CONFIG, "hidden_size": 256}},
        {"config": {**CONFIG, "rope_theta": 1e6}},
        {"config": {**CONFIG, "sliding_window": 32}},
        {"architectures": ["LlamaModel"]},
        {"dtype": torch.float32},
        {"runner_type": "generate"},
        {"convert_type": "classify"},
        {"max_model_len": 1024},
        {"ranks": 2},
    ],
    ids=str,
)
def test_another_fact_is_another_namespace(program: ModuleType, said: dict[str, Any]) -> None:
    assert namespace(program, **said) != namespace(program)


def test_each_rank_has_a_namespace(program: ModuleType) -> None:
    assert namespace(program, rank=1, ranks=2) != namespace(program, rank=0, ranks=2)


def test_another_vllm_is_another_namespace(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = namespace(program)
    monkeypatch.setattr("vllm.__version__", "0.99.0")
    assert namespace(program) != before


def test_changed_source_is_another_namespace(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = namespace(program)
    monkeypatch.setattr(program, "_text", lambda file: "class Layer: ...")
    assert namespace(program) != before


def test_another_block_size_is_another_namespace(program: ModuleType) -> None:
    assert namespace(program, block_size=16) != namespace(program, block_size=32)


def test_another_form_of_mask_is_another_namespace(program: ModuleType) -> None:
    assert namespace(program, form="dense") != namespace(program, form="ids")


def test_where_a_model_lies_and_who_wrote_it_is_no_fact(program: ModuleType) -> None:
    moved = {**CONFIG, "_name_or_path": "/elsewhere", "transformers_version": "5.19"}
    assert namespace(program, config=moved) == namespace(program)
    assert namespace(program, config=dict(reversed(CONFIG.items()))) == namespace(program)


def test_weights_names_and_free_memory_are_no_fact(program: ModuleType) -> None:
    with_weights = Layer()
    with_weights.weight = torch.nn.Parameter(torch.rand(3))
    assert namespace(program, with_weights) == namespace(program)
    more = {"seed": 7, "served_model_name": "x", "num_gpu_blocks": 999, "tokenizer": "/t"}
    assert namespace(program, **more) == namespace(program)


def test_torchs_own_classes_are_no_source(program: ModuleType) -> None:
    """Torch's version is a fact already."""
    assert program.source_digest(torch.nn.Linear(1, 1)) == program.source_digest(torch.nn.ReLU())
    assert program.source_digest(OtherLayer(1, 1)) != program.source_digest(torch.nn.Linear(1, 1))
