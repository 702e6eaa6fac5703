"""Runs: the counters of each cache in each process, kept in a store, and added up for people."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import urlsplit

from graphcache.errors import ConfigError, GraphCacheError
from graphcache.stats import merge

UNKNOWN_POLICY = "unknown"
STATS_PATH = "/graphcache/stats"
ANSWER_SECONDS = 10.0
MOST_ANSWER_BYTES = 64 * 2**20
MOST_REASON_BYTES = 500
REMEDY = "a vLLM server tells where it runs this package, and VLLM_PLUGINS names graphcache"


class Snapshots(Protocol):
    """What a run is recorded of: a `GraphCache`."""

    def snapshot(self) -> dict[str, Any]:
        """Return the statistics so far as plain JSON values."""
        ...


class RunTable(Protocol):
    """Where runs are kept: a store's ledger."""

    def record_run(self, run_id: str, snapshot: dict[str, Any]) -> None:
        """Keep a run's statistics so far, in place of what was kept of this run before."""
        ...


class RunLog:
    """Keeps one cache's counters in a store's ledger; call ``flush`` from time to time and at the end.

    ``policy`` is told beside them; ``clock`` gives seconds since 1970, for people to read.
    """

    def __init__(
        self, table: RunTable, cache: Snapshots, policy: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._table = table
        self._cache = cache
        self._clock = clock
        self._facts = {"policy": policy, "process": os.getpid(), "started": clock()}
        self.run_id = uuid.uuid4().hex[:12]

    def flush(self) -> None:
        """Keep what was counted so far; the events are left out."""
        snapshot = {**self._cache.snapshot(), **self._facts, "updated": self._clock()}
        snapshot.pop("events", None)
        self._table.record_run(self.run_id, snapshot)


def summarise(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Add runs up, in all and per policy, as plain JSON values.

    Returns ``runs`` (one head each: id, policy, process, started, steps), ``total`` and, by name,
    ``policies``, each of the latter two with what `graphcache.stats.merge` returns and the ``hit_ratio``.
    A run that can't be read, damaged or of another version, is left out and counted in ``unreadable``.
    """
    by_policy: dict[str, list[dict[str, Any]]] = {}
    heads, unreadable = [], 0
    for run_id, snapshot in runs.items():
        counted = _counted(snapshot)
        if counted is None:
            unreadable += 1
            continue
        policy = str(snapshot.get("policy", UNKNOWN_POLICY))
        by_policy.setdefault(policy, []).append(counted)
        head = {field: snapshot.get(field) for field in ("process", "started")}
        heads.append({"id": run_id, "policy": policy, **head, "steps": counted["steps"]})
    return {
        "runs": heads,
        "unreadable": unreadable,
        "total": _with_ratio([snapshot for group in by_policy.values() for snapshot in group]),
        "policies": {policy: _with_ratio(group) for policy, group in sorted(by_policy.items())},
    }


def choose(runs: Mapping[str, dict[str, Any]], run_id: str | None) -> Mapping[str, dict[str, Any]]:
    """Return one run by its id or the first letters of it, or all of them where none is asked for.

    Raises:
        ConfigError: no such run.
    """
    if run_id is None:
        return runs
    chosen = {known: snapshot for known, snapshot in runs.items() if known.startswith(run_id)}
    if not chosen:
        raise ConfigError.of("run", run_id, ", ".join(runs) or "none: this store knows of no run")
    return chosen


def ask_server(url: str) -> dict[str, Any]:
    """Return what a running server's caches counted, in the form of `summarise`.

    ``url`` is the server's, such as ``http://localhost:8000``.

    Raises:
        ConfigError: it is no such URL.
        GraphCacheError: no answer, or not this package's.
    """
    if not _is_server(url):
        raise ConfigError.of("url", url, "a server's, such as http://localhost:8000")
    merged = _fetch(url)
    try:
        total = {field: merged[field] for field in ("steps", "total", "keys", "errors", "hit_ratio")}
    except (LookupError, TypeError) as error:
        raise GraphCacheError(f"{url} tells something else at {STATS_PATH}") from error
    return {"runs": [], "unreadable": 0, "total": total, "policies": {url: total}}


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        return bool(named) and url.split() == [url]
    except ValueError:  # a port that is no number, or brackets that do not close
        return False


def _fetch(url: str) -> Any:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}{STATS_PATH}", timeout=ANSWER_SECONDS) as answer:
            return json.loads(answer.read(MOST_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(MOST_REASON_BYTES).decode(errors="replace")
        why = f"{url} answers {error.code} at {STATS_PATH}: {said or error.reason}"
        raise GraphCacheError(f"{why}; {REMEDY}") from error
    except OSError as error:
        raise GraphCacheError(f"no server answers at {url}: {getattr(error, 'reason', error)}") from error
    except (HTTPException, ValueError) as error:
        raise GraphCacheError(f"{url} tells something else at {STATS_PATH}: {error}") from error


def hit_ratio(counters: Mapping[str, Any]) -> float | None:
    """Return which share of the wanted graphs was resident; None where none was wanted."""
    wanted = counters["hits"] + counters["fallbacks"] + counters["stalls"]
    return counters["hits"] / wanted if wanted else None


def _counted(snapshot: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the counters of one run, brought into one form; None where they are not such."""
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        return merge([dict(snapshot)])
    return None


def _with_ratio(snapshots: list[dict[str, Any]]) -> dict[str, Any]:
    merged = merge(snapshots)
    return {**merged, "hit_ratio": hit_ratio(merged["total"])}
