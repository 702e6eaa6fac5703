"""Run seeded batches through a real vLLM engine in this process; write embeddings and statistics.

    python batches.py JOB.json OUT.npz

A job names the model's directory and dtype, and a list of runs.  Each has a cache of its own: a name, a
policy, and what to break (a name in `TAMPERINGS`) so that a comparison can be seen to fail.  Without runs
the engine serves as it was started: stock vLLM, or the plugin as the environment says.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

MAX_TOKENS = 1024
MAX_SEQUENCES = 8


def prompts() -> list[list[dict[str, Any]]]:
    """Batches of 1 to 8 sequences of mixed lengths, with a lone token and a full bucket among them."""
    rng = np.random.default_rng(7)
    lengths = [[1], [128]] + [rng.integers(1, 120, n).tolist() for n in range(1, MAX_SEQUENCES + 1)]
    return [[{"prompt_token_ids": rng.integers(0, 256, n).tolist()} for n in batch] for batch in lengths]


def leak() -> list[Any]:
    """Let sequences of one row see each other."""
    from graphcache.vllm import tokens

    honest = tokens.visible
    return [patch.object(tokens, "visible", lambda segments, positions: honest(segments * 0, positions))]


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


def shift_positions() -> list[Any]:
    """Put every token but the first one position too low (rotary embeddings can't see a shift of all)."""
    from graphcache.vllm import runner

    honest = runner.fill

    def shifted(inputs: Any, batch: Any, cut: Any) -> None:
        honest(inputs, (batch[0], (batch[1] - 1).clamp(min=0)), cut)

    return [patch.object(runner, "fill", shifted)]


TAMPERINGS = {"leak": leak, "drop-causal": drop_causal, "shift-positions": shift_positions}


def run_policy(llm: Any, policy: str, tampering: str | None) -> tuple[np.ndarray, dict[str, Any]]:
    """Embed all batches through a new cache of the running engine."""
    from graphcache.vllm import setup

    os.environ["GRAPHCACHE_POLICY"] = policy
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    runner.graphs, runner.backend = setup.open_cache(runner.program)
    with ExitStack() as patches:
        for change in TAMPERINGS[tampering]() if tampering else []:
            patches.enter_context(change)
        return embed(llm), runner.graphs.snapshot()


def embed(llm: Any, limit_tokens: int = MAX_TOKENS) -> np.ndarray:
    """Return one row per sequence, batch by batch; batches above the limit are left out."""
    fitting = [batch for batch in prompts() if tokens_of(batch) <= limit_tokens]
    rows = [output.outputs.embedding for batch in fitting for output in llm.embed(batch, use_tqdm=False)]
    return np.array(rows, dtype=np.float32)


def tokens_of(batch: list[dict[str, Any]]) -> int:
    """Count the tokens of one batch."""
    return sum(len(prompt["prompt_token_ids"]) for prompt in batch)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    from vllm import LLM

    limit_tokens = job.get("max_tokens", MAX_TOKENS)
    llm = LLM(
        model=job["model"],
        dtype=job["dtype"],
        runner="pooling",
        convert="embed",
        max_model_len=min(512, limit_tokens),
        max_num_batched_tokens=limit_tokens,
        max_num_seqs=MAX_SEQUENCES,
        kv_cache_memory_bytes=64 * 2**20,
    )
    arrays: dict[str, np.ndarray] = {}
    stats: dict[str, Any] = {}
    if not job["runs"]:
        arrays["engine"] = embed(llm, limit_tokens)
        if "GRAPHCACHE_PLATFORM" in os.environ:
            (stats["engine"],) = llm.collective_rpc("graphcache_stats")
    for name, policy, tampering in job["runs"]:
        arrays[name], stats[name] = run_policy(llm, policy, tampering)
    np.savez(sys.argv[2], stats=json.dumps(stats), **arrays)


if __name__ == "__main__":
    main()
