"""vLLM's own dispatcher of captured graphs, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher


def graph_dispatcher(sizes: Sequence[int]) -> Callable[[int], object]:
    """Return the lookup of vLLM 0.32 from a number of tokens to a captured graph of one of these sizes."""
    config = VllmConfig()
    config.compilation_config.cudagraph_capture_sizes = list(sizes)
    config.compilation_config.max_cudagraph_capture_size = max(sizes)
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL)
    return dispatcher.dispatch
