"""The out-of-tree vLLM platform: the CPU, with every forward pass taken from the graph cache."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import PlatformEnum

from graphcache.config.environment import Environment, hand_down_snapshots
from graphcache.snapshots import make_directory
from graphcache.vllm import check_version

if TYPE_CHECKING:  # vllm.config imports the platform, and this module with it
    from vllm.config import VllmConfig

logger = init_logger(__name__)

CLOSING_SECONDS = 10
"""How long a server that ends waits for its workers, unless ``--shutdown-timeout`` says otherwise."""


class GraphCachePlatform(CpuPlatform):
    """vLLM's CPU platform, with whole-model graphs in place of eager layers."""

    _enum = PlatformEnum.OOT

    def __init__(self) -> None:
        _log_as_vllm()
        if not torch.accelerator.is_available():
            # vLLM empties the caches of every platform from outside when it shuts down.
            for name in ("synchronize", "empty_cache", "empty_host_cache"):
                setattr(torch.accelerator, name, lambda *arguments, **options: None)

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """Return the dtypes that are tested against stock vLLM, the preferred one first."""
        return [torch.bfloat16, torch.float32]

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Refuse what is not supported, and set what the graphs need.

        Raises:
            ConfigError: a mistake in the configuration, or something that is not supported.
            GraphCacheError: the installed vLLM is not a supported version.
        """
        from vllm.config import CompilationMode

        from graphcache.vllm.limits import refuse_unsupported
        from graphcache.vllm.setup import check_policy

        check_version()
        if vllm_config.model_config is not None:
            refuse_unsupported(vllm_config)
            if vllm_config.model_config.runner_type == "pooling":
                _run_prompts_whole(vllm_config)
            check_policy(vllm_config)
            _leave_time_to_close(vllm_config)
            if Environment.read().snapshots is None:  # in the front end, whose workers inherit it
                hand_down_snapshots(make_directory())
        vllm_config.compilation_config.mode = CompilationMode.NONE
        # Wrapped, vLLM's own ops would be opaque calls in an exported graph.
        vllm_config.compilation_config.ir_enable_torch_wrap = False
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "graphcache.vllm.worker.GraphCacheWorker"
        super().check_and_update_config(vllm_config)

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Return the attention that lives inside graphs, whatever was selected."""
        return "graphcache.vllm.attention.RowAttentionBackend"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the collectives that graphs may hold."""
        return "graphcache.vllm.collectives.GraphCommunicator"

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        """Say that collectives are operators that take their group's name, so that they can be exported."""
        return True

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Say that attention is called directly, so that it is exported with the model."""
        return False


class _VllmsLog(logging.Handler):
    """Hands over to vLLM's own logger, whatever that is set to."""

    def emit(self, record: logging.LogRecord) -> None:
        vllms = logging.getLogger("vllm")
        if vllms.isEnabledFor(record.levelno):
            vllms.handle(record)


def _log_as_vllm() -> None:
    """Log where vLLM logs what this package has to say, unless somebody has set up a log for it."""
    ours = logging.getLogger("graphcache")
    if not ours.handlers:
        ours.addHandler(_VllmsLog())
        ours.setLevel(logging.INFO)
        ours.propagate = False


def _run_prompts_whole(vllm_config: VllmConfig) -> None:
    """Have every prompt run in one step: no prefix from the KV cache, no chunks, room for the longest."""
    scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
    longest = vllm_config.model_config.max_model_len
    changed = []
    if cache.enable_prefix_caching:
        cache.enable_prefix_caching = False
        changed.append("prefix caching off")
    if scheduler.enable_chunked_prefill:
        scheduler.enable_chunked_prefill = False
        changed.append("chunked prefill off")
    if scheduler.max_num_batched_tokens < longest:
        scheduler.max_num_batched_tokens = longest
        changed.append(f"max_num_batched_tokens raised to {longest}")
    if changed:
        logger.info("graphcache runs each prompt whole: %s", ", ".join(changed))


def _leave_time_to_close(vllm_config: VllmConfig) -> None:
    """Have workers close their caches: by itself vLLM kills them as soon as it is told to end."""
    if not vllm_config.shutdown_timeout:
        vllm_config.shutdown_timeout = CLOSING_SECONDS
        logger.info("graphcache sets shutdown_timeout to %d seconds, to close its caches", CLOSING_SECONDS)
