"""From a configuration and vLLM's own limits to the cache of one worker."""

from __future__ import annotations

from vllm.config import VllmConfig

from graphcache.backends.protocol import Backend
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.config import Config, Environment, load_config
from graphcache.config.build import build_backend, build_cache, build_policy
from graphcache.errors import ConfigError, LadderError, PolicyError
from graphcache.policy.protocol import Ladders, View
from graphcache.vllm.program import VllmProgram

DEFAULT_POLICY = "dynamic-dual"


def open_cache(program: VllmProgram) -> tuple[GraphCache, Backend]:
    """Build the cache that ``GRAPHCACHE_POLICY`` configures for one live model, and its backend.

    Raises:
        ConfigError: an option that a part of the configuration does not take.
        StoreError: the store can't be used.
    """
    config = _config()
    backend = build_backend(config, program)
    return build_cache(config, backend, ladders=_ladders(config, program.vllm_config)), backend


def check_policy(vllm_config: VllmConfig) -> None:
    """Plan the largest batches that vLLM may schedule, so that a mistake shows before the first request.

    Raises:
        ConfigError: the policy can't serve them; names the setting of each side, and the remedy.
    """
    config = _config()
    policy = build_policy(config, _ladders(config, vllm_config))
    state = policy.start()
    scheduler = vllm_config.scheduler_config
    longest = vllm_config.model_config.max_model_len
    for setting, batch in (
        (f"max_model_len {longest}", Batch.of([longest])),
        (
            f"max_num_seqs {scheduler.max_num_seqs} and max_num_batched_tokens "
            f"{scheduler.max_num_batched_tokens}",
            _largest_batch(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, longest),
        ),
    ):
        try:
            policy.plan(batch, View({}), state)
        except (LadderError, PolicyError) as error:
            raise ConfigError(
                f"graphcache: policy {config.policy.name} can't serve vLLM's {setting}: {error}"
            ) from error


def _largest_batch(sequences: int, tokens: int, longest: int) -> Batch:
    """Return the batch of most tokens, of at most so many sequences, each of at most ``longest`` tokens."""
    sequences = min(sequences, tokens)
    tokens = min(tokens, sequences * longest)
    each, more = divmod(tokens, sequences)
    return Batch.of([each + 1] * more + [each] * (sequences - more))


def _config() -> Config:
    return load_config(Environment.read().policy or DEFAULT_POLICY)


def _ladders(config: Config, vllm_config: VllmConfig) -> Ladders:
    scheduler = vllm_config.scheduler_config
    return config.ladders(max_tokens=scheduler.max_num_batched_tokens, max_rows=scheduler.max_num_seqs)
