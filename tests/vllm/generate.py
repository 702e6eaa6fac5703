"""Generate greedily from seeded prompts through a real vLLM engine in this process; write what came out.

    python generate.py JOB.json OUT.json

A job names the model's directory, vLLM's arguments, how many tokens to generate, runs as `batches.py` takes
them, and the prompts' texts unless they are `prompts`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
from batches import new_cache


def prompts() -> list[dict[str, Any]]:
    """Sixteen prompts of mixed lengths.

    Some share two blocks of 32 tokens, which the first step writes for one of them and reads for another.
    """
    rng = np.random.default_rng(3)
    shared = rng.integers(0, 256, 64).tolist()
    prompts = [shared + rng.integers(0, 256, n).tolist() for n in (30, 1, 2, 60, 90, 5)]
    prompts += [rng.integers(0, 256, n).tolist() for n in (1, 5, 32, 33, 64, 90, 128, 150, 199, 17)]
    return [{"prompt_token_ids": prompt} for prompt in prompts]


def generate(llm: Any, new_tokens: int, texts: list[str] | None = None) -> dict[str, Any]:
    """Generate twice (the second time finds its prefixes); return tokens and texts, and what that took.

    ``grown_bytes`` is by how much the process's largest resident size has grown.
    """
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    longest = llm.model_config.max_model_len - new_tokens
    fitting = texts or [prompt for prompt in prompts() if len(prompt["prompt_token_ids"]) <= longest]
    before, bytes_before = preemptions(llm), resident_bytes()
    outputs = [
        output.outputs[0] for _ in range(2) for output in llm.generate(fitting, greedy, use_tqdm=False)
    ]
    return {
        "tokens": [list(output.token_ids) for output in outputs],
        "texts": [output.text for output in outputs],
        "preemptions": preemptions(llm) - before,
        "grown_bytes": resident_bytes() - bytes_before,
    }


def preemptions(llm: Any) -> int:
    """Count the sequences that had to give their KV blocks up since the engine started."""
    return sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def resident_bytes() -> int:
    """Return the largest size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    from vllm import LLM

    llm = LLM(
        model=job["model"], dtype="float32", disable_log_stats=False, enforce_eager=True, **job["engine"]
    )
    runs: dict[str, Any] = {}
    if not job["runs"]:
        runs["engine"] = generate(llm, job["new_tokens"], job.get("prompts"))
        if "GRAPHCACHE_PLATFORM" in os.environ:
            ranks = llm.collective_rpc("graphcache_stats")
            runs["engine"] |= {"stats": ranks[0], "ranks": ranks}
    for name, policy, tampering in job["runs"]:
        llm.reset_prefix_cache()
        with new_cache(llm, policy, tampering) as graphs:
            runs[name] = generate(llm, job["new_tokens"]) | {"stats": graphs.snapshot()}
    Path(sys.argv[2]).write_text(json.dumps(runs))


if __name__ == "__main__":
    main()
