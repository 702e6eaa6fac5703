"""A vLLM model as a program: the module to compile for a key, its dummy inputs, and its facts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.forward_context import create_forward_context, override_forward_context

from graphcache.errors import ConfigError
from graphcache.fingerprint import digest
from graphcache.key import GraphKey, MaskMode
from graphcache.vllm import tokens
from graphcache.vllm.attention import Rows

UNUSED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
"""Fields of a model's configuration that are no fact of its code, or are facts of their own."""


class PrefillGraph(nn.Module):
    """The whole model over rows of new tokens: what one prefill graph computes.

    ``forward`` takes token ids (int32) and positions (int64), and in ``custom`` mode the segment of each
    token (int32), all ``[rows, seq_len]``; it returns hidden states ``[rows, seq_len, hidden]``.
    """

    def __init__(self, model: nn.Module, vllm_config: VllmConfig, mode: MaskMode) -> None:
        super().__init__()
        self.model = model
        self.mode = mode
        self._vllm_config = vllm_config

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run the model under a forward context that says how the tokens lie."""
        mask = None if segments is None else tokens.visible(segments, positions)
        attention = _SameForEveryLayer(Rows(input_ids.shape[0], mask))
        context = create_forward_context(attention, self._vllm_config)
        with override_forward_context(context):
            hidden = self.model(input_ids=input_ids.flatten(), positions=positions.flatten())
        return hidden.view(*input_ids.shape, -1)


class _SameForEveryLayer(dict[str, Rows]):
    """Attention metadata by layer name, as vLLM asks for it."""

    def __init__(self, attention: Rows) -> None:
        super().__init__()
        self.attention = attention

    def __getitem__(self, layer_name: str) -> Rows:
        return self.attention


class VllmProgram:
    """The live model of one vLLM worker, as graph backends see it."""

    def __init__(self, model: nn.Module, vllm_config: VllmConfig) -> None:
        self.model = model
        self.vllm_config = vllm_config
        self._modules = {
            mode: PrefillGraph(model, vllm_config, mode).eval() for mode in (MaskMode.CUSTOM, MaskMode.CAUSAL)
        }

    def module(self, key: GraphKey) -> nn.Module:
        """Return the module of this key's mode; all share the live model.

        Raises:
            ConfigError: a kind or mode that this plugin does not run.
        """
        if key.kind != "prefill" or key.mode not in self._modules:
            raise ConfigError.of("key", str(key), "prefill graphs in mode custom or causal")
        return self._modules[key.mode]

    def inputs(self, key: GraphKey) -> tuple[torch.Tensor, ...]:
        """Return inputs of this key's shapes that hold nothing but padding."""
        shape = (key.rows, key.seq_len)
        ids = torch.zeros(shape, dtype=torch.int32)
        positions = torch.zeros(shape, dtype=torch.int64)
        if key.mode is not MaskMode.CUSTOM:
            return ids, positions
        return ids, positions, torch.full(shape, -1, dtype=torch.int32)

    def dynamic_shapes(self, key: GraphKey) -> None:
        """Return None: every size is the key's."""

    def facts(self) -> list[tuple[str, str]]:
        """Return the model's facts: its configuration and source as digests, dtypes, task, vLLM version."""
        from vllm import __version__

        model_config = self.vllm_config.model_config
        return [
            ("vllm", __version__),
            ("model.architectures", ",".join(model_config.architectures)),
            ("model.config", config_digest(model_config.hf_config.to_dict())),
            ("model.source", source_digest(self.model)),
            ("model.dtype", str(model_config.dtype)),
            ("model.task", f"{model_config.runner_type}/{model_config.convert_type}"),
            ("model.max_tokens", str(model_config.max_model_len)),
        ]


def config_digest(fields: dict[str, Any]) -> str:
    """Return the digest of a model's configuration, whatever order its fields come in.

    Where it was read from and which transformers wrote it (`UNUSED`) are left out.
    """
    return digest(*(f"{name}={fields[name]!r}" for name in sorted(fields) if name not in UNUSED))


def source_digest(model: nn.Module) -> str:
    """Return the digest of the source files of a model's classes, torch's own left out."""
    classes = {type(module) for module in model.modules()}
    modules = {cls.__module__: cls for cls in classes if not cls.__module__.startswith("torch.")}
    files = {name: inspect.getsourcefile(modules[name]) for name in sorted(modules)}
    return digest(*(part for name, file in files.items() for part in (name, _text(file))))


def _text(file: str | None) -> str:
    return Path(file).read_text() if file else ""
