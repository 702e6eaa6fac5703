"""A vLLM model as a program: the module to compile for a key, its dummy inputs, and its facts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.forward_context import create_forward_context, override_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionType

from graphcache.backends.program import Template
from graphcache.config import MaskForm
from graphcache.errors import ConfigError
from graphcache.fingerprint import digest
from graphcache.key import GraphKey, MaskMode
from graphcache.policy.modes import row_modes
from graphcache.vllm import tokens
from graphcache.vllm.attention import Pages, Rows

UNUSED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
"""Fields of a model's configuration that are no fact of its code, or are facts of their own."""


COLLECTIVES = ("vllm.distributed.parallel_state",)
"""The module that registers the collectives of tensor parallel ranks, as operators that a graph calls."""

FLEX = ("graphcache.backends.flex",)
"""The module that registers the operator which stands for FlexAttention."""


class WholeModel(nn.Module):
    """The model over padded rows of tokens: what one graph of a mode computes.

    ``forward`` takes the tensors of `tokens.Inputs` that the mode takes, then the KV caches of all layers
    if there are any, ``[slots, kv_heads, 2 * head_size]``, which it changes in place; it returns hidden
    states ``[rows, seq_len, hidden]``.
    """

    def __init__(
        self,
        model: nn.Module,
        vllm_config: VllmConfig,
        mode: MaskMode,
        paged: Paged | None,
        form: MaskForm = "ids",
    ) -> None:
        super().__init__()
        self.encoder_only = encoder_only(vllm_config)
        self.typed = takes_types(model)
        self.model = model
        self.mode = mode
        self.form = form
        self._vllm_config = vllm_config
        self._paged = paged

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """Run the model under a forward context that says how the tokens lie."""
        rest = list(more)
        segments = rest.pop(0) if self.mode is MaskMode.CUSTOM and self.form == "flex" else None
        mask = self._mask(rest, positions) if segments is None else None
        pages = None
        if self._paged is not None:
            written = rest.pop(0).flatten()
            read = self._paged.slots(rest.pop(0)) if self.mode is MaskMode.PREFIX else None
            if read is not None:
                mask = tokens.visible_cached(positions, read.shape[1])
            pages = Pages(dict(zip(self._paged.layers, rest, strict=True)), written, read)
        attention = _SameForEveryLayer(Rows(input_ids.shape[0], mask, segments, pages))
        types = {"token_type_ids": rest.pop(0).flatten()} if self.typed else {}
        ids = input_ids.flatten()
        if self.encoder_only:
            ids = ids.clone()  # BERT keeps token types in the ids that it is given, for a while
        with override_forward_context(create_forward_context(attention, self._vllm_config)):
            hidden = self.model(input_ids=ids, positions=positions.flatten(), **types)
        return hidden.view(*input_ids.shape, -1)

    def _mask(self, rest: list[torch.Tensor], positions: torch.Tensor) -> torch.Tensor | None:
        """Build what the mode masks with from the input that it takes for that, the next of the rest."""
        match self.mode:
            case MaskMode.CUSTOM if self.form == "dense":
                return rest.pop(0)
            case MaskMode.CUSTOM if self.encoder_only:
                return tokens.together(rest.pop(0))
            case MaskMode.CUSTOM:
                return tokens.visible(rest.pop(0), positions)
            case MaskMode.PADDED:
                return tokens.real(rest.pop(0), positions.shape[1])
        return None


class Paged:
    """The layers that keep a KV cache, and its block size in tokens."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        layers = vllm_config.compilation_config.static_forward_context
        self.layers = [name for name, layer in layers.items() if isinstance(layer, Attention)]
        self.block_size = vllm_config.cache_config.block_size
        self._layers = layers

    def caches(self) -> tuple[torch.Tensor, ...]:
        """Return vLLM's own tensors, a token a slot: ``[slots, kv_heads, 2 * head_size]`` per layer."""
        return tuple(self._layers[name].kv_cache.transpose(1, 2).flatten(0, 1) for name in self.layers)

    def slots(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return the slots of ``[rows, width]`` blocks, ``[rows, width * block_size]``."""
        offsets = torch.arange(self.block_size)
        return (blocks[:, :, None] * self.block_size + offsets).flatten(1)


class _SameForEveryLayer(dict[str, Rows]):
    """Attention metadata by layer name, as vLLM asks for it."""

    def __init__(self, attention: Rows) -> None:
        super().__init__()
        self.attention = attention

    def __getitem__(self, layer_name: str) -> Rows:
        return self.attention


class VllmProgram:
    """The live model of one vLLM worker, as graph backends see it; ``form`` is its custom masks'."""

    def __init__(self, model: nn.Module, vllm_config: VllmConfig, form: MaskForm = "ids") -> None:
        self.form = form
        self.model = model
        self.vllm_config = vllm_config
        generates = vllm_config.model_config.runner_type == "generate"
        self.paged = Paged(vllm_config) if generates else None
        self.typed = takes_types(model)
        _check_layers(vllm_config)
        alone = row_modes(encoder_only(vllm_config))
        modes = [MaskMode.CUSTOM, *alone, *([MaskMode.PREFIX] if generates else [])]
        ranks = vllm_config.parallel_config.tensor_parallel_size
        self.operators = (*(COLLECTIVES if ranks > 1 else ()), *(FLEX if form == "flex" else ()))
        self._modules = {
            mode: WholeModel(model, vllm_config, mode, self.paged, form).eval() for mode in modes
        }

    def module(self, key: GraphKey) -> nn.Module:
        """Return the module of this key's mode; all share the live model.

        Raises:
            ConfigError: a mode that this model does not run in.
        """
        if key.mode not in self._modules:
            raise ConfigError.of("key", str(key), f"graphs in mode {', '.join(self._modules)}")
        return self._modules[key.mode]

    def padding(self, key: GraphKey) -> tokens.Inputs:
        """Return inputs of this key's shapes that hold nothing but padding."""
        return tokens.Inputs.padding(key, self.paged.block_size if self.paged else None, typed=self.typed)

    def given(self, inputs: tokens.Inputs) -> tuple[torch.Tensor, ...]:
        """Return the tensors that a graph takes of its inputs, in its order."""
        if self.form == "dense":
            causal = not encoder_only(self.vllm_config)
            inputs = inputs.with_mask(self.vllm_config.model_config.dtype, causal=causal)
        return inputs.given()

    def caches(self) -> tuple[torch.Tensor, ...]:
        """Return what every graph takes behind its inputs: the KV caches, if the model keeps any."""
        return self.paged.caches() if self.paged else ()

    def inputs(self, key: GraphKey) -> tuple[torch.Tensor, ...]:
        """Return inputs of this key's shapes: padding, and vLLM's own KV caches."""
        return (*self.given(self.padding(key)), *self.caches())

    def dynamic_shapes(self, key: GraphKey) -> Any:
        """Return the number of KV slots as dynamic: it follows from free memory, and is no part of a key."""
        if self.paged is None:
            return None
        slots = {0: torch.export.Dim("slots", min=2)}
        fixed = [None] * (len(self.padding(key).given()) - 2)
        return (None, None, (*fixed, *[slots] * len(self.paged.layers)))

    def template(self, key: GraphKey) -> Template:
        """Return the export in which new tokens and cached blocks are open, unless there is one of them."""
        given = self.given(self.padding(key))
        new = _open("new", key.seq_len)
        open_by_dimensions = {1: None, 2: new, 4: _square(new)}
        shapes: list[Any] = [open_by_dimensions[each.dim()] for each in given]
        sizes = {"token": key.seq_len}
        if key.mode is MaskMode.PREFIX:
            sizes["block"] = given[-1].shape[1]
            shapes[-1] = _open("blocks", sizes["block"])
        if self.paged is not None:
            shapes += self.dynamic_shapes(key)[2][len(given) - 2 :]
        fixed = [f"one {what}" for what, size in sizes.items() if size == 1]
        name = " ".join((f"{key.kind}/{key.mode} of {key.rows} rows", *key.flags, *fixed))
        return Template(name, (*shapes[:2], tuple(shapes[2:])))

    def facts(self) -> list[tuple[str, str]]:
        """Return the model's facts: its configuration and source as digests, dtypes, task, vLLM version."""
        from vllm import __version__

        model_config, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        return [
            ("vllm", __version__),
            ("model.rank", f"{parallel.rank} of {parallel.tensor_parallel_size}"),
            ("model.architectures", ",".join(model_config.architectures)),
            ("model.config", config_digest(model_config.hf_config.to_dict())),
            ("model.source", source_digest(self.model)),
            ("model.dtype", str(model_config.dtype)),
            ("model.task", f"{model_config.runner_type}/{model_config.convert_type}"),
            ("model.max_tokens", str(model_config.max_model_len)),
            ("model.block_size", str(self.paged.block_size) if self.paged else "none"),
            ("model.mask", self.form),
        ]


def encoder_only(vllm_config: VllmConfig) -> bool:
    """Say whether the model's attention has no causal term."""
    return bool(vllm_config.model_config.attn_type == "encoder_only")


def takes_types(model: nn.Module) -> bool:
    """Say whether a model takes token types, which tell two texts of one sequence apart."""
    return "token_type_ids" in inspect.signature(model.forward).parameters


def _check_layers(vllm_config: VllmConfig) -> None:
    """Refuse a model whose layers attend in another way than vLLM says of the whole."""
    wanted = AttentionType.ENCODER_ONLY if encoder_only(vllm_config) else AttentionType.DECODER
    for name, layer in vllm_config.compilation_config.static_forward_context.items():
        if isinstance(layer, Attention) and layer.attn_type != wanted:
            raise ConfigError(f"graphcache: layer {name} has {layer.attn_type} attention, not {wanted}")


def _open(name: str, size: int) -> dict[int, Any] | None:
    """Leave a second dimension open; one of size 1 can't be."""
    return {1: torch.export.Dim(name, min=2)} if size > 1 else None


def _square(opened: dict[int, Any] | None) -> dict[int, Any] | None:
    """Leave both sides of a mask open, as a row of tokens is."""
    return {2: opened[1], 3: opened[1]} if opened else None


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
