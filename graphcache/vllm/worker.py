"""The vLLM worker that owns a cache of graphs: warms it, reports on it, closes it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from vllm import envs
from vllm.logger import init_logger
from vllm.utils.cpu_resource_utils import parse_id_list
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import CompilationTimes

import graphcache.vllm.norm  # noqa: F401  (registers the layer before a model is built)
from graphcache.bytesize import format_bytes
from graphcache.cache import GraphCache
from graphcache.config.environment import Environment
from graphcache.exporter import SharedMetrics
from graphcache.snapshots import publish
from graphcache.vllm.runner import GraphCacheModelRunner
from graphcache.vllm.setup import beside_workers

logger = init_logger(__name__)


class GraphCacheWorker(CPUWorker):
    """A CPU worker whose model runner takes every forward pass from the graph cache."""

    def init_device(self) -> None:
        """Set the device up, and make the runner ours."""
        _bind_threads(self.local_rank)
        super().init_device()
        # CPUWorker builds its runner itself; ours has other methods and the same state.
        self.model_runner.__class__ = GraphCacheModelRunner

    def determine_available_memory(self) -> int:
        """Return the bytes for the KV cache, less what compile workers need, unless the size was given.

        Raises:
            ConfigError: they leave nothing.
        """
        available = super().determine_available_memory()
        explicit = self.cache_config.kv_cache_memory_bytes is not None
        if explicit or not self.model_runner.graphs.supplier.background:
            return available
        left = beside_workers(available)
        logger.info("graphcache keeps %s for its compile workers", format_bytes(available - left))
        return left

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Load or compile the policy's graphs, then hold the cache to what it has."""
        times = super().compile_or_warm_up_model()
        compile_seconds = self.model_runner.warm()
        _publish(self.model_runner.graphs, self.rank)
        return CompilationTimes(times.language_model + compile_seconds, times.encoder)

    def graphcache_stats(self) -> dict[str, Any]:
        """Return what this worker's cache has counted, as plain values; for ``collective_rpc``."""
        return self.model_runner.graphs.snapshot()

    def shutdown(self) -> None:
        """Close the cache before the model goes."""
        graphs = getattr(getattr(self, "model_runner", None), "graphs", None)
        if graphs is not None:
            graphs.close()
        super().shutdown()

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        """Allocate as usual: vLLM sends platforms from outside to an accelerator's allocator."""
        return nullcontext()


def _publish(graphs: GraphCache, rank: int) -> None:
    """Let the front end see what this worker's cache counts."""
    environment = Environment.read()
    if environment.snapshots is not None:
        also = SharedMetrics().update if environment.shared_metrics else None
        publish(graphs, environment.snapshots, rank, also)


def _bind_threads(local_rank: int) -> None:
    """Run on the CPUs that ``VLLM_CPU_OMP_THREADS_BIND`` lists: vLLM binds its own CPU platform only."""
    listed = envs.VLLM_CPU_OMP_THREADS_BIND
    if listed in ("auto", "nobind"):
        return
    cpus = parse_id_list(listed.split("|")[local_rank])
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(len(cpus))
