"""Serve one stream of prompts under three policies, each in a process of its own, and print what each cost.

Then a table of both kinds of graph, length by length.  On PJRT's CPU::

    PJRT_DEVICE=CPU python -m examples.xla_runner.run
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from examples.xla_runner.runner import PoolingRunner
    from graphcache import GraphKey

POLICIES = Path(__file__).parent / "policies"
POLICY_NAMES = ("static-mask", "static-causal", "dynamic-dual")
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
REPEATS = 5


def stream(steps: int, longest: int, seed: int) -> list[list[list[int]]]:
    """Return steps of one to four prompts: half of them alone, together at most ``longest`` tokens."""
    draw = random.Random(seed)
    drawn = []
    for _ in range(steps):
        count = draw.choice((1, 1, 1, 2, 3, 4))
        lengths = [draw.randint(4, longest // count) for _ in range(count)]
        drawn.append([[draw.randrange(256) for _ in range(length)] for length in lengths])
    return drawn


def serve(policy: str, steps: int, longest: int, seed: int) -> dict[str, Any]:
    """Run the stream in this process; return what the cache and torch-xla counted, and the embeddings."""
    from examples.xla_runner.model import ModelConfig
    from examples.xla_runner.runner import PoolingRunner
    from graphcache.backends.xla import compiles

    runner = PoolingRunner(ModelConfig(), str(POLICIES / f"{policy}.yaml"), longest)
    runner.capture_model()
    began = time.perf_counter()
    outputs = [runner.execute_model(prompts) for prompts in stream(steps, longest, seed)]
    seconds = time.perf_counter() - began
    snapshot = runner.cache.snapshot()
    runner.cache.close()
    return {
        "policy": policy,
        "seconds": seconds,
        "total": snapshot["total"],
        "resident": len(snapshot["resident"]),
        "torch_xla_compiles": compiles(),
        "embeddings": [embedding.tolist() for step in outputs for embedding in step],
    }


def measure(lengths: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Return the median seconds of a prompt of each length, with a mask and without, inputs and all."""
    from examples.xla_runner.model import ModelConfig
    from examples.xla_runner.runner import PoolingRunner
    from graphcache import GraphKey, MaskMode

    runner = PoolingRunner(ModelConfig(), str(POLICIES / "dynamic-dual.yaml"), max(lengths))
    rows = []
    for length in lengths:
        keys = [GraphKey(1, length, mode=mode) for mode in (MaskMode.CUSTOM, MaskMode.CAUSAL)]
        rows.append(
            {"length": length, **{str(key.mode): _median_seconds(runner, key, repeats) for key in keys}}
        )
    runner.cache.close()
    return rows


def _median_seconds(runner: PoolingRunner, key: GraphKey, repeats: int) -> float:
    runner.cache.bring(key)
    graph = runner.cache.resident[key]
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        inputs, _ends = runner.prepare_inputs(key, [[1] * key.seq_len])
        graph(*inputs).cpu()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def in_child(*words: str) -> Any:
    """Run this program in a process of its own; return what it printed, as JSON."""
    command = [sys.executable, "-m", "examples.xla_runner.run", *words]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


def compare(results: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest difference between two policies' embeddings, of any prompt, in any number."""
    first = results[0]["embeddings"]
    return max(
        abs(ours - theirs)
        for result in results
        for row, other in zip(result["embeddings"], first, strict=True)
        for ours, theirs in zip(row, other, strict=True)
    )


def print_policies(results: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each policy."""
    columns = f"{'hits':>6}{'compiles':>10}{'torch-xla':>11}{'compile s':>11}{'stream s':>10}{'graphs':>8}"
    print(f"{'policy':<14}{columns}")
    for result in results:
        total = result["total"]
        counts = f"{total['hits']:>6}{total['compiles']:>10}{result['torch_xla_compiles']:>11}"
        seconds = f"{total['compile_seconds']:>11.2f}{result['seconds']:>10.2f}"
        print(f"{result['policy']:<14}{counts}{seconds}{result['resident']:>8}")


def print_lengths(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each length: seconds with a mask, without, and the ratio."""
    print(f"{'tokens':>6}{'mask s':>10}{'causal s':>10}{'ratio':>8}")
    for row in rows:
        mask, causal = row["custom"], row["causal"]
        print(f"{row['length']:>6}{mask:>10.4f}{causal:>10.4f}{mask / causal:>7.2f}x")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, and run or print."""
    parser = argparse.ArgumentParser(prog="run-xla", description="Serve a stream of prompts on torch-xla.")
    parser.add_argument("--steps", type=int, default=40, help="steps of the stream; 40 unless given")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of a step; 1024 unless given")
    parser.add_argument("--seed", type=int, default=0, help="what the stream follows from")
    parser.add_argument("--policy", choices=POLICY_NAMES, help="run only this one, and print JSON")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="those of the second table")
    parser.add_argument("--measure", action="store_true", help="run only the second table, and print JSON")
    chosen = parser.parse_args(arguments)
    if chosen.policy:
        print(json.dumps(serve(chosen.policy, chosen.steps, chosen.longest, chosen.seed)))
    elif chosen.measure:
        print(json.dumps(measure(chosen.lengths, REPEATS)))
    else:
        words = [f"--steps={chosen.steps}", f"--longest={chosen.longest}", f"--seed={chosen.seed}"]
        results = [in_child("--policy", policy, *words) for policy in POLICY_NAMES]
        print_policies(results)
        print(f"embeddings differ by at most {compare(results):.1e} between policies\n")
        print_lengths(in_child("--measure", "--lengths", *map(str, chosen.lengths)))


if __name__ == "__main__":
    main()
