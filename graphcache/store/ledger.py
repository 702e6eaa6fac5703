"""What a store remembers beside its entries: runs, manifests, failed compiles.  All of it may be lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from graphcache.errors import ConfigError
from graphcache.fingerprint import digest as digest_of

MAX_RUNS = 256
"""Runs that are remembered; the oldest leave first."""
FAILURE_TTL_SECONDS = 3600.0

_RUNS = "runs"
_SEP = ":"


class Table(Protocol):
    """Named values of plain JSON."""

    def get(self, name: str) -> Any:
        """Return a value, or None."""
        ...

    def update(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Replace a value by what ``change`` makes of it, at once for all processes; return the new one.

        ``change`` is given None where there is no value, and removes it by returning None.
        """
        ...

    def names(self) -> Iterable[str]:
        """Return all names."""
        ...


class MemoryTable:
    """A table in memory."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """Return a value, or None."""
        return self._values.get(name)

    def update(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Replace a value by what ``change`` makes of it."""
        value = change(self._values.pop(name, None))
        if value is not None:
            self._values[name] = value
        return value

    def names(self) -> list[str]:
        """Return all names."""
        return list(self._values)


class Failure(NamedTuple):
    """A compile that failed a short while ago."""

    compiler: str
    message: str
    recorded: float


class Ledger:
    """Runs, manifests and failed compiles of one store.

    ``clock`` gives seconds since 1970.  A failure recorded in what is now the future counts as expired,
    so that a clock that was wrong makes nothing last.
    """

    def __init__(self, table: Table, clock: Callable[[], float] = time.time) -> None:
        self._table = table
        self._clock = clock

    def record_run(self, run_id: str, snapshot: dict[str, Any]) -> None:
        """Keep a run's statistics so far, in place of what was kept of this run before.

        Raises:
            ConfigError: they are not plain JSON.
        """
        _check_json("snapshot", snapshot)
        known = self._table.get("run" + _SEP + run_id) is not None
        self._table.update("run" + _SEP + run_id, lambda _: snapshot)
        if known:
            return
        order = self._table.update(_RUNS, lambda old: [*_texts(old), run_id])
        forgotten = _texts(order)[:-MAX_RUNS]
        for run in forgotten:
            self._table.update("run" + _SEP + run, lambda _: None)
        if forgotten:
            self._table.update(_RUNS, lambda old: [run for run in _texts(old) if run not in forgotten])

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return the statistics of each run, the oldest run first."""
        found = {run: self._table.get("run" + _SEP + run) for run in _texts(self._table.get(_RUNS))}
        return {run: snapshot for run, snapshot in found.items() if isinstance(snapshot, dict)}

    def save_manifest(self, namespace: str, policy: str, manifest: dict[str, Any]) -> None:
        """Keep what a restart needs to warm the right graphs in the right order.

        Raises:
            ConfigError: it is not plain JSON.
        """
        _check_json("manifest", manifest)
        self._table.update(_manifest(namespace, policy), lambda _: manifest)

    def load_manifest(self, namespace: str, policy: str) -> dict[str, Any] | None:
        """Return what `save_manifest` kept, or None."""
        manifest = self._table.get(_manifest(namespace, policy))
        return manifest if isinstance(manifest, dict) else None

    def remember_failure(self, digest: str, compiler: str, message: str) -> None:
        """Note that this version of the compiler failed on an entry."""
        value = [compiler, message, self._clock()]
        self._table.update("failure" + _SEP + digest, lambda _: value)

    def forget_failure(self, digest: str) -> None:
        """Forget a failure: the compile worked, or is to be tried again."""
        name = "failure" + _SEP + digest
        if self._table.get(name) is not None:
            self._table.update(name, lambda _: None)

    def failure(self, digest: str, compiler: str, ttl_seconds: float = FAILURE_TTL_SECONDS) -> Failure | None:
        """Return the failure of this very compiler, if it happened within the last ``ttl_seconds``."""
        failure = self._read_failure("failure" + _SEP + digest)
        if failure is None or failure.compiler != compiler:
            return None
        age_seconds = self._clock() - failure.recorded
        return failure if 0 <= age_seconds < ttl_seconds else None

    def failures(self) -> dict[str, Failure]:
        """Return all that is remembered, expired or not, by digest."""
        names = [name for name in self._table.names() if name.startswith("failure" + _SEP)]
        found = {name.partition(_SEP)[2]: self._read_failure(name) for name in names}
        return {digest: failure for digest, failure in found.items() if failure is not None}

    def _read_failure(self, name: str) -> Failure | None:
        match self._table.get(name):
            case [str(compiler), str(message), float(recorded)]:
                return Failure(compiler, message, recorded)
        return None


def _check_json(field: str, value: object) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError.of(field, type(value).__name__, f"plain JSON ({error})") from None


def _manifest(namespace: str, policy: str) -> str:
    return "manifest" + _SEP + digest_of(namespace, policy)


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
