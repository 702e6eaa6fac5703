"""What one process tells the next: which graphs were worth having, and what the policy has learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from graphcache.errors import GraphCacheError
from graphcache.key import GraphKey
from graphcache.policy.protocol import Policy
from graphcache.stats import Stats

KEPT_SHARE = 0.5
"""What earlier processes' uses count for in a new one."""


class Cache(Protocol):
    """What a manifest is made of: a `GraphCache`."""

    def snapshot(self) -> dict[str, Any]:
        """Return the statistics, and what is resident."""
        ...

    def saved_state(self) -> Any:
        """Return the policy's state as plain JSON values."""
        ...


def write_manifest(cache: Cache, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the manifest of a cache as plain JSON values, on top of an earlier process's.

    ``keys`` has, by key, ``uses`` (steps that it served or was wanted by, earlier ones counted for
    `KEPT_SHARE`), ``compile_seconds``, ``run_seconds`` (mean of one run) and ``bytes``; ``state`` is the
    policy's own.
    """
    snapshot = cache.snapshot()
    keys = {
        key: {**entry, "uses": entry["uses"] * KEPT_SHARE} for key, entry in _entries(earlier or {}).items()
    }
    for key, counters in snapshot["keys"].items():
        entry = keys.setdefault(key, {"uses": 0.0, "compile_seconds": 0.0, "run_seconds": 0.0, "bytes": 0.0})
        entry["uses"] += counters["hits"] + counters["fallbacks"] + counters["stalls"]
        if counters["compiles"]:
            entry["compile_seconds"] = counters["compile_seconds"] / counters["compiles"]
        if counters["runs"]:
            entry["run_seconds"] = counters["run_seconds"] / counters["runs"]
        entry["bytes"] = snapshot["resident"].get(key, entry["bytes"])
    return {"keys": keys, "state": cache.saved_state()}


def key_value(manifest: Mapping[str, Any] | None) -> Callable[[GraphKey], float]:
    """Return the function that says how many seconds a key ran in earlier processes; 0 where it never did."""
    entries = _entries(manifest or {})

    def value(key: GraphKey) -> float:
        entry = entries.get(str(key))
        return entry["uses"] * max(entry["run_seconds"], 1e-6) if entry else 0.0

    return value


def usable_state(manifest: Mapping[str, Any] | None, policy: Policy, stats: Stats) -> Any:
    """Return the policy's state in a manifest, or None where there is none that the policy understands."""
    state = (manifest or {}).get("state")
    if state is None:
        return None
    try:
        policy.start(state)
    except (GraphCacheError, LookupError, TypeError, ValueError, AttributeError) as error:
        stats.fault("manifest", error)
        return None
    return state


def _entries(manifest: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the manifest's keys, without what is damaged or of another version."""
    keys = manifest.get("keys")
    fields = ("uses", "compile_seconds", "run_seconds", "bytes")
    if not isinstance(keys, dict):
        return {}
    return {
        key: {field: float(entry[field]) for field in fields}
        for key, entry in keys.items()
        if isinstance(entry, dict) and all(isinstance(entry.get(field), int | float) for field in fields)
    }
