"""``GET /graphcache/stats`` on vLLM's own server, where ``VLLM_PLUGINS`` names ``graphcache``."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Request

from graphcache.runs import hit_ratio
from graphcache.stats import merge


class StatsEndpoint:
    """Answers with the counters of all workers of all engines added up, and with each worker's own."""

    name = "graphcache"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the route."""
        app.add_api_route("/graphcache/stats", _stats, methods=["GET"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Keep the way to the engine; there is none on a render server."""
        state.graphcache_engine = engine_client


async def _stats(request: Request) -> dict[str, Any]:
    engine = getattr(request.app.state, "graphcache_engine", None)
    if engine is None:
        raise HTTPException(503, "this server has no engine")
    try:
        # Its own `collective_rpc` asks all data-parallel engines, and returns what the first one says.
        engines = await engine.engine_core.call_utility_all_async("collective_rpc", "graphcache_stats")
    except Exception as error:
        raise HTTPException(503, f"the workers have no graph cache: {error}") from error
    ranks = [rank for ranks in engines for rank in ranks]
    merged = merge(ranks)
    return {**merged, "hit_ratio": hit_ratio(merged["total"]), "ranks": ranks}
