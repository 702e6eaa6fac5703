"""Run seeded batches through a real vLLM engine in this process; write embeddings and statistics.

    python batches.py JOB.json OUT.npz

A job names the model's directory and dtype, and a list of runs.  Each has a cache of its own: a name, a
policy, and what to break (a name in `TAMPERINGS`) so that a comparison can be seen to fail.  Without runs
the engine serves as it was started: stock vLLM, or the plugin as the environment says; with ``resident``, it
does so until so many graphs are, and once more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

MAX_TOKENS = 1024
MAX_SEQUENCES = 8


def prompts() -> list[list[dict[str, Any]]]:
    """Batches of 1 to 8 sequences of mixed lengths, with a lone token and a full bucket among them."""
    rng = np.random.default_rng(7)
    lengths = [[1], [128], [40, 3, 20]] + [
        rng.integers(1, 120, n).tolist() for n in range(1, MAX_SEQUENCES + 1)
    ]
    return [[{"prompt_token_ids": rng.integers(0, 256, n).tolist()} for n in batch] for batch in lengths]


def leak() -> list[Any]:
    """Let sequences of one row see each other."""
    from graphcache.vllm import attention, tokens

    honest, attend = tokens.together, attention.flex_attention

    def see_all(query: Any, key: Any, value: Any, segments: Any, *how: Any) -> Any:
        return attend(query, key, value, segments * 0, *how)

    return [
        patch.object(tokens, "together", lambda segments: honest(segments * 0)),
        patch.object(attention, "flex_attention", see_all),
    ]


def drop_causal() -> list[Any]:
    """Let tokens look ahead."""
    from graphcache.vllm import attention, tokens

    honest, attend = tokens.visible, attention.scaled_dot_product_attention

    def unbound(*qkv: Any, is_causal: bool, **options: Any) -> Any:
        return attend(*qkv, **options)

    return [
        patch.object(tokens, "visible", lambda segments, positions: honest(segments, positions * 0)),
        patch.object(attention, "scaled_dot_product_attention", unbound),
    ]


def add_causal() -> list[Any]:
    """Keep tokens from looking ahead."""
    import torch

    from graphcache.vllm import attention

    attend = attention.scaled_dot_product_attention

    def bound(*qkv: Any, attn_mask: Any, is_causal: bool, **options: Any) -> Any:
        length = qkv[0].shape[2]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return attend(*qkv, attn_mask=causal if attn_mask is None else attn_mask & causal, **options)

    return [patch.object(attention, "scaled_dot_product_attention", bound)]


def see_padding() -> list[Any]:
    """Let tokens of padded rows look at the padding."""
    from graphcache.vllm import tokens

    honest = tokens.real
    return [patch.object(tokens, "real", lambda lengths, seq_len: honest(lengths * 0 + seq_len, seq_len))]


def drop_types() -> list[Any]:
    """Take every token for one of the first text."""
    from graphcache.vllm import tokens

    honest = tokens.Inputs.fill

    def dropped(inputs: Any, step: Any, spans: Any) -> None:
        honest(inputs, step._replace(types=None), spans)

    return [patch.object(tokens.Inputs, "fill", dropped)]


def shift_positions() -> list[Any]:
    """Put every token but the first one position too low (rotary embeddings can't see a shift of all)."""
    from graphcache.vllm import tokens

    honest = tokens.Inputs.fill

    def shifted(inputs: Any, step: Any, spans: Any) -> None:
        honest(inputs, step._replace(positions=(step.positions - 1).clamp(min=0)), spans)

    return [patch.object(tokens.Inputs, "fill", shifted)]


def swap_blocks() -> list[Any]:
    """Read the KV cache of another sequence."""
    from graphcache.vllm import tokens

    honest = tokens.Inputs.fill

    def swapped(inputs: Any, step: Any, spans: Any) -> None:
        honest(inputs, step._replace(blocks=step.blocks.roll(1, dims=0)), spans)

    return [patch.object(tokens.Inputs, "fill", swapped)]


def see_too_much() -> list[Any]:
    """Look at slots of the KV cache that no token of the sequence was written to yet."""
    from graphcache.vllm import tokens

    honest = tokens.visible_cached
    return [patch.object(tokens, "visible_cached", lambda places, kv_len: honest(places + 9, kv_len))]


def join_waves() -> list[Any]:
    """Run a step's launches in the plan's order, whatever one reads that another writes."""
    from graphcache.vllm import runner

    return [patch.object(runner, "waves", lambda starts, cached, *cache: [list(range(len(cached)))])]


TAMPERINGS = {
    "leak": leak,
    "drop-causal": drop_causal,
    "add-causal": add_causal,
    "see-padding": see_padding,
    "drop-types": drop_types,
    "shift-positions": shift_positions,
    "swap-blocks": swap_blocks,
    "see-too-much": see_too_much,
    "join-waves": join_waves,
}


@contextmanager
def new_cache(llm: Any, policy: str, tampering: str | None) -> Iterator[Any]:
    """Give the running engine a new cache, and break what is named, while the context is open."""
    from graphcache.vllm import setup

    os.environ["GRAPHCACHE_POLICY"] = policy
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    runner.program = setup.open_program(runner.model, runner.vllm_config)
    runner.graphs, runner.backend = setup.open_cache(runner.program)
    with ExitStack() as patches:
        for change in TAMPERINGS[tampering]() if tampering else []:
            patches.enter_context(change)
        yield runner.graphs


def embed(llm: Any, limit_tokens: int = MAX_TOKENS) -> np.ndarray:
    """Return one row per sequence, batch by batch; batches above the limit are left out."""
    fitting = [batch for batch in prompts() if tokens_of(batch) <= limit_tokens]
    ask = classify if "classify" in llm.supported_tasks else vectors
    return np.array([row for batch in fitting for row in ask(llm, batch)], dtype=np.float32)


def vectors(llm: Any, batch: list[dict[str, Any]]) -> list[list[float]]:
    """Return an embedding per sequence."""
    return [output.outputs.embedding for output in llm.embed(batch, use_tqdm=False)]


def classify(llm: Any, batch: list[dict[str, Any]]) -> list[list[float]]:
    """Return the logits of each sequence, its second half being another text, as a unit vector."""
    from vllm import PoolingParams

    halves = [(len(prompt["prompt_token_ids"]) + 1) // 2 for prompt in batch]
    params = [
        PoolingParams(use_activation=False, extra_kwargs={"compressed_token_type_ids": half})
        for half in halves
    ]
    logits = [out.outputs.probs for out in llm.classify(batch, pooling_params=params, use_tqdm=False)]
    return [list(np.array(row) / np.linalg.norm(row)) for row in logits]


def embed_until(llm: Any, resident: int, limit_tokens: int) -> list[np.ndarray]:
    """Embed again and again until so many graphs are resident; return what came of each round."""
    rounds = []
    while len(llm.collective_rpc("graphcache_stats")[0]["resident"]) < resident:
        rounds.append(embed(llm, limit_tokens))
    return rounds


def tokens_of(batch: list[dict[str, Any]]) -> int:
    """Count the tokens of one batch."""
    return sum(len(prompt["prompt_token_ids"]) for prompt in batch)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    import torch
    from vllm import LLM

    # On some hosts that have AMX, an instruction of stock vLLM's AMX attention is an illegal one.
    torch.cpu._is_amx_tile_supported = lambda: False
    limit_tokens = job.get("max_tokens", MAX_TOKENS)
    llm = LLM(
        model=job["model"],
        dtype=job["dtype"],
        runner="pooling",
        convert=job.get("convert", "embed"),
        max_model_len=min(512, limit_tokens),
        max_num_batched_tokens=limit_tokens,
        max_num_seqs=MAX_SEQUENCES,
        enforce_eager=True,  # stock vLLM compiles else, for a minute
        kv_cache_memory_bytes=64 * 2**20,
        **job.get("engine", {}),
    )
    arrays: dict[str, np.ndarray] = {}
    stats: dict[str, Any] = {}
    if not job["runs"]:
        arrays["engine"] = embed(llm, limit_tokens)
        if "resident" in job:
            (stats["before"],) = llm.collective_rpc("graphcache_stats")
            arrays["during"] = np.stack(embed_until(llm, job["resident"], limit_tokens))
            arrays["after"] = embed(llm, limit_tokens)
        if "GRAPHCACHE_PLATFORM" in os.environ:
            stats["engine"], *_ = llm.collective_rpc("graphcache_stats")
    for name, policy, tampering in job["runs"]:
        with new_cache(llm, policy, tampering) as graphs:
            arrays[name], stats[name] = embed(llm), graphs.snapshot()
    np.savez(sys.argv[2], stats=json.dumps(stats), **arrays)


if __name__ == "__main__":
    main()
