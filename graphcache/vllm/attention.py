"""Attention inside a graph: scaled dot product over padded rows, with a mask or the causal flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import KVCacheLayout

from graphcache.backends.flex import flex_attention
from graphcache.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pages:
    """The KV cache of one graph: where its tokens are written, and what they look at.

    ``caches`` are by layer name, ``[slots, kv_heads, 2 * head_size]``, keys before values; ``written``
    ``[tokens]`` are slots, and so are ``read`` ``[rows, kv_len]``, or None where nothing was cached before.
    """

    caches: Mapping[str, torch.Tensor]
    written: torch.Tensor
    read: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rows(AttentionMetadata):
    """How the tokens of one graph lie: ``rows`` rows of equal length.

    ``mask`` is a tensor ``[rows, 1, seq_len, keys]``: bool, true where a query may look at a key, or
    additive in the model's dtype; or None where each row is one sequence: padded at its right end under a
    causal term, or full without one.  ``segments`` ``[rows, seq_len]`` stand for a mask that lets each token
    look at its own segment.  ``pages`` is None where no KV cache is kept.
    """

    rows: int
    mask: torch.Tensor | None = None
    segments: torch.Tensor | None = None
    pages: Pages | None = None


@register_backend(AttentionBackendEnum.CUSTOM)
class RowAttentionBackend(AttentionBackend):
    """Attention of a whole-model graph: shapes are the key's, the mask is the graph's own."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16]
    forward_includes_kv_cache_update = True

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Return the one layout in which a token's keys and values lie together."""
        return (KVCacheLayout.LBNHC,)

    @staticmethod
    def get_name() -> str:
        """Return the name that vLLM keeps for backends from outside."""
        return AttentionBackendEnum.CUSTOM.name

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return the class that computes attention."""
        return RowAttention

    @staticmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder]:
        """Return the class that describes a step's batch."""
        return BatchMetadataBuilder


class BatchMetadataBuilder(AttentionMetadataBuilder[CommonAttentionMetadata]):
    """Hands vLLM's own description of the batch on: what a graph needs is cut from it per launch."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CommonAttentionMetadata:
        """Return the batch's description unchanged."""
        return common_attn_metadata


class RowAttention(AttentionImpl[Rows]):
    """Scaled dot product attention over the rows of a graph.

    Raises:
        ConfigError: the layer needs what this attention does not compute.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        unsupported = {
            "ALiBi": alibi_slopes,
            "a sliding window": sliding_window,
            "a soft cap on logits": logits_soft_cap,
            "a KV cache shared between layers": kv_sharing_target_layer_name,
            **{f"attention option {name}": value for name, value in extra.items()},
        }
        for what, value in unsupported.items():
            if value is not None:
                raise ConfigError(f"graphcache does not support attention with {what}: {value!r}")
        if attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
            raise ConfigError(
                f"graphcache does not support {attn_type} attention, only decoder, encoder_only"
            )
        self.causal = attn_type == AttentionType.DECODER
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_size = head_size
        self.scale = scale
        self.kv_cache_dtype = kv_cache_dtype

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Rows,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write attention over ``[tokens, heads, head_size]`` inputs into ``output``, and return it."""
        rows, mask, pages = attn_metadata.rows, attn_metadata.mask, attn_metadata.pages
        queries = _by_row(query, rows)
        keys, values = _by_row(key, rows), _by_row(value, rows)
        if pages is not None:
            cache = pages.caches[layer.layer_name]
            cache.index_copy_(0, pages.written, torch.cat((key, value), dim=-1))
            if pages.read is not None:
                keys, values = cache[pages.read].transpose(1, 2).split(self.head_size, dim=-1)
        if attn_metadata.segments is not None:
            result = flex_attention(queries, keys, values, attn_metadata.segments, self.causal, self.scale)
        else:
            result = scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=mask,
                is_causal=self.causal and mask is None,
                scale=self.scale,
                enable_gqa=self.num_heads != self.num_kv_heads,
            )
        return output.copy_(result.transpose(1, 2).reshape(output.shape))


def _by_row(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """View ``[tokens, heads, size]`` as ``[rows, heads, seq_len, size]``."""
    return tensor.reshape(rows, -1, *tensor.shape[1:]).transpose(1, 2)
