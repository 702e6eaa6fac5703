"""What vLLM does by itself, for comparison: its dispatcher of captured graphs, and its compile cache."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vllm import LLM
from vllm.compilation.counter import compilation_counter
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from graphcache.vllm.models import write_model


def graph_dispatcher(sizes: Sequence[int]) -> Callable[[int], object]:
    """Return the lookup of vLLM 0.32 from a number of tokens to a captured graph of one of these sizes."""
    config = VllmConfig()
    config.compilation_config.cudagraph_capture_sizes = list(sizes)
    config.compilation_config.max_cudagraph_capture_size = max(sizes)
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL)
    return dispatcher.dispatch


def compiled_start(model: Path) -> dict[str, Any]:
    """Start stock vLLM on a model; return the ``seconds`` until its graph was ready, and its ``compiles``.

    The seconds are those of the first warm-up run, less those of a second one.
    """
    ready: list[float] = []
    warm_up = CPUModelRunner.warming_up_model

    def timed_twice(runner: CPUModelRunner) -> None:
        for _ in range(2):
            began = time.perf_counter()
            warm_up(runner)
            ready.append(time.perf_counter() - began)

    CPUModelRunner.warming_up_model = timed_twice
    LLM(
        model=str(model),
        runner="pooling",
        convert="embed",
        dtype="bfloat16",
        max_model_len=2048,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=64 * 2**20,
    )
    return {"seconds": ready[0] - ready[1], "compiles": compilation_counter.num_aot_compiles}


def main() -> None:
    """Do a job, given as JSON: its model is written first if it is not there."""
    model = Path(json.loads(sys.argv[1])["model"])
    if not model.exists():
        write_model(model, hidden=1024, layers=2, heads=16)
    told = compiled_start(model)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
