"""The graph caches' metrics in vLLM's own ``/metrics``: registered here, in the front end."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from graphcache import snapshots
from graphcache.config.environment import Environment
from graphcache.exporter import SnapshotCollector


class GraphCacheStatLogger(StatLoggerBase):
    """Registers the metrics in the front end; vLLM makes one for each engine, the first one registers."""

    _registered = False

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        environment = Environment.read()
        directory = environment.snapshots
        if directory and not environment.shared_metrics and not GraphCacheStatLogger._registered:
            REGISTRY.register(SnapshotCollector(lambda: snapshots.read(directory)))
            GraphCacheStatLogger._registered = True

    def record(self, *arguments: Any, **named: Any) -> None:
        """Do nothing: what the caches count does not come through vLLM's own statistics."""

    def log_engine_initialized(self) -> None:
        """Do nothing."""
