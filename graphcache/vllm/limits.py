"""What the plugin does not support: refused when the engine starts, never answered wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from vllm.config import VllmConfig

from graphcache.errors import ConfigError


class Limit(NamedTuple):
    """One thing that is not supported: how to see it, and what to tell the user."""

    applies: Callable[[VllmConfig], bool]
    sentence: str


LIMITS = (
    Limit(
        lambda c: c.use_v2_model_runner,
        "vLLM's Model Runner V2 has no place for a graph cache; set VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    Limit(
        lambda c: c.model_config.runner_type not in ("pooling", "generate"),
        "only pooling and generation are supported",
    ),
    Limit(
        lambda c: c.model_config.attn_type not in ("decoder", "encoder_only"),
        "only decoder models and encoder-only models are supported, no models of both and no hybrids",
    ),
    Limit(
        lambda c: c.model_config.dtype not in (torch.bfloat16, torch.float32),
        "only bfloat16 and float32 are supported; start vLLM with --dtype bfloat16",
    ),
    Limit(lambda c: c.lora_config is not None, "LoRA adapters are not supported; remove --enable-lora"),
    Limit(
        lambda c: c.speculative_config is not None,
        "speculative decoding is not supported; remove --speculative-config",
    ),
    Limit(lambda c: c.model_config.is_multimodal_model, "multimodal models are not supported"),
    Limit(lambda c: c.model_config.uses_mrope, "multimodal rotary positions are not supported"),
    Limit(lambda c: c.model_config.enable_prompt_embeds, "prompt embeddings are not supported"),
    Limit(
        lambda c: c.parallel_config.world_size > c.parallel_config.tensor_parallel_size,
        "workers are supported as tensor parallel ranks only: set pipeline and context parallel sizes to 1",
    ),
    Limit(lambda c: c.model_config.is_moe, "mixture-of-experts models are not supported"),
    Limit(lambda c: c.model_config.use_mla, "multi-head latent attention (MLA) is not supported"),
    Limit(
        lambda c: c.model_config.get_sliding_window() is not None,
        "sliding window attention is not supported; --disable-sliding-window caps the length instead",
    ),
    Limit(lambda c: c.model_config.quantization is not None, "quantised weights are not supported"),
    Limit(
        lambda c: (
            c.cache_config.cache_dtype not in ("auto", str(c.model_config.dtype).removeprefix("torch."))
        ),
        "a KV cache of another dtype than the model's is not supported; remove --kv-cache-dtype",
    ),
    Limit(lambda c: c.kv_transfer_config is not None, "KV cache transfer is not supported"),
    Limit(lambda c: c.weight_transfer_config is not None, "weight transfer is not supported"),
)


def refuse_unsupported(vllm_config: VllmConfig) -> None:
    """Raise on the first thing that is not supported.

    Raises:
        ConfigError: what it is, and what to change.
    """
    for limit in LIMITS:
        if limit.applies(vllm_config):
            raise ConfigError(f"graphcache: {limit.sentence}")
