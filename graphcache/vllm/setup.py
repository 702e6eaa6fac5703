"""From a configuration and vLLM's own limits to the cache of one worker."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tp_group

from graphcache.backends.protocol import Backend
from graphcache.backends.torch_group import TorchGroup
from graphcache.batch import Batch, Sequence
from graphcache.bytesize import format_bytes
from graphcache.cache import GraphCache
from graphcache.coarse import Family
from graphcache.config import Config, Environment, load_config
from graphcache.config.build import build_backend, build_cache, build_policy
from graphcache.errors import ConfigError, LadderError, PolicyError
from graphcache.key import MaskMode
from graphcache.needs import check_bytes, check_graphs, families
from graphcache.policy.generation import Generation
from graphcache.policy.protocol import Policy, View
from graphcache.vllm.program import VllmProgram, encoder_only

DEFAULT_POLICY = "dynamic-dual"


def open_program(model: nn.Module, vllm_config: VllmConfig) -> VllmProgram:
    """Return a live model as ``GRAPHCACHE_POLICY`` has its graphs take masks.

    Raises:
        ConfigError: a mistake in the configuration.
    """
    return VllmProgram(model, vllm_config, _config().mask)


def open_cache(program: VllmProgram) -> tuple[GraphCache, Backend]:
    """Build the cache that ``GRAPHCACHE_POLICY`` configures for one live model, and its backend.

    Raises:
        ConfigError: an option that a part of the configuration does not take.
        StoreError: the store can't be used.
    """
    config = _config()
    backend = build_backend(config, program)
    policy = configured_policy(config, program.vllm_config)
    return build_cache(config, backend, policy=policy, group=_ranks(program.vllm_config)), backend


def check_policy(vllm_config: VllmConfig) -> None:
    """Plan the largest batches that vLLM may schedule, so that a mistake shows before the first request.

    Raises:
        ConfigError: the policy can't serve them; names the setting of each side, and the remedy.
    """
    config = _config()
    policy = configured_policy(config, vllm_config)
    _check_modes(policy, config.policy.name, vllm_config)
    state = policy.start()
    for settings, batch in _largest_batches(vllm_config):
        try:
            policy.plan(batch, View({}), state)
        except (LadderError, PolicyError) as error:
            raise ConfigError(
                f"graphcache: policy {config.policy.name} can't serve vLLM's {settings}: {error}"
            ) from error
    try:
        check_graphs(_needed(policy, vllm_config), config.budget.graphs, _setting(vllm_config))
    except ConfigError as error:
        raise ConfigError(f"graphcache: {error}") from None


def beside_workers(available_bytes: int) -> int:
    """Return what is left of an amount of memory beside the compile workers.

    Raises:
        ConfigError: nothing is.
    """
    config = _config()
    left = available_bytes - config.worker_bytes
    if left <= 0:
        raise ConfigError(
            f"graphcache: {config.workers} compile workers take {format_bytes(config.worker_bytes)}, and vLLM"
            f" has {format_bytes(available_bytes)} for its KV cache; set compile.max_bytes or compile.workers"
            " lower, or --gpu-memory-utilization higher"
        )
    return left


def check_warm(cache: GraphCache, vllm_config: VllmConfig) -> None:
    """Check what only a warm-up tells.

    Raises:
        ConfigError: the graphs that one step can need do not fit together.
    """
    check_bytes(_needed(cache.policy, vllm_config), cache.view, _setting(vllm_config))


def _needed(policy: Policy, vllm_config: VllmConfig) -> list[Family]:
    generates = vllm_config.model_config.runner_type == "generate"
    return families(policy, vllm_config.scheduler_config.max_num_seqs, generates=generates)


def _setting(vllm_config: VllmConfig) -> str:
    return f"vLLM's max_num_seqs {vllm_config.scheduler_config.max_num_seqs}"


def _check_modes(policy: Policy, name: str, vllm_config: VllmConfig) -> None:
    """Refuse a policy that knows nothing of models without a causal term, where it meets one."""
    causal = [key for key in policy.warm_keys() if key.mode in (MaskMode.CAUSAL, MaskMode.PREFIX)]
    if causal and encoder_only(vllm_config):
        raise ConfigError(
            f"graphcache: policy {name} asks for {causal[0]}, but an encoder-only model has no causal graphs;"
            " take a policy that has the option encoder_only, and do not set it to false"
        )


def _largest_batches(vllm_config: VllmConfig) -> Iterator[tuple[str, Batch]]:
    """Yield the batches at vLLM's limits, and the settings that each follows from."""
    scheduler = vllm_config.scheduler_config
    longest, tokens = vllm_config.model_config.max_model_len, scheduler.max_num_batched_tokens
    most = min(scheduler.max_num_seqs, tokens)
    yield f"max_model_len {longest}", Batch.of([min(longest, tokens)])
    each, more = divmod(min(tokens, most * longest), most)
    settings = f"max_num_seqs {most} and max_num_batched_tokens {tokens}"
    yield settings, Batch.of([each + 1] * more + [each] * (most - more))
    if vllm_config.model_config.runner_type == "generate" and longest > 1:
        yield f"max_num_seqs {most} and max_model_len {longest}", Batch((Sequence(1, longest - 1),) * most)
        yield f"max_model_len {longest}", Batch((Sequence(min(tokens, longest - 1), 1),))


def _ranks(vllm_config: VllmConfig) -> TorchGroup | None:
    """Return the tensor parallel ranks, which must run the same graphs; None where there is one."""
    alone = vllm_config.parallel_config.tensor_parallel_size == 1
    return None if alone else TorchGroup(get_tp_group().cpu_group)


def _config() -> Config:
    return load_config(Environment.read().policy or DEFAULT_POLICY)


def configured_policy(config: Config, vllm_config: VllmConfig) -> Policy:
    """Return the policy of a configuration, with what vLLM's own limits say of its ladders.

    Raises:
        ConfigError: a ladder, or an option of the policy, that can't be.
    """
    scheduler = vllm_config.scheduler_config
    generates = vllm_config.model_config.runner_type == "generate"
    ladders = config.ladders(
        max_tokens=scheduler.max_num_batched_tokens,
        max_rows=scheduler.max_num_seqs,
        max_cached=vllm_config.model_config.max_model_len if generates else None,
    )
    policy = build_policy(config, ladders, encoder_only=encoder_only(vllm_config))
    return Generation(policy, ladders) if generates else policy
